"""A model for a chip computes differences as sums, limits as saturating Relus and large means in two steps, in every pass and file."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from linger import QTensor, choose_ranges
from tests.support.emulated_device import take_host_reads
from tests.support.quantization import real_copy, runtime_of
from tests.support.wired import Wired
from tests.support.wired import image as picture

Function = Callable[..., Any]

each_chip = pytest.mark.parametrize("target", ["venus", "arcs"])


def prepared(model: nn.Module, *batches: Any, target: str | None = None, **options: Any) -> tuple[Any, list[str]]:
    """The model quantized for a chip and calibrated, in evaluation mode, and what calibration says."""
    made = linger.init(model, target=target).eval()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with linger.calibration(**options):
            for batch in batches:
                made(*batch if isinstance(batch, tuple) else (batch,))
    return made, [str(w.message) for w in said]


def computed(model: nn.Module, *inputs: Tensor) -> list[str]:
    """The ops that a model evaluates, by the recorder's names."""
    names: list[str] = []
    runtime = runtime_of(model)
    assert runtime is not None
    runtime.recorder = lambda name, integers: names.append(name)
    with torch.no_grad():
        model(*inputs)
    runtime.recorder = None
    return [name.rpartition(".")[2].partition("_")[0] for name in names]


def assert_file_is_equal(model: nn.Module, folder: Path, *inputs: Tensor) -> None:
    """A form that asks for no chip has the integers of the simulation."""
    linger.onnx.export(model, inputs, folder / "net.onnx", form="standard")
    assert linger.verify(model, folder / "net.onnx", inputs).ok


def as_layers(weights: Iterable[float]) -> list[nn.Conv2d]:
    """Layers that multiply by a number each."""
    layers = [nn.Conv2d(1, 1, 1, bias=False) for _ in weights]
    for layer, weight in zip(layers, weights, strict=True):
        nn.init.constant_(layer.weight, weight)
    return layers


def row(*values: float) -> Tensor:
    return torch.tensor(values).reshape(1, 1, 1, -1)


def integers(x: QTensor) -> list[int]:
    found: list[int] = x.integers().flatten().tolist()
    return found


