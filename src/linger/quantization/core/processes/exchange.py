# SPDX-License-Identifier: Apache-2.0
"""What the processes of a training tell each other: once in a training pass, when it ends, in one vector.

A pass is rounded with the scales that were known when it began, and changes no range. It keeps what it saw (`Seen`). At its end
every process gets what all have seen and computes the same update, so ranges, scales and statistics are equal, bit for bit:

- a range learns the lowest and the highest number of all processes, within the interval that any of them uses;
- a batch norm learns mean and variance of the numbers of all processes together;
- what follows from other ranges in a pass (weights, inputs that adopt a scale) is the coarsest of all processes;
- what a function has decided for its input (`QuantizedBase.flags`) holds for all, if one process needs it.

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
from linger.quantization.core.kept.scales import not_finite
from linger.quantization.core.observation import CALIBRATION
from linger.quantization.core.processes.group import (
    FUNCTION,
    SHORTEST,
    Failure,
    Group,
    GroupError,
    agree,
    refuse_failures,
)
from linger.quantization.core.processes.seen import Batch
from linger.quantization.core.runtime import Runtime
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.core.surroundings import is_in_backward
from linger.version import __version__

_HEAD = 3
"""Numbers at the front of a row: digest of the layout, how the pass ended, length of the message of a failure."""

_LONGEST_TEXT = 1000
"""Bytes of the message of a failure."""

_DONE, _STOPPED, _NOT_FINITE = 0.0, 1.0, 2.0

_COLUMNS = 7
"""Numbers of each range: −low, high, −low and high of what is used, whether it is new, width, −finest scale. The largest of all
processes counts."""

AddFunction = Callable[[nn.Module, str], object]
"""Gives a module the range of a function, by the name of the child."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """Which numbers a row holds, in which order: the same in all processes that have called the same functions.

    Attributes:
        modules: Those of the model, by which a change is noticed.
        layers: The quantised ones by name, and in the order of names: functions are not called in one order everywhere.
        ranges: Every range, as layer and name.
        norms: The layers that have a batch norm, and the batch norm.
        sizes: Channels of each.
        owners: For each channel of all batch norms, the place of its batch norm.
        constants: Buffers with integers that follow from a scale.
        deciding: Layers that decide something.
        small: How many numbers come before the means of batch norms: these are needed on the host.
        length: That of a row, rounded up, so that processes whose models differ a little still hear each other.
        digest: A number that differs where the layout does.
    """

    modules: list[nn.Module]
    layers: dict[str, QuantizedBase]
    ranges: list[tuple[QuantizedBase, str]]
    norms: list[tuple[QuantizedBase, nn.Module]]
    sizes: list[int]
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
        names = {path: layer.range_names() for path, layer in layers.items()}
        norms = [(layer, norm) for layer in layers.values() if (norm := layer.learning_norm) is not None]
        sizes = [running_statistics(as_batch_norm(norm))[0].numel() for _, norm in norms]
        constants = [(layer, name) for layer in layers.values() for name in layer.constant_names]
        deciding = [layer for layer in layers.values() if layer.flags]
        count, decisions = sum(map(len, names.values())), sum(len(layer.flags) for layer in deciding)
        small = _HEAD + (_COLUMNS + 2) * count + decisions + 2 * len(norms) + len(constants)
        length = small + 2 * sum(sizes)
        text = repr([names, sizes, len(constants), decisions])
        return cls(
            _modules_of(root),
            layers,
            [(layer, name) for path, layer in layers.items() for name in names[path]],
            norms,
            sizes,
            torch.arange(len(norms)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64)),
            constants,
            deciding,
            small,
            math.ceil(length / SHORTEST) * SHORTEST,
            float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")),
        )


def _modules_of(root: nn.Module) -> list[nn.Module]:
    """Every module of a model: `root.modules()`, with repetitions, at a tenth of its cost."""
    found = [root]
    for module in found:  # which grows meanwhile
        found.extend([child for child in module._modules.values() if child is not None])  # noqa: SLF001 - as above
    return found


class Exchange:
    """Ends the training passes of a model where several processes train it together."""

    def __init__(self, add_function: AddFunction) -> None:
        self._add_function = add_function
        self._layouts: WeakKeyDictionary[nn.Module, _Layout] = WeakKeyDictionary()
        self._agreed: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        self._group: Group | None = None

    def __reduce__(self) -> Any:
        """A copy of a model has agreed with nobody."""
        return Exchange, (self._add_function,)

    def finish(self, runtime: Runtime, root: nn.Module, *, is_complete: bool) -> None:
        """The pass of a module that was called from outside has ended.

        Evaluation, calibration and what a checkpoint runs again exchange nothing.

        Raises:
            GroupError: The pass of another process has failed, its model is another one, or it does not answer.
        """
        if CALIBRATION.get() is not None or is_in_backward() or runtime.is_tracing or runtime.stays_real:
            return
        layout = self._layout_of(root)
        if not any(layer.training for layer in layout.layers.values()):
            return
        error = None if is_complete else sys.exc_info()[1]
        if isinstance(error, GroupError):
            return  # of a model in this one: everybody knows
        with torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as `settle_ranges`
            try:
                self._exchange(root, layout, error)
            except GroupError:
                _forget_new(layout)
                if error is None:  # else its own error is the one to show
                    raise
            finally:
                for layer in layout.layers.values():
                    layer.forget_seen()

    def _layout_of(self, root: nn.Module) -> _Layout:
        layout = self._layouts.get(root)
        if layout is None or layout.modules != _modules_of(root):
            layout = self._layouts[root] = _Layout.of(root)
        return layout

    def _exchange(self, root: nn.Module, layout: _Layout, error: BaseException | None) -> None:
        if self._group is None or not self._group.is_valid:
            self._group = Group()
            self._agreed.clear()
        group, device = self._group, Group.device_for(_device_of(layout))
        is_first = root not in self._agreed
        layout = self._agree(root, layout, error, device) if is_first else layout
        rows, host = _gathered(group, layout, error, device)
        if not is_first and _differ(host, error):
            layout = self._agree(root, layout, error, device)
            rows, host = _gathered(group, layout, error, device)
        if _differ(host, error):
            raise GroupError(
                "The processes do not train one model: their ranges differ. Build the same model in every process."
            )
        self._agreed[root] = True
        _refuse_not_finite(layout, host)
        _learn_ranges(layout, host, group.rank)
        _learn_norms(layout, rows, host)

    def _agree(self, root: nn.Module, layout: _Layout, error: BaseException | None, device: torch.device) -> _Layout:
        """Compare the models, and make the functions that only other processes have called yet."""
        assert self._group is not None  # made by the caller
        known = {"linger": f"version {__version__}", "torch": f"version {torch.__version__}"}
        known |= {path or "the model": _described(layer) for path, layer in layout.layers.items()}
        for path in agree(self._group, known, error, device):
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
def _gathered(
    group: Group, layout: _Layout, error: BaseException | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows of all processes, and their first part on the host, which a device is asked for once."""
    row = _row(layout, device) if error is None else _row_of_failure(layout, Failure.of(error), device)
    return group.gather(row, max(layout.small, _HEAD + _LONGEST_TEXT))


