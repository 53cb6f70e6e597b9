# SPDX-License-Identifier: Apache-2.0
"""A module with ranges: its checkpoints, its widths, the exact product that its ranges give; and the ranges of a whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from linger.constraint.limits import Widths
from linger.dialect import Interval
from linger.errors import UsageError
from linger.numeric.torch.kernel import run_product
from linger.numeric.torch.quantize import Memory, Scale
from linger.ops.fast.fast_path import accumulate, product_fast_path
from linger.quantization.core.frozen import Frozen, Ready, round_output
from linger.quantization.core.learned import load_learned
from linger.quantization.core.qtensor import QTensor, product_attributes
from linger.quantization.core.ranges import ZEROS, Range, products_in
from linger.quantization.core.runtime import OpCall, Pass, no_script, runtime_of
from linger.quantization.core.stored import Kind, RangeHolder, Stored

OWN_INPUT = "own_x"
"""Buffer of a layer whose input keeps a range of its own, though quantized inputs came, too."""

BITS = "bits"
"""Buffer of a layer whose widths change while it trains: bits of input, parameters and output."""

_POSSIBLE = (4, 8, 16, 32)


class Batch(NamedTuple):
    """Numbers per channel that a batch norm has seen in a call, their mean and their (unbiased) variance."""

    size: int
    mean: Tensor
    var: Tensor


class QuantizedBase(RangeHolder):
    """A module with ranges, by name in `ranges`, and the buffers that hold them.

    Buffers that may be absent exist from the beginning, and checkpoints have them only where they say something.
    """

    constant_names: tuple[str, ...] = ()
    """Buffers that hold integers which follow from a scale."""

    floor: Scale = 0.0
    """The coarsest scale of the output: that of the input, of a function which is never coarser; else 0."""

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

    # buffers
    def known_values(self) -> dict[str, Any]:
        """The numbers of buffers as far as they are known without reading them."""
        known = {key: each.last_known for key, each in self.stored.items()}
        return {key: numbers for key, numbers in known.items() if numbers is not None}

    def put_buffers(self, buffers: Mapping[str, Tensor | None], known: Mapping[str, Any]) -> None:
        """Put other tensors, whose numbers are known as far as said, in the place of buffers."""
        self._buffers.update(buffers)
        for key, each in self.stored.items():
            if key in known:
                each.note(known[key])
            else:
                each.forget()

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
        return None

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
        now = Pass.here()
        for range_ in self.learned_ranges:
            assert range_.learned is not None  # asked for above
            range_.learned.follow(now)
            if range_.running.read():
                range_.follow_running()

    def used_interval(self, name: str) -> Interval:
        """The lowest and highest number of a range that its users read, as far as is known; what lies beyond may saturate."""
        return self.ranges[name].used_interval

    def choose_range(self, name: str, largest: Scale | None) -> None:
        """Choose the range of weights, or with None follow their largest magnitude."""
        self.ranges[name].choose_range(largest)

    def chosen_range(self, name: str) -> float | None:
        """The range that weights are rounded for; None where it is that of their largest magnitude."""
        return self.ranges[name].chosen_range()

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
        scale_o = self.ranges["o"].scale_at(bits, call.name, call.now, at_most=q.scale * frozen.scale_w)
        if call.is_written:
            call.note()
            tensors = [q.content, frozen.weight_integers, frozen.bias_integers, *frozen.extras]
            made = call.emit(tensors, product_attributes(geometry, widths, q.scale, frozen.scale_w, scale_o))
            return QTensor(made, scale_o, bits, runtime)
        ready, content = ready_for(scale_o), q.content
        if ready.plan.is_plain:
            y = accumulate(op, geometry, content, ready.weight, ready.bias)
        else:
            settings: dict[str, Any] = {"axis": product_fast_path(op).channel_axis, "is_transposed": op.is_transposed}
            settings |= {"group": geometry.get("group", 1), "parts": ready.parts}
            product = partial(accumulate, op, geometry)
            y = run_product(product, content, ready.weight, ready.bias, ready.plan, **settings)
        call.note(macs=products_in(call, q, y, frozen.weight_integers.shape[1:].numel()))
        is_recorded = runtime.recorder is not None or bool(runtime.observers)
        is_relu = is_relu and not is_recorded
        values = round_output(y, scale_o, bits, is_rounding_folded=ready.is_rounding_folded, is_relu=is_relu)
        result = QTensor(values, scale_o, bits, runtime, is_nonnegative=is_relu)
        if is_recorded:
            call.record(result, (q, frozen), product_attributes(geometry, widths, q.scale, frozen.scale_w, scale_o))
        return result

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script asks for this first.

        Raises:
            UsageError: Always: it would compile the forward of this layer.
        """
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
        for range_ in [r for r in self.ranges.values() if prefix + r.running.key in state_dict]:
            range_.histogram = None
        begun = load_learned(self.ranges.values(), state_dict, prefix)
        given = {key for key in self.optional if prefix + key in state_dict}
        cleared = {key for key, each in self.optional.items() if prefix + str(each.of) in state_dict}
        # a checkpoint of an earlier stage has no ranges: what is here stays
        for key, each in self.stored.items():
            if not each.is_optional:
                state_dict.setdefault(prefix + key, each.buffer.detach().clone())
        self._non_persistent_buffers_set -= given  # torch loads these as it does all others
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        finally:
            self._non_persistent_buffers_set |= given
        self._clear_absent(self.optional.keys() - given, cleared)
        self.put_buffers({}, {})
        if self.keeps_own_input:
            self.input_range = "own"
        for range_ in begun:
            range_.restart_learning()

    def _clear_absent(self, missing: Iterable[str], cleared: set[str]) -> None:
        """Let buffers that a checkpoint does not have say nothing, where it has their range."""
        home = next(b.device for b in self.buffers(recurse=False))
        for key in missing:
            each = self.stored[key]
            if each.buffer.device != home:  # those of a model without storage got that of the checkpoint
                self._buffers[key] = torch.full_like(each.buffer, each.absent, device=home)
            elif key in cleared:
                each.buffer.fill_(each.absent)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        """Keep ranges in float32 where a model is moved or converted: a scale may be too large for 16 bits."""
        learned = [(r.learned, r.learned.parameter.data) for r in self.learned_ranges if r.learned is not None]
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
    def widths(self, wanted: Widths) -> None:
        self._widths = wanted = self.possible_widths(wanted)
        if self._keeps_widths:
            keep_widths(self, wanted)

    @property
    def _keeps_widths(self) -> bool:
        return bool(self.read(BITS)[0] != 0)

    def possible_widths(self, wanted: Widths) -> Widths:
        """What it makes of widths that are asked for."""
        return wanted

    def follow_widths(self) -> None:
        """Take the widths of the buffer, which other code may have written: an average of models copies all buffers.

        Raises:
            UsageError: They are a mean of several.
        """
        if not self._keeps_widths:
            return
        numbers = [int(bits) for bits in self.read(BITS)]
        if not set(numbers) <= set(_POSSIBLE):
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
def ranges_of(model: nn.Module, *, with_adopted: bool = False) -> dict[str, Range]:
    """The ranges of a quantized model that can be chosen, by key, in the order of its modules.

    A layer whose input comes from another quantized layer has that layer's scale: such an input is left out, unless
    `with_adopted` asks for it.
    """
    found: dict[str, Range] = {}
    runtime = runtime_of(model)
    methods = {} if runtime is None else runtime.methods
    for path, layer in model.named_modules():
        if not isinstance(layer, QuantizedBase):
            continue
        layer.follow_learned()
        layer.state_dict()  # gives FSDP's parameters their shards back, so that an optimizer made next finds those
        is_adopted = layer.input_range in ("adopted", "stale") and not with_adopted
        for range_ in layer.ranges.values():
            if range_.kind is None or (is_adopted and range_.kind is Kind.INPUT):
                continue
            range_.key = f"{path}.{range_.name}".lstrip(".")
            range_.usual = methods.get(f"{range_.kind.value}s")
            found[range_.key] = range_
    return found


