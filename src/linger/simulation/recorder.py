# SPDX-License-Identifier: Apache-2.0
"""The torch side of a proof: every integer that the simulation computes, by name, in the form that a file has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from linger.dialect import Op, ops
from linger.errors import LingerError, UsageError, listing
from linger.graph.core.dialects import stands_for
from linger.graph.core.nodes import is_dialect, required_inputs
from linger.numeric.numpy_kernel import NumpyKernel
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime
from linger.simulation.example_call import (
    ExampleCall,
    are_by_name,
    calls_of,
    default_names,
    is_input,
    preserved,
    repeated,
    run_once,
)
from linger.verification.feeds import Shapes, SizeTrials
from linger.verification.recording import Recording

_INTEGERS = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32)

Memory = tuple[int, int, int]
"""Address, offset and count of the numbers of a tensor; a reshaped tensor has the same."""

Quant = tuple[str, Op, Mapping[str, Any]]
"""Name, op and attributes of a Quant of the model."""

_OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (torch.zeros_like, torch.neg)
"""Replacements for a result: zero, and the negative. At least one of them is another number."""


def record(
    model: nn.Module,
    inputs: object,
    *,
    kwargs: Mapping[str, Any] | None = None,
    file: ir.Model | None = None,
    trials: SizeTrials | None = None,
) -> Iterator[Recording]:
    """Run a quantized model on each input and yield what it computed; the model stays as it was.

    Args:
        model: A quantized model.
        inputs: The arguments of a pass, or an iterable of such (page "Inputs").
        kwargs: Keyword arguments of every pass.
        file: The file that the recordings are for. Where its inputs and outputs are integers, so are the recorded ones;
            results that it leaves out and no output needs are left out here, too.
        trials: Other sizes at which the first of the inputs runs again.

    Raises:
        UsageError: The model is not quantized, or does not take the inputs.
    """
    first = None
    for call in calls_of(model, inputs, kwargs):
        first = first or call
        yield _recorded(model, call, file)
    if trials is not None and trials.wanted and first is not None and file is not None:
        yield from _at_other_sizes(model, first, file, trials)


def _at_other_sizes(model: nn.Module, call: ExampleCall, file: ir.Model, trials: SizeTrials) -> Iterator[Recording]:
    """Recordings at other sizes, of the call's own tensors, repeated or cut."""
    tensors = call.tensors()
    names, usual = [value.name or "" for value in required_inputs(file)], list(default_names(model, call))
    if len(names) != len(tensors) or are_by_name(call, usual, names):
        names = usual
    named = dict(zip(names, tensors, strict=False))

    def run_at(_: int, shapes: Shapes) -> Recording:
        resized = [repeated(tensor, shapes[name]) for name, tensor in named.items()]
        return _recorded(model, _with_tensors(call, resized), file)

    return trials.results(run_at, file, {name: tuple(tensor.shape) for name, tensor in named.items()})


def _with_tensors(call: ExampleCall, tensors: Iterable[Tensor]) -> ExampleCall:
    """A call with other tensors in the places of its own; numbers stay."""
    given = iter(tensors)

    def put(leaf: Any) -> Any:
        other = next(given) if is_input(leaf) else leaf
        return other if isinstance(leaf, Tensor) else leaf

    return ExampleCall(*tree_map(put, (call.args, dict(call.kwargs))))


def _recorded(model: nn.Module, call: ExampleCall, file: ir.Model | None) -> Recording:
    made, seen = Recording(), Seen()

    def keep(name: str, integers: Tensor) -> None:
        made.integers[name] = integers.cpu().numpy()

    with preserved(model) as runtime:
        if runtime is None:
            raise UsageError("verify: this model is not quantized. Call linger.init(model) first.")
        runtime.recorder, runtime.has_open_sizes = keep, file is not None and _has_open_forms(file)
        with seen.watching(runtime):
            output = run_once(model, call)
        tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
        made.inputs = [t.detach().cpu().numpy() for t in call.tensors()]
        made.outputs = [as_array(t) for t in tensors]
    if file is not None:
        fit_to_file(made, file, seen, call, tensors, model)
        for name in _unneeded_results(model, call, made, file):
            del made.integers[name]
    return made


