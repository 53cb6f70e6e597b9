# SPDX-License-Identifier: Apache-2.0
"""What the processes of a training tell each other: once in a training pass, when it ends, in one vector.

A pass is rounded with the scales that were known when it began, and changes no range. It keeps what it saw (`Seen`). At its end
every process gets what all have seen and computes the same update, so ranges, scales and statistics are equal, bit for bit:

- a range learns the lowest and the highest number of all processes, within the interval that any of them uses;
- a batch norm learns mean and variance of the numbers of all processes together;
- what follows from other ranges in a pass (weights, inputs that adopt a scale) is the coarsest of all processes;
- what a function has decided for its input (`QuantizedBase.decisions`) holds for all, if one process needs it.

A process whose pass ends in an exception takes part, too: the others raise at once instead of waiting for it.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from linger.constraint.batch_norm import as_batch_norm, running_statistics
from linger.errors import UsageError
from linger.quantization.core.group import (
    FUNCTION,
    Batch,
    Failure,
    agree,
    awaited,
    device_for,
    gather,
    rank,
    refuse_failures,
)
from linger.quantization.core.method_plan import Followed
from linger.quantization.core.observation import CALIBRATION
from linger.quantization.core.runtime import Runtime, is_in_backward
from linger.quantization.core.statistics import QuantizedBase, not_finite
from linger.version import __version__

_ROUNDED_TO = 4096
"""The length of a row is a multiple of this, so that processes whose models differ a little still hear each other."""

_HEAD = 3
"""Numbers at the front of a row: digest of the layout, how the pass ended, length of the message of a failure."""

_DONE, _STOPPED, _NOT_FINITE = 0.0, 1.0, 2.0

_COLUMNS = 7
"""Numbers of each range: −low, high, −low and high of what is used, whether it is new, width, −finest scale. The largest of all
processes counts."""

_WHAT = "the statistics of a training pass"

AddFunction = Callable[[nn.Module, str], None]
"""Gives a module the range of a function, by the name of the child."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """Which numbers a row holds, in which order: the same in all processes that have called the same functions.

    Attributes:
        modules: Those of the model, by which a change is noticed.
        layers: The quantised ones by name, and in the order of names: functions are not called in one order everywhere.
        ranges: Every range, as layer and name.
        norms: The layers that have a batch norm, and the batch norm.
        owners: For each channel of all batch norms, the place of its batch norm.
        constants: Buffers with integers that follow from a scale.
        deciding: Layers that decide something.
        small: How many numbers come before the means of batch norms: these are needed on the host.
        length: That of a row.
        digest: A number that differs where the layout does.
    """

    modules: list[nn.Module]
    layers: dict[str, QuantizedBase]
    ranges: list[tuple[QuantizedBase, str]]
    norms: list[tuple[QuantizedBase, nn.Module]]
    owners: Tensor
    constants: list[tuple[QuantizedBase, str]]
    deciding: list[QuantizedBase]
    small: int
    length: int
    digest: float

    @classmethod
    def of(cls, root: nn.Module) -> _Layout:
        """That of a model."""
        found = {path: m for path, m in root.named_modules() if isinstance(m, QuantizedBase)}
        layers = dict(sorted(found.items()))
        names = {path: _range_names(layer) for path, layer in layers.items()}
        norms = [(layer, norm) for layer in layers.values() if (norm := layer.learning_norm) is not None]
        channels = torch.tensor([running_statistics(as_batch_norm(norm))[0].numel() for _, norm in norms])
        constants = [(layer, name) for layer in layers.values() for name in layer.constant_names]
        deciding = [layer for layer in layers.values() if layer.decisions]
        count, decisions = sum(map(len, names.values())), sum(len(layer.decisions) for layer in deciding)
        small = _HEAD + (_COLUMNS + 2) * count + decisions + 2 * len(norms) + len(constants)
        length = small + 2 * int(channels.sum())
        text = repr([names, channels.tolist(), len(constants), decisions])
        return cls(
            list(root.modules()),
            layers,
            [(layer, name) for path, layer in layers.items() for name in names[path]],
            norms,
            torch.arange(len(norms)).repeat_interleave(channels.long()),
            constants,
            deciding,
            small,
            math.ceil(length / _ROUNDED_TO) * _ROUNDED_TO,
            float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")),
        )


def _range_names(layer: QuantizedBase) -> list[str]:
    keys = [key for key in layer._buffers if key.startswith("running_") and layer.is_range(key)]  # noqa: SLF001 - in order
    return [key.removeprefix("running_") for key in keys]


class Exchange:
    """Ends the training passes of a model where several processes train it together."""

    def __init__(self, add_function: AddFunction) -> None:
        self._add_function = add_function
        self._layouts: WeakKeyDictionary[nn.Module, _Layout] = WeakKeyDictionary()
        self._agreed: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def __reduce__(self) -> Any:
        """A copy of a model has agreed with nobody."""
        return Exchange, (self._add_function,)

    def finish(self, runtime: Runtime, root: nn.Module, *, is_complete: bool) -> None:
        """The pass of a module that was called from outside has ended.

        Evaluation, calibration and what a checkpoint runs again exchange nothing.

        Raises:
            UsageError: The pass of another process has failed, its model is another one, or it does not answer.
        """
        if CALIBRATION.get() is not None or is_in_backward() or runtime.is_tracing or runtime.stays_real:
            return
        layout = self._layout_of(root)
        if not any(layer.training for layer in layout.layers.values()):
            return
        error = None if is_complete else sys.exc_info()[1]
        with torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as `settle_ranges`
            try:
                self._exchange(root, layout, error)
            except UsageError:
                _forget_new(layout)
                if error is None:  # else its own error is the one to show
                    raise
            finally:
                for layer in layout.layers.values():
                    layer.seen.clear()

    def _layout_of(self, root: nn.Module) -> _Layout:
        layout = self._layouts.get(root)
        if layout is None or layout.modules != list(root.modules()):
            layout = self._layouts[root] = _Layout.of(root)
        return layout

    def _exchange(self, root: nn.Module, layout: _Layout, error: BaseException | None) -> None:
        device = device_for(_device_of(layout))
        failure = None if error is None else Failure.of(error)
        with awaited(_WHAT):
            is_first = root not in self._agreed
            layout = self._agree(root, layout, error, device) if is_first else layout
            rows, host = _gathered(layout, failure, device)
            if not is_first and _differ(host, error):
                layout = self._agree(root, layout, error, device)
                rows, host = _gathered(layout, failure, device)
        if _differ(host, error):
            raise UsageError(
                "The processes do not train one model: their layers differ. Build the same model in every process."
            )
        self._agreed[root] = True
        _refuse_not_finite(layout, host)
        _learn_ranges(layout, host)
        _learn_norms(layout, rows, host)

    def _agree(self, root: nn.Module, layout: _Layout, error: BaseException | None, device: torch.device) -> _Layout:
        """Compare the models, and make the functions that only other processes have called yet."""
        known = {"linger": f"version {__version__}", "torch": f"version {torch.__version__}"}
        known |= {path or "the model": _described(layer) for path, layer in layout.layers.items()}
        missing = agree(known, None if error is None else Failure.of(error), error, device)
        for path in missing:
            parent, _, child = path.rpartition(".")
            self._add_function(root.get_submodule(parent), child)
        return self._layout_of(root)


def _described(layer: QuantizedBase) -> str:
    """What a layer is, so that another one is told from it."""
    if not layer.is_layer:
        return f"{FUNCTION} {type(layer).__name__}"
    parameters = [f"{p.dtype} {list(p.shape)}".removeprefix("torch.") for p in layer.parameters(recurse=False)]
    return " ".join([str(getattr(layer, "op_name", type(layer).__name__)), *parameters])


def _device_of(layout: _Layout) -> torch.device:
    return next((layer.get_buffer(f"running_{name}").device for layer, name in layout.ranges), torch.device("cpu"))


# the row of this process
def _gathered(layout: _Layout, failure: Failure | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows of all processes, and their first part on the host, which a device is asked for once."""
    row = _row(layout, device) if failure is None else _row_of_failure(layout, failure, device)
    rows = gather(row)
    return rows, rows[:, : layout.small].cpu() if failure is None and not rows.is_cpu else rows.cpu()


