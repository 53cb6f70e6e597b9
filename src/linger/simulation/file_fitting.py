# SPDX-License-Identifier: Apache-2.0
"""A recording brought into the form of a file's inputs and outputs: integers where the file has integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.dialect import Op
from linger.errors import UsageError, listing
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.walking import required_inputs
from linger.numeric.numpy_kernel import NumpyKernel
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime
from linger.simulation.example_call import ExampleCall, default_names
from linger.verification.recording import Recording

_INTEGERS = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32)

Memory = tuple[int, int, int]
"""Where the numbers of a tensor lie: a reshaped tensor is at the same place."""


class Seen:
    """What a pass shows besides the integers: which tensors were quantised, and which op made which result."""

    def __init__(self) -> None:
        self.quantised: dict[Memory, list[tuple[str, Op, Mapping[str, Any]]]] = {}
        self.makers: dict[int, tuple[str, QTensor]] = {}
        self.floats: dict[str, NDArray[Any]] = {}

    @contextmanager
    def watching(self, runtime: Runtime) -> Iterator[None]:
        """Look at every op of the passes inside."""
        runtime.observers.append(self._note)
        try:
            yield
        finally:
            runtime.observers.remove(self._note)

    def _note(self, name: str, op: Op, operands: Sequence[Any], attributes: Mapping[str, Any], x: QTensor) -> None:
        self.makers[id(x)] = (name, x)  # kept alive, so that its identity stays its own
        if op.name == "Quant" and isinstance(operands[0], Tensor) and not isinstance(operands[0], QTensor):
            self.quantised.setdefault(place_of(operands[0]), []).append((name, op, dict(attributes)))
            self.floats[name] = as_array(operands[0])


def place_of(t: Tensor) -> Memory:
    """Memory, offset and count."""
    return t.untyped_storage().data_ptr(), int(t.storage_offset()), t.numel()


def as_array(t: Tensor, *, is_integer: bool = False) -> NDArray[Any]:
    """The real values of a tensor, or its integers."""
    if isinstance(t, QTensor):
        return np.asarray(
            (t.integers() if is_integer and t.scale is not None else t.dequantize().detach()).cpu().numpy()
        )
    return np.asarray(t.detach().cpu().numpy())


def fit_to_file(
    made: Recording, file: ir.Model, seen: Seen, call: ExampleCall, outputs: Sequence[Tensor], model: nn.Module
) -> None:
    """Choose the inputs that the file has, quantise those that it wants as integers, name integer outputs as it does.

    Raises:
        UsageError: The file wants integers of an input that the model does not quantise as it is.
    """
    made.floats = seen.floats
    present = {output.name for node in file.graph for output in node.outputs}
    inputs = required_inputs(file)
    given = call.tensors()
    names = default_names(model, call)
    wanted = [v.name or "" for v in inputs]
    if len(wanted) < len(given) and set(wanted) <= set(names):  # the file's outputs do not depend on the others
        chosen = [names.index(name) for name in wanted]
        given, made.inputs = [given[i] for i in chosen], [made.inputs[i] for i in chosen]
        made.input_names = tuple(wanted)
    wrong = []
    for i, (value, tensor) in enumerate(zip(inputs, given, strict=False)):
        if value.dtype in _INTEGERS and tensor.is_floating_point():
            quants = seen.quantised.get(place_of(tensor)) or _quants_behind(value, seen)
            if not quants:
                wrong.append(value.name or "")
                continue
            _, op, attributes = quants[0]  # the file has one scale for all that read it, else its input is float
            with np.errstate(all="ignore"):  # what is no number becomes some integer, as in the model
                made.inputs[i] = op.body(NumpyKernel(), made.inputs[i], **op.complete(attributes))
            for name in [name for name, _, _ in quants if name not in present]:
                made.integers.pop(name, None)
    if wrong:
        raise UsageError(
            f"verify: the file takes integers for {listing(wrong)}, and the model quantises no input as it comes in there. "
            "Give recordings with the integers, or export with is_input_quant=False."
        )
    _name_integer_outputs(made, file, seen, outputs)


def _quants_behind(source: ir.Value, seen: Seen) -> list[tuple[str, Op, Mapping[str, Any]]]:
    """The Quants of the model whose results the file makes by moving the integers of an input."""
    known = {quant[0]: quant for quants in seen.quantised.values() for quant in quants}
    found, waiting = [], [source]
    while waiting:
        for node in (n for n in waiting.pop().consumers() if not is_dialect(n)):
            found += [known[v.name] for v in node.outputs if v.name in known]
            waiting += node.outputs
    return found


def _name_integer_outputs(made: Recording, file: ir.Model, seen: Seen, outputs: Sequence[Tensor]) -> None:
    """An output that is an integer tensor itself takes the place, and the name, of what an op made."""
    for i, (value, tensor) in enumerate(zip(file.graph.outputs, outputs, strict=False)):
        if value.dtype not in _INTEGERS or not isinstance(tensor, QTensor):
            continue
        made.outputs[i] = as_array(tensor, is_integer=True)
        name, maker = seen.makers.get(id(tensor)) or _maker_of_memory(tensor, seen)
        if maker is not None and name in made.integers and value.name:
            made.integers[value.name] = made.integers.pop(name)


def _maker_of_memory(tensor: QTensor, seen: Seen) -> tuple[str, QTensor | None]:
    """The op that made the numbers of a tensor which is another object: an unchanged view."""
    for name, maker in seen.makers.values():
        is_same = maker.stored.shape == tensor.stored.shape and place_of(maker.stored) == place_of(tensor.stored)
        if is_same and maker.stored.stride() == tensor.stored.stride():
            return name, maker
    return "", None
