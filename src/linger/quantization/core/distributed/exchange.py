# SPDX-License-Identifier: Apache-2.0
"""What the processes of a training tell each other: once in a training pass, when it ends, in one vector.

A pass is rounded with the scales that were known when it began, and changes no range. It keeps what it saw (`Range.ends`). At its end
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from linger.constraint.conv_bn import BatchNorm, as_batch_norm, running_statistics
from linger.errors import UsageError
from linger.quantization.core.distributed.group import (
    FUNCTION,
    HELLO,
    Group,
    GroupError,
    agree,
    failure_of,
    refuse_failures,
)
from linger.quantization.core.quantized import Batch, QuantizedBase, layers_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Runtime
from linger.quantization.core.stored import not_finite
from linger.version import __version__

_HEAD = 3  # numbers at the front of a row: digest of the layout, how the pass ended, length of the message of a failure
_LONGEST_TEXT = 1000  # bytes of the message of a failure
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
        layers: The quantized ones by name, and in the order of names: functions are not called in one order everywhere.
        ranges: Every range.
        norms: The layers that have a batch norm, and the batch norm.
        sizes: Channels of each.
        owners: For each channel of all batch norms, the place of its batch norm.
        constants: Buffers with integers that follow from a scale.
        deciding: Layers that decide something.
        sections: How many numbers come before the means and variances of batch norms, which are not needed on the host: the head,
            columns of ranges, decisions, sizes of batches, counts of batch norms, ranges, scales, constants.
        widths: Those of the layers, by which a change is noticed, too.
        digest: A number that differs where the layout does.
    """

    modules: list[nn.Module]
    layers: dict[str, QuantizedBase]
    ranges: list[Range]
    norms: list[tuple[QuantizedBase, BatchNorm]]
    sizes: list[int]
    owners: Tensor
    constants: list[tuple[QuantizedBase, str]]
    deciding: list[QuantizedBase]
    sections: list[int]
    widths: list[object]
    digest: float

    @classmethod
    def of(cls, root: nn.Module) -> _Layout:
        """That of a model."""
        layers = dict(sorted(layers_of(root).items()))
        names = {path: list(layer.ranges) for path, layer in layers.items()}
        ranges = list(chain.from_iterable(layer.ranges.values() for layer in layers.values()))
        norms = [(layer, as_batch_norm(n)) for layer in layers.values() if (n := layer.learning_norm) is not None]
        sizes = [running_statistics(norm)[0].numel() for _, norm in norms]
        constants = [(layer, name) for layer in layers.values() for name in layer.constant_names]
        deciding = list(filter(attrgetter("flags"), layers.values()))
        decisions = sum(len(layer.flags) for layer in deciding)
        text = repr([names, sizes, len(constants), decisions, list(map(_described, layers.values()))])
        count = len(ranges)
        return cls(
            _modules_of(root),
            layers,
            ranges,
            norms,
            sizes,
            torch.arange(len(norms)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64)),
            constants,
            deciding,
            [_HEAD, _COLUMNS * count, decisions, len(norms), len(norms), count, count, len(constants)],
            _widths_of(layers.values()),
            float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")),
        )

    @property
    def small(self) -> int:
        """How many numbers are needed on the host."""
        return sum(self.sections)

    @property
    def length(self) -> int:
        """That of a row."""
        return self.small + 2 * sum(self.sizes)


def _widths_of(layers: Iterable[QuantizedBase]) -> list[object]:
    return [getattr(layer, "widths", None) for layer in layers]


def _modules_of(root: nn.Module) -> list[nn.Module]:
    """Every module of a model: `root.modules()`, with repetitions, at a tenth of its cost."""
    modules = [root]
    for module in modules:  # which grows meanwhile
        modules.extend([child for child in module._modules.values() if child is not None])  # noqa: SLF001 - as above
    return modules


