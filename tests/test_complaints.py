"""What users of the original complained about and no other test shows: tools/migration/complaints.yaml names these tests."""

import copy
import gc
import pickle
import tomllib
import weakref

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linger
from linger.errors import LingerError
from tests.conftest import REPOSITORY
from tests.support.wired import Wired, image, quantize

pytestmark = pytest.mark.needs_torch


def rows(count=6, seed=3):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def calibrated(model, *inputs):
    made = linger.init(model).eval()
    with linger.calibration():
        made(*inputs)
    return made


def integers(model, *inputs):
    with torch.no_grad():
        return model(*inputs).integers()


class Two(nn.Module):
    """Two linear layers, joined by a function."""

    def __init__(self, join, *, bias=True):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Linear(4, 4, bias=bias), nn.Linear(4, 4, bias=bias)
        self.join = join

    def forward(self, x):
        return self.join(self.a(x), self.b(x))


def pairs():
    torch.manual_seed(1)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    return nn.Sequential(body, nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)))


def test_parts_are_traced_one_after_the_other_and_a_float_checkpoint_loads():
    source, x = pairs(), image()
    source(x)  # statistics that differ from those of a fresh model
    net = pairs()
    linger.trace_layers(net, net[0], x)
    linger.trace_layers(net, net[1], net[0](x))
    assert [type(part[0]).__name__ for part in net] == ["NormalizeConvBN2d"] * 2
    net.load_state_dict(source.state_dict())
    whole = copy.deepcopy(source)
    linger.trace_layers(whole, whole, x)
    assert torch.equal(integers(calibrated(net, x), x), integers(calibrated(whole, x), x))


def test_weights_copied_key_by_key_before_tracing_stay():
    source, net, x = pairs(), pairs(), image()
    source(x)
    own = net.state_dict()
    for key, value in source.state_dict().items():
        own[key].copy_(value)
    linger.trace_layers(net, net, x)
    linger.trace_layers(source, source, x)
    assert torch.equal(integers(calibrated(net, x), x), integers(calibrated(source, x), x))


def test_a_part_that_forward_leaves_out_is_no_obstacle(tmp_path):
    def made():
        return Wired(lambda m, x: m.conv(x))  # its other layers are never called

    model, path = calibrated(made(), image()), tmp_path / "net.onnx"
    linger.onnx.export(model, (image(),), path)
    assert [i.name for i in onnx.load(path).graph.initializer] == ["conv.weight", "conv.bias"]
    fresh = linger.init(made()).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(integers(fresh, image()), integers(model, image()))


@pytest.mark.parametrize("kind", [nn.LeakyReLU, nn.ReLU, nn.ReLU6], ids=lambda kind: kind.__name__)
def test_an_activation_in_place_gives_the_same_integers_and_gradients(kind):
    def made(inplace):
        torch.manual_seed(2)
        act = kind(inplace=inplace)
        return quantize(Wired(lambda m, x: m.conv2(act(m.conv(x)))), image())

    beside, inside = made(False), made(True)
    assert torch.equal(integers(beside, image()), integers(inside, image()))
    for model in (beside, inside):
        model.train()(image()).sum().backward()
    assert torch.equal(beside.conv.weight.grad, inside.conv.weight.grad)
    assert beside.conv.weight.grad.abs().sum() > 0


def magnitude(a, b):
    return torch.sqrt(a * a + b * b + 1e-6)


def small_rows():
    return torch.cat([rows() * 1e-4, rows(1)])  # all but one row become zeros in 8 bits


def test_a_root_of_zeros_learns_where_the_sum_before_it_is_float():
    model = linger.init(Two(magnitude, bias=False), switches=linger.Switches(add=False)).train()
    model(small_rows()).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


class Magnitude(nn.Module):
    def forward(self, a, b):
        return magnitude(a, b)


def test_a_root_of_zeros_learns_in_a_module_that_is_kept_float():
    model = linger.init(Two(linger.disable_quant(Magnitude()), bias=False)).train()
    model(small_rows()).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_root_of_zeros_that_spoils_the_weights_is_named():
    model = linger.init(Two(magnitude, bias=False)).train()
    output = model(small_rows())
    assert output.isfinite().all()
    output.sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    with pytest.raises(LingerError, match="a: the weights hold NaN or infinity"):
        model(small_rows())


