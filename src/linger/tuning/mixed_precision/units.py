# SPDX-License-Identifier: Apache-2.0
"""The tensors of a quantized model whose widths can be chosen one by one, and the model with a choice of them.

A wide tensor helps only where its readers take all of its bits, so whoever chooses widths must know both ends: which layer or
function makes each tensor, and which layers and ops read it (`Flow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, Function, evaluating, tensors_of
from linger.analysis.trace import Trace
from linger.checks.limits.products import OperandLimits, PackingLimits, ProductLimits
from linger.checks.limits.windows import WindowLimits
from linger.constraint.conv_bn import layer_of
from linger.constraint.limits import Widths
from linger.dialect import Op, find_op
from linger.graph.network import Lifetime, Lifetimes
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Operands, Runtime, runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.diagnosis.call_watch import range_of_function
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.targets import Target, find_chip

Layer = QuantLayer | QuantRecurrent
"""A quantized layer, which has widths."""

QUANTIZES = "Quant"

Keys = frozenset[str]


@dataclass
class Flow:
    """The activations of one pass.

    Attributes:
        sizes, ops: Numbers in each tensor that has a range, by the range's key, and the op that makes it.
        names: Of a function's result, the name of its first call: the module's path and the op.
        readers, reading_ops: Paths of the layers that read it, and names of all ops that do.
        feeds: Keys of the tensors that get its width, because what makes them gives what it takes: functions, pools.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    ops: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)
    reading_ops: dict[str, set[str]] = field(default_factory=dict)
    feeds: dict[str, set[str]] = field(default_factory=dict)
    macs: dict[str, int] = field(default_factory=dict)  # products that each layer and function computes, by its path
    batch: Batch = ()  # what was run

    def ops_behind(self, key: str) -> frozenset[str]:
        """The ops that read a tensor, or one that gets its width."""
        ops, seen, open_keys = set[str](), set[str](), [key]
        while open_keys:
            now = open_keys.pop()
            if now not in seen:
                seen.add(now)
                ops |= self.reading_ops.get(now, set())
                open_keys += self.feeds.get(now, ())
        return frozenset(ops)

    def feed(self, keys: Iterable[str], made: str) -> None:
        """A tensor gets the width of those that it is made from."""
        for key in keys:
            self.feeds.setdefault(key, set()).add(made)

    def make(self, key: str, op: str, size: int) -> None:
        """A tensor is made; a layer that runs several times counts with all of its results."""
        self.ops[key] = op
        self.sizes[key] = self.sizes.get(key, 0) + size

    def read(self, keys: Iterable[str], op: str, layer: str | None = None) -> None:
        """An op, of a layer or not, reads tensors."""
        for key in keys:
            self.reading_ops.setdefault(key, set()).add(op)
            known = self.readers.setdefault(key, [])
            if layer is not None and layer not in known:
                known.append(layer)


def layers_of(model: nn.Module) -> dict[str, Layer]:
    """The layers that have widths, by their path."""
    return {path: m for path, m in model.named_modules() if isinstance(m, (QuantLayer, QuantRecurrent))}


def input_range_of(layer: Layer) -> str:
    """The name of the range of a layer's input."""
    return "i" if isinstance(layer, QuantRecurrent) else "x"


def output_range_of(layer: Layer) -> str | None:
    """The name of the range of a layer's output; None where the op keeps the scale of its input."""
    if isinstance(layer, QuantRecurrent):
        return f"o_l{layer.num_layers - 1}" if layer.num_layers > 1 else "o"
    return "o" if "running_o" in dict(layer.named_buffers(recurse=False)) else None


def watch_flow(model: nn.Module, batch: Batch) -> Flow:
    """Run a calibrated model on one batch and follow its tensors. The model is in evaluation mode."""
    runtime = runtime_of(model)
    assert runtime is not None  # the callers check that the model is quantized
    recorder = _Recorder(runtime, batch)
    with torch.random.fork_rng(devices=[]), Trace(model, recorder.run) as trace:
        for path, layer in layers_of(model).items():
            trace.before([layer], partial(recorder.enter, path))
            trace.after([layer], partial(recorder.leave, path))
        trace.observe(runtime.observers, recorder.observe)
        trace.run(batch)
    for record in runtime.ops:
        recorder.flow.macs[record.where] = recorder.flow.macs.get(record.where, 0) + record.macs
    return recorder.flow