def _row_of_failure(layout: _Layout, failure: Failure, device: torch.device) -> Tensor:
    state = _NOT_FINITE if failure.is_not_finite else _STOPPED
    text = failure.text.encode()[:_LONGEST_TEXT]
    numbers = torch.tensor([layout.digest, state, len(text), *text], dtype=torch.float64, device=device)
    return nn.functional.pad(numbers, (0, layout.length - len(numbers)))


def _row(layout: _Layout, device: torch.device) -> Tensor:
    """What this process has seen."""
    numbers: list[Any] = [layout.digest, _DONE, 0.0]
    for layer, name in layout.ranges:
        numbers += _columns(layer, name)
    for layer in layout.deciding:
        numbers += [float(decision) for decision in layer.flags]
    batches = [_pooled_batch(layer.seen.batches) for layer, _ in layout.norms]
    numbers += [0.0 if batch is None else float(batch.size) for batch in batches]
    # what is on a device stays there
    there = {place: number for place, number in enumerate(numbers) if isinstance(number, Tensor)}
    head = torch.tensor([0.0 if p in there else n for p, n in enumerate(numbers)], dtype=torch.float64, device=device)
    if there:
        head[list(there)] = _joined([number.reshape(1).double() for number in there.values()], device)
    norms = [as_batch_norm(norm) for _, norm in layout.norms]
    means = [
        running_statistics(n)[0].new_zeros(s) if b is None else b.mean
        for n, b, s in zip(norms, batches, layout.sizes, strict=True)
    ]
    variances = [torch.zeros_like(m) if b is None else b.var for m, b in zip(means, batches, strict=True)]
    counts = [cast(Tensor, norm.num_batches_tracked).reshape(1) for norm in norms]
    constants = [layer.get_buffer(name).reshape(1) for layer, name in layout.constants]
    parts = (counts, _buffers(layout), constants, [*means, *variances])
    found = torch.cat([head, *(_joined(part, device) for part in parts if part)])
    return nn.functional.pad(found, (0, layout.length - len(found)))