def test_lengths_may_be_a_list():
    def forward(m, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(m.lstm(packed)[0], batch_first=True)[0]

    torch.manual_seed(4)
    model = Wired(forward)
    model.lstm = nn.LSTM(4, 3, batch_first=True)
    x = rows(10).reshape(2, 5, 4)
    model = calibrated(model, x, [5, 3])
    assert torch.equal(integers(model, x, [5, 3]), integers(model, x, torch.tensor([5, 3])))
    assert not torch.equal(integers(model, x, [5, 3]), integers(model, x, [5, 2]))


def test_a_quantized_model_is_pickled_and_trains_on():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model, x = calibrated(net, rows()), rows()
    other = pickle.loads(pickle.dumps(model))
    assert torch.equal(integers(model, x), integers(other, x))
    for each in (model, other):
        each.train()(x).sum().backward()
    assert torch.equal(model[0].weight.grad, other[0].weight.grad)
    assert other[0].weight.grad is not model[0].weight.grad


def test_models_leave_nothing_behind():
    model = calibrated(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), rows())
    linger.quant_module(model[0], parameter_bits=4)
    model(rows())
    seen = weakref.ref(model[0])
    del model
    gc.collect()
    assert seen() is None
    assert linger.init(nn.Sequential(nn.Linear(4, 4)))[0].extra_repr() == "LinearInt, 8/8/8 bits"


@pytest.mark.parametrize(
    "join",
    [
        pytest.param(lambda a, b: a + b, id="sum"),
        pytest.param(lambda a, b: torch.cat([a, b], 1), id="join"),
        pytest.param(lambda a, b: torch.sigmoid(a) * b, id="sigmoid"),
    ],
)
def test_scales_far_apart_give_the_numbers_of_8_bits_in_training_and_evaluation(join):
    model, x = Two(join), rows(16)
    with torch.no_grad():
        for parameter in model.b.parameters():
            parameter.mul_(2.0**-10)
        exact = model(x)
    model = calibrated(model, x)
    found = model(x)
    # of each operand a step of its layer's input, weights and output, and one of the result, each at most 1/64 of the largest
    assert (found.dequantize() - exact).abs().max() <= exact.abs().max() * 7 / 64
    assert torch.equal(model.train()(x).integers(), found.integers())


def test_a_batch_norm_with_extreme_channels_stays_finite_and_within_its_steps():
    x, net = image(8), nn.Sequential(nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.BatchNorm2d(3)).eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[1].running_var.copy_(torch.tensor([1e-12, 1.0, 1e6]))
        net[1].weight.copy_(torch.tensor([1e-3, 1.0, 1e3]))
        exact = net(x)
    linger.trace_layers(net, net, x)
    model = calibrated(net, x)
    found = model(x)
    # the input's step and the weights' step, at the largest factor, and one of the result
    assert (found.dequantize() - exact).abs().max() <= exact.abs().max() * 3 / 64
    model.train()(x).sum().backward()
    assert model[0].bn.weight.grad.isfinite().all()
    assert model[0].weight.grad.isfinite().all()


def test_a_softmax_outside_the_model_is_torchs():
    result = calibrated(nn.Sequential(nn.Linear(4, 4)), rows())(rows())
    assert torch.equal(torch.softmax(result, -1), torch.softmax(result.dequantize(), -1))
    assert torch.equal(F.softmax(rows(), -1), rows().softmax(-1))


def test_log_softmax_comes_back_from_a_checkpoint():
    def made():
        return Two(lambda a, b: torch.log_softmax(a, -1))

    model = calibrated(made(), rows())
    fresh = linger.init(made()).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(integers(fresh, rows()), integers(model, rows()))


class BothWays(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.LSTM(4, 3, bidirectional=True), nn.Linear(6, 2)

    def forward(self, x):
        y = self.rnn(x)[0]
        return self.out(torch.softmax(y, -1) * 0.01 * y)


def test_every_reader_of_a_file_has_the_scale_of_its_producer(tmp_path):
    x, path = rows(10).reshape(5, 2, 4), tmp_path / "net.onnx"
    linger.onnx.export(calibrated(BothWays(), x), (x,), path)
    graph = onnx.load(path).graph
    scales = {node.output[0]: attributes(node).get("scale_o") for node in graph.node}
    scales |= {node.output[0]: attributes(node)["scale_x"] for node in graph.node if node.op_type == "Quant"}
    found = {"iqCat": ("scale_x_0", "scale_x_1"), "iqMul": ("scale_x", "scale_y")}
    read = [
        (scales[tensor], attributes(node)[key])
        for node in graph.node
        for key, tensor in zip(found.get(node.op_type, ()), node.input, strict=False)
        if scales[tensor] is not None
    ]
    assert len(read) == 5  # two of the join, one of the product with a number, two of the other product
    assert all(producer == reader for producer, reader in read)


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def test_nothing_is_compiled_at_installation():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["build-system"]["requires"] == ["setuptools>=77"]
    assert "ext-modules" not in project["tool"]["setuptools"]
    assert not (REPOSITORY / "setup.py").exists()
    upper = [line for line in project["project"]["dependencies"] if "==" in line or "<" in line]
    assert upper == []
    assert project["project"]["requires-python"] == ">=3.11"
