# SPDX-License-Identifier: Apache-2.0
"""linger.tune from end to end: never worse than plain calibration, repeatable, provable; bad input changes nothing."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.quantization.core.observation import is_calibrating
from linger.tuning.autotune import steps as plan
from linger.tuning.autotune import tune as front
from linger.tuning.autotune.result import Problem
from linger.tuning.autotune.tune import problems_of, wide_shares
from tests.support.tuning import HEADROOM, PLAIN, OutputError, Search, Step, Trial, error_db, runtime_of, split


class Net(nn.Module):
    """Batch norms to fold, one channel far larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.depth = nn.Conv2d(6, 6, 3, groups=6)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.depth(torch.relu(self.bn(self.conv(x))))).flatten(1))


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x) + self.second(y), self.first(x)


@pytest.fixture(scope="module", autouse=True)
def short_training() -> Iterator[None]:
    """Networks this small learn nothing by a long training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_MOST_STEPS", 20)
        patch.setattr(plan, "_TRAININGS", ({},))
        patch.setattr(plan, "_METHODS", plan._METHODS[:2])
        yield


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    made = Net()
    for x in torch.randn(4, 16, 3, 8, 8):
        made(x)
    with torch.no_grad():
        made.depth.weight[0] *= 64
    return made.eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def many() -> Tensor:
    """So many that a gain need not be twice its noise."""
    return torch.randn(96, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tuned(net: nn.Module, images: Tensor) -> tuple[nn.Module, linger.TuneResult]:
    return linger.tune(net, images)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def assert_untouched(model: nn.Module, before: dict[str, Tensor], text: str) -> None:
    assert str(model) == text
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_it_helps_and_says_by_how_much(
    net: nn.Module, images: Tensor, tuned: tuple[nn.Module, linger.TuneResult]
) -> None:
    model, result = tuned
    assert result.after_db > result.plain_db + 1
    parts = split(net, [(images,)])
    plain = linger.init(copy.deepcopy(net)).eval()
    with linger.calibration():
        for batch in parts.tuning:
            plain(*batch)
    found = {
        part: tuple(error_db(OutputError(net, getattr(parts, part))(made)) for made in (plain, model))
        for part in ("tuning", "choosing", "reported")
    }
    assert found["reported"] == pytest.approx((result.plain_db, result.after_db))
    assert found["choosing"] == pytest.approx(result.choosing_db)
    assert found["tuning"] == pytest.approx(result.learning_db)
    assert result.samples == (12, 6, 6)
    assert result.kept[0].name == "fuse"
    assert result.summary().startswith(
        f"tune: {result.plain_db:.1f} dB by plain calibration → {result.after_db:.1f} dB on 6 samples by which nothing was chosen "
        "(learning: "
    )
    judged = [step for step in result.steps if step.name not in ("fuse", HEADROOM)]
    assert all(step.is_kept == (step.why == "the error falls") for step in judged)
    assert not any(step.why.startswith("it failed") for step in result.steps)
    assert not model.training


def test_the_model_given_is_not_changed(net: nn.Module, images: Tensor) -> None:
    before, text = state(net), str(net)
    linger.tune(net, images[:8], budget="3 trials")
    assert_untouched(net, before, text)


def test_what_costs_most_is_named_with_its_cause(net: nn.Module, images: Tensor) -> None:
    plain = linger.init(copy.deepcopy(net)).eval()
    with linger.calibration():
        plain(images)
    worst = problems_of(plain, net, (images,))[0]
    assert (worst.name, worst.cause, worst.bits) == ("depth", "channel spread", 8)
    assert worst.advice
    assert wide_shares(plain) == (0.0, 0.0)


def test_the_result_can_be_shown_and_written(tuned: tuple[nn.Module, linger.TuneResult], tmp_path: Path) -> None:
    _, result = tuned
    facts = json.loads(result.to_json(tmp_path / "r.json"))
    assert facts["after_db"] == result.after_db
    assert len(facts["rows"]) == len(result.steps)
    assert "step" in str(result)
    problem = replace(result, problems=(Problem("a", "weight", 8, 12.0, "outlier", "limit it."),))
    assert "stays a problem" in str(problem)
    assert repr(result).startswith("TuneResult(")
    assert result.to_csv().startswith("name,settings,branch")


def test_a_tuned_model_exports_and_verifies(
    images: Tensor, tuned: tuple[nn.Module, linger.TuneResult], tmp_path: Path
) -> None:
    model, _ = tuned
    linger.onnx.export(model, (images[:2],), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", images[:2]).differing == 0


def test_a_tuned_model_comes_back_from_its_file_and_weights(
    net: nn.Module, images: Tensor, tuned: tuple[nn.Module, linger.TuneResult], tmp_path: Path
) -> None:
    model, _ = tuned
    linger.save_config(model, tmp_path / "c.yaml")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = linger.init(copy.deepcopy(net), config_file=tmp_path / "c.yaml").eval()
    again.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(again(images).integers(), model(images).integers())


@pytest.mark.slow
def test_the_same_again(net: nn.Module, images: Tensor, tuned: tuple[nn.Module, linger.TuneResult]) -> None:
    model, result = tuned
    again, second = linger.tune(net, images, steps=result.steps)
    assert torch.equal(again(images).integers(), model(images).integers())
    assert [step.name for step in second.kept] == [step.name for step in result.kept]
    assert second.after_db == result.after_db


@pytest.mark.parametrize("kind", [Sequences, TwoInputs])
def test_other_networks(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    batches: list[tuple[Tensor, ...]] = [(x,) for x in torch.randn(4, 3, 6, 4)]
    if kind is TwoInputs:
        batches = [(x, y) for x, y in zip(torch.randn(4, 6, 4), torch.randn(4, 6, 4), strict=True)]
    made, result = linger.tune(model, batches)
    assert result.after_db >= result.plain_db
    linger.onnx.export(made, batches[0], tmp_path / "m.onnx")
    assert linger.verify(made, tmp_path / "m.onnx", [batches[0]]).differing == 0


@pytest.mark.slow
def test_the_chip_is_kept(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    tuned_model, _ = linger.tune(net, images, target="venus")
    plain = linger.trace_layers(copy.deepcopy(net), images[:1])
    plain = linger.init(plain, target="venus").eval()
    with linger.calibration():
        plain(images)
    found = []
    for name, model in (("plain", plain), ("tuned", tuned_model)):
        linger.onnx.export(model, (images[:1],), tmp_path / f"{name}.onnx")
        found.append({f.rule for f in linger.check(tmp_path / f"{name}.onnx", target="venus").findings})
    assert found[1] <= found[0]


def test_a_metric_decides(net: nn.Module, images: Tensor) -> None:
    calls = []

    def wants_the_first(model: nn.Module) -> float:
        calls.append(model)
        return -float(len(calls))  # each later model is worse

    _, result = linger.tune(net, images[:16], metric=wants_the_first, budget="8 trials")
    assert result.kept == ()
    assert (result.plain_metric, result.after_metric) == (-1.0, -1.0)
    assert "metric -1 → -1" in result.summary()
    assert "the metric falls" in str(result)


def hurts(session: Search, start: Trial, settings: object) -> Trial:
    model = copy.deepcopy(start.model)
    with torch.no_grad():
        model.head.weight.mul_(1.5)
    return Trial(model, start.reference)


def interrupted(session: Search, start: Trial, settings: object) -> Trial:
    raise KeyboardInterrupt


def plan_of(*names: str) -> object:
    def steps(session: Search) -> Iterator[Step]:
        yield from (Step(name, PLAIN, PLAIN) for name in names)

    return steps


def test_a_harmful_step_is_dropped(net: nn.Module, many: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "STEPS", {**front.STEPS, "hurts": hurts})
    monkeypatch.setattr(front, "usual_plan", plan_of("hurts", "equalize"))
    _, result = linger.tune(net, many)
    assert [(step.name, step.is_kept) for step in result.steps] == [("hurts", False), ("equalize", True)]


def test_an_interruption_gives_the_best_so_far(net: nn.Module, many: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "STEPS", {**front.STEPS, "interrupted": interrupted})
    monkeypatch.setattr(front, "usual_plan", plan_of("equalize", "interrupted", "fuse"))
    made, result = linger.tune(net, many)
    assert [step.name for step in result.steps] == ["equalize"]
    assert result.after_db > result.plain_db
    assert "Interrupted" in result.notes[-1]
    made(many)


def test_trials_are_counted(net: nn.Module, images: Tensor) -> None:
    _, result = linger.tune(net, images, budget="1 trial")
    assert sum(step.is_complete for step in result.steps) == 1
    assert "The budget of 1 trials ended before the last step." in result.notes


def test_a_tiny_budget_still_gives_plain_calibration(net: nn.Module, images: Tensor) -> None:
    made, result = linger.tune(net, images, budget=1e-6)
    assert result.after_db == result.plain_db
    assert not result.kept
    made(images)


class Recording(nn.Module):
    """Remembers what it is calibrated with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen: set[float] = SEEN

    def forward(self, x: Tensor) -> Tensor:
        if is_calibrating():
            SEEN.update(x[:, 0].tolist())
        return self.layer(x)