def _joined(parts: list[Tensor], device: torch.device) -> Tensor:
    """One float64 vector. It is made where the parts are, of the type that they have, and moved and converted as a whole."""
    places = {part.device for part in parts}
    together = torch.cat(parts if len(places) == 1 else [part.to(device) for part in parts])
    return together.to(device, torch.float64)


def _columns(layer: QuantizedBase, name: str) -> list[Any]:
    """The numbers of one range; those of a range that this pass has not seen count less than any other."""
    ends, used = layer.seen.ends.get(name), layer.use_so_far(name)
    low, high = (math.inf, -math.inf) if used is None else used
    if ends is None:
        return [-math.inf, -math.inf, -low, high, 0.0, 0.0, -math.inf]
    return [-ends.low, ends.high, -low, high, ends.is_new, layer.bits_of.get(name, 0), -layer.bound_of(name)]


def _buffers(layout: _Layout) -> list[Tensor]:
    """Ranges and scales, as they are now."""
    found = [layer._buffers[f"{kind}_{name}"] for kind in ("running", "scale") for layer, name in layout.ranges]  # noqa: SLF001 - get_buffer takes ten times as long
    return cast("list[Tensor]", found)


# what all processes say
def _differ(host: Tensor, error: BaseException | None) -> bool:
    """Whether layouts differ.

    Raises:
        GroupError: The pass of a process has failed.
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
    order = {module: place for place, module in enumerate(layout.modules)}  # nearer to that of the pass than names
    paths = {layer: path for path, layer in layout.layers.items()}
    failures: dict[int, Failure] = {}
    for number, place in sorted(wrong, key=lambda found: order[layout.ranges[found[1]][0]]):
        layer, name = layout.ranges[place]
        failures.setdefault(number, Failure(not_finite(f"{paths[layer]}.{name}"), is_not_finite=True))
    refuse_failures(dict(sorted(failures.items())), None)


def _learn_ranges(layout: _Layout, host: Tensor, own: int) -> None:
    """Give every range, decision and constant the value that follows from all processes."""
    count, deciding = len(layout.ranges), sum(len(layer.flags) for layer in layout.deciding)
    split = [_HEAD, _COLUMNS * count, deciding, 2 * len(layout.norms), count, count, len(layout.constants)]
    _, columns, decisions, _, runnings, scales, constants = host[:, : layout.small].split(split, dim=1)
    for (layer, name), value in zip(layout.constants, constants[0].tolist(), strict=True):
        layer.get_buffer(name).fill_(value)
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
    decided = iter(decisions.amax(0).tolist())
    for layer in layout.deciding:
        layer.flags = tuple(bool(next(decided)) for _ in layer.flags)


def _learn_range(layer: QuantizedBase, name: str, before: float, columns: list[float]) -> None:
    low, high, used_low, used_high, is_new, bits, bound = columns
    used = None if used_high == -math.inf else (-used_low, used_high)
    layer.learn_range(name, 0.0 if is_new else before, (-low, high), used, int(bits), -bound)
    follow = getattr(layer, "follow_range", None)
    if follow is not None:
        follow(name)


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
        old = _joined([running_statistics(norm)[place] for norm in norms], rows.device)
        learned = old + weight * (new - old)
        for norm, values, was_seen in zip(norms, learned.split(layout.sizes), is_seen, strict=True):
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
