# SPDX-License-Identifier: Apache-2.0
"""A torch model at work: example calls, runs that leave no trace, and every integer of a run by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten_with_path, tree_leaves, tree_map, tree_unflatten

from linger.analysis.batches import Forward, evaluating, failure_of, first_pass, passes_of
from linger.dialect import Op, ops
from linger.errors import LingerError, UsageError, listing, refuse_if
from linger.graph.core.dialects import stands_for
from linger.graph.core.nodes import is_dialect, required_inputs
from linger.numeric.numpy_kernel import NumpyKernel
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Runtime, runtime_of
from linger.verification.feeds import Shapes, SizeTrials
from linger.verification.recording import Recording

Exportable = nn.Module | Callable[..., Any]
"""A module, or a function that torch.jit has scripted or traced."""

WRAPPED = "model"
"""Name of the model inside `FlatModel`; the exporter removes it from every name of the file."""

_INTEGERS = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32)

_Memory = tuple[int, int, int]
"""Address, offset and count of the numbers of a tensor; a reshaped tensor has the same."""

_Quant = tuple[str, Op, Mapping[str, Any]]
"""Name, op and attributes of a Quant of the model."""

_REPLACEMENTS: tuple[Callable[[Tensor], Tensor], ...] = (torch.zeros_like, torch.neg)
"""Replacements for a result: zero, and the negative. At least one of them is another number."""


@dataclass(frozen=True)
class ExampleCall:
    """Positional and keyword arguments of one forward pass."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def is_plain(self) -> bool:
        """Whether the arguments are positional tensors only, which a trace can take as they are."""
        return not self.kwargs and all(isinstance(a, Tensor) for a in self.args)

    def leaves(self) -> list[tuple[str, Any]]:
        """(name, value) of every leaf, in the order of the graph's inputs."""
        return _leaves(self)[0]

    def tensors(self) -> list[Tensor]:
        """The graph inputs: the tensors, and the numbers as 0-d tensors."""
        inputs = [value for _, value in self.leaves() if _is_input(value)]
        return [value if isinstance(value, Tensor) else torch.tensor(value) for value in inputs]


def are_by_name(call: ExampleCall, names: Sequence[str], in_file: Sequence[str]) -> bool:
    """Whether a call passes some arguments by name, and its inputs are those of the file, perhaps in another order."""
    return bool(call.kwargs) and set(names) == set(in_file)


def read_call(model: Exportable, args: object, kwargs: Mapping[str, Any] | None) -> ExampleCall:
    """Read the arguments of a pass, in any form that inputs may have and forward takes; of several batches, the first."""
    return ExampleCall(*_as_plain(first_pass(model, args, "args", kwargs)))


def calls_of(model: Exportable, inputs: object, kwargs: Mapping[str, Any] | None = None) -> Iterator[ExampleCall]:
    """A call for each batch of inputs, which forward must take."""
    return (ExampleCall(*_as_plain(one)) for one in passes_of(model, inputs, "inputs", kwargs))


def _as_plain(tree: Any) -> Any:
    """Dequantize the quantized tensors among arguments, such as a state that an earlier pass has returned."""
    return tree_map(lambda leaf: leaf.dequantize().detach() if isinstance(leaf, QTensor) else leaf, tree)


def as_constant_of_a_trace(tensor: Tensor) -> Tensor:
    """Make a tensor that a model keeps a constant for a trace: without gradient; a quantized one as its integers."""
    if isinstance(tensor, QTensor) and tensor.scale is not None:
        how = {"is_unsigned": tensor.is_unsigned}
        return QTensor(tensor.integers(), tensor.scale, tensor.bits, tensor.runtime, **how)
    real = tensor.dequantize() if isinstance(tensor, QTensor) else tensor
    return real.detach() if real.requires_grad else real