def _has_open_forms(model: ir.Model) -> bool:
    """Whether a file has pools that compute their windows from shapes; their tensors are named after them in every form."""
    pools = tuple(op.name for op in ops().values() if op.is_for_open_sizes)
    names = (value.name or "" for node in model.graph for value in node.outputs)
    is_named = any(name.rpartition(".")[2].startswith(pools) for name in names)
    return is_named or any(node.op_type in pools for node in model.graph)


def _unneeded_results(model: nn.Module, call: ExampleCall, made: Recording, file: ir.Model) -> list[str]:
    """Recorded results that the file does not have and that no output of the model depends on.

    The file leaves out what its outputs do not need. That does not show that the model does not need it: a trace loses what
    forward computes through numpy. So the model runs again with these results replaced; if every output stays the same, no
    output depends on them.
    """
    present = computed_names(file)
    absent = [name for name in made.integers if name not in present] if made.outputs else []
    if not absent or _is_unneeded(model, call, absent):
        return absent
    return [name for name in absent if _is_unneeded(model, call, [name])] if len(absent) > 1 else []


def _is_unneeded(model: nn.Module, call: ExampleCall, names: Collection[str]) -> bool:
    expected = _outputs_with(model, call, (), torch.neg)
    return all(_are_equal(_outputs_with(model, call, names, other), expected) for other in _OTHERS)


def _outputs_with(
    model: nn.Module, call: ExampleCall, names: Collection[str], other: Callable[[Tensor], Tensor]
) -> list[Any] | None:
    """The outputs with some results replaced; None where the model no longer runs."""

    def overwrite(name: str, _op: Any, _operands: Any, _attributes: Any, x: QTensor) -> None:
        if name in names:
            x.overwrite(x.like(other(x.content)))

    with preserved(model) as runtime:
        assert runtime is not None  # it was recorded
        runtime.observers.append(overwrite)
        try:
            output = run_once(model, call)
            return [as_array(t) for t in tree_leaves(output) if isinstance(t, Tensor)]
        except LingerError:  # also raised if the tensor of a view was replaced: then it is used
            return None
        finally:
            runtime.observers.remove(overwrite)


def _are_equal(found: Sequence[Any] | None, expected: Sequence[Any] | None) -> bool:
    if found is None or expected is None or len(found) != len(expected):
        return False
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(found, expected, strict=True))


class Seen:
    """Observes a pass: which tensors were quantized, and which op made which result."""

    def __init__(self) -> None:
        self.quantized: dict[Memory, list[Quant]] = {}
        self.makers: dict[int, tuple[str, QTensor]] = {}
        self.floats: dict[str, NDArray[Any]] = {}

    @contextmanager
    def watching(self, runtime: Runtime) -> Iterator[None]:
        """Observe every op inside the `with` block."""
        runtime.observers.append(self._note)
        try:
            yield
        finally:
            runtime.observers.remove(self._note)

    def _note(self, name: str, op: Op, operands: Sequence[Any], attributes: Mapping[str, Any], x: QTensor) -> None:
        self.makers[id(x)] = (name, x)  # kept alive, so that no other tensor gets the same id
        if op.name == "Quant" and isinstance(operands[0], Tensor) and not isinstance(operands[0], QTensor):
            self.quantized.setdefault(memory_of(operands[0]), []).append((name, op, dict(attributes)))
            self.floats[name] = as_array(operands[0])