SEEN: set[float] = set()


def test_no_scale_is_learned_from_held_out_data() -> None:
    SEEN.clear()
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(2))
    linger.tune(Recording(), x)
    parts = split(Recording(), [(x,)])
    learned, *held = (
        {float(row[0]) for (batch,) in part for row in batch} for part in (parts.tuning, parts.choosing, parts.reported)
    )
    assert len(learned) == 8
    assert learned < SEEN  # and what they are when they are brighter, darker and shifted
    assert all(part and not part & SEEN for part in held)


def test_bad_input_is_one_sentence_and_the_model_is_as_it_was(net: nn.Module, images: Tensor) -> None:
    before, text = state(net), str(net)

    def fails(model: nn.Module) -> float:
        raise RuntimeError("no labels")

    broken = images.clone()
    broken[0, 0, 0, 0] = math.nan
    for arguments, options, said in (
        (([],), {}, "tune: the data are empty"),
        ((broken,), {}, "holds NaN or infinity"),
        ((images[:, :2],), {}, "the forward pass fails on the input"),
        ((None,), {}, "NoneType is no batch"),
        ((images,), {"metric": fails}, r"tune: fails\(model\) failed with RuntimeError: no labels"),
        ((images,), {"metric": lambda model: math.nan}, "returned nan"),
        ((images,), {"budget": 0}, "leaves nothing to tune with"),
        ((images,), {"budget": "soon"}, "is no budget"),
        ((images,), {"target": "moon"}, "there is no chip 'moon'"),
    ):
        with pytest.raises(linger.UsageError, match=said):
            linger.tune(net, *arguments, **options)
    assert_untouched(net, before, text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about torch.jit
        traced = torch.jit.trace(net, images[:1])
    with pytest.raises(linger.UsageError, match=r"torch\.jit"):
        linger.tune(traced, images)
    with pytest.raises(linger.UsageError, match="'net' is a path"):
        linger.tune("net", images)


def test_a_model_after_init_is_its_own_reference(net: nn.Module, images: Tensor) -> None:
    given = linger.init(linger.trace_layers(copy.deepcopy(net), images[:1]), target="venus").eval()
    made, result = linger.tune(given, images, budget="8 trials")  # never calibrated
    assert result.after_db >= result.plain_db
    skipped = {step.name: step.why for step in result.steps}["equalize"]
    assert "needs the float model" in skipped
    assert linger.coverage(made).float_ops == ()
    with linger.calibration():
        given(images)
    before, text = state(given), str(given)
    again, second = linger.tune(given, images, budget="8 trials")
    assert_untouched(given, before, text)
    assert second.after_db >= second.plain_db
    assert error_db(OutputError(net, split(net, [(images,)]).reported)(again)) == pytest.approx(
        second.after_db, abs=0.1
    )
    with pytest.raises(linger.UsageError, match=r"target='arcs', and the model was quantized for 'venus'"):
        linger.tune(given, images, target="arcs")


def test_scales_of_channels_and_bytes_from_zero_are_passed_on(net: nn.Module, images: Tensor) -> None:
    made, result = linger.tune(net, images, budget="1 trial", per_channel=True, unsigned=True)
    runtime = runtime_of(made)
    assert runtime is not None
    assert (runtime.is_per_channel, runtime.is_unsigned) == (True, True)
    assert (
        result.plain_db > linger.tune(net, images, budget="1 trial")[1].plain_db + 3
    )  # one channel is 64 times as large
    with pytest.raises(linger.UsageError, match="venus does not have per_channel=True"):
        linger.tune(net, images, target="venus", per_channel=True)
    with pytest.raises(linger.UsageError, match="per_channel is not what the model was quantized with"):
        linger.tune(made, images, per_channel=False)


def test_what_scales_of_channels_would_give_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "usual_plan", plan_of())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    with torch.no_grad():  # one channel is far larger, and what reads it makes it as small as the others
        model[0].weight[0] *= 64
        model[1].weight[:, 0] /= 64
    linger.quant_module(model[0], out_bits=16)  # so that weights decide
    linger.quant_module(model[1], data_bits=16)
    x = torch.randn(64, 8)

    def named(**options: object) -> list[str]:
        notes = linger.tune(model, x, **options)[1].notes  # type: ignore[arg-type]
        return [note for note in notes if note.startswith("One scale of the weights for each output channel gives ")]

    (note,) = named()
    plain, own = (linger.tune(model, x, per_channel=is_own)[1].choosing_db for is_own in (False, True))
    assert plain is not None
    assert own is not None
    assert f"gives {own[0] - plain[0]:.1f} dB more" in note
    assert not named(per_channel=False)  # who has decided is not told
    assert not named(target="venus")