# differences
def _in_place(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    y -= m.conv2(m.conv(x))
    return y


DIFFERENCES: dict[str, Function] = {
    "x - y": lambda m, x: m.conv(x) - m.conv2(m.conv(x)),
    "x -= y": _in_place,
    "sub_": lambda m, x: m.conv(x).sub_(m.conv2(m.conv(x))),
    "torch.sub": lambda m, x: torch.sub(m.conv(x), other=m.conv2(m.conv(x))),
    "subtract": lambda m, x: m.conv(x).subtract(m.conv2(m.conv(x))),
    "rsub": lambda m, x: torch.rsub(m.conv(x), m.conv2(m.conv(x))),
    "1 - x": lambda m, x: 1 - m.conv(x),
    "x - 0.5": lambda m, x: m.conv(x) - 0.5,
    "x - parameter": lambda m, x: m.conv(x) - m.conv.bias.reshape(4, 1, 1),
    "parameter - x": lambda m, x: m.conv.bias.reshape(4, 1, 1) - m.conv(x),
    "broadcast": lambda m, x: m.conv(x) - m.conv(x).mean((2, 3), keepdim=True),
    "x - x": lambda m, x: (lambda y: y - y)(m.conv(x)),
}
NEGATED_IN_ADVANCE = ("x - 0.5", "x - parameter")


@each_chip
@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.thin
def test_a_difference_is_a_sum_in_simulation_and_file(target: str, name: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, said = prepared(Wired(DIFFERENCES[name]), picture(), target=target)
    ops = computed(model, picture(1))
    assert (ops[-1], "iqSub" in ops, "iqMul" in ops) == ("iqAdd", False, name not in NEGATED_IN_ADVANCE)
    assert said == []
    assert_file_is_equal(model, tmp_path, picture(1, seed=5))
    plain = linger.init(Wired(DIFFERENCES[name])).eval()
    plain.load_state_dict(model.state_dict())
    # −y is rounded half up where y was, and −128 becomes 127: either is one step
    apart = model(picture()).integers().int() - plain(picture()).integers().int()
    assert apart.abs().max() <= 1


@each_chip
def test_the_chips_file_has_no_difference(target: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, _ = prepared(Wired(DIFFERENCES["x - y"]), picture(1), target=target)
    linger.onnx.export(model, (picture(1),), tmp_path / "net.onnx", verify=True)
    nodes = {node.op_type: node for node in linger.graph.load(tmp_path / "net.onnx").graph}
    assert "iqSub" not in nodes
    product = nodes["iqMul"]
    assert product.attributes["scale_x"].as_float() == product.attributes["scale_o"].as_float()
    factor = product.inputs[1].producer()
    assert (factor.op_type, factor.attributes["value"].as_tensor().numpy().tolist()) == ("Constant", -64)


class Difference(nn.Module):
    """Two inputs, each through a layer that leaves it as it is, and their difference."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = as_layers([1.0, 1.0])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left(x) - self.right(y)


SEEN = row(-1.0, -1.0, -1.0), row(-7.9375, 0.0, 6.875)
"""−1 at scale 64, and y from −127/16 to 110/16: the differences, −126/16 … 111/16, have scale 16 too."""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        # −16/16 − y: of −128/16 the sum has 127/16 in the place of 128/16
        pytest.param("venus", [-16 + 127, -16 + 127, -16, -16 - 40], id="venus"),
        pytest.param("arcs", [-16 + 127, -16 + 127, -16, -16 - 40], id="arcs"),
        pytest.param(None, [-16 + 128, -16 + 127, -16, -16 - 40], id="no chip"),
    ],
)
def test_the_smallest_integer_saturates_when_it_is_negated(
    target: str | None, expected: list[int], tmp_path: Path
) -> None:
    model, _ = prepared(Difference(), SEEN, target=target)
    inputs = row(-1.0, -1.0, -1.0, -1.0), row(-20.0, -7.9375, 0.0, 2.5)
    found = model(*inputs)
    assert (found.scale, integers(found)) == (16.0, expected)
    assert_file_is_equal(model, tmp_path, *inputs)


def test_half_steps_are_rounded_behind_the_sign() -> None:
    # x up to 15.875 has scale 8, y up to 7.9375 scale 16: y·8/16 of ±1/16 is ±½ a step
    model, _ = prepared(Difference(), (row(15.875, 0.0), row(7.9375, 0.0)), target="venus")
    found = model(row(0.0, 0.0, 1.0), row(1 / 16, -1 / 16, 3 / 16))
    assert found.scale == 8.0
    assert integers(found) == [0, 1, 8 - 1]  # ⌊−½ + ½⌋, ⌊½ + ½⌋, 8 + ⌊−1½ + ½⌋


def test_sixteen_bits(tmp_path: Path) -> None:
    net = Difference()
    for layer in (net.left, net.right):
        linger.quant_module(layer, data_bits=16, parameter_bits=8, out_bits=16)
    model, _ = prepared(net, (row(-1.0, 0.5), row(-1.9, 1.5)), target="venus")
    found = model(row(-1.0, 0.5), row(-3.0, 1.5))
    assert (found.bits, computed(model, row(0.5), row(0.5))[-2:]) == (16, ["iqMul", "iqAdd"])
    scale = found.scale
    assert integers(found) == [int(-scale + min(32767, 2 * 16384) * scale / 16384), int(-scale)]
    assert_file_is_equal(model, tmp_path, row(-1.0, 0.5), row(-3.0, 1.5))


@each_chip
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_gradients_of_a_difference(target: str, is_training: bool) -> None:
    model, _ = prepared(Difference(), SEEN, target=target)
    x, y = (t.clone().requires_grad_() for t in SEEN)
    model.train(is_training)(x, y).dequantize().sum().backward()
    assert x.grad.tolist() == row(1.0, 1.0, 1.0).tolist()
    assert y.grad.tolist() == row(-1.0, -1.0, -1.0).tolist()


def test_a_parameter_learns_through_its_sign() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            (self.layer,) = as_layers([1.0])
            self.shift = nn.Parameter(torch.tensor([0.5]))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) - self.shift

    model = linger.init(Shifted(), target="venus").train()
    model(row(1.0, -0.25)).dequantize().sum().backward()
    assert model.shift.grad.tolist() == [-2.0]


def test_ranges_and_keys_are_those_of_the_difference() -> None:
    torch.manual_seed(2)
    net = Wired(DIFFERENCES["x - y"])
    plain, _ = prepared(copy.deepcopy(net), picture())
    chip, _ = prepared(copy.deepcopy(net), picture(), target="venus")
    other = linger.init(net, target="venus").eval()
    other.load_state_dict(plain.state_dict())
    assert list(plain.state_dict()) == list(chip.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), chip.state_dict().values(), strict=True))
    assert torch.equal(other(picture()).integers(), chip(picture()).integers())
    assert computed(plain, picture())[-1] == "iqSub"
    assert "iqMul" not in computed(plain, picture())


@pytest.mark.parametrize("names", ["sub", ["sub", "add"]], ids=str)
def test_the_width_of_a_difference_is_its_own(names: Any) -> None:
    net = linger.quant_function(Wired(DIFFERENCES["x - y"]), names, out_bits=16)
    model, _ = prepared(net, picture(), target="venus")
    assert model(picture()).bits == 16
    narrow = linger.quant_function(Wired(DIFFERENCES["x - y"]), "add", out_bits=16)
    assert prepared(narrow, picture(), target="venus")[0](picture()).bits == 8


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda m, x: torch.sub(m.conv(x), m.conv2(m.conv(x)), alpha=2), id="alpha"),
    ],
)
def test_what_has_no_integer_form_stays_float(function: Function) -> None:
    model, _ = prepared(Wired(function), picture(), target="venus")
    assert linger.coverage(model).float_ops[-1].op in ("sub", "__sub__")
    assert "iqMul" not in computed(model, picture())


@pytest.mark.parametrize("is_first", [False, True], ids=["subtracted", "subtracted from"])
def test_a_float_operand_is_quantized_before_it_is_negated(is_first: bool) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h, real = m.conv(x), x[:, :1]
        return real - h if is_first else h - real

    real = Wired(run)
    model, _ = prepared(copy.deepcopy(real), picture(), target="venus")
    assert linger.coverage(model).float_ops == ()
    assert computed(model, picture())[-2:] == ["iqMul", "iqAdd"]
    assert float((model(picture()).dequantize() - real(picture())).detach().abs().max()) < 0.1


def test_functions_beside_it_keep_their_ranges() -> None:
    torch.manual_seed(2)

    def function(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        return (y * 3.0 - y) * y

    keys = [
        [key for key in prepared(Wired(function), picture(), target=target)[0].state_dict() if "round_tensor" in key]
        for target in (None, "venus")
    ]
    assert keys[0] == keys[1]


# limits
class Limited(nn.Module):
    """A layer that leaves numbers as they are, a limit, another layer; the tensor before the limit may be read once more."""

    def __init__(self, act: Function, *, is_read_twice: bool = False) -> None:
        super().__init__()
        self.before, self.after = as_layers([1.0, 1.0])
        self.act, self.is_read_twice = copy.deepcopy(act) if isinstance(act, nn.Module) else act, is_read_twice

    def forward(self, x: Tensor) -> Any:
        y = self.before(x)
        limited = self.act(y)
        return (self.after(limited), limited, y) if self.is_read_twice else limited


LIMITS: dict[str, Function] = {
    "ReLU6": nn.ReLU6(),
    "ReLU6 in place": nn.ReLU6(inplace=True),
    "F.relu6": F.relu6,
    "F.relu6 in place": lambda x: F.relu6(x, inplace=True),
    "Hardtanh": nn.Hardtanh(0.0, 6.0),
    "F.hardtanh": lambda x: F.hardtanh(x, 0, 6),
    "clamp": lambda x: x.clamp(0, 6),
    "torch.clip": lambda x: torch.clip(x, min=0.0, max=6.0),
    "clamp_": lambda x: x.clamp_(0, 6),
}
VALUES = row(-3.0, 0.0, 2.5, 6.0, 6.5, 7.875, 9.0)
"""Whole numbers at scale 8, the scale of the input; behind the limit of 6 the layer's scale is 16."""
CUT, PASSED = [0, 0, 40, 96, 96, 96, 96], [0, 0, 40, 96, 104, 126, 127]

each_limit = pytest.mark.parametrize("name", LIMITS)


@each_chip
@pytest.mark.parametrize("is_traced", [False, True], ids=["as written", "traced"])
@each_limit
@pytest.mark.thin(every=6)
def test_relu6_saturates_in_simulation_and_file(target: str, is_traced: bool, name: str, tmp_path: Path) -> None:
    net: nn.Module = Limited(LIMITS[name])
    if is_traced:
        net = linger.trace_layers(net, VALUES)
    model, said = prepared(net, VALUES, target=target)
    found = model(VALUES)
    assert (found.scale, integers(found)) == (16.0, PASSED)
    assert computed(model, VALUES) == ["Quant", "Conv2dInt", "Relu"]
    assert len(said) == 1
    assert_file_is_equal(model, tmp_path, VALUES)


@each_limit
def test_without_a_chip_it_is_a_clip(name: str) -> None:
    model, said = prepared(Limited(LIMITS[name]), VALUES)
    assert integers(model(VALUES)) == CUT
    assert computed(model, VALUES) == ["Quant", "Conv2dInt", "Clip"]
    assert (said, str(linger.coverage(model)).count("\n")) == ([], 0)


@each_chip
def test_the_chips_file_has_no_clip(target: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU6(), nn.Conv2d(4, 4, 3))
    model, said = prepared(net, picture(1, spread=30.0), target=target)
    assert len(said) == 1
    linger.onnx.export(model, (picture(1),), tmp_path / "net.onnx", verify=True)
    graph = linger.graph.load(tmp_path / "net.onnx").graph
    assert [node.op_type for node in graph] == ["Quant", "Conv2dInt", "Relu", "Conv2dInt", "Dequant"]
    assert not [key for key in graph.initializers if "thresh" in key]


def test_a_coarse_input_gets_the_scale_of_the_limit(tmp_path: Path) -> None:
    values = row(-3.0, 0.0, 2.5, 6.0, 6.5, 7.875, 14.0)  # 14·8 = 112: everything is read, so the layer has scale 8
    model, said = prepared(Limited(nn.ReLU6(), is_read_twice=True), values, target="venus")
    _, limited, y = model(values)
    assert (y.scale, limited.scale) == (8.0, 16.0)
    assert integers(limited) == [0, 0, 40, 96, 104, 126, 127]
    assert computed(model, values) == ["Quant", "Conv2dInt", "Requant", "Relu", "Conv2dInt"]
    assert len(said) == 1
    assert_file_is_equal(model, tmp_path, values)


@each_limit
def test_training_sees_the_saturating_relu(name: str) -> None:
    model = linger.init(Limited(LIMITS[name]), target="venus").train()
    for expected in (8.0, 16.0):  # the first pass sees 9; when it has ended, the range is limited to 6
        x = VALUES.clone().requires_grad_()
        assert model.before.scale_o in (0.0, expected)
        found = model(x)
        assert (found.scale, integers(found)) == (16.0, PASSED)
        found.dequantize().sum().backward()
        # torch's clamp has a gradient at its ends, relu has none at zero
        assert x.grad.flatten().tolist()[2:] == [1.0, 1.0, 1.0, 1.0, 0.0]
        assert x.grad.flatten().tolist()[0] == 0.0
    assert float(model.before.running_o) == pytest.approx(6.0, rel=1e-6)
    assert integers(model.eval()(VALUES)) == PASSED


def test_sixteen_bits_end_below_8(tmp_path: Path) -> None:
    net = Limited(nn.ReLU6())
    linger.quant_module(net.before, data_bits=16, parameter_bits=8, out_bits=16)
    linger.quant_module(net.act, data_bits=16, parameter_bits=8, out_bits=16)
    model, said = prepared(net, VALUES, target="venus")
    found = model(VALUES)
    assert (found.scale, integers(found)[3:]) == (4096.0, [6 * 4096, 26624, 32256, 32767])
    assert "saturates at 8 instead of 6" in said[0]
    assert_file_is_equal(model, tmp_path, VALUES)


@pytest.mark.parametrize(
    ("high", "scale", "end"), [(1.0, 128.0, 127), (4.0, 32.0, 127), (8.0, 16.0, 127), (3.0, 32.0, 127)], ids=str
)
def test_a_power_of_two_is_cut_one_step_below(high: float, scale: float, end: int) -> None:
    model, said = prepared(Limited(lambda x: x.clamp(0.0, high)), VALUES, target="venus")
    found = model(VALUES)
    assert (found.scale, integers(found)[-1]) == (scale, end)
    assert bool(said) == (high == 3.0)  # 127/32 lies beyond 3, not beyond 4


def test_a_lower_end_alone_is_a_relu() -> None:
    model, said = prepared(Limited(lambda x: x.clamp(min=0)), VALUES, target="venus")
    assert (computed(model, VALUES)[-1], said) == ("Relu", [])
    assert integers(model(VALUES)) == [0, 0, 20, 48, 52, 63, 72]


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(nn.Hardtanh(), id="from −1"),
        pytest.param(lambda x: x.clamp(max=6.0), id="no lower end"),
        pytest.param(lambda x: x.clamp(1.0, 6.0), id="from 1"),
        pytest.param(lambda x: x.clamp(-2.0, 0.0), id="to 0"),
    ],
)
def test_other_limits_stay(act: Function) -> None:
    model, _ = prepared(Limited(act), VALUES, target="venus")
    assert computed(model, VALUES)[-1] == "Clip"


@pytest.mark.parametrize(("layer", "op"), [(nn.Hardswish(), "iqHardswish"), (nn.Hardsigmoid(), "iqHardsigmoid")])
def test_hard_activations_are_ops_of_their_own(layer: nn.Module, op: str) -> None:
    model, said = prepared(Limited(layer), VALUES, target="venus")
    assert (computed(model, VALUES)[-1], said) == (op, [])


# what is said
SENTENCE = (
    "venus has no Clip, so Relu stands for ReLU6 and saturates at 7.94 instead of 6. Of the numbers seen, so many lie "
    'beyond 6: {}. It saturates at 3.97 where calibration cuts the range to that (method="mse" or "percentile"), or where '
    "the layer before is limited ahead of init, by linger.normalize_module(layer, normalize_output_value=4) and "
    "linger.normalize_layers(model); fine-tuning follows either."
)


def test_calibration_says_it_once_for_all_places() -> None:
    def function(m: Any, x: Tensor) -> Tensor:
        y = m.before(x)
        return m.after(m.act(y)) + F.relu6(y + 0.0)

    class Twice(Limited):
        def forward(self, x: Tensor) -> Any:
            return function(self, x)

    model, said = prepared(Twice(nn.ReLU6()), VALUES, row(1.0), target="venus")
    assert said == [SENTENCE.format("act.Relu 38 %, Relu 38 %")]  # three of eight numbers
    rows = [r for r in linger.coverage(model).table() if r.op == "Relu"]
    assert [r.where for r in rows] == ["act", ""]
    assert {r.reason for r in rows} == {
        "venus has no Clip, so Relu stands for it and saturates at 7.94 instead of 6: 38 % of the numbers seen lie beyond"
    }
    assert str(linger.coverage(model)).splitlines()[1].startswith("  act: Relu: venus has no Clip")


def test_nothing_is_said_where_every_number_is_the_same() -> None:
    for values in (VALUES / 4, VALUES.clamp(max=6.0)):  # up to 2.25; up to 6, at scale 16
        model, said = prepared(Limited(nn.ReLU6()), values, target="venus")
        assert (said, [op.reason for op in linger.coverage(model).ops]) == ([], [""] * 3)
        assert integers(model(values)) == integers(prepared(Limited(nn.ReLU6()), values)[0](values))


def test_the_remedies_work() -> None:
    net = Limited(nn.ReLU6())
    linger.normalize_module(net.before, normalize_output_value=4)
    model, said = prepared(linger.normalize_layers(net), VALUES, target="venus")
    assert (said, model(VALUES).scale) == ([], 32.0)
    # 60 % of the numbers behind the limit are at most 3.75
    many = torch.cat([row(*[3.75] * 100), VALUES], -1)
    model, said = prepared(Limited(nn.ReLU6()), many, target="venus", method="percentile:60")
    assert (said, model(many).scale) == ([], 32.0)
    model, said = prepared(Limited(nn.ReLU6()), many, target="venus")
    assert (len(said), "instead of 6" in str(linger.coverage(model))) == (1, True)
    choose_ranges(model, outputs="percentile:60")
    assert "instead of 6" not in str(linger.coverage(model))


def test_a_model_of_a_checkpoint_says_it_too() -> None:
    state = prepared(Limited(nn.ReLU6()), VALUES, target="venus")[0].state_dict()
    model = linger.init(Limited(nn.ReLU6()), target="venus").eval()
    model.load_state_dict(state)
    model(VALUES)
    reason = "venus has no Clip, so Relu stands for it and saturates at 7.94 instead of 6"
    assert [op.reason for op in linger.coverage(model).ops] == ["", "", reason]


def test_what_was_seen_survives_copies() -> None:
    model, _ = prepared(nn.Sequential(*as_layers([1.0]), nn.ReLU6()), VALUES, target="venus")
    expected = str(linger.coverage(model))
    assert "43 % of the numbers seen" in expected
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert str(linger.coverage(made)) == expected


def test_a_float_reference_cuts() -> None:
    model, _ = prepared(Limited(nn.ReLU6()), VALUES, target="venus")
    assert torch.equal(real_copy(model)(VALUES).dequantize(), VALUES.clamp(0.0, 6.0))


def test_of_a_float_reference_nothing_is_said() -> None:
    reference = real_copy(linger.init(Limited(nn.ReLU6()), target="venus"))
    reference(VALUES)  # which it cuts as the float network does
    assert [op.reason for op in linger.coverage(reference).ops] == ["", "", ""]


# global average pools
class Pooled(nn.Module):
    """A layer that leaves its input as it is, and an average pool."""

    def __init__(self, channels: int, pool: Function) -> None:
        super().__init__()
        self.before = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.dirac_(self.before.weight)
        self.pool = pool

    def forward(self, x: Tensor) -> Any:
        return self.pool(self.before(x))


def image(channels: int, *sides: int, seed: int = 1) -> Tensor:
    return torch.randn(1, channels, *sides, generator=torch.Generator().manual_seed(seed))


def pools_of(channels: int, sides: tuple[int, int], target: str | None, pool: Function | None = None) -> int:
    """How many average pools a global one becomes."""
    x = image(channels, *sides)
    model, said = prepared(Pooled(channels, pool or nn.AdaptiveAvgPool2d(1)), x, target=target)
    assert (said, tuple(model(x).shape[:2])) == ([], (1, channels))
    return computed(model, x).count("AvgPool2dInt")


@pytest.mark.parametrize(
    ("target", "channels", "sides", "count"),
    [
        pytest.param("venus", 4, (25, 5), 2, id="venus 25×5"),
        pytest.param("venus", 4, (3, 2), 2, id="venus 3×2"),
        pytest.param("venus", 4, (8, 8), 1, id="venus, a power of two"),
        pytest.param("venus", 4, (13, 1), 1, id="venus, a prime"),
        pytest.param("arcs", 12, (7, 7), 2, id="arcs, 12 channels"),
        pytest.param("arcs", 13, (7, 7), 1, id="arcs, 13 channels"),
        pytest.param("arcs", 26, (9, 12), 2, id="arcs 9×12, 26 channels"),
        pytest.param("arcs", 27, (9, 12), 1, id="arcs 9×12, 27 channels"),
        pytest.param("arcs", 36, (16, 8), 1, id="arcs, a power of two"),
        pytest.param("arcs", 40, (16, 9), 2, id="arcs, 144 pixels"),
        pytest.param("arcs", 40, (14, 9), 1, id="arcs, 126 pixels"),
        pytest.param("venusA", 12, (7, 7), 2, id="venusA, 12 channels"),
        pytest.param("venusA", 13, (7, 7), 1, id="venusA, 13 channels"),
        pytest.param(None, 4, (25, 5), 1, id="no chip"),
    ],
)
def test_global_pools_that_a_chip_computes_wrongly_are_two(
    target: str | None, channels: int, sides: tuple[int, int], count: int
) -> None:
    assert pools_of(channels, sides, target) == count


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param(lambda x: F.avg_pool2d(x, (5, 5)), id="does not span the image"),
        pytest.param(lambda x: F.avg_pool2d(x, (12, 6), padding=(1, 3)), id="padding"),
    ],
)
def test_pools_that_are_not_global_stay_one(pool: Function) -> None:
    assert pools_of(4, (10, 5), "venus", pool) == 1


