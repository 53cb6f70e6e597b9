"""advise: checkpoints, modules, folded weights, layer outputs."""

import pytest
import torch
from torch import nn

import linger
from linger import advise, trace_layers
from linger.errors import UsageError
from tests.support.constraint import tensors_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.lstm = nn.LSTM(8, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        x = self.relu(self.bn(self.conv(x))).mean((2, 3))
        return self.fc(self.lstm(x[:, None])[0][:, 0])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def names(advice, role):
    return {item.name for item in advice.items if item.role == role}


def test_a_module_and_its_checkpoint_tell_the_same_of_the_weights(net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "net.pt")
    of_module, of_file = advise(net), advise(tmp_path / "net.pt")
    assert names(of_module, "weight") == names(of_file, "weight")
    assert {"conv.weight", "lstm.weight_ih_l0", "fc.weight"} <= names(of_file, "weight")
    assert "bn.weight" in names(of_file, "other")
    of_file_db = {i.name: i.sqnr_8 for i in of_file.items}
    assert all(of_file_db[i.name] == i.sqnr_8 for i in of_module.items if i.sqnr_8 is not None)


def test_of_a_traced_module_the_folded_weights_are_judged(net):
    with torch.no_grad():
        net.bn.weight[3] = 200.0  # invisible in conv.weight, decisive once it is folded
    before = next(i for i in advise(net).items if i.name == "conv.weight")
    trace_layers(net, torch.randn(2, 3, 8, 8))
    after = next(i for i in advise(net).items if i.name == "conv.weight")
    assert before.max < 1 < after.max
    assert after.max == pytest.approx(float((net.conv.conv.weight[3].detach() * 200).abs().max()), rel=1e-4)
    assert after.channel_bits > 6
    assert not any(i.name.startswith(("conv.conv", "conv.bn")) for i in advise(net).items)


def test_a_traced_checkpoint_names_the_fused_layer(net):
    trace_layers(net, torch.randn(2, 3, 8, 8))
    found = next(i for i in advise(net.state_dict()).items if i.name == "conv.conv.weight")
    assert found.module == "conv"


def test_layer_outputs(net):
    with torch.no_grad():
        net.conv.bias[0] = 500.0
    state = {k: v.clone() for k, v in net.state_dict().items()}
    inputs = [torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16)]
    random_state = torch.get_rng_state()
    advice = advise(net.train(), inputs)
    assert names(advice, "output") == {"conv", "bn", "relu", "lstm", "fc"}
    found = next(i for i in advice.items if i.name == "conv" and i.role == "output")
    with torch.no_grad():
        assert found.max == max(float(net.conv(x).abs().max()) for x in inputs)
    # relu is no layer that can be limited: its line would do nothing
    assert next(i for i in advice.items if i.name == "relu").line == ""
    assert net.training
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(m._forward_hooks for m in net.modules())


def test_long_outputs_are_thinned_but_keep_their_maximum():
    layer = nn.Identity()
    x = torch.randn(1 << 19, generator=torch.Generator().manual_seed(3))
    x[12345] = -1000.0
    taken = next(t for t in tensors_of(layer, [x, x]) if t.subject.role == "output").open()
    assert taken.size <= 1 << 18
    assert taken.read(0, taken.size).min() == -1000.0


def test_a_layer_with_its_own_forward_gets_no_line():
    class Own(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) * 2

    layer = nn.Sequential(Own(1, 4, 3))
    with torch.no_grad():
        layer[0].weight[0, 0, 0, 0] = 1000.0
    assert next(i for i in advise(layer).items if i.role == "weight").line == ""


def test_embeddings_name_their_type():
    model = nn.Sequential(nn.Embedding(300, 8))
    with torch.no_grad():
        model[0].weight[0, 0] = 1000.0
    assert "type_modules=(torch.nn.Embedding,)" in advise(model).lines[0]


def test_inputs_need_a_module_and_a_batch(net):
    with pytest.raises(UsageError, match="Pass the model"):
        advise(net.state_dict(), torch.ones(1))
    with pytest.raises(UsageError, match="at least one batch"):
        advise(net, [])


def test_advice_that_was_taken_is_not_given_again(net):
    with torch.no_grad():
        net.fc.weight[0, 0] = 300.0
    sick = next(i for i in advise(net).items if i.name == "fc.weight")
    exec(sick.line, {"linger": linger, "model": net})
    cured = next(i for i in advise(linger.normalize_layers(net)).items if i.name == "fc.weight")
    assert sick.limit is not None
    assert cured.limit is None
    assert cured.max == sick.limit


def test_a_transposed_pair_is_folded_along_its_own_channels():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, 1.0, 1.0, 64.0]))
    expected = float((model[0].weight.detach()[:, 3] * 64).abs().max())
    trace_layers(model, torch.randn(1, 3, 4, 4))
    assert next(i for i in advise(model).items if i.name == "0.weight").max == pytest.approx(expected, rel=1e-4)


def test_channels_of_a_signal_are_on_axis_1():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 40, 3))
    with torch.no_grad():
        model[0].bias[7] = 500.0
    found = next(i for i in advise(model, torch.randn(2, 4, 30)).items if i.role == "output")
    assert found.advice.startswith("1 of 40 channels reaches 5")


def test_parts_that_are_called_conv_and_bn_are_no_fused_pair():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    model = nn.ModuleDict({"encoder": nn.ModuleDict({"conv1": Block()})})
    with torch.no_grad():
        model.encoder.conv1.conv.weight[0, 0, 0, 0] = 500.0
    found = advise(model.state_dict())
    item = next(i for i in found.items if i.name == "encoder.conv1.conv.weight")
    assert item.module == "encoder.conv1.conv"
    assert item.limit is not None
    assert all('get_submodule("encoder.conv1")' not in line for line in found.lines)
    exec(found.lines[0], {"linger": linger, "model": model})  # what the advice says to paste
    linger.normalize_layers(model, normalize_modules=(), normalize_weight_value=None, normalize_output_value=None)
    assert type(model.encoder.conv1.bn) is nn.BatchNorm2d
    assert type(model.encoder.conv1.conv) is not nn.Conv2d
