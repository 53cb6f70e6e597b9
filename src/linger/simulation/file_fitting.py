# SPDX-License-Identifier: Apache-2.0
"""A recording brought into the form of a file's inputs and outputs: integers where the file has integers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
"""Address, offset and count of the numbers of a tensor; a reshaped tensor has the same."""

Quant = tuple[str, Op, Mapping[str, Any]]
"""Name, op and attributes of a Quant of the model."""


class Seen:
    """What a pass shows besides the integers: which tensors were quantised, and which op made which result."""

    def __init__(self) -> None:
        self.quantised: dict[Memory, list[Quant]] = {}
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
            self.quantised.setdefault(memory_of(operands[0]), []).append((name, op, dict(attributes)))
            self.floats[name] = as_array(operands[0])


def computed_names(file: ir.Model) -> set[str | None]:
    """Names of the tensors that a node of the file computes."""
    return {output.name for node in file.graph for output in node.outputs}


def memory_of(t: Tensor) -> Memory:
    """Where the numbers of a tensor lie."""
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
    inputs = required_inputs(file)
    given = _choose_inputs(made, [v.name or "" for v in inputs], call, default_names(model, call))
    present = computed_names(file)
    wrong = []
    for i in _quantised_by_the_user(inputs, given):
        quants = seen.quantised.get(memory_of(given[i])) or _quants_behind(inputs[i], seen)
        if quants:
            _quantise_input(made, i, quants, present)
        else:
            wrong.append(str(inputs[i].name))
    if wrong:
        raise UsageError(
            f"verify: the file takes integers for {listing(wrong)}, and the model quantises no input as it comes in there. "
            "Give recordings with the integers, or export with is_input_quant=False."
        )
    _name_integer_outputs(made, file, seen, outputs)


def _quantised_by_the_user(inputs: Sequence[ir.Value], given: Sequence[Tensor]) -> list[int]:
    """The inputs that are integers in the file and real values in the call."""
    pairs = enumerate(zip(inputs, given, strict=False))
    return [i for i, (value, tensor) in pairs if value.dtype in _INTEGERS and tensor.is_floating_point()]


def _choose_inputs(made: Recording, wanted: Sequence[str], call: ExampleCall, names: Sequence[str]) -> list[Tensor]:
    """The tensors of the call that are inputs of the file: all, or those it names where its outputs need no others."""
    given = call.tensors()
    if len(wanted) >= len(given) or not set(wanted) <= set(names):
        return given
    chosen = [names.index(name) for name in wanted]
    made.inputs = [made.inputs[i] for i in chosen]
    made.input_names = tuple(wanted)
    return [given[i] for i in chosen]


def _quantise_input(made: Recording, index: int, quants: Sequence[Quant], present: Collection[str | None]) -> None:
    """Record an input as the integers that its Quants make of it; Quants that the file does not have are left out."""
    _, op, attributes = quants[0]  # the file has one scale for all that read it, else its input is float
    with np.errstate(all="ignore"):  # what is no number becomes some integer, as in the model
        made.inputs[index] = op.body(NumpyKernel(), made.inputs[index], **op.complete(attributes))
    for name, _, _ in quants:
        if name not in present:
            made.integers.pop(name, None)


def _quants_behind(source: ir.Value, seen: Seen) -> list[Quant]:
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
        is_same = maker.stored.shape == tensor.stored.shape and memory_of(maker.stored) == memory_of(tensor.stored)
        if is_same and maker.stored.stride() == tensor.stored.stride():
            return name, maker
    return "", None