class _Recorder:
    """Knows of every quantized tensor of a trace which ranges its numbers were rounded by last."""

    def __init__(self, runtime: Runtime, batch: Batch) -> None:
        self.flow = Flow(batch=batch)
        self._runtime = runtime
        self._keys: dict[int, tuple[Tensor, Keys]] = {}  # with the tensor, so that its id is not given to another one
        self._last: Keys = frozenset()

    def keys_of(self, tree: object) -> Keys:
        """The ranges behind the quantized tensors of a nest."""
        none = (None, frozenset[str]())
        return frozenset().union(*(self._keys.get(id(t), none)[1] for t in tensors_of(tree)))

    def _set(self, tree: object, keys: Keys) -> None:
        for tensor in tensors_of(tree):
            if isinstance(tensor, QTensor):
                self._keys[id(tensor)] = (tensor, keys)

    # layers
    def enter(self, path: str, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of a layer. A state that it is given has the width of its output, whatever that of its input."""
        read: object = (args[:1] or kwargs.get("input")) if isinstance(layer, QuantRecurrent) else (args, kwargs)
        given = [t for t in tensors_of(read) if isinstance(t, QTensor) and t.scale is not None]
        self.flow.read(self.keys_of(given), layer.op_name, path)

    def leave(self, path: str, layer: Layer, args: Any, kwargs: Any, result: Any) -> None:
        """Forward hook of a layer."""
        name = output_range_of(layer)
        if name is None:
            self._set(result, self.keys_of((args, kwargs)) or frozenset({_key(path, input_range_of(layer))}))
            return
        key = _key(path, name)
        if not any(True for _ in layer.parameters()):
            self.flow.feed(self.keys_of((args, kwargs)), key)
        first = next(iter(tensors_of(result)), None)
        size = 0 if first is None else first.numel() * getattr(layer, "num_layers", 1)  # inner ones are as wide
        self.flow.make(key, layer.op_name, size)
        self._set(result, frozenset({key}))

    # ops
    def observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, Any], result: QTensor) -> None:
        """Observer of the runtime: an op was computed."""
        del attributes
        frame = self._runtime.frame
        assert frame is not None  # ops are computed inside a module
        read = self.keys_of([o for o in operands if isinstance(o, Tensor)])
        if isinstance(frame.module, (QuantLayer, QuantRecurrent)):
            if op.name == QUANTIZES:
                own = _key(frame.path, input_range_of(frame.module))
                read = frozenset({own})
                self.flow.make(own, op.name, result.numel())
                self.flow.read(read, frame.module.op_name, frame.path)
            self._set(result, read)
            return
        self.flow.read(read, op.name)
        path = None if op.picks else range_of_function(op, frame)  # what is picked keeps the rounding that it had
        if path is not None:
            made = _key(path, "o")
            self.flow.make(made, op.name, result.numel())
            self.flow.names.setdefault(made, name)
            self.flow.feed(read, made)
            read = self._last = frozenset({made})
        self._set(result, read)

    def run(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        """Run a function; what it only moves keeps its ranges, what it computes was observed."""
        self._last = frozenset()
        before = {id(t) for t in tensors_of((args, kwargs))}
        result = func(*args, **kwargs)
        for made in tensors_of(result):
            is_written_over = bool(self._last) and id(made) in before  # x += y: the tensor stays, its numbers do not
            if is_written_over or id(made) not in self._keys:
                self._set(made, self._last or self.keys_of((args, kwargs)))
        return result


def _key(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


class _Memory:
    """The integer tensors of a pass: their bytes, the step that makes each and the last one that reads it."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []  # so that no id or address is given to another tensor
        self._places: dict[int, int] = {}  # the piece of memory of a tensor, by its id and its address
        self._pieces: list[Lifetime] = []
        self._readers: list[int] = []  # how many ops read each piece
        self._convolved: set[int] = set()  # pieces that a convolution over two axes makes
        self._rectified: dict[int, int] = {}  # pieces that a Relu makes, with what it reads

    @property
    def peak_bytes(self) -> int:
        """The most that is alive at one step. A Relu lies where the convolution lies that it alone reads."""
        pieces = dict(enumerate(self._pieces))
        for made, read in self._rectified.items():
            if read in self._convolved and self._readers[read] == 1:
                pieces[read] = replace(pieces[read], last=pieces.pop(made).last)
        return max(Lifetimes(list(pieces.values())).totals(), default=0)

    def place(self, tensor: object) -> int | None:
        """The piece that a tensor lies in, if it is known."""
        keys = (id(tensor), _address(tensor)) if isinstance(tensor, QTensor) else ()
        return next((self._places[key] for key in keys if key in self._places), None)

    def step(self, read: Iterable[object], made: QTensor | None = None) -> list[int]:
        """What some tensors are read for, and another one is made by; returns the pieces that are read."""
        now = max((piece.last for piece in self._pieces), default=-1) + 1
        places = [place for place in map(self.place, read) if place is not None]
        for place in places:
            self._pieces[place] = replace(self._pieces[place], last=now)
            self._readers[place] += 1
        if made is not None:
            self._places[_address(made)] = len(self._pieces)
            self.keep(made, len(self._pieces))
            self._pieces.append(Lifetime("", -(-made.numel() * made.bits // 8), now, now))
            self._readers.append(0)
        return places

    def keep(self, made: QTensor, place: int) -> None:
        """Remember where a tensor lies."""
        self._kept.append(made)
        self._places[id(made)] = place

    def observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, Any], result: QTensor) -> None:
        """Observer of the runtime: an op was computed."""
        del name, attributes
        read = self.step(operands, result)
        if op.window_axes == 2 and op.weight_axes is not None:
            self._convolved.add(len(self._pieces) - 1)
        if op.name == "Relu" and read:
            self._rectified[len(self._pieces) - 1] = read[0]

    def run(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        """Run a function: what puts numbers into another order is a step, what only names their axes anew is not."""
        result = func(*args, **kwargs)
        given = [t for t in tensors_of((args, kwargs)) if self.place(t) is not None]
        for made in tensors_of(result):
            if isinstance(made, QTensor) and id(made) not in self._places and given:
                if made.numel() == given[0].numel() and made.content.is_contiguous():
                    self.keep(made, cast(int, self.place(given[0])))
                else:
                    self.step(given, made)
        return result


def _address(tensor: QTensor) -> int:
    """Where its numbers lie; negative, so that it is no id."""
    return -tensor.content.untyped_storage().data_ptr()


def peak_bytes_of(model: nn.Module, batch: Batch) -> int:
    """The most bytes of integer tensors alive at one time in a pass, without float ends: those of the exported file for this batch."""
    runtime, memory = runtime_of(model), _Memory()
    assert runtime is not None  # the callers check that the model is quantized
    with torch.random.fork_rng(devices=[]), Trace(model, memory.run) as trace:
        trace.observe(runtime.observers, memory.observe)
        memory.step(tensors_of(trace.run(batch)))
    return memory.peak_bytes


WIDE_BITS = 16
_USUAL_BITS = 8
WEIGHTS, ACTIVATIONS = "weights", "activations"


class Originals:
    """What differs from the float model in each layer, where nothing but biases does.

    A corrected bias mends what rounded 8-bit weights do on average. It is wrong for the same layer with 16-bit weights, which takes
    the float model's again. Weights that were equalized, rounded or trained since have suited each other: they are left as they are, with their biases.
    """

    def __init__(self, model: nn.Module, reference: nn.Module) -> None:
        theirs = dict(reference.named_modules())
        pairs = {path: dict(_pairs(layer, theirs.get(path))) for path, layer in layers_of(model).items()}
        is_corrected = all(name.startswith("bias") for of_layer in pairs.values() for name in of_layer)
        self._pairs = pairs if is_corrected else {}

    def put(self, path: str, layer: Layer, *, is_original: bool) -> None:
        """Give a layer, of the model or of a copy, the float model's parameters, or those that it had."""
        with torch.no_grad():
            for name, (tuned, original) in self._pairs.get(path, {}).items():
                layer.get_parameter(name).copy_(original if is_original else tuned)


def _pairs(layer: Layer, other: nn.Module | None) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """The parameters that differ, as they are and in the float model. A layer may have got a bias that the float one has not."""
    theirs = {} if other is None else dict(layer_of(other).named_parameters(recurse=False))
    for name, parameter in layer.named_parameters(recurse=False):
        tuned = parameter.detach()
        original = theirs[name].detach() if name in theirs else torch.zeros_like(tuned)
        if tuned.shape != original.shape or not torch.equal(tuned, original):
            yield name, (tuned.clone(), original.clone())


@dataclass(frozen=True)
class Unit:
    """Weights of a layer, or an activation: what gets a width as a whole."""

    key: str  # the range that its scale follows from (`block.conv.w`, `block.conv.o`)
    name: str  # path of the layer or function that has it, and its op
    op: str
    what: str  # `weights` or `activations`
    bits: int  # the width that it has now: of an activation the least of what is made and what a layer reads of it
    size: int  # how many numbers it holds; of an activation for the first batch
    readers: tuple[str, ...] = ()  # layers that read it, and whose input gets its width; every op that reads it
    reading_ops: frozenset[str] = frozenset()
    macs: int = 0  # products that become wide with it
    has_weights: bool = False  # whether its layer has weights; one that has none gives the width that it takes
    label: str = ""  # what people read: the path of a layer, of a function the module's path and the op
    is_function: bool = False  # whether it is the result of a function in a forward
    is_fixed: bool = False  # whether it has one format only, as the result of a sigmoid

    @property
    def is_output(self) -> bool:
        """Whether it is what a layer or a function makes, and no input that a layer quantizes."""
        return self.what == ACTIVATIONS and self.key.rpartition(".")[2].startswith("o")

    def bytes_at(self, bits: int) -> float:
        """Memory that it needs at a width."""
        return self.size * bits / 8

    @property
    def added_bytes(self) -> float:
        """Memory that it needs more at 16 bits."""
        return self.bytes_at(WIDE_BITS) - self.bytes_at(self.bits)


Choice = Mapping[Unit, int]
"""Widths of some units; the others stay as they are."""


def units_of(model: nn.Module, flow: Flow) -> tuple[Unit, ...]:
    """Every tensor whose width can be chosen, in the order of the model's modules."""
    layers = layers_of(model)
    units: list[Unit] = []
    for path, module in model.named_modules():
        if path in layers:
            units += _units_of_layer(path, layers, flow)
        elif isinstance(module, FunctionalLayer) and f"{path}.o" in flow.sizes:
            units.append(_function(f"{path}.o", path, module, layers, flow))
    return tuple(unit for unit in units if unit.size)


def _function(key: str, path: str, module: FunctionalLayer, layers: Mapping[str, Layer], flow: Flow) -> Unit:
    """The result of a function. Without weights and with a range of its own it may have another width."""
    op = find_op(flow.ops[key])
    is_free = op.limit is not None and op.has_attribute("o_bits") and op.weight_axes is None
    made = _activation(key, path, layers, flow, module.ranges["o"].width)
    return replace(made, label=flow.names[key], is_function=True, is_fixed=not is_free)


def _units_of_layer(path: str, layers: Mapping[str, Layer], flow: Flow) -> Iterator[Unit]:
    layer = layers[path]
    x, o = (f"{path}.{name}".lstrip(".") for name in (input_range_of(layer), output_range_of(layer)))
    size = sum(p.numel() for name, p in layer.named_parameters() if name.startswith("weight"))
    if x in flow.sizes:
        yield _activation(x, path, layers, flow, layer.widths.data)
    if size:
        output = o if layer.is_lookup else ""  # the rows of a table have the width of its weights
        key, bits, macs = f"{path}.w".lstrip("."), layer.widths.parameter, flow.macs.get(path, 0)
        readers, ops = tuple(flow.readers.get(output, ())), flow.ops_behind(output)
        yield Unit(key, path, layer.op_name, WEIGHTS, bits, size, readers, ops, macs, has_weights=True, label=path)
    if o in flow.sizes and not layer.is_lookup:
        # an op without weights gives what it takes: its output is as wide as its input
        made = layer.widths.output if size else layer.widths.data
        unit = _activation(o, path, layers, flow, made)
        yield replace(unit, has_weights=bool(size), macs=unit.macs + _macs(path, layer, flow)[1])


def _macs(path: str, layer: Layer | None, flow: Flow) -> tuple[int, int]:
    """The products of a layer that read its input, and those that read the state of a recurrent one."""
    total = flow.macs.get(path, 0)
    if not isinstance(layer, QuantRecurrent):
        return total, 0
    sizes = {name: p.numel() for name, p in layer.named_parameters() if "weight" in name}
    of_state = sum(size for name, size in sizes.items() if "weight_hh" in name)
    products = total * of_state // max(sum(sizes.values()), 1)
    return total - products, products


def _activation(key: str, path: str, layers: Mapping[str, Layer], flow: Flow, made: int | None) -> Unit:
    readers, ops = tuple(flow.readers.get(key, ())), flow.ops_behind(key)
    read = [layers[reader].widths.data for reader in readers]
    bits = min([b for b in (made, *read) if b is not None], default=_USUAL_BITS)
    macs = sum(_macs(reader, layers.get(reader), flow)[0] for reader in readers)
    return Unit(key, path, flow.ops[key], ACTIVATIONS, bits, flow.sizes[key], readers, ops, macs, label=path)


@dataclass(frozen=True)
class Cost:
    """What a choice of widths costs on a device."""

    weight_bytes: int  # memory of all weights, and of all activations of the first batch together
    activation_bytes: int
    peak_bytes: int  # of activations alive at one time, in the memory plan of that batch
    macs: int  # products of the first batch, and those of them with an operand of more than 8 bits
    wide_macs: int
    wide_weights: int  # tensors of more than 8 bits
    wide_activations: int


class BitModel:
    """A quantized model whose widths change to and fro; `restore` gives it back as it was."""

    def __init__(
        self, model: nn.Module, units: Sequence[Unit], flow: Flow, reach: Mapping[str, float], originals: Originals
    ) -> None:
        self.model, self.units = model, units
        self._originals, self._flow, self._reach = originals, flow, reach
        self._layers, self._ranges = layers_of(model), ranges_of(model)
        self._widths = {path: layer.widths for path, layer in self._layers.items()}
        self._saved = {key: one.save() for key, one in self._ranges.items()}
        self._functions = {path: m for path, m in model.named_modules() if isinstance(m, FunctionalLayer)}
        self._out_bits = {path: function.out_bits for path, function in self._functions.items()}

    def restore(self) -> None:
        """All widths and ranges as they were at first."""
        for path, layer in self._layers.items():
            layer.widths = self._widths[path]
            self._originals.put(path, layer, is_original=False)
        for path, bits in self._out_bits.items():
            self._functions[path].out_bits = bits
        for key, saved in self._saved.items():
            self._ranges[key].restore(saved)

    def apply(self, choice: Choice) -> None:
        """The model as it was, with these widths.

        A wide tensor needs no range that cuts its largest numbers off: weights follow their largest magnitude again,
        activations what they reached. Nor does it need what mends 8 bits: the parameters are the float model's again.
        """
        self.restore()
        for path, widths in self.widths_with(choice).items():
            self._layers[path].widths = widths
        for unit, bits in choice.items():
            if unit.name in self._functions and not unit.is_fixed:
                self._functions[unit.name].out_bits = bits
            if bits > unit.bits:
                self._uncut(unit)

    def widths_with(self, choice: Choice) -> dict[str, Widths]:
        """The widths of every layer with a choice."""
        widths = dict(self._widths)
        for unit, bits in choice.items():
            own = widths.get(unit.name)
            if unit.what == WEIGHTS and own is not None:
                widths[unit.name] = replace(own, parameter=bits)
            elif own is not None and unit.is_output:
                widths[unit.name] = replace(own, data=own.data if unit.has_weights else bits, output=bits)
            for reader in unit.readers:
                widths[reader] = replace(widths[reader], data=max(widths[reader].data, bits))
        return widths

    def _uncut(self, unit: Unit) -> None:
        if unit.what == WEIGHTS:
            self._originals.put(unit.name, self._layers[unit.name], is_original=True)
        for one in self._ranges_of(unit):
            if one.kind is Kind.WEIGHT:
                one.choose_range(None)
            elif self._reach.get(one.key, 0.0) > one.largest:
                one.running.write(self._reach[one.key])

    def _ranges_of(self, unit: Unit) -> Iterable[Range]:
        kinds = (Kind.WEIGHT,) if unit.what == WEIGHTS else (Kind.INPUT, Kind.OUTPUT)
        if unit.what == ACTIVATIONS and unit.key in self._ranges:
            return [self._ranges[unit.key]]
        prefix = f"{unit.name}." if unit.name else ""
        return [r for key, r in self._ranges.items() if key.rpartition(".")[0] + "." == prefix and r.kind in kinds]

    def bits_with(self, choice: Choice) -> dict[Unit, int]:
        """The width of every unit with a choice."""
        return {unit: choice.get(unit, unit.bits) for unit in self.units}

    def peak_bytes(self, choice: Choice) -> int:
        """The most bytes of activations alive at one time with a choice, which the model then has."""
        self.apply(choice)
        with evaluating(self.model):
            return peak_bytes_of(self.model, self._flow.batch)

    def cost(self, choice: Choice) -> Cost:
        """Bytes and products with a choice."""
        bits, widths = self.bits_with(choice), self.widths_with(choice)
        needed = dict.fromkeys((WEIGHTS, ACTIVATIONS), 0.0)
        wide = dict.fromkeys(needed, 0)
        for unit, width in bits.items():
            needed[unit.what] += unit.bytes_at(width)
            wide[unit.what] += width > _USUAL_BITS
        macs, wide_macs = self._flow.macs, 0
        for path, own in widths.items():
            of_input, of_state = _macs(path, self._layers[path], self._flow)
            wide_macs += of_input * (max(own.data, own.parameter) > _USUAL_BITS)
            wide_macs += of_state * (max(own.output, own.parameter) > _USUAL_BITS)
        return Cost(
            weight_bytes=round(needed[WEIGHTS]),
            activation_bytes=round(needed[ACTIVATIONS]),
            peak_bytes=self.peak_bytes(choice),
            macs=sum(macs.values()),
            wide_macs=wide_macs,
            wide_weights=wide[WEIGHTS],
            wide_activations=wide[ACTIVATIONS],
        )


@dataclass(frozen=True)
class ChipWidths:
    """The widths of one chip, by the limits that `linger.check` would hold its file to; without a chip every width is allowed."""

    target: Target | None = None

    @classmethod
    def of(cls, name: str | None) -> ChipWidths:
        """Those of a chip by its name; one that does not exist is refused."""
        return cls(find_chip(name))

    def allows(self, unit: Unit, bits: int) -> bool:
        """Whether a tensor may have this width: where it is made, and in every op that reads it."""
        if self.target is None or bits == unit.bits:
            return True
        if unit.what == WEIGHTS:
            is_made = bits in self._product(find_op(unit.op)).weight_bits
        else:
            is_made = self._makes(unit, bits)
        return is_made and all(self.reads(find_op(name), bits) for name in unit.reading_ops)

    @property
    def _windows(self) -> WindowLimits:
        assert self.target is not None  # asked with a chip only
        return self.target.table("windows", WindowLimits)

    def _product(self, op: Op) -> WindowLimits | ProductLimits:
        assert self.target is not None
        is_window = "window-width" in op.chip_limits
        return self._windows if is_window else self.target.table("products", ProductLimits)

    def _makes(self, unit: Unit, bits: int) -> bool:
        assert self.target is not None
        packing = self.target.table("packing", PackingLimits)
        if not unit.is_output:
            return bits == packing.quant_bits
        op = find_op(unit.op)
        if bits not in packing.data_bits or (op.is_recurrent and bits > _USUAL_BITS):  # wider ones nobody has run
            return False
        if op.is_transposed:
            return bits in self._windows.transposed_output_bits
        if op.weight_axes is None:
            return unit.is_function or self.reads(op, bits)  # a pool gives the width that it takes
        return bits in self._product(op).output_bits

    def reads(self, op: Op, bits: int) -> bool:
        """Whether an op takes an input of this width."""
        assert self.target is not None
        limits, operands = op.chip_limits, self.target.table("operands", OperandLimits)
        curve = operands.packed_curve_bits.get(op.name, operands.curve_bits)
        refusals = (
            ("window-width" in limits or "pool" in limits) and bits > self._windows.data_bits,
            "join" in limits and operands.mixed_join_bits is not None and bits > operands.mixed_join_bits,
            "curve" in limits and curve not in (None, bits),
            ("layer-norm" in limits or op.is_recurrent) and bits > _USUAL_BITS,
        )
        return not any(refusals)
