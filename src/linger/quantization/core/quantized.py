# SPDX-License-Identifier: Apache-2.0
"""A module with ranges: its parameters as integers, its checkpoints, its widths, its exact products; and the ranges of a model.

Parameters are rounded within the limits of the constraint stage, and kept while a `Watchman` sees no change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from linger.constraint.limits import Limits, Widths, clamp
from linger.errors import UsageError
from linger.numeric.fixed import BIAS_BITS, is_power_of_two, limits
from linger.numeric.torch.kernel import SplitPlan, carrier, integer_type, plan_product, run_product, split_weight
from linger.numeric.torch.quantize import (
    Memory,
    Rows,
    Scale,
    base_of,
    exponents_of,
    fake_quantize,
    holders_of_memory,
    per_weight,
)
from linger.ops.fast.fast_path import accumulate, product_fast_path
from linger.quantization.core.learned import load_learned
from linger.quantization.core.qtensor import QTensor, product_attributes, products_in
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import OpCall, Pass, no_script, required_runtime, runtime_of
from linger.quantization.core.stored import Kind, RangeHolder, Stored

OWN_INPUT = "own_x"
"""Buffer of a layer whose input keeps a range of its own, though quantized inputs came, too."""

BITS = "bits"
"""Buffer of a layer whose widths change while it trains: bits of input, parameters and output."""

_POSSIBLE = {4, 8, 16, 32}

_SMALL = 4096  # elements up to which a tensor's whole content is hashed
_FLOAT32_BITS = 24  # ranges are kept as float32, which holds 1 − 2^-24 but nothing between that and 1


def integer_bound(limit: float | None, bits: int) -> float | None:
    """The largest magnitude of integers of this width that keep a limit; None where there is no limit.

    A power of two L becomes L·B/(B + 1) with B = 2^(bits−1) − 1: ±8 in 8 bits is ±127/16, the format Q4. The limit
    itself would be 128/16, one step too many, and cost a bit of every other value.

    >>> integer_bound(8.0, 8), integer_bound(6.0, 8)
    (7.9375, 6.0)
    """
    if limit is None or not is_power_of_two(limit):
        return limit
    return limit * (1.0 - 2.0 ** -min(bits - 1, _FLOAT32_BITS))


def limit_parameters(
    limits: Limits,
    bits: int,
    weight: Tensor,
    factor: Tensor | None,
    bias: Tensor | None,
    transposed_groups: int | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weight, the factor on it (one number per output channel) and bias, limited before they are rounded.

    Without a weight limit the factor stays apart, because rounding can apply it in the same pass. `transposed_groups` as
    for `fold`.
    """
    bias, bound = clamp(bias, limits.bias), integer_bound(limits.weight, bits)
    if bound is None:
        return weight, factor, bias
    if factor is not None:
        weight = weight * per_weight(factor, weight, transposed_groups)
    return clamp(weight, bound), None, bias


@dataclass(frozen=True)
class Frozen:
    """Parameters as integers for one input scale: as real carriers and as the file stores them.

    `scale_w` is a number; a tensor in a pass that leaves ranges on a device. `extras`: other tensors that the node has in the file.
    `exponents`: by how much the scale of each output channel is finer (`quantize.exponents_of`).
    """

    weight: Tensor
    bias: Tensor | None
    weight_integers: Tensor
    bias_integers: Tensor | None
    scale_w: Any
    extras: tuple[Tensor, ...] = ()
    exponents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ready:
    """Parameters as the simulation multiplies them.

    `is_rounding_folded`: the product delivers y·scale_o + ½, so that rounding is a floor. Exact while the bound of
    `torch_exact` also holds with the ½ (2^(shift−1) in units of the accumulator) added. `parts`: the weights of each part of a
    split product, where they are kept.
    """

    weight: Tensor
    bias: Tensor | None
    plan: SplitPlan
    is_rounding_folded: bool
    parts: tuple[Tensor, ...] = ()