def quantized_ranges(model: nn.Module, where: str) -> dict[str, Range]:
    """The ranges of a quantized model.

    Raises:
        UsageError: It is not quantized.
    """
    if runtime_of(model) is None:
        raise UsageError(f"{where}: {type(model).__name__} is not quantized. Give the model that linger.init returned.")
    return ranges_of(model)


def device_of(*modules: nn.Module) -> torch.device:
    """The device of the first tensor of these modules; the CPU if they hold none."""
    tensors = (t for module in modules for t in (*module.parameters(), *module.buffers()))
    return next((t.device for t in tensors), torch.device("cpu"))


# ranges as they were, so that a calibration that fails changes nothing
_OF_LAYER = ("input_range", "beyond", "floor")
_OF_RANGE = ("histogram", "width", "bound", "method")
"""What a pass changes beside buffers."""


@dataclass(frozen=True)
class _Before:
    buffers: dict[str, Tensor | None]
    attributes: dict[str, Any]
    ranges: dict[Range, dict[str, Any]]
    learned: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, layer: QuantizedBase) -> _Before:
        """A copy of what a pass may change in a layer."""
        buffers = {name: None if b is None else b.detach().clone() for name, b in layer._buffers.items()}  # noqa: SLF001 - by name, with None
        attributes = {name: layer.__dict__[name] for name in _OF_LAYER if name in layer.__dict__}
        ranges = {each: {name: getattr(each, name) for name in _OF_RANGE} for each in layer.ranges.values()}
        parameters = [each.learned.parameter for each in layer.learned_ranges if each.learned is not None]
        return cls(buffers, attributes, ranges, [(p, p.detach().clone()) for p in parameters])