@pytest.mark.parametrize("pool", ["module", "kernel", "mean"])
def test_every_spelling_of_a_global_pool(pool: str) -> None:
    functions: dict[str, Function] = {
        "module": nn.AvgPool2d((6, 5)),
        "kernel": lambda x: F.avg_pool2d(x, (6, 5)),
        "mean": lambda x: x.mean((2, 3), keepdim=True),
    }
    assert pools_of(4, (6, 5), "venus", functions[pool]) == 2


def test_both_steps_are_rounded() -> None:
    # at scale 16: ⌊32/3 + ½⌋ = 11 and 10, then ⌊21/2 + ½⌋ = 11; in one step ⌊62/6 + ½⌋ = 10
    values, ends = row(10, 10, 12, 10, 10, 10) / 16, row(*[127.0] * 6) / 16
    for target, mean in (("venus", 11), (None, 10)):
        model, _ = prepared(Pooled(1, nn.AdaptiveAvgPool2d(1)), values, ends, target=target)
        found = model(values)
        assert (found.scale, integers(found)) == (16.0, [mean])


@pytest.mark.parametrize(
    ("target", "channels", "sides"), [("venus", 4, (25, 5)), ("arcs", 12, (7, 7))], ids=["venus", "arcs"]
)
def test_two_pools_are_in_the_file(target: str, channels: int, sides: tuple[int, int], tmp_path: Path) -> None:
    x = image(channels, *sides)
    model, _ = prepared(Pooled(channels, nn.AdaptiveAvgPool2d(1)), x, target=target)
    assert_file_is_equal(model, tmp_path, image(channels, *sides, seed=5))
    linger.onnx.export(model, (x,), tmp_path / "chip.onnx", verify=True)
    nodes = [node for node in linger.graph.load(tmp_path / "chip.onnx").graph if node.op_type == "AvgPool2dInt"]
    kernels = [list(node.attributes["kernel_shape"].as_ints()) for node in nodes]
    assert kernels == {"venus": [[5, 5], [5, 1]], "arcs": [[1, 7], [7, 1]]}[target]
    assert [f.rule for f in linger.check(tmp_path / "chip.onnx", target).errors] == []


