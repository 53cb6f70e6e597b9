# SPDX-License-Identifier: Apache-2.0
"""equalize: what it gains, what it leaves alone, what it refuses, and its faults, which are noticed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from linger.constraint.normalize import ChannelLimits
from linger.tuning.equalization import equalize as module
from linger.tuning.equalization import weights
from linger.tuning.equalization.equalize import quantized_copy
from tests.support.tuning import OutputError, error_db

SPREAD = (0.01, 1.0, 0.1, 0.02, 0.5, 0.05, 0.2, 0.01)


def net(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Two convolutions whose eight channels between them lie 100 : 1 apart, without any effect on the function."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 8, 3), activation(), nn.Conv2d(8, 4, 3))
    with torch.no_grad():
        spread = torch.tensor(SPREAD)
        made[0].weight *= spread[:, None, None, None]
        made[0].bias *= spread
        made[2].weight /= spread[:, None, None]
    return made.eval()


def images(seed: int, count: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, 8, 8, generator=draw) for _ in range(count)]


def decibels(model: nn.Module, reference: nn.Module) -> float:
    """Signal to noise at 8 bits, on data that nothing was chosen by."""
    made = quantized_copy(copy.deepcopy(model), [(x,) for x in images(1)], linger.init)
    return error_db(OutputError(reference, [(x,) for x in images(7)])(made))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_as_it_was(model: nn.Module, before: dict[str, Tensor]) -> None:
    now = model.state_dict()
    assert list(now) == list(before)
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU], ids=["relu", "leaky relu"])
def test_a_spread_of_a_hundred_gains_ten_decibels(activation: Callable[[], nn.Module]) -> None:
    model = net(activation)
    reference, x = copy.deepcopy(model), images(7)[0]
    before = decibels(model, reference)
    result = linger.equalize(model, images(1))
    assert decibels(model, reference) >= before + 10
    assert result.after_db >= result.before_db + 10
    assert result.trials > 1
    (change,) = result.changes
    assert change.name == "0.weight"
    assert change.before is not None
    assert change.after is not None
    assert change.after < change.before - 1
    # 2·(27 + 1 + 72 + 1) products and factors, each within 2^-23 of the largest output
    with torch.no_grad():
        bound = 2 * 101 * 2**-23 * float(reference(x).abs().amax())
        assert 0 < float((model(x) - reference(x)).abs().amax()) <= bound


def test_weights_alone_would_hurt_and_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights that cancel make channels as large as small ones that do not: balanced weights unbalance the tensor."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)).eval()
    signs = torch.tensor([1.0, -1.0] * 4)
    with torch.no_grad():
        model[0].weight[:4] = torch.stack([signs.roll(i) for i in range(4)])
        model[0].weight[4:] = 2.0**-4
        model[2].weight[:] = torch.stack([signs.roll(i) / 2 for i in range(4)])
    draw = torch.Generator().manual_seed(1)
    data = [torch.randn(64, 1, generator=draw) + 0.1 * torch.randn(64, 8, generator=draw) for _ in range(2)]
    batches, reference = [(x,) for x in data], copy.deepcopy(model)
    error = OutputError(reference, batches)
    before = error(quantized_copy(copy.deepcopy(model), batches, linger.init))
    by_weights = copy.deepcopy(model)
    result = linger.equalize(model, data)
    assert result.after_db >= result.before_db
    assert error(quantized_copy(copy.deepcopy(model), batches, linger.init)) <= before
    monkeypatch.setattr(module._Search, "_candidates", lambda self: [self.chains.balanced(1.0)])
    monkeypatch.setattr(module._Search, "_error", lambda self, exponents: float(exponents is None))
    linger.equalize(by_weights, data)
    assert error(quantized_copy(by_weights, batches, linger.init)) > 1.25 * before


def test_nothing_to_equalize_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 4, 3))
    before = state(model)
    result = linger.equalize(model, images(1))
    assert result.changes == ()
    assert result.before_db == result.after_db
    assert_as_it_was(model, before)
    assert model.training


BAD_INPUT: dict[str, tuple[Callable[[], Any], str]] = {
    "no data": (list, "the data are empty"),
    "NaN": (lambda: [torch.full((1, 3, 8, 8), math.nan)], "holds NaN"),
    "another shape": (lambda: torch.ones(1, 5, 8, 8), "the forward pass fails"),
    "no batch": (lambda: 3, "is no batch"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_data_leave_the_model_as_it_was(name: str) -> None:
    model = net()
    before, (make, message) = state(model), BAD_INPUT[name]
    with pytest.raises(linger.UsageError, match=message):
        linger.equalize(model, make())
    assert_as_it_was(model, before)


def test_other_models_and_chips_are_refused() -> None:
    with pytest.raises(linger.UsageError, match="quantized already"):
        linger.equalize(linger.init(net()), images(1))
    with pytest.raises(linger.UsageError, match="a torch module is expected"):
        linger.equalize(3, images(1))  # type: ignore[arg-type]
    with pytest.raises(linger.UsageError, match="there is no chip 'pluto'"):
        linger.equalize(net(), images(1), target="pluto")


def _inverted(apply_factors: Any) -> Any:
    return lambda model, layers, factors: apply_factors(model, layers, {n: 1 / f for n, f in list(factors.items())[:8]})


def _without_bias(apply_factors: Any) -> Any:
    def plant(model: nn.Module, layers: Any, factors: Any) -> None:
        kept = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("bias")}
        apply_factors(model, layers, factors)
        for name, bias in kept.items():
            model.get_parameter(name).data.copy_(bias)

    return plant


def _without_readers(apply_factors: Any) -> Any:
    return lambda model, layers, factors: apply_factors(model, list(layers)[:1], factors)


@pytest.mark.parametrize("plant", [_inverted, _without_bias, _without_readers])
def test_a_fault_is_noticed_and_undone(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(nn.ReLU6)
    before = state(model)
    planted = plant(weights.apply_factors)
    monkeypatch.setattr(module._Search, "_error", lambda self, exponents: float(exponents is None))
    monkeypatch.setattr(module, "apply_factors", planted)
    with pytest.raises(linger.UsageError, match=r"would change by .* The model is as it was"):
        linger.equalize(model, images(1))
    assert_as_it_was(model, before)
    assert type(model[0]) is nn.Conv2d


def test_what_cannot_be_watched_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unseen(nn.Module):
        """A curve that looks like ReLU to whoever watches."""

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(x)
            with torch._C.DisableTorchFunction():
                y.copy_(torch.tanh(y))
            return y

    model = net(Unseen)
    before = state(model)
    monkeypatch.setattr(module._Search, "_error", lambda self, exponents: float(exponents is None))
    with pytest.raises(linger.UsageError, match="cannot be watched"):
        linger.equalize(model, images(1))
    assert_as_it_was(model, before)


# limits of single channels
@pytest.fixture(scope="module")
def limited() -> tuple[nn.Module, nn.Module, Any]:
    model = net(nn.ReLU6)
    with torch.no_grad():
        model[0].weight *= 100  # so that the limit is reached
    reference = copy.deepcopy(model)
    return model, reference, linger.equalize(model, images(1))


def test_relu6_gets_limits_of_single_channels(limited: tuple[nn.Module, nn.Module, Any]) -> None:
    model, reference, result = limited
    assert result.after_db > result.before_db + 3
    wrapped = model[0]
    assert isinstance(wrapped, ChannelLimits)
    assert float(wrapped.limit.amax()) == 6.0
    x = images(7)[0]
    assert bool((reference[:2](x) == 6).any())
    with torch.no_grad():
        bound = 2 * 101 * 2**-23 * float(reference(x).abs().amax())
        assert float((model(x) - reference(x)).abs().amax()) <= bound


def test_an_equalized_relu6_net_is_proven(limited: tuple[nn.Module, nn.Module, Any], tmp_path: Path) -> None:
    model, _, _ = limited
    made = quantized_copy(copy.deepcopy(model), [(x,) for x in images(1)], linger.init)
    assert linger.coverage(made).float_ops == ()
    linger.onnx.export(made, (images(7)[0],), tmp_path / "m.onnx")
    proof = linger.verify(made, tmp_path / "m.onnx", images(7))
    assert proof.ok


def test_limits_are_kept_in_a_checkpoint(limited: tuple[nn.Module, nn.Module, Any]) -> None:
    model, _, _ = limited
    other = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    assert list(model.state_dict()) == ["0.limit", "0.layer.weight", "0.layer.bias", "2.weight", "2.bias"]
    other.load_state_dict(model.state_dict())
    x = images(7)[0]
    assert torch.equal(other(x), model(x))
    made, again = (quantized_copy(copy.deepcopy(m), [(x,)], linger.init) for m in (model, model))
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(x).dequantize(), made(x).dequantize())


def test_settings_in_a_file_bring_the_limits_back(limited: tuple[nn.Module, nn.Module, Any], tmp_path: Path) -> None:
    model, _, _ = limited
    x = images(7)[0]
    made = quantized_copy(copy.deepcopy(model), [(x,)], linger.init)
    linger.save_config(made, tmp_path / "c.yaml")
    again = linger.init(net(nn.ReLU6), config_file=tmp_path / "c.yaml").eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(x).dequantize(), made(x).dequantize())
    text = (tmp_path / "c.yaml").read_text().replace('"0":', '"5":').replace("'0':", "'5':")
    (tmp_path / "c.yaml").write_text(text)
    fresh = net(nn.ReLU6)
    with pytest.raises(linger.UsageError, match=r"channel_limits.*Nothing was changed"):
        linger.init(fresh, config_file=tmp_path / "c.yaml")
    assert type(fresh[0]) is nn.Conv2d


@pytest.mark.parametrize("is_traced_first", [False, True], ids=["equalized first", "traced first"])
def test_limits_behind_a_batch_norm_survive_every_stage(is_traced_first: bool, tmp_path: Path) -> None:
    def build() -> nn.Module:
        made = net(nn.ReLU6)
        return nn.Sequential(made[0], nn.BatchNorm2d(8), made[1], made[2]).eval()

    model, x = build(), images(7)[0]
    with torch.no_grad():
        model[1].weight.copy_(100 * torch.tensor(SPREAD))
    expected = model(x)
    if is_traced_first:
        linger.trace_layers(model, x)
    assert linger.equalize(model, images(1)).changes
    # 2·(27 + 72 + 2) products and factors, as above; a batch norm folded into its weights is one more for each channel
    assert float((model(x) - expected).abs().amax().detach()) <= 2 * 110 * 2**-23 * float(
        expected.abs().amax().detach()
    )
    assert isinstance(model[0] if is_traced_first else model[1], ChannelLimits)
    made = quantized_copy(copy.deepcopy(model), [(x,)], linger.init)
    linger.onnx.export(made, (x,), tmp_path / "m.onnx")
    assert linger.verify(made, tmp_path / "m.onnx", (x,)).ok
    linger.save_config(made, tmp_path / "c.yaml")
    again = linger.init(build(), config_file=tmp_path / "c.yaml").eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(x).dequantize(), made(x).dequantize())


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_a_chip_without_the_op_gets_no_limits(target: str) -> None:
    model = net(nn.ReLU6)
    before = state(model)
    linger.equalize(model, images(1), target=target)
    assert_as_it_was(model, before)


def test_channels_without_limits_gain_on_a_chip_without_the_op() -> None:
    # what the chip lacks concerns the channels between the first two convolutions alone
    model = nn.Sequential(net(nn.ReLU6), nn.Conv2d(4, 3, 1), net()).eval()
    limited = state(model[0][0])
    result = linger.equalize(model, [torch.randn(2, 3, 12, 12)], target="venus")
    assert type(model[0][0]) is nn.Conv2d
    assert_as_it_was(model[0][0], limited)
    assert result.changes
    assert result.after_db > result.before_db + 10


def test_a_residual_net_with_batch_norms_gains() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
            self.stem_bn, self.bn, self.head = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.stem_bn(self.stem(x)))
            x = F.relu(x + self.two(F.relu(self.bn(self.one(x)))))
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    model = Residual()
    for x in images(2, 20):
        model(x)
    model.eval()
    spread = torch.tensor(SPREAD)
    with torch.no_grad():
        model.stem_bn.weight *= spread
        model.stem_bn.bias *= spread
        model.two.weight *= spread[:, None, None, None]
        model.two.bias *= spread
        model.one.weight /= spread[:, None, None]
        model.head.weight /= spread
    reference = copy.deepcopy(model)
    before = decibels(model, reference)
    linger.equalize(model, images(1))
    assert decibels(model, reference) >= before + 6