def repeated(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Resize a tensor by cutting or repeating its numbers along each axis."""
    for axis, (old, new) in enumerate(zip(tensor.shape, shape, strict=True)):
        if old != new:
            tensor = tensor.index_select(axis, torch.arange(new, device=tensor.device) % max(old, 1))
    return tensor


def run_once(model: Exportable, call: ExampleCall) -> object:
    """Run a forward pass; if it fails, raise a UsageError that says what to do."""
    try:
        return model(*call.args, **call.kwargs)
    except LingerError:
        raise
    except Exception as error:
        values = [value for _, value in call.leaves()]
        raise UsageError(failure_of(model, values, error, "the example input")) from error


class FlatModel(nn.Module):
    """A model that takes the leaves of a call as positional tensors."""

    def __init__(self, model: Exportable, call: ExampleCall) -> None:
        super().__init__()
        setattr(self, WRAPPED, model)
        leaves, self._spec = _leaves(call)
        self._fixed = [None if _is_input(value) else value for _, value in leaves]
        self._is_input = [_is_input(value) for _, value in leaves]
        self.training = bool(getattr(model, "training", False))

    def forward(self, *tensors: Tensor) -> object:
        """Rebuild the call around the tensors; other leaves stay as they are in the example."""
        rest = iter(tensors)
        leaves = [next(rest) if is_input else v for is_input, v in zip(self._is_input, self._fixed, strict=True)]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return getattr(self, WRAPPED)(*args, **kwargs)


def default_names(model: Exportable, call: ExampleCall) -> tuple[str, ...]:
    """Name the graph inputs after forward's parameters and the keys of dicts."""
    names = Forward.of(model).names
    result = []
    for path, value in call.leaves():
        if _is_input(value):
            head, _, rest = path.partition(".")
            if head.isdigit():
                head = names[int(head)] if int(head) < len(names) else f"input_{int(head)}"
            result.append(f"{head}.{rest}" if rest else head)
    return tuple(result)


def _leaves(call: ExampleCall) -> tuple[list[tuple[str, Any]], TreeSpec]:
    leaves, spec = tree_flatten_with_path((tuple(call.args), dict(call.kwargs)))
    return [(".".join(_key(k) for k in path[1:]), value) for path, value in leaves], spec


def _key(entry: object) -> str:
    return str(getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry))))


