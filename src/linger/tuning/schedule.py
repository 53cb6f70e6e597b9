# SPDX-License-Identifier: Apache-2.0
"""Schedule: what changes while a quantized model trains. Warm-up in float, frozen ranges and batch norms, fewer bits."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from linger.errors import UsageError, in_one_line, listing
from linger.numeric.torch.quantize import ZEROS, max_abs
from linger.quantization.core.distributed.group import Group, GroupError
from linger.quantization.core.learned import present_range
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Runtime, is_in_group, runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import BatchNormLayer
from linger.tuning.mixed_precision.stages import Stages, Wish, is_count, read_wishes

PLATEAU = "plateau"
"""What a user writes instead of a step."""

_MARK = -2.0
"""The first number of a row that holds a metric, so that it is not taken for what a training pass has seen."""


logger = logging.getLogger(__name__)

_KEYS = ("step", "best", "waited", "plateau_at", "settings")
_REAL = "trains in real numbers"
_INTEGERS = "integers"
_RANGES = "ranges"
_OF_WEIGHTS = " and those of weights"
_BATCH_NORMS = "batch norms"


class _Plateau:
    """Waits until a metric has not improved for a number of metrics: `waited` since the `best`, `found_at` a step."""

    def __init__(self, begins: int, patience: int, mode: str) -> None:
        self._begins, self._patience, self._mode = begins, patience, mode
        self.found_at: int | None = None
        self.best: float | None = None
        self.waited = 0

    def restore(self, best: float | None, waited: int, found_at: float | None) -> None:
        """Go on where another one was."""
        self.best, self.waited = best, waited
        self.found_at = None if found_at is None else int(found_at)

    def sees(self, metric: float | None, step: int) -> bool:
        """Take the metric after so many steps, of all processes; True where this one makes it a plateau."""
        if self.found_at is not None:
            return False
        value = self._of_all(metric, step)
        if value is None or step < self._begins:
            return False
        is_better = self.best is None or (value < self.best if self._mode == "min" else value > self.best)
        if is_better and not math.isnan(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self._patience

    def _of_all(self, metric: float | None, step: int) -> float | None:
        """The mean of the metrics that the processes give, in the order of their ranks; None where none gives any."""
        if not is_in_group() or torch.distributed.get_world_size() == 1:
            return metric
        told = [_MARK, step, metric is not None, 0.0 if metric is None else metric]
        own = torch.tensor(told, dtype=torch.float64, device=Group.device_for(torch.device("cpu")))
        try:
            rows = Group.of_all().gather(own, len(told))[1].tolist()
        except GroupError as error:
            raise UsageError(
                "Schedule.step: while a plateau is waited for, the processes compare their metrics, and one did not answer "
                f"({in_one_line(error.__cause__ or error)}). Call it equally often in each; go on from a checkpoint."
            ) from error
        return _mean_metric(rows)


def _mean_metric(rows: list[list[float]]) -> float | None:
    steps = [str(int(row[1])) if row[0] == _MARK else "none" for row in rows]
    if len(set(steps)) > 1:
        raise UsageError(
            f"Schedule.step: the processes are at the steps {', '.join(steps)}. Call it equally often in each."
        )
    metrics = [row[3] for row in rows if row[2]]
    return math.fsum(metrics) / len(metrics) if metrics else None


class Event(NamedTuple):
    """Something that a schedule changed: after how many steps, and what."""

    step: int
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.what}"


class Schedule:
    """Change ranges, batch norms and widths of a quantized model while it trains; call `step` after each optimizer step.

        schedule = linger.Schedule(model, float_steps=100, widths={0: 16, 300: 8, 600: 4}, freeze_ranges=800)
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            schedule.step()

    What belongs to step n happens once `step` was called n times; what belongs to 0 at once. Evaluation and export compute
    integers at any time, by the ranges and widths of that moment, which the model's checkpoint holds. A frozen
    range is one that was seen: others are seen first.

    Args:
        model: A quantized model, as it is or inside DistributedDataParallel.
        float_steps: So many steps train in real numbers, as the float model does, and observe ranges.
        widths: By step, the bits of weights (`{0: 16, 200: 8}`), or those of input, weights and output (`{0: "16/16/16"}`), or
            either by the path or pattern of layers (`{200: {"block.*": 8, "head": "8/8/16"}}`). Functions return the width of
            their widest operand, or what `quant_function` chose. The last widths must be ones that the model's chip has.
        freeze_ranges: From this step on, ranges of inputs and outputs stay as they are; `"plateau"`: once the metric has
            not improved for `patience` metrics.
        freeze_weights: Then the ranges of weights stay, too: weights beyond saturate.
        freeze_batch_norms: From this step on, or at the plateau, batch norms have their running statistics in training, too.
        patience: Metrics without an improvement that make a plateau. Those before the last change of arithmetic do not count.
        mode: Whether a "min" or a "max" of the metric is wanted.

    Raises:
        UsageError: The model is not quantized, or an option is wrong; all that is wrong is told, and nothing is changed.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> linger.Schedule(model, float_steps=2, widths={0: 16, 4: 8})
    Schedule(step 0: trains in real numbers, weights of 16 bits; next: integers at step 2)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        float_steps: int = 0,
        widths: Mapping[int, Wish | Mapping[str, Wish]] | None = None,
        freeze_ranges: int | str | None = None,
        freeze_weights: bool = False,
        freeze_batch_norms: int | str | None = None,
        patience: int = 5,
        mode: str = "min",
    ) -> None:
        self._model, self._runtime = _quantized(model)
        wishes, problems = read_wishes(widths)
        self._stages = Stages(self._model, self._runtime, wishes)
        freezes = {"freeze_ranges": freeze_ranges, "freeze_batch_norms": freeze_batch_norms}
        others = {"float_steps": float_steps, "freeze_weights": freeze_weights, "patience": patience, "mode": mode}
        problems += [*_wrong_options({**others, **freezes}), *self._stages.problems()]
        problems += _refused_by_processes(model, self._model, freezes=freeze_ranges is not None or float_steps != 0)
        if problems:
            raise UsageError(f"Schedule: {listing(problems)}.")
        self._float_steps, self._freezes, self._freezes_weights = float_steps, freezes, freeze_weights
        self._settings = {name: repr(value) for name, value in {**others, **freezes, "widths": _plain(widths)}.items()}
        begins = max([float_steps, *self._stages.steps])
        self._plateau = _Plateau(begins, patience, mode) if PLATEAU in freezes.values() else None
        self._steps = 0
        self._chosen: list[Range] = []
        self._fixed: list[nn.Parameter] = []
        self._hooks: list[RemovableHandle] = []
        if self._runtime.schedule is not None:
            self._runtime.schedule.end()
        self._runtime.schedule = self
        self._apply()

    @property
    def steps(self) -> int:
        """How often `step` was called."""
        return self._steps

    @property
    def events(self) -> tuple[Event, ...]:
        """What has happened so far, in order."""
        return tuple(event for event in self._plan() if event.step <= self._steps)

    def __repr__(self) -> str:
        now: dict[str, str] = {}
        for event in self.events:
            kind = "arithmetic" if event.what in (_REAL, _INTEGERS) else "widths"  # a later event of a kind replaces it
            now[event.what if event.what.endswith("frozen") else kind] = event.what
        told = ", ".join(what for what in now.values() if what != _INTEGERS)
        coming = next((event for event in self._plan() if event.step > self._steps), None)
        ahead = "" if coming is None else f"; next: {coming.what} at step {coming.step}"
        return f"Schedule(step {self._steps}{f': {told}' if told else ''}{ahead})"

    def step(self, metric: float | Tensor | None = None) -> None:
        """Count a step of the optimizer and change what is due.

        Where a plateau is waited for, every process of a group calls this equally often; the metric is the mean of those given.

        Args:
            metric: A figure of this moment, a loss or an accuracy, where one is known.

        Raises:
            UsageError: The metric is no number; processes are at different steps, or one does not answer; another schedule has
                ended this one. Nothing is counted.
        """
        value = _number(metric)
        if self._runtime.schedule not in (None, self):
            raise UsageError(
                "Schedule.step: another Schedule of this model has ended this one. Call the step of that one."
            )
        is_found = self._plateau is not None and self._plateau.sees(value, self._steps)
        self._steps += 1
        if is_found and self._plateau is not None:
            self._plateau.found_at = self._steps
        due = [event for event in self._plan() if event.step == self._steps]
        if due:
            self._apply()
            for event in due:
                logger.info("Schedule: %s", event)

    def end(self) -> None:
        """Thaw what this schedule has frozen, and train in integers; widths stay. Another schedule of the model does so first."""
        self._runtime.trains_real, self._runtime.schedule = False, None
        self._hold_ranges(is_held=False)
        self._hold_batch_norms(is_held=False)

    # checkpoints
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, from which `load_state_dict` goes on; the model's ranges and widths are in its own."""
        plateau = self._plateau
        seen = (None, 0, None) if plateau is None else (plateau.best, plateau.waited, plateau.found_at)
        return dict(zip(_KEYS, (self._steps, *seen, dict(self._settings)), strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another schedule of the same options was.

        Raises:
            UsageError: Keys are missing or unknown, a value is no number, or the options are others; nothing is changed.
        """
        problems = list(_wrong_state(state if isinstance(state, Mapping) else {}))
        if problems:
            raise UsageError(f"Schedule.load_state_dict: {listing(problems)}. Give what state_dict returned.")
        saved = state["settings"] if isinstance(state["settings"], Mapping) else {}
        others = [
            f"{name}={saved.get(name, 'nothing')} there, {own} here"
            for name, own in self._settings.items()
            if saved.get(name) != own
        ]
        if others:
            raise UsageError(
                f"Schedule.load_state_dict: the state is that of another schedule: {listing(others)}. Make the schedule with "
                "the options that it had."
            )
        self._steps = int(state["step"])
        if self._plateau is not None:
            self._plateau.restore(state["best"], int(state["waited"]), state["plateau_at"])
        self._apply()

    # what is due
    def _plan(self) -> Iterator[Event]:
        """All events whose step is known, in order."""
        events = [Event(step, self._stages.told(step)) for step in self._stages.steps]
        if self._float_steps:
            events += [Event(0, _REAL), Event(self._float_steps, _INTEGERS)]
        for name, what in (("freeze_ranges", _RANGES), ("freeze_batch_norms", _BATCH_NORMS)):
            step = self._freezes_at(name)
            if step is not None:
                is_all = name == "freeze_ranges" and self._freezes_weights
                events.append(Event(step, f"{what}{_OF_WEIGHTS if is_all else ''} frozen"))
        return iter(sorted(events, key=lambda event: (event.step, event.what != _REAL)))

    def _freezes_at(self, name: str) -> int | None:
        when = self._freezes[name]
        if when == PLATEAU:
            return None if self._plateau is None else self._plateau.found_at
        return None if when is None else int(when)

    def _is_frozen(self, name: str) -> bool:
        step = self._freezes_at(name)
        return step is not None and self._steps >= step

    def _apply(self) -> None:
        """Give the model what it has after so many steps, whatever it has now."""
        self._runtime.trains_real = self._steps < self._float_steps
        self._stages.apply(self._steps)
        self._hold_ranges(is_held=self._is_frozen("freeze_ranges"))
        self._hold_batch_norms(is_held=self._is_frozen("freeze_batch_norms"))
        for layer in self._layers():
            if layer.input_range == "adopted":
                layer.input_range = "stale"  # the next pass shows the scale that its input has now

    def _layers(self) -> Iterator[QuantizedBase]:
        return (module for module in self._model.modules() if isinstance(module, QuantizedBase))

    def _hold_ranges(self, *, is_held: bool) -> None:
        self._runtime.holds_ranges = is_held
        for layer in self._layers():
            layer.holds_ranges = is_held
        self._hold_learned(is_held=is_held)
        if not (is_held and self._freezes_weights):
            while self._chosen:
                self._chosen.pop().choose_range(None)
            return
        for one in ranges_of(self._model).values():
            if one.kind is Kind.WEIGHT and one.chosen_range() is None:
                largest = _largest_weight(one)
                if largest > ZEROS:
                    one.choose_range(largest if one.rows is None else present_range(one))
                    self._chosen.append(one)

    def _hold_learned(self, *, is_held: bool) -> None:
        """A learned range is frozen by its parameter: what has no gradient stays."""
        while self._fixed and not is_held:
            self._fixed.pop().requires_grad_()
        for one in ranges_of(self._model).values() if is_held else ():
            learned = one.learned
            is_meant = one.kind is not Kind.WEIGHT or self._freezes_weights
            if learned is not None and is_meant and learned.parameter.requires_grad:
                learned.parameter.requires_grad_(False).grad = None  # noqa: FBT003 - torch's own name says it
                self._fixed.append(learned.parameter)

    def _hold_batch_norms(self, *, is_held: bool) -> None:
        """Quantized layers have a switch; a batch norm that is torch's own is put in evaluation mode before each run."""
        while self._hooks:
            self._hooks.pop().remove()
        fused: set[nn.Module] = set()
        for module in self._model.modules():
            if isinstance(module, QuantLayer) and (module.bn is not None or isinstance(module, BatchNormLayer)):
                module.holds_batch_norm = is_held
                fused |= set() if module.bn is None else {module.bn}
            elif is_held and isinstance(module, _BatchNorm) and module not in fused and module.running_mean is not None:
                self._hooks.append(module.register_forward_pre_hook(_use_running_statistics))


def _wrong_options(options: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the options, apart from the widths."""
    if not is_count(options["float_steps"]):
        yield f"float_steps={options['float_steps']!r} (a number of steps)"
    if not is_count(options["patience"]) or options["patience"] == 0:
        yield f"patience={options['patience']!r} (a number of metrics, at least 1)"
    for name in ("freeze_ranges", "freeze_batch_norms"):
        if options[name] not in (None, PLATEAU) and not is_count(options[name]):
            yield f"{name}={options[name]!r} (a step, or {PLATEAU!r})"
    if options["mode"] not in ("min", "max"):
        yield f"mode={options['mode']!r} ('min' or 'max')"
    if options["freeze_weights"] and options["freeze_ranges"] is None:
        yield "freeze_weights=True without freeze_ranges (say when)"


def _quantized(model: nn.Module) -> tuple[nn.Module, Runtime]:
    """The quantized model that is given, or that a wrapper holds."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        runtime = runtime_of(module)
        if runtime is not None:
            return module, runtime
    raise UsageError(f"Schedule: {type(model).__name__} is not quantized. Give the model that linger.init returned.")


def _refused_by_processes(given: nn.Module, model: nn.Module, *, freezes: bool) -> list[str]:
    """What torch would stumble over: it waits for the gradient of every parameter, and some have none for a time."""
    is_waiting = isinstance(given, nn.parallel.DistributedDataParallel) and not given.find_unused_parameters
    layers = [module for module in model.modules() if isinstance(module, QuantizedBase)]
    if not (freezes and is_waiting and any(layer.learned_ranges for layer in layers)):
        return []
    return [
        "learned scales have no gradient for some steps (DistributedDataParallel needs find_unused_parameters=True)"
    ]


def _wrong_state(state: Mapping[str, Any]) -> Iterator[str]:
    """What a saved state lacks, or has wrong."""
    yield from (f"{key!r} is missing" for key in _KEYS if key not in state)
    yield from (f"{key!r} is unknown" for key in sorted(map(str, set(state) - set(_KEYS))))
    yield from (f"{key}={state[key]!r} is no step" for key in ("step", "waited") if not is_count(state.get(key, 0)))
    for key in ("best", "plateau_at"):
        if state.get(key) is not None and not _is_number(state[key]):
            yield f"{key}={state[key]!r} is no number"


def _plain(widths: object) -> object:
    """Widths as dictionaries, whatever mappings they were given in."""
    return {key: _plain(value) for key, value in widths.items()} if isinstance(widths, Mapping) else widths


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(metric: object) -> float | None:
    if metric is None:
        return None
    try:
        return float(metric.detach() if isinstance(metric, Tensor) else metric)  # type: ignore[arg-type]  # it may be none
    except (TypeError, ValueError) as error:
        raise UsageError(f"Schedule.step: metric={metric!r} is no number. Give one figure, or nothing.") from error


def _largest_weight(one: Range) -> float:
    """The largest magnitude of weights as they are now; of a product in a forward, as its last pass saw them."""
    weights = getattr(one.layer, "range_weights", dict[str, Tensor])()
    return max_abs(weights[one.name]) if one.name in weights else float(one.running.read())


def _use_running_statistics(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Forward pre-hook of a frozen batch norm: `model.train()` does not thaw it."""
    del args
    module.training = False
