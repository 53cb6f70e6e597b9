"""Convolutions with a forward of their own: the functional convolution inside is followed, and folded where that is exact."""

import copy
import io
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.models import settle
from tests.support.quantization import ConvBN
from tests.support.wired import Wired, image


class Same(nn.Conv2d):
    """Pads by what the size of its input asks for, as model zoos do."""

    def forward(self, x):
        pads = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [missing // 2, missing - missing // 2]
        return F.conv2d(
            F.pad(x, pads), self.weight, self.bias, self.stride, self.padding, self.dilation, groups=self.groups
        )


class Child(nn.Conv2d):
    """Pads by a module of its own, and calls torch's forward."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        return super().forward(self.pad(x))


class Normed(nn.Conv2d):
    """Calls its batch norm itself."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.bn = nn.BatchNorm2d(self.out_channels)

    def forward(self, x):
        return F.relu(self.bn(F.conv2d(x, self.weight, self.bias, self.stride)))


class Causal(nn.Conv1d):
    def forward(self, x):
        return torch.conv1d(F.pad(x, (2, 0)), weight=self.weight, bias=self.bias)


class Cropped(nn.ConvTranspose2d):
    def forward(self, x):
        arguments = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return F.conv_transpose2d(x[..., 1:], self.weight, self.bias, *arguments)


class Hooked(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), weight, bias, self.stride)


def chain(conv, **options):
    bn = (nn.BatchNorm1d if isinstance(conv, nn.Conv1d) else nn.BatchNorm2d)(conv.out_channels, **options)
    return nn.Sequential(conv, bn, nn.ReLU())


FOLLOWED = {
    "padding by size": (lambda: chain(Same(3, 4, 3, stride=2, bias=False)), "0"),
    "groups": (lambda: chain(Same(3, 6, (3, 5), groups=3)), "0"),
    "no scale and offset": (lambda: chain(Same(3, 4, 3), affine=False), "0"),
    "a module that pads": (lambda: chain(Child(3, 4, 3, stride=(2, 1), padding=(1, 0), dilation=2)), "0"),
    "torch's inner method": (lambda: chain(Hooked(3, 4, 3, stride=2)), "0"),
    "a batch norm inside": (lambda: nn.Sequential(Normed(3, 4, 3, stride=2), nn.ReLU()), "0"),
    "one axis": (lambda: nn.Sequential(nn.Flatten(2), chain(Causal(3, 4, 3))), "1.0"),
    "transposed": (lambda: chain(Cropped(3, 6, 3, stride=2, output_padding=1, groups=3)), "0"),
    "padded to the same size": (lambda: chain(type("Own", (Child,), {})(3, 4, 3, padding="same")), "0"),
}


def settled(make):
    """Statistics and parameters that matter, in float64."""
    torch.manual_seed(0)
    model = make().double().eval()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5) if "running_var" in name else tensor.uniform_(-1, 1)
    return model


@pytest.mark.parametrize(("make", "path"), FOLLOWED.values(), ids=FOLLOWED.keys())
def test_a_pair_behind_a_forward_of_its_own_computes_the_same(make, path):
    model, x = settled(make), image().double()
    before, float_keys = model(x), model.state_dict()
    assert linger.trace_layers(model, x) is model
    assert isinstance(model.get_submodule(f"{path}.folded"), ConvBN)
    assert len([m for m in model.modules() if isinstance(m, linger.EmptyBatchNorm)]) == 1
    # float64: folding moves the last bits only, some 150 roundings of 2^-53 of numbers below 100
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-11)
    model.load_state_dict(float_keys)  # strictly
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("make", "path"), FOLLOWED.values(), ids=FOLLOWED.keys())
def test_training_afterwards_is_the_same_bit_for_bit(make, path):
    model, x = settled(make).train(), image().double()
    reference = copy.deepcopy(model)
    linger.trace_layers(model, x)
    for _ in range(2):
        found, expected = model(x), reference(x)
        assert torch.equal(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
    own, other = model.get_submodule(f"{path}.folded"), reference.get_submodule(path)
    assert torch.equal(own.conv.weight.grad, other.weight.grad)
    norms = [m for m in reference.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert torch.equal(own.bn.running_var, norms[0].running_var)


def test_the_parameters_are_the_same_objects_under_one_name():
    model = chain(Same(3, 4, 3))
    weight, bias = model[0].weight, model[0].bias
    linger.trace_layers(model, image())
    assert model[0].folded.conv.weight is weight
    assert model[0].folded.conv.bias is bias
    assert sum(p is weight for _, p in model.named_parameters(remove_duplicate=False)) == 1
    assert not any("weight" in key and "folded" not in key for key in model.state_dict())


def test_copies_and_pickles_compute_the_same():
    model, x = settled(FOLLOWED["a module that pads"][0]), image().double()
    linger.trace_layers(model, x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), model(x))
        other[0].folded.conv.weight.data.zero_()
        assert not torch.equal(other(x), model(x)), "it shares nothing with the model"


def test_a_module_that_is_called_twice_with_its_batch_norm():
    model = Wired(lambda m, x: m.bn(m.conv(x)) + m.bn(m.conv(2 * x)))
    model.conv = Same(3, 4, 3)
    settle(model).double().eval()
    before = model(image().double())
    linger.trace_layers(model, image().double())
    assert isinstance(model.conv.folded, ConvBN)
    torch.testing.assert_close(model(image().double()), before, rtol=0, atol=1e-11)  # as above


# what cannot be followed
class Standardized(nn.Conv2d):
    def forward(self, x):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, self.weight - mean, self.bias)