def test_a_recurrent_model_after_init() -> None:
    torch.manual_seed(0)
    batches = [(x,) for x in torch.randn(4, 4, 6, 4)]
    model = linger.init(Sequences()).eval()
    _, result = linger.tune(model, batches)
    assert result.after_db >= result.plain_db
    odd = [step.why for step in result.steps if "fails" in step.why or "failed" in step.why]
    assert not odd


def test_a_calibration_that_was_better_is_kept(net: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = linger.trace_layers(copy.deepcopy(net), images[:1])
    given = linger.init(copy.deepcopy(reference)).eval()
    with linger.calibration():
        given(images)
    linger.choose_exponents(given, reference, images, max_trials=40)
    monkeypatch.setattr(front, "usual_plan", plan_of())
    made, result = linger.tune(given, images)
    assert result.branch == "as given"
    assert torch.equal(made(images).integers(), given(images).integers())


@pytest.mark.slow
def test_mixed_widths_and_a_goal(net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    made, result = linger.tune(net, images, bits="mixed", goal="40 dB")
    assert result.after_db > 35
    assert not any(step.why.startswith("it failed") for step in result.steps)
    assert result.wide_weights + result.wide_activations > 0
    linger.save_config(made, tmp_path / "c.yaml")
    again = linger.init(copy.deepcopy(net), config_file=tmp_path / "c.yaml").eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(images).integers(), made(images).integers())
    _, easy = linger.tune(net, images, goal=1.0)
    assert easy.steps == ()
    assert easy.notes[-1] == "The goal of 1.0 is reached."
    with pytest.raises(linger.UsageError, match="is no goal"):
        linger.tune(net, images, goal="much")
    with pytest.raises(linger.UsageError, match="bits='16' is for a float model"):
        linger.tune(made, images, bits="16")


@pytest.fixture(scope="module")
def classes() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 8, generator=generator)
    return x, (x[:, :4].sum(1) > 0).long()