def tensors_in(tree: object) -> list[Tensor]:
    """The tensors among the leaves of nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_input(value: object) -> bool:
    """Whether a leaf of a call becomes an input of the graph: a tensor, or a number."""
    return isinstance(value, Tensor) or (isinstance(value, (int, float)) and not isinstance(value, bool))


@contextmanager
def preserved(model: object) -> Iterator[Runtime | None]:
    """Set a model to evaluation mode without gradients; restore mode, buffers, random state and observers on exit."""
    if not isinstance(model, nn.Module):  # a scripted function has no mode and no state
        with torch.random.fork_rng(), torch.no_grad():
            yield None
        return
    runtime = runtime_of(model)
    buffers = [
        (module, name, buffer.clone())
        for module in model.modules()
        if isinstance(module, QuantizedBase)
        for name, buffer in module.named_buffers(recurse=False)
    ]
    with nullcontext() if runtime is None else _restored(runtime):
        try:
            with evaluating(model), torch.random.fork_rng(), torch.no_grad():
                yield runtime
        finally:
            for module, name, content in buffers:
                current = getattr(module, name)
                if not torch.equal(current, content):
                    current.copy_(content)


@contextmanager
def _restored(runtime: Runtime) -> Iterator[None]:
    """Restore on exit what an export or a recording sets in a runtime; inside, parameters are read anew."""
    before = runtime.emitter, runtime.recorder, runtime.has_open_sizes, runtime.ops
    runtime.is_thorough = True  # nothing that was edited behind torch's back may get into a file or a proof
    try:
        yield
    finally:
        runtime.abandon()
        runtime.is_thorough = False
        runtime.emitter, runtime.recorder, runtime.has_open_sizes, runtime.ops = before
        runtime.announcer = None


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
    rest = iter(tensors)

    def put(leaf: Any) -> Any:
        other = next(rest) if _is_input(leaf) else leaf
        return other if isinstance(leaf, Tensor) else leaf

    return ExampleCall(*tree_map(put, (call.args, dict(call.kwargs))))


def _recorded(model: nn.Module, call: ExampleCall, file: ir.Model | None) -> Recording:
    recording, observed = Recording(), _Observed()

    def keep(name: str, integers: Tensor) -> None:
        recording.integers[name] = integers.cpu().numpy()

    with preserved(model) as runtime:
        if runtime is None:
            raise UsageError("verify: this model is not quantized. Call linger.init(model) first.")
        runtime.recorder, runtime.has_open_sizes = keep, file is not None and _has_open_forms(file)
        with _observing(runtime, observed.note):
            outputs = tensors_in(run_once(model, call))
        recording.inputs = [t.detach().cpu().numpy() for t in call.tensors()]
        recording.outputs = [_as_array(t) for t in outputs]
    if file is not None:
        recording.floats = observed.floats
        _fit_inputs(recording, file, observed, call, default_names(model, call))
        _name_integer_outputs(recording, file, observed, outputs)
        for name in _unneeded_results(model, call, recording, file):
            del recording.integers[name]
    return recording


@contextmanager
def _observing(runtime: Runtime, observer: Callable[..., None]) -> Iterator[None]:
    runtime.observers.append(observer)
    try:
        yield
    finally:
        runtime.observers.remove(observer)


def _has_open_forms(model: ir.Model) -> bool:
    """Whether a file has pools that compute their windows from shapes; their tensors are named after them in every form."""
    pools = tuple(op.name for op in ops().values() if op.is_for_open_sizes)
    names = (value.name or "" for node in model.graph for value in node.outputs)
    is_named = any(name.rpartition(".")[2].startswith(pools) for name in names)
    return is_named or any(node.op_type in pools for node in model.graph)


def _unneeded_results(model: nn.Module, call: ExampleCall, recording: Recording, file: ir.Model) -> list[str]:
    """Recorded results that the file does not have and that no output of the model depends on.

    The file leaves out what its outputs do not need. That does not show that the model does not need it: a trace loses what
    forward computes through numpy. So the model runs again with these results replaced; if every output stays the same, no
    output depends on them.
    """
    present = _computed_names(file)
    absent = [name for name in recording.integers if name not in present] if recording.outputs else []
    if not absent or _is_unneeded(model, call, absent):
        return absent
    return [name for name in absent if _is_unneeded(model, call, [name])] if len(absent) > 1 else []


def _is_unneeded(model: nn.Module, call: ExampleCall, names: Collection[str]) -> bool:
    expected = _outputs_with(model, call, (), torch.neg)
    for other in _REPLACEMENTS:
        outputs = _outputs_with(model, call, names, other)
        if outputs is None or expected is None or len(outputs) != len(expected):
            return False
        pairs = zip(outputs, expected, strict=True)
        if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
            return False
    return True


def _outputs_with(
    model: nn.Module, call: ExampleCall, names: Collection[str], other: Callable[[Tensor], Tensor]
) -> list[NDArray[Any]] | None:
    """The outputs with some results replaced; None where the model no longer runs."""

    def overwrite(name: str, _op: Any, _operands: Any, _attributes: Any, x: QTensor) -> None:
        if name in names:
            x.overwrite(x.like(other(x.content)))

    with preserved(model) as runtime:
        assert runtime is not None  # it was recorded
        try:
            with _observing(runtime, overwrite):
                return [_as_array(t) for t in tensors_in(run_once(model, call))]
        except LingerError:  # also raised if the tensor of a view was replaced: then it is used
            return None


class _Observed:
    """What was observed in a pass: which tensors were quantized, and which op made which result."""

    def __init__(self) -> None:
        self.quantized: dict[_Memory, list[_Quant]] = {}
        self.makers: dict[int, tuple[str, QTensor]] = {}
        self.floats: dict[str, NDArray[Any]] = {}

    def note(self, name: str, op: Op, operands: Sequence[Any], attributes: Mapping[str, Any], x: QTensor) -> None:
        """Note one op, its operands and its result."""
        self.makers[id(x)] = (name, x)  # kept alive, so that no other tensor gets the same id
        if op.name == "Quant" and isinstance(operands[0], Tensor) and not isinstance(operands[0], QTensor):
            self.quantized.setdefault(_memory_of(operands[0]), []).append((name, op, dict(attributes)))
            self.floats[name] = _as_array(operands[0])


def _computed_names(file: ir.Model) -> set[str | None]:
    """Names of the tensors that a node of the file computes, and of those that it carries as unsigned bytes."""
    names = {output.name for node in file.graph for output in node.outputs}
    return names | {stands_for(name) for name in names if name}


def _memory_of(t: Tensor) -> _Memory:
    """Where the numbers of a tensor lie."""
    return t.untyped_storage().data_ptr(), int(t.storage_offset()), t.numel()


def _as_array(t: Tensor) -> NDArray[Any]:
    """The real values of a tensor."""
    return np.asarray((t.dequantize() if isinstance(t, QTensor) else t).detach().cpu().numpy())


def _fit_inputs(
    recording: Recording, file: ir.Model, observed: _Observed, call: ExampleCall, names: Sequence[str]
) -> None:
    """Choose the inputs that the file has, and quantize those that it takes as integers as the model does, which must."""
    inputs, present = required_inputs(file), _computed_names(file)
    tensors = _choose_inputs(recording, [v.name or "" for v in inputs], call, names)
    wrong = []
    for i, (value, tensor) in enumerate(zip(inputs, tensors, strict=False)):
        if value.dtype not in _INTEGERS or not tensor.is_floating_point():
            continue
        quants = observed.quantized.get(_memory_of(tensor)) or _quants_behind(value, observed)
        if not quants:
            wrong.append(str(value.name))
            continue
        _, op, attributes = quants[0]  # the file has one scale for all that read it, else its input is float
        with np.errstate(all="ignore"):  # NaN becomes some integer, as in the model
            recording.inputs[i] = op.body(NumpyKernel(), recording.inputs[i], **op.complete(attributes))
        for name in {quant[0] for quant in quants} - present:  # Quants that the file does not have are left out
            recording.integers.pop(name, None)
    refuse_if(
        wrong,
        f"verify: the file takes integers for {listing(wrong)}, and the model quantizes no input as it comes in there. "
        "Give recordings with the integers, or export with is_input_quant=False.",
    )


def _choose_inputs(
    recording: Recording, in_file: Sequence[str], call: ExampleCall, names: Sequence[str]
) -> list[Tensor]:
    """The tensors of the call that are inputs of the file: all, in its order, or those it names where its outputs need no others."""
    tensors = call.tensors()
    is_shorter = len(in_file) < len(tensors) and set(in_file) <= set(names)
    if not is_shorter and not are_by_name(call, names, in_file):
        return tensors
    chosen = [names.index(name) for name in in_file]
    recording.inputs = [recording.inputs[i] for i in chosen]
    recording.input_names = tuple(in_file)
    return [tensors[i] for i in chosen]


def _quants_behind(source: ir.Value, observed: _Observed) -> list[_Quant]:
    """The model's Quants whose results are, in the file, moved integers of this input."""
    known = {quant[0]: quant for quants in observed.quantized.values() for quant in quants}
    behind, waiting = [], [source]
    while waiting:
        for node in (n for n in waiting.pop().consumers() if not is_dialect(n)):
            behind += [known[v.name] for v in node.outputs if v.name in known]
            waiting += node.outputs
    return behind


def _name_integer_outputs(recording: Recording, file: ir.Model, observed: _Observed, outputs: Sequence[Tensor]) -> None:
    """Record integer outputs as integers, under the names that the file gives to them."""
    for i, (value, tensor) in enumerate(zip(file.graph.outputs, outputs, strict=False)):
        if value.dtype not in _INTEGERS or not isinstance(tensor, QTensor):
            continue
        if tensor.scale is not None:
            recording.outputs[i] = np.asarray(tensor.integers().cpu().numpy())
        name = observed.makers[id(tensor)][0] if id(tensor) in observed.makers else _maker_of(tensor, observed)
        if name in recording.integers and value.name:
            recording.integers[value.name] = recording.integers.pop(name)


def _maker_of(tensor: QTensor, observed: _Observed) -> str | None:
    """The op whose result has the same memory, shape and strides as a tensor, which is then an unchanged view of it."""
    for name, maker in observed.makers.values():
        is_same = maker.stored.shape == tensor.stored.shape and _memory_of(maker.stored) == _memory_of(tensor.stored)
        if is_same and maker.stored.stride() == tensor.stored.stride():
            return name
    return None