class Exchange:
    """Ends the training passes of a model where several processes train it together."""

    def __init__(self, add_function: AddFunction) -> None:
        self._add_function = add_function
        self._layouts: WeakKeyDictionary[nn.Module, _Layout] = WeakKeyDictionary()
        self._agreed: WeakKeyDictionary[nn.Module, ref[Group]] = WeakKeyDictionary()

    def __reduce__(self) -> Any:
        """A copy of a model has agreed with nobody."""
        return Exchange, (self._add_function,)

    def finish(self, runtime: Runtime, root: nn.Module, *, is_complete: bool) -> None:
        """The pass of a module that was called from outside has ended.

        Evaluation, calibration and what a checkpoint runs again exchange nothing.

        Raises:
            GroupError: The pass of another process has failed, its model is another one, or it does not answer.
        """
        now = runtime.now
        if not now.is_shared or now.is_repeated or now.is_traced or runtime.stays_real:
            return
        layout = self._layout_of(root)
        if not any(layer.training for layer in layout.layers.values()):
            return
        error = None if is_complete else sys.exc_info()[1]
        with torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as `settle_ranges`
            try:
                self._tell(root, layout, error)
            finally:
                for layer in layout.layers.values():
                    layer.forget_pass()

    def abandon(self, root: nn.Module) -> None:
        """Forget a pass that was interrupted before it could end."""
        layers = layers_of(root).values()
        with torch.no_grad():
            _forget_new(layers)
            for layer in layers:
                layer.forget_pass()

    def _tell(self, root: nn.Module, layout: _Layout, error: BaseException | None) -> None:
        if _is_told(error):  # by a model in this one: everybody knows
            _forget_new(layout.layers.values())
            return
        late = _follow_learned(layout) if error is None else None
        try:
            self._exchange(root, layout, late if error is None else error)
        except GroupError:
            _forget_new(layout.layers.values())
            if error is not None:  # its own error is the one to show
                error.__dict__[_TOLD] = True
            elif late is None:
                raise
        if late is not None:
            raise late

    def _layout_of(self, root: nn.Module) -> _Layout:
        layout = self._layouts.get(root)
        if layout is None or layout.modules != _modules_of(root) or layout.widths != _widths_of(layout.layers.values()):
            order_functions(root)  # a wrapper takes the list of buffers when its next pass begins
            layout = self._layouts[root] = _Layout.of(root)
        return layout

    def _exchange(self, root: nn.Module, layout: _Layout, error: BaseException | None) -> None:
        home = next((range_.running.buffer.device for range_ in layout.ranges), torch.device("cpu"))
        group, device = Group.of_all(), Group.device_for(home)
        known = self._agreed.get(root)
        is_first = known is None or known() is not group
        if is_first:
            layout = self._agree(group, root, layout, error, device)
        rows, host = _gathered(group, layout, error, device)
        # where all have the same new functions, their digests do not differ
        if not is_first and (_differ(host, error) or layout.length > group.length):
            layout = self._agree(group, root, layout, error, device)
            rows, host = _gathered(group, layout, error, device)
        if _differ(host, error):
            raise GroupError(
                "The processes do not train one model: their ranges differ. Build the same model in every process."
            )
        self._agreed[root] = ref(group)
        _refuse_not_finite(layout, host)
        _learn_ranges(layout, host, group.rank)
        _learn_norms(layout, rows, host)

    def _agree(
        self, group: Group, root: nn.Module, layout: _Layout, error: BaseException | None, device: torch.device
    ) -> _Layout:
        """Compare the models, and make the functions that only other processes have called yet."""
        known = {"linger": f"version {__version__}", "torch": f"version {torch.__version__}"}
        known |= {path or "the model": _described(layer) for path, layer in layout.layers.items()}
        for path in agree(group, known, error, device):
            parent, _, child = path.rpartition(".")
            self._add_function(root.get_submodule(parent), child)
        layout = self._layout_of(root)
        group.lengthen(layout.length, device)
        return layout


_TOLD = "_linger_told"  # attribute of an exception that all processes have been told of


def _is_told(error: BaseException | None) -> bool:
    """Whether all processes know of an exception, or of the one that it was raised from."""
    while error is not None:
        if isinstance(error, GroupError) or _TOLD in error.__dict__:
            return True
        error = error.__cause__
    return False


def _follow_learned(layout: _Layout) -> UsageError | None:
    """Bring learned ranges up to date in layers that other processes have run; returns what is wrong with one."""
    try:
        for layer in layout.layers.values():
            layer.follow_learned()
    except UsageError as error:
        return error
    return None


def _described(layer: QuantizedBase) -> str:
    """What a layer is, so that another one is told from it."""
    if not layer.is_layer:
        return f"{FUNCTION} {type(layer).__name__}"
    parameters = [f"{p.dtype} {list(p.shape)}".removeprefix("torch.") for p in layer.parameters(recurse=False)]
    widths = getattr(layer, "widths", None)
    bits = [] if widths is None else [f"{widths} bits"]
    return " ".join([str(getattr(layer, "op_name", type(layer).__name__)), *bits, *parameters])


