# SPDX-License-Identifier: Apache-2.0
"""What limits a tensor also limits the range of the layer that made it, unless somebody needs the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger

LOWEST, HIGHEST = -16.0, 10.0
"""Ends of what the layer before the activation computes from `data()`, exactly."""

Act = Callable[[Tensor], Tensor]


def data() -> Tensor:
    """Images from −1 to 0.625 in steps of their scale, so that sixteen times them is exact."""
    return torch.linspace(-64, 40, 105).round().repeat(4)[:400].reshape(4, 1, 10, 10) / 64


def sixteenfold() -> nn.Conv2d:
    layer = nn.Conv2d(1, 2, 1, bias=False)
    nn.init.constant_(layer.weight, 16.0)
    return layer


class Limited(nn.Module):
    """A product, something that moves its result, a limited activation, another product."""

    def __init__(self, act: Act, through: str = "nothing") -> None:
        super().__init__()
        self.before, self.beside, self.after = sixteenfold(), sixteenfold(), nn.Conv2d(2, 2, 1)
        self.drop, self.pool = nn.Dropout(0.5), nn.MaxPool2d(2)
        # a module of a table serves many tests
        self.act, self.through = copy.deepcopy(act) if isinstance(act, nn.Module) else act, through

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        if self.through == "max-pool":
            y = self.pool(y)
        elif self.through == "cat":
            y = torch.cat([y, self.beside(x)])
        elif self.through == "dropout":
            y = self.drop(y)
        elif self.through == "views":
            y = F.pad(y[:, :, 1:].transpose(2, 3), (1, 1)).contiguous()
        return self.after(self.act(y))


ACTIVATIONS: dict[str, tuple[Act, float]] = {
    "ReLU": (nn.ReLU(), HIGHEST),
    "ReLU in place": (nn.ReLU(inplace=True), HIGHEST),
    "F.relu": (F.relu, HIGHEST),
    "relu_": (Tensor.relu_, HIGHEST),
    "ReLU6": (nn.ReLU6(), 6.0),
    "ReLU6 in place": (nn.ReLU6(inplace=True), 6.0),
    "F.relu6": (F.relu6, 6.0),
    "F.relu6 in place": (lambda x: F.relu6(x, inplace=True), 6.0),
    "Hardtanh": (nn.Hardtanh(-2.0, 3.0), 3.0),
    "Hardtanh in place": (nn.Hardtanh(-4.0, 3.0, inplace=True), 4.0),
    "F.hardtanh": (F.hardtanh, 1.0),
    "clamp": (lambda x: x.clamp(-2.0, 4.0), 4.0),
    "torch.clamp": (lambda x: torch.clamp(x, -7.0, 4.0), 7.0),
    "clamp_": (lambda x: x.clamp_(-2.0, 4.0), 4.0),
    "clip below only": (lambda x: torch.clip(x, min=-2.0), HIGHEST),
    "clamp_ below only": (lambda x: x.clamp_(min=-2.0), HIGHEST),
    "clamp above only": (lambda x: x.clamp(max=4.0), -LOWEST),
    "clamp away from zero": (lambda x: x.clamp(2.0, 4.0), 4.0),
    "clamp behind ReLU": (lambda x: F.relu(x).clamp(max=4.0), 4.0),
    "Hardsigmoid": (nn.Hardsigmoid(), 3.0),
    "Hardsigmoid in place": (nn.Hardsigmoid(inplace=True), 3.0),
    "F.hardsigmoid": (F.hardsigmoid, 3.0),
    "Hardswish": (nn.Hardswish(), HIGHEST),
    "Hardswish in place": (nn.Hardswish(inplace=True), HIGHEST),
    "F.hardswish": (F.hardswish, HIGHEST),
    "Hardswish behind clamp": (lambda x: F.hardswish(x.clamp(max=2.0)), 3.0),
}
"""Each activation, and the range that the layer before it needs."""

THROUGH = ("nothing", "max-pool", "cat", "dropout", "views")


def calibrated(model: nn.Module, *batches: Tensor) -> nn.Module:
    quantized = linger.init(model)
    with linger.calibration():
        for batch in batches or (data(),):
            quantized(batch)
    return quantized


def range_of(layer: Any) -> float:
    return float(layer.running_o)


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_limited_activation_limits_the_range_before_it(name: str, through: str) -> None:
    act, expected = ACTIVATIONS[name]
    model = calibrated(Limited(act, through))
    assert range_of(model.before) == expected
    if through == "cat":
        assert range_of(model.beside) == range_of(model._linger_round_tensor_iqcat_0) == expected


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("name", ["ReLU", "F.relu", "ReLU6", "F.relu6 in place", "clamp_", "Hardswish"])
def test_the_same_behind_trace_layers(name: str, through: str) -> None:
    act, expected = ACTIVATIONS[name]
    assert range_of(calibrated(linger.trace_layers(Limited(act, through), data())).before) == expected


@pytest.mark.parametrize("through", THROUGH)
def test_smallest_and_largest_of_a_constant_vector(through: str) -> None:
    model = calibrated(Bounded(through))
    assert range_of(model.before) == 5.0
    assert range_of(model._linger_round_tensor_iqmin_0) == 5.0


class Bounded(Limited):
    """At least minus one, at most a number of its own for each channel."""

    def __init__(self, through: str) -> None:
        super().__init__(self.limit, through)
        self.register_buffer("least", torch.tensor([-1.0]))
        self.register_buffer("most", torch.tensor([2.0, 5.0]).reshape(2, 1, 1))

    def limit(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.least), self.most)


@pytest.mark.parametrize("name", ["ReLU6", "F.relu6 in place", "clamp_", "Hardswish"])
def test_training_keeps_the_mean_of_what_is_used(name: str) -> None:
    act, expected = ACTIVATIONS[name]
    model = linger.init(Limited(act)).train()
    for _ in range(2):
        model(data()).dequantize().sum().backward()
        assert range_of(model.before) == pytest.approx(expected, rel=1e-6)  # a mean of equal float32 numbers


def test_training_goes_on_from_a_checkpoint_within_its_range() -> None:
    state = calibrated(Limited(nn.ReLU6())).state_dict()
    model = linger.init(Limited(nn.ReLU6()))
    model.load_state_dict(state)
    model.train()(data())
    assert range_of(model.before) == pytest.approx(6.0, rel=1e-6)


def test_one_range_for_all_batches_and_blocks() -> None:
    model = calibrated(Limited(nn.ReLU6()), data() / 8, data() / 4)  # up to 1.25, then to 2.5
    assert range_of(model.before) == 2.5
    with linger.calibration():
        model(data())
    assert range_of(model.before) == 6.0


def test_shards_of_the_data_join_their_uses(tmp_path) -> None:
    copies = [
        linger.init(Twice(lambda net, y, ends=ends: net.other(y.clamp(*ends)))) for ends in ((-2.0, 8.0), (-9.0, 7.0))
    ]
    for copy_ in copies[1:]:
        copy_.load_state_dict(copies[0].state_dict())
    for number, model in enumerate(copies):
        with linger.calibration():
            model(data() / (1 + number))
        linger.save_statistics(model, tmp_path / f"{number}")
    linger.merge_statistics(copies[0], [tmp_path / "0", tmp_path / "1"])
    assert copies[0].before.ranges["o"].used_interval == (-9.0, 8.0)


# curves that end
@pytest.mark.parametrize(("curve", "last"), [(torch.sigmoid, (0, 127)), (torch.tanh, (-128, 127))])
def test_a_curve_ends_where_its_last_integer_is_reached(curve: Act, last: tuple[int, int]) -> None:
    x = torch.linspace(-64, 64, 129).reshape(1, 1, 1, -1) / 64  # sixteen times: up to ±16 in steps of 1/4
    model = linger.init(Limited(curve)).eval()
    model.after = nn.Identity()
    with linger.calibration():
        model(x)
    low, high = model.before.ranges["o"].used_interval
    assert -8.0 < low < -2.0
    assert 2.0 < high < 8.0
    integers, real = model(x).integers()[0, 0, 0], 16 * x[0, 0, 0]
    assert set(integers[real <= low].tolist()) == {last[0]}
    assert set(integers[real >= high].tolist()) == {last[1]}
    wide = linger.init(Limited(lambda y: curve(y) + y)).eval()  # the sum needs everything
    with linger.calibration():
        wide(x)
    assert model.before.scale_o > wide.before.scale_o
    exact = curve(real)
    # off by half a step of 1/128, the curve's own 1.4e-3 and half a step of 1/16 of the input at a slope of at most 1;
    # the last integer stands for all beyond, which is a step at most
    assert float((model(x).dequantize().detach()[0, 0, 0] - exact).abs().max()) <= 1 / 128 + 1.4e-3 + 1 / 32


def test_training_keeps_the_range_before_a_curve() -> None:
    model = linger.init(Limited(torch.sigmoid)).train()
    model(data())
    assert range_of(model.before) == -LOWEST


# somebody needs the rest
class Twice(Limited):
    """A second use of the tensor before the activation."""

    def __init__(self, second: Callable[[Any, Tensor], Any]) -> None:
        super().__init__(nn.ReLU6())
        self.second = second
        self.other = nn.Conv2d(2, 2, 1)
        self.is_wide = True

    def forward(self, x: Tensor) -> Any:
        y = self.before(x)
        z = self.after(self.act(y))
        return (z, self.second(self, y)) if self.is_wide else z


SECOND_USES: dict[str, Callable[[Any, Tensor], Any]] = {
    "it is a result": lambda net, y: y,
    "a view of it is a result": lambda net, y: {"views": [y[:, :, :2].flatten(1)]},
    "another layer": lambda net, y: net.other(y),
    "a sum": lambda net, y: net.other(y + y),
    "a float function": lambda net, y: torch.cumsum(y, 0),
    "an average": lambda net, y: F.avg_pool2d(y, 2),
    "a larger limit": lambda net, y: net.other(y.clamp(-20.0, 20.0)),
    "cat, then everything": lambda net, y: net.other(torch.cat([y, y], 2)),
    "a comparison": lambda net, y: (y > 3.0).sum(),
    "a border that has to fit": lambda net, y: net.other(F.pad(y, (1, 1), value=12.0).clamp(0.0, 6.0)),
    "its numbers": lambda net, y: y.detach().numpy().max(),
}


@pytest.mark.parametrize("name", SECOND_USES)
def test_a_second_user_keeps_the_whole_range(name: str) -> None:
    assert range_of(calibrated(Twice(SECOND_USES[name])).before) == -LOWEST


def test_a_second_limit_widens_the_first() -> None:
    model = calibrated(Twice(lambda net, y: net.other(y.clamp(-2.0, 8.0))))
    assert range_of(model.before) == 8.0


def test_questions_about_the_shape_are_no_use() -> None:
    model = calibrated(Twice(lambda net, y: (y.shape, y.size(0), y.dim(), y.numel(), y.device, y.requires_grad)))
    assert range_of(model.before) == 6.0


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["first", "last"])
def test_one_pass_that_needs_everything_is_enough(order: tuple[bool, bool]) -> None:
    model = linger.init(Twice(SECOND_USES["it is a result"]))
    with linger.calibration():
        for model.is_wide in order:
            model(data())
    assert range_of(model.before) == -LOWEST


def test_training_learns_of_a_user_that_comes_later() -> None:
    model = linger.init(Twice(SECOND_USES["another layer"])).train()
    for model.is_wide in (False, True):
        model(data())
    assert range_of(model.before) == pytest.approx(0.9 * 6.0 - 0.1 * LOWEST)  # the running mean of both passes


def test_a_tensor_that_is_kept_and_read_later() -> None:
    kept: list[Any] = []
    model = linger.init(Twice(lambda net, y: kept.append(y)))
    with linger.calibration():
        model(data())
        assert range_of(model.before) == 6.0
        kept[0].dequantize()
        assert range_of(model.before) == -LOWEST


def test_a_pass_that_fails_decides_nothing() -> None:
    class StoppedError(Exception):
        pass

    def stop(net: Any, y: Tensor) -> None:
        raise StoppedError

    model = linger.init(Twice(stop))
    with linger.calibration():
        with pytest.raises(StoppedError):
            model(data())
        model.second = SECOND_USES["another layer"]
        model(data())
    assert range_of(model.before) == -LOWEST


def test_shared_layers_keep_what_either_call_needs() -> None:
    class Shared(Limited):
        def forward(self, x: Tensor) -> Tensor:
            return self.after(F.relu6(self.before(x))), self.before(x / 2).clamp(-7.0, 7.0)

    assert range_of(calibrated(Shared(F.relu6)).before) == 7.0


class Called(Limited):
    """A layer that is called twice, each time before a ReLU6; `is_wide`: the second call is used as it is."""

    is_wide = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.before(x), self.before(x / 2)
        return self.after(F.relu6(first)), second if self.is_wide else F.relu6(second)


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "calibration"])
def test_both_calls_of_a_layer_count_as_far_as_they_are_used(is_training: bool) -> None:
    model = linger.init(Called(F.relu6)).train(is_training)
    with nullcontext() if is_training else linger.calibration():
        model(data())
    # the ReLU6 behind the first call ends at 6, and 5 is the largest number of the second, a tenth of the running mean; if one
    # were forgotten, the range would still hold the −16 of the first
    assert range_of(model.before) == pytest.approx(0.9 * 6.0 + 0.1 * 5.0 if is_training else 6.0)
    assert model.before.scale_o.item() == 16.0


def test_a_later_use_begins_with_the_range_of_its_own_pass() -> None:
    model = linger.init(Called(F.relu6)).train()
    model(data())
    model.is_wide = True
    model(data())
    # −16 of the first call, −8 of the second, each a tenth of the running mean, which was 5.9 before this pass
    assert range_of(model.before) == pytest.approx(0.9 * (0.9 * 5.9 + 0.1 * 16.0) + 0.1 * 8.0)


def test_alpha_dropout_moves_numbers_so_all_are_needed() -> None:
    model = Limited(lambda x: F.relu6(F.alpha_dropout(x, 0.5, training=True)))
    assert range_of(calibrated(model).before) == -LOWEST


# what becomes of it
def test_a_limited_range_gives_a_finer_scale_and_the_file_stays_exact(tmp_path: Any) -> None:
    model = calibrated(Limited(nn.ReLU6(), "max-pool")).eval()
    model(data())
    assert model.before.scale_o.item() == 16.0  # 6·16 = 96 ≤ 127; of ±16 it would be 4
    linger.onnx.export(model, (data(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", data()).ok


def test_numbers_beyond_saturate_where_they_are_limited_anyway() -> None:
    model = calibrated(Limited(nn.ReLU6())).eval()
    limited = model.act(model.before(data())).dequantize()
    assert torch.equal(
        limited, (16.0 * data()).clamp(0.0, 6.0).expand(-1, 2, -1, -1)
    )  # every number is a multiple of 1/4


def test_no_interval_is_narrower_than_zero() -> None:
    assert calibrated(Limited(nn.ReLU6())).before.ranges["o"].used_interval == (0.0, 6.0)
    assert calibrated(Limited(nn.Identity())).before.ranges["o"].used_interval == (-math.inf, math.inf)
