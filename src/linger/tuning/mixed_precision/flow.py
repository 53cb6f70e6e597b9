# SPDX-License-Identifier: Apache-2.0
"""Which layer or function makes each tensor of a quantized model, and which layers and ops read it.

A wide tensor helps only where its readers take all of its bits, so whoever chooses widths must know both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, Function, tensors_of
from linger.analysis.trace import Trace
from linger.dialect import Op
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Operands, Runtime, runtime_of
from linger.quantization.diagnosis.call_watch import range_of_function
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent

Layer = QuantLayer | QuantRecurrent
"""A quantized layer, which has widths."""

_QUANTIZES = "Quant"

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

    def ops_behind(self, key: str) -> frozenset[str]:
        """The ops that read a tensor, or one that gets its width."""
        found, seen, open_keys = set[str](), set[str](), [key]
        while open_keys:
            now = open_keys.pop()
            if now not in seen:
                seen.add(now)
                found |= self.reading_ops.get(now, set())
                open_keys += self.feeds.get(now, ())
        return frozenset(found)

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
    recorder = _Recorder(runtime)
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

    def __init__(self, runtime: Runtime) -> None:
        self.flow = Flow()
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
        """Forward pre-hook of a layer."""
        given = [t for t in tensors_of((args, kwargs)) if isinstance(t, QTensor) and t.scale is not None]
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
        self.flow.make(key, layer.op_name, 0 if first is None else first.numel())
        self._set(result, frozenset({key}))

    # ops
    def observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, Any], result: QTensor) -> None:
        """Observer of the runtime: an op was computed."""
        del attributes
        frame = self._runtime.frame
        assert frame is not None  # ops are computed inside a module
        read = self.keys_of([o for o in operands if isinstance(o, Tensor)])
        if isinstance(frame.module, (QuantLayer, QuantRecurrent)):
            if op.name == _QUANTIZES:
                own = _key(frame.path, input_range_of(frame.module))
                read = frozenset({own})
                self.flow.make(own, op.name, result.numel())
                self.flow.read(read, frame.module.op_name, frame.path)
            self._set(result, read)
            return
        self.flow.read(read, op.name)
        found = None if op.picks else range_of_function(op, frame)  # what is picked keeps the rounding that it had
        if found is not None:
            made = _key(found, "o")
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
