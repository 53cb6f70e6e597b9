# SPDX-License-Identifier: Apache-2.0
"""The torch side of a proof: every integer that the simulation computes, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from linger.analysis.batches import as_batches as as_batches  # known under this home, too
from linger.errors import LingerError, UsageError
from linger.graph.core.walking import required_inputs
from linger.quantization.core.qtensor import QTensor
from linger.simulation.example_call import ExampleCall, default_names, is_input, read_call, repeated, run_once
from linger.simulation.file_fitting import Seen, as_array, computed_names, fit_to_file
from linger.simulation.preserve import preserved
from linger.verification.other_sizes import Shapes, SizeTrials
from linger.verification.recording import Recording

_OPEN_FORMS = ("iqAdaptiveAvgPool", "iqLargest")
"""Pools of a file that leaves the sizes of their pictures open; their tensors are named after them in every form."""

SPELLINGS = (
    "A tuple holds the arguments of one forward pass, a list holds batches: (x, y) is one batch of two arguments, "
    "[x1, x2] are two batches of one, [(x1, y1), (x2, y2)] are two batches of two"
)

_OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (torch.zeros_like, torch.neg)
"""What is put in place of a result: a zero, and the same with the other sign; one of them is another number."""


def record(
    model: nn.Module,
    inputs: object,
    *,
    kwargs: Mapping[str, Any] | None = None,
    file: ir.Model | None = None,
    trials: SizeTrials | None = None,
) -> Iterator[Recording]:
    """Run a quantised model on each input and yield what it computed; the model stays as it was.

    Args:
        model: A quantised model.
        inputs: The arguments of a pass as for export (a tensor, a tuple that may end in a dict of keywords, a dict), or
            an iterable of such.
        kwargs: Keyword arguments of every pass.
        file: The file that the recordings are for. Where its inputs and outputs are integers, so are the recorded ones;
            results that it leaves out and no output needs are left out here, too.
        trials: Other sizes at which the first of the inputs runs again.

    Raises:
        UsageError: The model is not quantised, or does not take the inputs.
    """
    first = None
    for arguments in _batches(inputs):
        call = read_call(model, arguments, kwargs)
        _require_bound(model, call)
        first = first or call
        yield _recorded(model, call, file)
    if trials is not None and trials.wanted and first is not None and file is not None:
        yield from _at_other_sizes(model, first, file, trials)


def _at_other_sizes(model: nn.Module, call: ExampleCall, file: ir.Model, trials: SizeTrials) -> Iterator[Recording]:
    """Recordings at other sizes, of the call's own tensors, repeated or cut."""
    tensors = call.tensors()
    names = [value.name or "" for value in required_inputs(file)]
    if len(names) != len(tensors):
        names = list(default_names(model, call))
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


def _batches(inputs: object) -> Iterable[Any]:
    return [(inputs,)] if isinstance(inputs, Mapping) else as_batches(inputs)


def _recorded(model: nn.Module, call: ExampleCall, file: ir.Model | None) -> Recording:
    made, seen = Recording(), Seen()

    def keep(name: str, integers: Tensor) -> None:
        made.integers[name] = integers.cpu().numpy()

    with preserved(model) as runtime:
        if runtime is None:
            raise UsageError("verify: this model is not quantised. Call linger.init(model) first.")
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
    """Whether a file has pools that compute their windows from the shapes of their inputs."""
    names = (value.name or "" for node in model.graph for value in node.outputs)
    is_named = any(name.rpartition(".")[2].startswith(_OPEN_FORMS) for name in names)
    return is_named or any(node.op_type in _OPEN_FORMS for node in model.graph)


def _require_bound(model: nn.Module, call: ExampleCall) -> None:
    """Refuse what forward cannot take, before torch says so in its own words: most often a tuple of batches."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # a scripted method may have none
        return
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        given = f"{len(call.args)} positional arguments"
        given += f" and {', '.join(call.kwargs)}" if call.kwargs else ""
        raise UsageError(
            f"inputs: {type(model).__name__}.forward{signature} does not take {given} ({error}). {SPELLINGS}."
        ) from error


def _unneeded_results(model: nn.Module, call: ExampleCall, made: Recording, file: ir.Model) -> list[str]:
    """Recorded results that the file does not have and that no output of the model depends on.

    The file leaves out what its outputs do not need. That alone does not show that the model needs it neither: a forward
    that goes through numpy loses what it computes there. So the model runs again, with these results replaced: where every
    output stays the same, nobody uses them.
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
        except LingerError:  # also that of a view whose tensor was replaced: somebody uses it
            return None
        finally:
            runtime.observers.remove(overwrite)


def _are_equal(found: Sequence[Any] | None, expected: Sequence[Any] | None) -> bool:
    if found is None or expected is None or len(found) != len(expected):
        return False
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(found, expected, strict=True))