def _row_of_failure(layout: _Layout, failure: Failure, device: torch.device) -> Tensor:
    state = _NOT_FINITE if failure.is_not_finite else _STOPPED
    text = failure.text.encode()[: layout.length - _HEAD]
    numbers = torch.tensor([layout.digest, state, len(text), *text], dtype=torch.float64, device=device)
    return nn.functional.pad(numbers, (0, layout.length - len(numbers)))


def _row(layout: _Layout, device: torch.device) -> Tensor:
    """What this process has seen."""
    numbers: list[Any] = [layout.digest, _DONE, 0.0]
    for layer, name in layout.ranges:
        numbers += _columns(layer, name)
    for layer in layout.deciding:
        numbers += [float(decision) for decision in layer.decisions]
    batches = [_pooled_batch(layer.seen.batches) for layer, _ in layout.norms]
    numbers += [0.0 if batch is None else float(batch.size) for batch in batches]
    # what is on a device stays there
    there = {place: number for place, number in enumerate(numbers) if isinstance(number, Tensor)}
    head = torch.tensor([0.0 if p in there else n for p, n in enumerate(numbers)], dtype=torch.float64, device=device)
    if there:
        head[list(there)] = torch.stack([number.to(device, torch.float64) for number in there.values()])
    parts = [head, *_buffers(layout)]
    zeros = [running_statistics(as_batch_norm(norm))[0] for _, norm in layout.norms]
    for part in ("mean", "var"):
        parts += [z.new_zeros(len(z)) if b is None else getattr(b, part) for z, b in zip(zeros, batches, strict=True)]
    found = torch.cat([part.to(device) for part in parts])
    return nn.functional.pad(found, (0, layout.length - len(found)))