def computed_names(file: ir.Model) -> set[str | None]:
    """Names of the tensors that a node of the file computes, and of those that it carries as unsigned bytes."""
    names = {output.name for node in file.graph for output in node.outputs}
    return names | {stands_for(name) for name in names if name}


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
    """Choose the inputs that the file has, quantize those that it wants as integers, name integer outputs as it does.

    Raises:
        UsageError: The file wants integers of an input that the model does not quantize as it is.
    """
    made.floats = seen.floats
    inputs = required_inputs(file)
    given = _choose_inputs(made, [v.name or "" for v in inputs], call, default_names(model, call))
    present = computed_names(file)
    wrong = []
    for i in _quantized_by_the_user(inputs, given):
        quants = seen.quantized.get(memory_of(given[i])) or _quants_behind(inputs[i], seen)
        if quants:
            _quantize_input(made, i, quants, present)
        else:
            wrong.append(str(inputs[i].name))
    if wrong:
        raise UsageError(
            f"verify: the file takes integers for {listing(wrong)}, and the model quantizes no input as it comes in there. "
            "Give recordings with the integers, or export with is_input_quant=False."
        )
    _name_integer_outputs(made, file, seen, outputs)


def _quantized_by_the_user(inputs: Sequence[ir.Value], given: Sequence[Tensor]) -> list[int]:
    """The inputs that are integers in the file and real values in the call."""
    pairs = enumerate(zip(inputs, given, strict=False))
    return [i for i, (value, tensor) in pairs if value.dtype in _INTEGERS and tensor.is_floating_point()]


def _choose_inputs(made: Recording, wanted: Sequence[str], call: ExampleCall, names: Sequence[str]) -> list[Tensor]:
    """The tensors of the call that are inputs of the file: all, in its order, or those it names where its outputs need no others."""
    given = call.tensors()
    is_shorter = len(wanted) < len(given) and set(wanted) <= set(names)
    if not is_shorter and not are_by_name(call, names, wanted):
        return given
    chosen = [names.index(name) for name in wanted]
    made.inputs = [made.inputs[i] for i in chosen]
    made.input_names = tuple(wanted)
    return [given[i] for i in chosen]


def _quantize_input(made: Recording, index: int, quants: Sequence[Quant], present: Collection[str | None]) -> None:
    """Record an input as the integers that its Quants make of it; Quants that the file does not have are left out."""
    _, op, attributes = quants[0]  # the file has one scale for all that read it, else its input is float
    with np.errstate(all="ignore"):  # NaN becomes some integer, as in the model
        made.inputs[index] = op.body(NumpyKernel(), made.inputs[index], **op.complete(attributes))
    for name, _, _ in quants:
        if name not in present:
            made.integers.pop(name, None)


def _quants_behind(source: ir.Value, seen: Seen) -> list[Quant]:
    """The model's Quants whose results are, in the file, moved integers of this input."""
    known = {quant[0]: quant for quants in seen.quantized.values() for quant in quants}
    found, waiting = [], [source]
    while waiting:
        for node in (n for n in waiting.pop().consumers() if not is_dialect(n)):
            found += [known[v.name] for v in node.outputs if v.name in known]
            waiting += node.outputs
    return found


def _name_integer_outputs(made: Recording, file: ir.Model, seen: Seen, outputs: Sequence[Tensor]) -> None:
    """Record integer outputs as integers, under the names that the file gives to them."""
    for i, (value, tensor) in enumerate(zip(file.graph.outputs, outputs, strict=False)):
        if value.dtype not in _INTEGERS or not isinstance(tensor, QTensor):
            continue
        made.outputs[i] = as_array(tensor, is_integer=True)
        name, maker = seen.makers.get(id(tensor)) or _maker_of_memory(tensor, seen)
        if maker is not None and name in made.integers and value.name:
            made.integers[value.name] = made.integers.pop(name)


def _maker_of_memory(tensor: QTensor, seen: Seen) -> tuple[str, QTensor | None]:
    """The op whose result has the same memory, shape and strides as a tensor, which is then an unchanged view of it."""
    for name, maker in seen.makers.values():
        is_same = maker.stored.shape == tensor.stored.shape and memory_of(maker.stored) == memory_of(tensor.stored)
        if is_same and maker.stored.stride() == tensor.stored.stride():
            return name, maker
    return "", None