def make_frozen(
    integers: Tensor, bias: Tensor | None, scale_x: Scale, scale_w: Scale, bits: int, rows: Rows = None
) -> Frozen:
    """Rounded weights (integers in a float tensor) and a real bias, frozen for one input scale."""
    each = scale_w if rows is None else rows[1](scale_w, integers).to(integers.dtype)
    real, stored = integers * (1.0 / each), integers.detach().to(integer_type(bits))
    base, exponents = base_of(scale_w), exponents_of(scale_w)
    if bias is None:
        return Frozen(real, None, stored, None, base, exponents=exponents)
    rounded = round_bias(bias, scale_x * scale_w)
    whole = (rounded.detach() * (scale_x * scale_w)).to(integer_type(BIAS_BITS))
    return Frozen(real, rounded, stored, whole, base, exponents=exponents)


def make_ready(
    frozen: Frozen,
    scale_x: float,
    scale_o: float,
    data_bits: int,
    output_bits: int,
    *,
    is_nonnegative: bool,
    can_fold: bool = True,
    transposed_groups: int | None = None,
) -> Ready:
    """The cheapest exact form of frozen parameters for an input and an output scale.

    `is_nonnegative`: the input comes from ReLU. `can_fold`: rounding may become part of the bias. `transposed_groups`:
    groups of a transposed convolution, whose weights are [in, out/groups, …].
    """
    source = scale_x * frozen.scale_w
    finest = source * 2.0 ** max(frozen.exponents, default=0)
    half = 0.5 * source / scale_o  # of the coarsest channel; that of the finest needs most room
    arguments = (frozen.weight_integers, frozen.bias_integers, data_bits)
    plan_for = partial(plan_product, *arguments, is_nonnegative=is_nonnegative, transposed_groups=transposed_groups)
    if can_fold and half >= 1 and output_bits <= 16:
        plan = plan_for(headroom=0.5 * finest / scale_o)
        if plan == SplitPlan(1):
            weight = frozen.weight * scale_o
            channels = weight.shape[0] if transposed_groups is None else weight.shape[1] * transposed_groups
            zero = torch.zeros(channels, device=weight.device)
            bias = (zero if frozen.bias is None else frozen.bias.float() * scale_o) + 0.5
            return Ready(weight, bias, plan, is_rounding_folded=True)
    plan = plan_for()
    # beyond a shift of 24 float32 cannot hold v + ½
    if math.log2(finest / scale_o) > 24:
        plan = SplitPlan(0)
    # what has a gradient belongs to one pass, so its parts are not kept
    parts = () if frozen.weight.requires_grad else split_weight(frozen.weight, plan, transposed_groups)
    return Ready(frozen.weight, frozen.bias, plan, is_rounding_folded=False, parts=parts)


def round_output(y: Tensor, scale_o: float, bits: int, *, is_rounding_folded: bool, is_relu: bool) -> Tensor:
    """Round a product to the output's integers, as real values; the product itself is written over."""
    if is_rounding_folded:
        low, high = limits(bits)
        return y.floor_().clamp_(0 if is_relu else low, high).mul_(1.0 / scale_o)
    if carrier(bits) == torch.float64:
        y = y.double()
    return fake_quantize(y, scale_o, bits, is_relu=is_relu, is_owned=True).to(carrier(bits))