def _columns(layer: QuantizedBase, name: str) -> list[Any]:
    """The numbers of one range; those of a range that this pass has not seen count less than any other."""
    ends, use = layer.seen.ends.get(name), layer.uses.get(name)
    used = None if use is None else use.take()
    low, high = (math.inf, -math.inf) if used is None else used
    if ends is None:
        return [-math.inf, -math.inf, -low, high, 0.0, 0.0, -math.inf]
    is_known = name in layer.bits_of
    bits, bound = (layer.bits_of[name], layer.bounds[name]) if is_known else (0, math.inf)
    return [-ends.low, ends.high, -low, high, ends.is_new, bits, -bound]


def _buffers(layout: _Layout) -> list[Tensor]:
    """How often the batch norms have learned, ranges, scales and constants, as they are now."""
    counts = [cast(Tensor, as_batch_norm(norm).num_batches_tracked).reshape(1) for _, norm in layout.norms]
    running = [layer.get_buffer(f"running_{name}") for layer, name in layout.ranges]
    scales = [layer.get_buffer(f"scale_{name}") for layer, name in layout.ranges]
    return [*counts, *running, *scales, *(layer.get_buffer(name).reshape(1) for layer, name in layout.constants)]


# what all processes say
def _differ(host: Tensor, error: BaseException | None) -> bool:
    """Whether layouts differ.

    Raises:
        UsageError: The pass of a process has failed.
    """
    heads = host[:, :_HEAD].tolist()
    failures = {}
    for number, (_, state, length) in enumerate(heads):
        if state != _DONE:
            text = bytes(int(n) for n in host[number, _HEAD : _HEAD + int(length)].tolist()).decode(errors="replace")
            failures[number] = Failure(text, state == _NOT_FINITE)
    refuse_failures(failures, error)
    return len({digest for digest, _, _ in heads}) > 1


def _refuse_not_finite(layout: _Layout, host: Tensor) -> None:
    """Refuse NaN and infinity that were on a device, where nobody has looked at them."""
    ends = host[:, _HEAD : _HEAD + _COLUMNS * len(layout.ranges)].reshape(len(host), -1, _COLUMNS)[:, :, :2]
    wrong = (ends.isnan() | (ends == math.inf)).any(2).nonzero().tolist()
    failures: dict[int, Failure] = {}
    for number, place in wrong:
        layer, name = layout.ranges[place]
        path = next(path for path, found in layout.layers.items() if found is layer)
        failures.setdefault(number, Failure(not_finite(f"{path}.{name}"), is_not_finite=True))
    refuse_failures(failures, None)