class Twice(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(F.conv2d(x, self.weight, self.bias), self.weight, self.bias)


class Regularized(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x * self.weight.abs().mean(), self.weight, self.bias)


class Strided(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, stride=2)


class Biased(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight) + self.bias[:, None, None]


class Scaled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Overwritten(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).mul_(2)


class Silent(nn.Conv2d):
    def forward(self, x):
        return x @ self.weight[0, 0]


def other_reader(m, x):
    h = m.conv(x)
    return m.bn(h) + h


STAYS = {
    "weight standardization": (chain(Standardized(3, 3, 3)), "Standardized with .* convolve with its weight as it is"),
    "its own result again": (
        chain(Twice(3, 3, 3)),
        "Twice with a forward of its own, which convolves 2 times in 1 calls",
    ),
    "weight used elsewhere": (chain(Regularized(3, 4, 3)), "its weight as it is, or uses it elsewhere too"),
    "another stride": (chain(Strided(3, 4, 3)), "which convolves with another stride than its attributes say"),
    "bias added outside": (chain(Biased(3, 4, 3)), "which does not convolve with its bias as it is"),
    "result changed": (chain(Scaled(3, 4, 3)), "and not its batch norm alone reads what it convolves"),
    "result changed in place": (chain(Overwritten(3, 4, 3)), "and not its batch norm alone reads what it convolves"),
    "no convolution": (chain(Silent(3, 3, 6)), "its weight as it is|convolves 0 times in 1 calls"),
    "padding mode": (chain(Same(3, 4, 3, padding=1, padding_mode="reflect")), "pads by padding_mode='reflect'"),
}


@pytest.mark.parametrize(("model", "reason"), STAYS.values(), ids=STAYS.keys())
def test_what_cannot_be_followed_stays_and_is_named_with_the_reason(model, reason):
    model, before = copy.deepcopy(model).eval(), str(model)
    expected = model(image())
    with pytest.warns(UserWarning, match=f"0 of 1 batch norms were folded.* 1: its convolution .*({reason})"):
        linger.trace_layers(model, image())
    assert str(model) == before
    assert torch.equal(model(image()), expected)


def test_a_result_that_others_read_too_and_batch_norms_that_differ_are_reasons():
    for forward, reason in (
        (other_reader, "and not its batch norm alone reads"),
        (lambda m, x: m.bn(m.conv(x)) + m.bn2(m.conv(x)), "the result of its convolution is used elsewhere too"),
    ):
        model = Wired(forward)
        model.conv = Same(3, 4, 3)
        with pytest.warns(UserWarning, match=reason):
            linger.trace_layers(model, image())
        assert type(model.conv) is Same


def test_a_model_that_is_itself_such_a_convolution_stays(caplog):
    with caplog.at_level(logging.INFO, logger="linger.constraint.tracing"):
        assert type(linger.trace_layers(Normed(3, 4, 3), image())) is Normed
    assert "0 of 1 batch norms were folded" in caplog.text


class Moody(nn.Conv2d):
    """Convolves with another stride where its input is small."""

    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, self.stride if x.shape[2] > 5 else 1)


def test_geometry_that_changes_after_the_trace_is_an_error():
    model = chain(Moody(3, 4, 3, stride=2))
    linger.trace_layers(model, image())
    with pytest.raises(UsageError, match="Moody: its stride is not what trace_layers saw"):
        model(image()[:, :, :5])


class Noisy(nn.Conv2d):
    def forward(self, x):
        weight = self.weight + 0.1 if self.training else self.weight
        return F.conv2d(x, weight, self.bias)


def test_a_weight_that_only_training_computes_cannot_pass_unseen():
    model = chain(Noisy(3, 4, 3))
    linger.trace_layers(model, image())
    assert bool(model.train()(image()).isnan().all())


# integers
class Plain(nn.Module):
    """The same network with torch's own layer."""

    def __init__(self, conv):
        super().__init__()
        self.folded = conv
        self.out_channels = conv.out_channels

    def forward(self, x):
        return self.folded(F.pad(x, (0, 1, 0, 1)))