def _nothing(model: nn.Module) -> None:
    """Does nothing."""


@dataclass
class Backup:
    """The ranges of every model that ran in a block, as they were before.

    Attributes:
        models: These models, or the modules of them whose forward began a pass.
        first_seen: Called with each of them before its first pass.
    """

    models: list[nn.Module] = field(default_factory=list)
    first_seen: Callable[[nn.Module], None] = _nothing
    _layers: dict[QuantizedBase, _Before] = field(default_factory=dict)

    def keep(self, model: nn.Module) -> None:
        """Copy what a pass of this model may change."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        self.first_seen(model)
        for layer in model.modules():
            if isinstance(layer, QuantizedBase) and layer not in self._layers:
                self._layers[layer] = _Before.of(layer)

    def restore(self) -> None:
        """Undo what passes have changed; layers of functions that they made are removed."""
        for layer, before in self._layers.items():
            layer.put_buffers(before.buffers, {})
            for name in _OF_LAYER:
                layer.__dict__.pop(name, None)
            layer.__dict__.update(before.attributes)
            for each, attributes in before.ranges.items():
                each.__dict__.update(attributes)
            for parameter, value in before.learned:
                parameter.detach().copy_(value)  # in place: an optimizer may hold it
        for model in self.models:
            for module in list(model.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, QuantizedBase) and child not in self._layers:
                        delattr(module, name)

    def ranges_before(self, wanted: list[Range]) -> list[float]:
        """Ranges as they were; 0 where there was none. A device is asked once."""
        known: dict[Any, _Before] = dict(self._layers)
        none = _Before({}, {}, {}, [])
        found = [known.get(r.layer, none).buffers.get(r.running.key) for r in wanted]
        filled = [r.running.buffer.new_zeros(1) if b is None else b for r, b in zip(wanted, found, strict=True)]
        numbers = torch.cat([buffer.to(filled[0].device) for buffer in filled]).tolist() if filled else []
        return [number if math.isfinite(number) and number > ZEROS else 0.0 for number in numbers]