@contextmanager
def kept() -> Iterator[None]:
    """Make tensors that outlive this pass: without gradients, and usable outside `torch.inference_mode`."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def round_bias(bias: Tensor, scale: Scale) -> Tensor:
    """The bias at int32 precision, saturated; float64, because float32 cannot hold 32 bits."""
    return fake_quantize(bias.double(), scale, BIAS_BITS, can_saturate=True)


# changes
PARTS = 4
"""A large tensor is checked in so many parts, one in each evaluation pass: reading all of it would cost as much as rounding."""

View = Any
"""A part of a tensor: an array of the bytes of a small one, a tensor of the bits of a large one, or a function that copies these."""


def views_of(t: Tensor) -> list[View]:
    """The parts of a tensor, output channels first: one of a small tensor, PARTS of a large one."""
    if not (t.is_cpu and t.is_contiguous()) or _is_held_elsewhere(t):  # copied when looked at
        return [partial(_copied, t.detach(), part) for part in range(PARTS if t.numel() > _SMALL else 1)]
    rows = t.detach().reshape(t.shape[0] if t.dim() > 1 else 1, -1)
    if rows.numel() <= _SMALL:
        return [rows.view(torch.uint8).numpy()]
    columns = rows.shape[1]
    blocks = [rows[:, columns * part // PARTS : columns * (part + 1) // PARTS] for part in range(PARTS)]
    return [_as_integers(block, is_even=columns % 2 == 0) for block in blocks]


def _copied(t: Tensor, part: int) -> View:
    return views_of(torch.empty(t.shape, dtype=t.dtype).copy_(t))[part]


def _is_held_elsewhere(t: Tensor) -> bool:
    """Whether another tensor uses the same memory: what is written through that one, torch does not count here.

    So does FSDP, which frees the memory of parameters between passes and fills it again. An array would forbid that.
    """
    holders = holders_of_memory(t)
    return holders is not None and holders > (2 if t._is_view() else 1)  # noqa: SLF001 - torch has no public name


def _as_integers(block: Tensor, *, is_even: bool) -> Tensor:
    size = block.element_size()
    is_aligned = is_even and block.shape[1] * size % 8 == 0 and block.storage_offset() * size % 8 == 0
    return block.view(torch.int64 if is_aligned else torch.int32)


def checksum(view: View) -> bytes:
    """Bytes that change when any element of a part does, or when output channels change places.

    Those of a small tensor itself; of a large one the sum of each channel's bits, without rounding.
    """
    view = view() if callable(view) else view
    return bytes((view.sum(1).numpy() if isinstance(view, Tensor) else view).tobytes())


_Looks = list[tuple[Callable[[], bytes], bytes]]
"""For each part, a function that computes its checksum, and what that was."""


def _looks_at(t: Tensor) -> _Looks:
    # `tobytes` of an array is the checksum, without a function of ours around it
    looks = [view.tobytes if isinstance(view, np.ndarray) else partial(checksum, view) for view in views_of(t)]
    return [(look, look()) for look in looks]


@dataclass
class Watchman:
    """Notices when parameters change.

    Everything that torch counts is noticed at once, and so is what changes a tensor as a whole through `.data` (which
    torch does not count). An edit of a few elements through `.data` is noticed by the next thorough look: before an
    export or a recording and after a change of mode; else within four passes. Every look is thorough where other tensors
    use the memory, too.
    """

    # of each tensor, where its numbers are and how often torch has written them
    known: list[tuple[Any, ...]] | None = None
    passes: int = 0
    is_shared: bool = False  # whether others use the memory of a tensor
    # of all tensors, part by part; views are kept, as making them costs more than a look
    _looks: list[_Looks] = field(default_factory=list)

    def has_changed(self, tensors: Sequence[Tensor], *, is_thorough: bool) -> bool:
        """Whether a tensor differs from the last time; remembers the present state."""
        identity = [(t.data_ptr(), t._version, t.shape, t.stride()) for t in tensors]  # noqa: SLF001 - no public counter
        self.passes += 1
        if self.known == identity and not self._sees_change(self._looks if is_thorough or self.is_shared else ()):
            return False
        self._looks.clear()  # its views use the memory, too
        self.is_shared = any(map(_is_held_elsewhere, tensors))
        known = [_looks_at(t) for t in tensors]
        self.known = identity
        self._looks = [[each[part % len(each)] for each in known] for part in range(PARTS)]
        return True

    def _sees_change(self, looks: Sequence[_Looks]) -> bool:
        """Whether a checksum differs; the looks are those of this pass unless some are given."""
        for each in looks or (self._looks[self.passes % PARTS],):
            for look, known in each:
                if look() != known:
                    return True
        return False

    def forget(self) -> None:
        """Report a change at the next look."""
        self.known = None
        self._looks.clear()


# modules with ranges
class Batch(NamedTuple):
    """Numbers per channel that a batch norm has seen in a call, their mean and their (unbiased) variance."""

    size: int
    mean: Tensor
    var: Tensor


class QuantizedBase(RangeHolder):
    """A module with ranges, by name in `ranges`, and the buffers that hold them.

    Buffers that may be absent exist from the beginning, and checkpoints have them only where they say something.

    Attributes:
        constant_names: Buffers that hold integers which follow from a scale.
        floor: The coarsest scale of the output: that of the input, of a function which is never coarser; else 0.
    """

    constant_names: tuple[str, ...] = ()
    floor: Scale = 0.0

    def __init__(self, names: tuple[str, ...], device: torch.device | None = None) -> None:
        super().__init__()
        self.stored = {}
        self.ranges = {name: Range(self, name, device) for name in names}
        for range_ in self.ranges.values():
            range_.add_optional(device)
        self.memory = Memory()  # of the weights of a training step
        self.batches: list[Batch] = []  # of this process in the pass at work, where others train with it

    def add_optional(
        self, key: str, of: str | None = None, *, size: int = 1, dtype: torch.dtype = torch.float32
    ) -> None:
        """Add a buffer that may be absent; a checkpoint that has the range `of`, and not the buffer, says that it is."""
        home = next(b.device for b in self.buffers(recurse=False))
        running = None if of is None else f"running_{of}"
        Stored(self, key, home, size=size, dtype=dtype, of=running, is_optional=True)

    # what it is
    @property
    def keeps_own_input(self) -> bool:
        """Whether the range of its input is observed, though quantized inputs came, too."""
        return OWN_INPUT in self.stored and self.read(OWN_INPUT) != 0.0

    @property
    def lacks_scale(self) -> bool:
        """Whether a range of a layer was never seen."""
        return False

    @property
    def learning_norm(self) -> nn.Module | None:
        """The batch norm whose statistics learn when this layer runs."""

    @property
    def flags(self) -> tuple[bool, ...]:
        """What the layer has decided from the numbers it saw: that the range of its input is its own, where it may be another's."""
        return (self.keeps_own_input,) if OWN_INPUT in self.stored else ()

    @flags.setter
    def flags(self, decided: tuple[bool, ...]) -> None:
        """Decide what one of several processes has."""
        if any(decided) and not self.keeps_own_input:
            self.write(OWN_INPUT, 1.0)
            self.input_range = "own"

    @property
    def learned_ranges(self) -> list[Range]:
        """The ranges that follow a parameter, not the data."""
        return [range_ for range_ in self.ranges.values() if range_.learned is not None]

    def follow_learned(self) -> None:
        """Give learned ranges, and the scales that follow from them, the values that their parameters have come to."""
        for range_ in self.learned_ranges:
            range_.learned.follow(Pass.here())
            if range_.running.read():
                range_.follow_running()

    def decisions(self) -> Mapping[str, Any] | None:
        """What it has decided by its data beside its ranges, in the types of JSON; None: nothing."""

    def take_decisions(self, found: Sequence[Mapping[str, Any]]) -> None:
        """Decide what follows from the decisions of copies of the model, which have seen all data between them."""

    def forget_pass(self) -> None:
        """What the pass has seen was told to all processes."""
        self.batches.clear()
        for range_ in self.ranges.values():
            range_.forget_pass()

    # products
    def deploy_product(
        self,
        call: OpCall,
        q: QTensor,
        frozen: Frozen,
        geometry: Mapping[str, Any],
        widths: Widths,
        ready_for: Callable[[Scale], Ready],
        *,
        is_relu: bool = False,
    ) -> QTensor:
        """The exact integers of a product, simulated or written to the file.

        `ready_for` gives the parameters as they are multiplied for an output scale. `is_relu`: a ReLU may be fused.
        """
        op, bits, runtime = call.op, widths.output, call.runtime
        is_unsigned = runtime.is_unsigned and self.ranges["o"].users.are_unsigned(call, bits)
        scale_o = self.ranges["o"].scale_at(bits, call.name, call.now, at_most=q.scale * frozen.scale_w)
        attributes = partial(product_attributes, geometry, widths, q.scale, frozen, scale_o, is_unsigned=is_unsigned)
        if call.is_written:
            call.note()
            tensors = [q.content, frozen.weight_integers, frozen.bias_integers, *frozen.extras]
            integers = call.emit(tensors, attributes())
            return QTensor(integers, scale_o, bits, runtime, is_unsigned=is_unsigned)
        ready, content = ready_for(scale_o), q.content
        if ready.plan.is_plain:
            y = accumulate(op, geometry, content, ready.weight, ready.bias)
        else:
            axis, group = product_fast_path(op).channel_axis, geometry.get("group", 1)
            how: dict[str, Any] = {
                "axis": axis,
                "is_transposed": op.is_transposed,
                "group": group,
                "parts": ready.parts,
            }
            y = run_product(partial(accumulate, op, geometry), content, ready.weight, ready.bias, ready.plan, **how)
        call.note(macs=products_in(call, q, y, frozen.weight_integers.shape[1:].numel()))
        is_recorded = runtime.recorder is not None or bool(runtime.observers)
        is_relu = (is_relu and not is_recorded) or is_unsigned
        values = round_output(
            y, scale_o, bits + is_unsigned, is_rounding_folded=ready.is_rounding_folded, is_relu=is_relu
        )
        result = QTensor(values, scale_o, bits, runtime, is_nonnegative=is_relu, is_unsigned=is_unsigned)
        if is_recorded:
            call.record(result, (q, frozen), attributes())
        return result

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which asks for this first and would compile the forward of this layer."""
        raise UsageError(no_script("torch.jit.script"))

    # checkpoints
    @property
    def optional(self) -> dict[str, Stored]:
        """The buffers that may be absent."""
        return {key: each for key, each in self.stored.items() if each.is_optional}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's signature
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, each in self.optional.items():
            if each.is_said:
                destination[prefix + key] = each.buffer if keep_vars else each.buffer.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        begun = load_learned(self.ranges.values(), state_dict, prefix)
        loaded = {key for key in self.stored if prefix + key in state_dict}
        for range_ in self.ranges.values():
            range_.histogram = None if range_.running.key in loaded else range_.histogram
        # a checkpoint of an earlier stage has no ranges: what is here stays
        for key, each in self.stored.items():
            if not each.is_optional:
                state_dict.setdefault(prefix + key, each.buffer.detach().clone())
        present = loaded & self.optional.keys()
        self._non_persistent_buffers_set -= present  # torch loads these as it does all others
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        finally:
            self._non_persistent_buffers_set |= present
        self._clear_absent(loaded)
        self.put_buffers({}, {})
        if self.keeps_own_input:
            self.input_range = "own"
        for range_ in begun:
            range_.restart_learning()

    def _clear_absent(self, loaded: set[str]) -> None:
        """Let buffers that a checkpoint does not have say nothing, where it has their range."""
        home = next(b.device for b in self.buffers(recurse=False))
        for key, each in self.optional.items():
            if key in loaded:
                continue
            if each.buffer.device != home:  # those of a model without storage got that of the checkpoint
                self._buffers[key] = torch.full_like(each.buffer, each.absent, device=home)
            elif each.of in loaded:
                each.buffer.fill_(each.absent)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        """Keep ranges in float32 where a model is moved or converted: a scale may be too large for 16 bits."""
        learned = [(r.learned, r.learned.parameter.data) for r in self.learned_ranges]
        before, known = {key: each.buffer for key, each in self.stored.items()}, self.known_values()
        super()._apply(fn, recurse)
        for key, buffer in before.items():
            each, now = self.stored[key], self.stored[key].buffer
            if each.is_optional:  # also where `to_empty` gives storage to a model that had none
                is_new = buffer.is_meta and not now.is_meta
                self._buffers[key] = torch.full_like(now, each.absent) if is_new else buffer.to(now.device)
            elif now.dtype != buffer.dtype:
                self._buffers[key] = buffer.to(now.device)
        self.put_buffers({}, known)
        for parameter, data in learned:
            parameter.keep_type(data)
        return self


class HasWidths(QuantizedBase):
    """A layer with widths; those in its buffer, once it says something, are always the same."""

    _widths: Widths

    @property
    def widths(self) -> Widths:
        """Bits of input, parameters and output."""
        return self._widths

    @widths.setter
    def widths(self, widths: Widths) -> None:
        self._widths = self.possible_widths(widths)
        if self.read(BITS)[0]:
            keep_widths(self, self._widths)

    def possible_widths(self, wanted: Widths) -> Widths:
        """The widths that it takes where these are asked for."""
        return wanted

    def follow_widths(self) -> None:
        """Take the widths of the buffer, which other code may have written: an average of models copies all buffers.

        A mean of several widths is a `UsageError`.
        """
        stored = self.read(BITS)
        if not stored[0]:
            return
        numbers = [int(bits) for bits in stored]
        if not _POSSIBLE.issuperset(numbers):
            raise UsageError(
                f"{self.path}: its widths are {'/'.join(map(str, numbers))}, a mean of those that the model has had, and no "
                "layer can have them. Average the weights alone: AveragedModel(model, use_buffers=False)."
            )
        self._widths = Widths(*numbers)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.follow_widths()


def add_widths(layer: QuantizedBase) -> None:
    """Give a layer the buffer of its widths, which says nothing yet."""
    layer.add_optional(BITS, size=3, dtype=torch.int64)


def keep_widths(layer: QuantizedBase, widths: Widths) -> None:
    """Write the widths of a layer into its buffer."""
    layer.write(BITS, (widths.data, widths.parameter, widths.output))


def widths_in(state_dict: dict[str, Any], prefix: str) -> Widths | None:
    """The widths that a checkpoint has for a layer; None where it says nothing."""
    numbers = state_dict.get(prefix + BITS)
    return None if numbers is None else Widths(*(int(bits) for bits in numbers.tolist()))


# the ranges of a model
def layers_of(model: nn.Module) -> dict[str, QuantizedBase]:
    """The modules of a model that have ranges, by path: its quantized layers, and the functions that passes have found."""
    return {path: m for path, m in model.named_modules() if isinstance(m, QuantizedBase)}


def ranges_of(model: nn.Module, *, with_adopted: bool = False) -> dict[str, Range]:
    """The ranges of a quantized model that can be chosen, by key, in the order of its modules.

    A layer whose input comes from another quantized layer has that layer's scale: such an input is left out, unless
    `with_adopted` asks for it.
    """
    ranges: dict[str, Range] = {}
    runtime = runtime_of(model)
    methods = {} if runtime is None else runtime.methods
    for path, layer in layers_of(model).items():
        layer.follow_learned()
        layer.state_dict()  # gives FSDP's parameters their shards back, so that an optimizer made next finds those
        is_adopted = layer.input_range in ("adopted", "stale") and not with_adopted
        for range_ in layer.ranges.values():
            if range_.kind is None or (is_adopted and range_.kind is Kind.INPUT):
                continue
            range_.key = f"{path}.{range_.name}".lstrip(".")
            range_.usual = methods.get(f"{range_.kind.value}s")
            ranges[range_.key] = range_
    return ranges


def quantized_ranges(model: nn.Module, where: str) -> dict[str, Range]:
    """The ranges of a model that must be quantized."""
    required_runtime(model, where)
    return ranges_of(model)


def device_of(*modules: nn.Module) -> torch.device:
    """The device of the first tensor of these modules; the CPU if they hold none."""
    devices = (t.device for module in modules for t in (*module.parameters(), *module.buffers()))
    return next(devices, torch.device("cpu"))