def outlier_net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    with torch.no_grad():
        model[0].weight[0, 7] = 40.0  # one weight far beyond all others
    return model


def test_fine_tuning_ends_with_no_row_that_a_limit_would_help(classes: tuple[Tensor, Tensor]) -> None:
    x, labels = classes
    model = outlier_net()

    def train_step(trained: nn.Module) -> float:
        assert trained.training
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trained(x), labels)
            loss.backward()
            optimizer.step()
        return loss.item()

    before, text = state(model), str(model)
    made, result = linger.tune(model, x, finetune=train_step)
    assert result.rounds[0].flagged > 0
    assert result.rounds[0].worst
    assert result.rounds[-1].flagged == 0
    assert len(result.rounds) > 1
    assert result.rounds[-1].loss is not None
    assert made[0].limited_to.weight is not None
    assert "flagged" in str(result)
    assert_untouched(model, before, text)


@pytest.mark.slow
def test_fine_tuning_that_fails_or_does_not_help(classes: tuple[Tensor, Tensor]) -> None:
    x, _ = classes

    def spoils(trained: nn.Module) -> None:
        with torch.no_grad():
            trained[2].weight.mul_(-1)

    def accuracy(model: nn.Module) -> float:
        return float((model(x).argmax(1) == outlier_net()(x).argmax(1)).float().mean())

    _, result = linger.tune(outlier_net(), x, finetune=spoils, metric=accuracy)
    assert "Fine-tuning did not help" in " ".join(result.notes)
    assert result.after_metric is not None
    assert result.plain_metric is not None
    assert result.after_metric >= result.plain_metric

    def fails(trained: nn.Module) -> None:
        raise RuntimeError("no labels")

    with pytest.raises(linger.UsageError, match=r"tune: finetune\(model\) failed with RuntimeError: no labels"):
        linger.tune(outlier_net(), x, finetune=fails)
    with pytest.raises(linger.UsageError, match="returned the loss nan"):
        linger.tune(outlier_net(), x, finetune=lambda model: math.nan)
    with pytest.raises(linger.UsageError, match="finetune works on the float model"):
        linger.tune(linger.init(outlier_net()), x, finetune=fails)


def test_cheap_steps_are_never_left_out_by_an_estimate(
    net: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "expected_seconds", lambda session, step: math.inf)
    _, result = linger.tune(net, images, budget="1 h")
    left_out = {step.name for step in result.steps if step.why == "it would not end within the budget"}
    assert {"fuse", "choose_ranges"} <= {step.name for step in result.steps} - left_out
    assert "equalize" in left_out
    (note,) = (note for note in result.notes if note.startswith("Left out, for it would not end within"))
    assert "equalize" in note
    assert "fuse" not in note