# the row of this process
def _gathered(
    group: Group, layout: _Layout, error: BaseException | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows of all processes, and their first part on the host, which a device is asked for once."""
    if error is None:
        row = _row(layout, device)
    else:
        text, is_not_finite = failure_of(error)
        told = text.encode()[:_LONGEST_TEXT]
        head = [layout.digest, _NOT_FINITE if is_not_finite else _STOPPED, len(told)]
        row = torch.tensor([*head, *told], dtype=torch.float64, device=device)
    return group.gather(row, max(layout.small, _HEAD + _LONGEST_TEXT))


def _row(layout: _Layout, device: torch.device) -> Tensor:
    """What this process has seen."""
    batches = [_batch_of(layer, norm) for layer, norm in layout.norms]
    counts = [cast(Tensor, norm.num_batches_tracked).reshape(1) for _, norm in layout.norms]
    buffers = [
        *(r.running.buffer for r in layout.ranges),
        *(r.stored_scale.buffer.amin(0, keepdim=True) for r in layout.ranges),
    ]
    constants = [layer.get_buffer(name).reshape(1) for layer, name in layout.constants]
    moments = [*(batch.mean for batch in batches), *(batch.var for batch in batches)]
    parts = filter(None, (counts, buffers, constants, moments))
    return torch.cat([_head(layout, batches, device), *(_joined(part, device) for part in parts)])


def _head(layout: _Layout, batches: list[Batch], device: torch.device) -> Tensor:
    """The first numbers of a row, of which some are on a device, where they stay."""
    numbers: list[Any] = [layout.digest, _DONE, 0.0]
    numbers += chain.from_iterable(map(_columns, layout.ranges))
    numbers += map(float, chain.from_iterable(layer.flags for layer in layout.deciding))
    numbers += [float(batch.size) for batch in batches]
    there = {place: number for place, number in enumerate(numbers) if isinstance(number, Tensor)}
    head = torch.tensor([0.0 if p in there else n for p, n in enumerate(numbers)], dtype=torch.float64, device=device)
    if there:
        head[list(there)] = _joined([number.reshape(1).double() for number in there.values()], device)
    return head


def _joined(parts: list[Tensor], device: torch.device) -> Tensor:
    """One float64 vector. It is made where the parts are, of the type that they have, and moved and converted as a whole."""
    places = {part.device for part in parts}
    together = torch.cat(parts if len(places) == 1 else [part.to(device) for part in parts])
    return together.to(device, torch.float64)


def _columns(range_: Range) -> list[Any]:
    """The numbers of one range; those of a range that this pass has not seen count less than any other."""
    ends, used = range_.ends, range_.users.so_far
    low, high = (math.inf, -math.inf) if used is None else used
    if ends is None:
        return [-math.inf, -math.inf, -low, high, 0.0, 0.0, -math.inf]
    bound = math.inf if range_.bound is None else range_.bound
    return [-ends[0], ends[1], -low, high, ends[2], range_.width or 0, -bound]


# what all processes say
def _differ(host: Tensor, error: BaseException | None) -> bool:
    """Whether layouts differ; a `GroupError` where the pass of a process has failed."""
    heads = host[:, :_HEAD].tolist()
    if any(digest == HELLO for digest, _, _ in heads):
        return True  # a failure is told when models are compared
    failures = {}
    for number, (_, state, length) in enumerate(heads):
        if state != _DONE:
            text = bytes(int(n) for n in host[number, _HEAD : _HEAD + int(length)].tolist()).decode(errors="replace")
            failures[number] = text, state == _NOT_FINITE
    refuse_failures(failures, error)
    return len({digest for digest, _, _ in heads}) > 1


def _refuse_not_finite(layout: _Layout, host: Tensor) -> None:
    """Refuse NaN and infinity that were on a device, where nobody has looked at them."""
    ends = host[:, _HEAD : _HEAD + _COLUMNS * len(layout.ranges)].reshape(len(host), -1, _COLUMNS)[:, :, :2]
    wrong = (ends.isnan() | (ends == math.inf)).any(2).nonzero().tolist()
    order = {module: place for place, module in enumerate(layout.modules)}  # nearer to that of the pass than names
    paths: dict[nn.Module, str] = {layer: path for path, layer in layout.layers.items()}
    failures: dict[int, tuple[str, bool]] = {}
    for number, range_ in sorted(((n, layout.ranges[p]) for n, p in wrong), key=lambda pair: order[pair[1].layer]):
        failures.setdefault(number, (not_finite(f"{paths[range_.layer]}.{range_.name}"), True))
    refuse_failures(dict(sorted(failures.items())), None)


def _learn_ranges(layout: _Layout, host: Tensor, own: int) -> None:
    """Give every range, decision and constant the value that follows from all processes."""
    _, columns, decisions, _, _, runnings, scales, constants = host[:, : layout.small].split(layout.sections, dim=1)
    scales = scales.masked_fill(scales == 0.0, math.inf)  # of ranges that a process has not seen
    _learn_constants(layout, constants, scales)
    coarsest = scales.amin(0)
    before = list(zip(runnings[own].tolist(), scales[own].tolist(), strict=True))
    together = list(zip(runnings.amax(0).tolist(), coarsest.tolist(), strict=True))
    largest = columns.amax(0).reshape(-1, _COLUMNS).tolist()
    is_seen = [high != -math.inf for _, high, *_ in largest]
    for place, range_ in enumerate(layout.ranges):  # what follows from others, first
        if not is_seen[place] and before[place] != together[place]:
            running, scale = together[place]
            range_.set(running, 0.0 if scale == math.inf else scale)
    for place, range_ in enumerate(layout.ranges):
        if is_seen[place]:
            _learn_range(range_, together[place][0], largest[place])
    decided = iter(decisions.amax(0).tolist())
    for layer in layout.deciding:
        layer.flags = tuple(bool(next(decided)) for _ in layer.flags)


def _learn_constants(layout: _Layout, constants: Tensor, scales: Tensor) -> None:
    """Give every constant the value of a process that has the coarsest scale of the input, which holds for all."""
    places = {range_: place for place, range_ in enumerate(layout.ranges)}
    for place, (layer, name) in enumerate(layout.constants):
        coarsest = scales[:, places[layer.ranges["x"]]].argmin()
        layer.get_buffer(name).fill_(constants[coarsest, place].item())


def _learn_range(range_: Range, before: float, columns: list[float]) -> None:
    low, high, used_low, used_high, is_new, bits, bound = columns
    used = None if used_high == -math.inf else (-used_low, used_high)
    range_.learn_from_all(0.0 if is_new else before, (-low, high), used, int(bits), -bound)
    range_.layer.follow_range(range_.name)


def _forget_new(layers: Iterable[QuantizedBase]) -> None:
    """After a failed pass, ranges that nobody had seen before it are unseen again."""
    for range_ in (range_ for layer in layers for range_ in layer.ranges.values()):
        is_new = None if range_.ends is None else range_.ends[2]
        if isinstance(is_new, Tensor):
            range_.running.write(range_.running.buffer.masked_fill(is_new, 0.0))
        elif is_new:
            range_.running.write(0.0)


# batch norms
def _learn_norms(layout: _Layout, rows: Tensor, host: Tensor) -> None:
    """Let the numbers of all processes move the statistics of every batch norm once, computed alike on every machine."""
    norms = [norm for _, norm in layout.norms]
    if not norms:
        return
    _, _, _, counts, tracked, *_ = host[:, : layout.small].split(layout.sections, dim=1)
    is_seen = [total > 0.0 for total in counts.sum(0).tolist()]
    pairs = zip(norms, tracked.amax(0).tolist(), strict=True)
    momenta = [1.0 / (before + 1.0) if norm.momentum is None else norm.momentum for norm, before in pairs]
    owners = layout.owners.to(rows.device)
    size = len(owners)
    means, variances = rows[:, layout.small : layout.small + 2 * size].split(size, dim=1)
    pooled = _pooled(counts.to(rows.device)[:, owners], means, variances)
    weight = torch.tensor(momenta, dtype=torch.float64, device=rows.device)[owners]
    for place, new in enumerate(pooled):
        old = _joined([running_statistics(norm)[place] for norm in norms], rows.device)
        learned = old + weight * (new - old)
        for norm, values in compress(zip(norms, learned.split(layout.sizes), strict=True), is_seen):
            running_statistics(norm)[place].copy_(values)
    for norm in compress(norms, is_seen):
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


def _batch_of(layer: QuantizedBase, norm: BatchNorm) -> Batch:
    """What a batch norm has seen in all calls of one pass."""
    batches = layer.batches
    if not batches:
        zeros = torch.zeros_like(running_statistics(norm)[0])
        return Batch(0, zeros, zeros)
    if len(batches) == 1:
        return batches[0]
    counts = [batch.size for batch in batches]
    means = torch.stack([batch.mean.double() for batch in batches])
    variances = torch.stack([batch.var.double() for batch in batches])
    each = torch.tensor(counts, dtype=torch.float64, device=means.device).unsqueeze(1).expand_as(means)
    return Batch(sum(counts), *_pooled(each, means, variances))


def order_functions(root: nn.Module) -> None:
    """Put the functions of every module behind its other children, in the order of their names."""
    for module in list(root.modules()):
        children = module._modules  # noqa: SLF001 - torch has no public way to move a child
        functions = {name: m for name, m in children.items() if isinstance(m, QuantizedBase) and not m.is_layer}
        ordered = sorted(functions)
        if list(children)[len(children) - len(ordered) :] != ordered:
            for name in ordered:
                children[name] = children.pop(name)