def _learn_ranges(layout: _Layout, host: Tensor) -> None:
    """Give every range, decision and constant the value that follows from all processes."""
    count, deciding = len(layout.ranges), sum(len(layer.decisions) for layer in layout.deciding)
    split = [_HEAD, _COLUMNS * count, deciding, 2 * len(layout.norms), count, count, len(layout.constants)]
    _, columns, decisions, _, runnings, scales, constants = host[:, : layout.small].split(split, dim=1)
    decided = iter(decisions.amax(0).tolist())
    for layer in layout.deciding:
        layer.decisions = tuple(bool(next(decided)) for _ in layer.decisions)
    for (layer, name), value in zip(layout.constants, constants[0].tolist(), strict=True):
        layer.get_buffer(name).fill_(value)
    own = rank()
    before = list(zip(runnings[own].tolist(), scales[own].tolist(), strict=True))
    coarsest = scales.masked_fill(scales == 0.0, math.inf).amin(0)
    together = list(
        zip(runnings.amax(0).tolist(), coarsest.masked_fill(coarsest == math.inf, 0.0).tolist(), strict=True)
    )
    found = columns.amax(0).reshape(-1, _COLUMNS).tolist()
    is_seen = [high != -math.inf for _, high, *_ in found]
    for place, (layer, name) in enumerate(layout.ranges):  # what follows from others, first
        if not is_seen[place] and before[place] != together[place]:
            for kind, value in zip(("running", "scale"), together[place], strict=True):
                layer.write(f"{kind}_{name}", value)
    for place, (layer, name) in enumerate(layout.ranges):
        if is_seen[place]:
            _learn_range(layer, name, together[place][0], found[place])


def _learn_range(layer: QuantizedBase, name: str, before: float, columns: list[float]) -> None:
    low, high, used_low, used_high, is_new, bits, bound = columns
    used = None if used_high == -math.inf else (-used_low, used_high)
    layer.learn_range(name, 0.0 if is_new else before, (-low, high), used, int(bits), -bound)
    if isinstance(layer, Followed):
        layer.follow_range(name)


def _forget_new(layout: _Layout) -> None:
    """After a failed pass, ranges that nobody had seen before it are unseen again."""
    for layer in layout.layers.values():
        for name, ends in layer.seen.ends.items():
            key = f"running_{name}"
            if isinstance(ends.is_new, Tensor):
                layer.write(key, layer.get_buffer(key).masked_fill(ends.is_new, 0.0))
            elif ends.is_new:
                layer.write(key, 0.0)


# batch norms
def _learn_norms(layout: _Layout, rows: Tensor, host: Tensor) -> None:
    """Let the numbers of all processes move the statistics of every batch norm once, computed alike on every machine."""
    norms = [as_batch_norm(norm) for _, norm in layout.norms]
    if not norms:
        return
    start = layout.small - len(layout.constants) - 2 * len(layout.ranges) - 2 * len(norms)
    counts, tracked = host[:, start : start + 2 * len(norms)].split(len(norms), dim=1)
    is_seen = [total > 0.0 for total in counts.sum(0).tolist()]
    momenta = [
        1.0 / (before + 1.0) if norm.momentum is None else norm.momentum
        for norm, before in zip(norms, tracked.amax(0).tolist(), strict=True)
    ]
    owners = layout.owners.to(rows.device)
    size = len(owners)
    means, variances = rows[:, layout.small : layout.small + 2 * size].split(size, dim=1)
    pooled = _pooled(counts.to(rows.device)[:, owners], means, variances)
    weight = torch.tensor(momenta, dtype=torch.float64, device=rows.device)[owners]
    for place, new in enumerate(pooled):
        old = torch.cat([running_statistics(norm)[place].to(rows.device) for norm in norms]).double()
        learned = old + weight * (new - old)
        sizes = [len(running_statistics(norm)[place]) for norm in norms]
        for norm, values, was_seen in zip(norms, learned.split(sizes), is_seen, strict=True):
            if was_seen:
                running_statistics(norm)[place].copy_(values)
    for norm, was_seen in zip(norms, is_seen, strict=True):
        if was_seen:
            cast(Tensor, norm.num_batches_tracked).add_(1)


def _pooled(counts: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of several batches together, row by row: no order of additions is left to torch."""
    total, mean, square = (torch.zeros_like(means[0]) for _ in range(3))
    for count, own in zip(counts, means, strict=True):
        total = total + count
        mean = mean + count * own
    mean = mean / total
    for count, own, variance in zip(counts, means, variances, strict=True):
        square = square + ((count - 1.0).clamp(min=0.0) * variance + count * ((own - mean) * (own - mean)))
    return mean, square / (total - 1.0)


def _pooled_batch(batches: list[Batch]) -> Batch | None:
    """The calls of one pass together."""
    if len(batches) < 2:
        return batches[0] if batches else None
    means, variances = (
        torch.stack([part.double() for part in parts]) for parts in list(zip(*batches, strict=True))[1:]
    )
    counts = [batch.size for batch in batches]
    each = torch.tensor(counts, dtype=torch.float64, device=means.device).unsqueeze(1).expand_as(means)
    return Batch(sum(counts), *_pooled(each, means, variances))