def networks():
    """A network with a forward of its own, and one of plain layers with the same weights."""
    torch.manual_seed(0)
    options = {"stride": 2, "bias": False}
    own = nn.Sequential(chain(Child(3, 4, 3, **options)), nn.Flatten(), nn.Linear(36, 3))
    plain = nn.Sequential(chain(Plain(nn.Conv2d(3, 4, 3, **options))), nn.Flatten(), nn.Linear(36, 3))
    settle(own).eval()
    plain.load_state_dict({key.replace("0.0.", "0.0.folded."): value for key, value in own.state_dict().items()})
    return own, plain.eval()


def calibrated(model, x):
    model = linger.init(linger.trace_layers(model, x)).eval()
    with linger.calibration():
        model(x)
    return model


def test_integers_are_those_of_plain_layers_and_of_the_file(tmp_path):
    x = image(4)
    own, plain = (calibrated(model, x) for model in networks())
    assert torch.equal(own(x).detach().as_subclass(torch.Tensor), plain(x).detach().as_subclass(torch.Tensor))
    assert list(own.state_dict()) == list(plain.state_dict())
    linger.onnx.export(own, (x,), tmp_path / "own.onnx", input_names=["x"])
    proof = linger.verify(own, tmp_path / "own.onnx", x)
    assert (proof.ok, proof.differing) == (True, 0)
    assert proof.integers > 0


@pytest.mark.parametrize("is_traced", [False, True])
def test_layers_are_compared_as_plain_ones_are(is_traced):
    x, found = image(4), []
    for network in networks():
        reference = linger.trace_layers(copy.deepcopy(network), x) if is_traced else copy.deepcopy(network)
        comparison = linger.compare_layers(reference, calibrated(network, x), [x])
        assert comparison.unmatched == ()
        found.append(
            {row.name: row.sqnr_db for row in comparison.rows if row.name != "0.0.pad"}
        )  # a module of one of them
        types = [type(m) for m in reference.modules()]
        assert is_traced or Child in types or Plain in types, "the reference is as it was"
    assert found[0] == found[1]
    assert ("0.0.folded" if is_traced else "0.1") in found[0]


def test_training_as_integers_is_that_of_plain_layers():
    x = image(4)
    own, plain = (calibrated(model, x).train() for model in networks())
    linger.learn_scales(own, "tqt"), linger.learn_scales(plain, "tqt")
    for model in (own, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    pairs = zip(own.state_dict().values(), plain.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert own[0][0].folded.bn.num_batches_tracked == plain[0][0].folded.bn.num_batches_tracked > 0


def test_a_settings_file_finds_the_layer_inside_again(tmp_path):
    x = image(4)
    model = calibrated(networks()[0], x)
    linger.save_config(model, tmp_path / "own.yaml")
    for again in (networks()[0], linger.trace_layers(networks()[0], x)):
        made = linger.init(again, tmp_path / "own.yaml").eval()
        made.load_state_dict(model.state_dict())
        assert torch.equal(made(x).detach().as_subclass(torch.Tensor), model(x).detach().as_subclass(torch.Tensor))


def test_a_settings_file_that_does_not_fit_changes_nothing(tmp_path):
    x = image(4)
    linger.save_config(calibrated(networks()[0], x), tmp_path / "own.yaml")
    other = nn.Sequential(chain(Child(3, 4, 3, bias=False)), nn.Flatten()).eval()
    before, keys = other(x), list(other.state_dict())
    with pytest.raises(UsageError, match=r"'2'.*Nothing was changed"):
        linger.init(other, tmp_path / "own.yaml")
    assert type(other[0][0]) is Child
    assert torch.equal(other(x), before)
    assert list(other.state_dict()) == keys


def test_widths_and_limits_of_the_convolution_carry_over():
    own, _ = networks()
    linger.quant_module(own[0][0], parameter_bits=16)
    linger.normalize_module(own[0][0], normalize_weight_value=0.5)
    model = linger.normalize_layers(linger.trace_layers(own, image()), normalize_modules=[nn.Conv2d])
    assert model[0][0].folded.normalize_weight == 0.5
    layer = linger.init(model)[0][0].folded
    assert (layer.widths.parameter, layer.limited_to.weight) == (16, 0.5)


def test_tune_says_how_many_were_folded():
    own, _ = networks()
    batches = [image(4, seed) for seed in range(4)]
    _, result = linger.tune(own, batches, budget="2 trials")
    row = next(step for step in result.steps if step.name == "fuse")
    assert "1 of 1 batch norms are folded" in row.why
    stays = nn.Sequential(chain(Standardized(3, 3, 3)), nn.Conv2d(3, 2, 1)).eval()
    stays[0].pop(2)
    _, result = linger.tune(stays, batches, budget="2 trials")
    row = next(step for step in result.steps if step.name == "fuse")
    assert "0 of 1 batch norms are folded" in row.why