def test_the_first_pool_has_no_range_of_its_own() -> None:
    model, plain = (
        prepared(Pooled(4, nn.AdaptiveAvgPool2d(1)), image(4, 25, 5), target=target)[0] for target in ("venus", None)
    )
    assert list(model.state_dict()) == list(plain.state_dict())


def test_training_sees_both_pools() -> None:
    model = linger.init(Pooled(2, nn.AdaptiveAvgPool2d(1)), target="venus").train()
    x = image(2, 6, 5).requires_grad_()
    model(x).dequantize().sum().backward()
    assert x.grad is not None
    # each step divides, and 1/30 itself is rounded: three roundings of float32, each by at most 2^-24
    assert torch.allclose(x.grad, torch.full_like(x, 1 / 30), rtol=3 * 2.0**-24, atol=0.0)


# another device
def test_training_on_a_device_reads_nothing_back(device: str) -> None:
    torch.manual_seed(2)
    net = Wired(lambda m, x: (lambda y: m.conv2(F.relu6(y)) - y)(m.conv(x)))
    here = linger.init(copy.deepcopy(net), target="venus").train()
    there = linger.init(net.to(device), target="venus").train()
    for number in range(3):
        x = picture(seed=number, spread=20.0)
        expected = here(x)
        moved = x.to(device)
        take_host_reads()
        found = there(moved)
        assert take_host_reads() == 0
        assert torch.equal(found.dequantize().cpu(), expected.dequantize())
