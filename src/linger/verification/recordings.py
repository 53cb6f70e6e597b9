# SPDX-License-Identifier: Apache-2.0
"""Whatever a user holds against a file (recordings, arrays by name, files of them, inputs alone), as recordings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.verification.recording import Recording
from linger.verification.recording_files import load_recordings

_ACCEPTED = (
    "Give a quantised torch model, a Recording, arrays by name, an iterable of either, the path of an .npz file or of a "
    "folder of them, or None to hold the file against itself"
)


@dataclass(frozen=True)
class Signature:
    """Names of a file's inputs and outputs, in order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, model: ir.Model) -> Signature:
        """The signature of a model; an input with a default content is none."""
        graph = model.graph
        inputs = [v.name or "" for v in graph.inputs if v.name not in graph.initializers]
        return cls(tuple(inputs), tuple(v.name or "" for v in graph.outputs))


def is_torch_model(source: Any) -> bool:
    """Whether something is a torch module; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def as_recordings(source: Any, inputs: Any, signature: Signature) -> Iterator[Recording]:
    """One recording per batch, its arrays sorted into inputs, integers and outputs.

    Args:
        source: A recording, arrays by name, a path, or an iterable of recordings or arrays by name; None: inputs alone.
        inputs: Inputs for recordings that have none, or alone: an array, a tuple or mapping of arrays (one batch), an
            .npz file or a folder of them, or an iterable of such (batches). None: the recordings have theirs.
        signature: Names of the file's inputs and outputs.

    Raises:
        UsageError: What was given is none of these, or does not fit together.
    """
    if source is None:
        yield from _batches(inputs, signature)
        return
    recordings = (_placed(one, signature) for one in _each(source))
    if inputs is None:
        yield from recordings
        return
    batches = list(_batches(inputs, signature))
    count = 0
    for count, recording in enumerate(recordings, start=1):
        if recording.inputs:
            raise UsageError("verify: the recordings have their own inputs. Leave `inputs` out.")
        if count <= len(batches):
            fed = batches[count - 1]
            yield replace(recording, inputs=fed.inputs, input_names=fed.input_names)
    if count != len(batches):
        raise UsageError(
            f"verify: there are {count} recordings and {len(batches)} batches of inputs. Give one for each."
        )


def _each(source: Any) -> Iterator[Recording]:
    if isinstance(source, (Recording, Mapping)):
        yield _as_recording(source)
    elif isinstance(source, (str, os.PathLike)):
        yield from load_recordings(source)
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, np.ndarray)):
        for one in source:
            yield from _each(one) if isinstance(one, (str, os.PathLike)) else [_as_recording(one)]
    else:
        raise UsageError(f"verify: a {type(source).__name__} is nothing to hold against a file. {_ACCEPTED}.")


def _as_recording(one: Any) -> Recording:
    if isinstance(one, Recording):
        return one
    if isinstance(one, Mapping):
        return Recording(integers={str(name): np.asarray(a) for name, a in one.items()}, is_complete=False)
    raise UsageError(f"verify: there is a {type(one).__name__} among the recordings. {_ACCEPTED}.")


def _placed(recording: Recording, signature: Signature) -> Recording:
    """Arrays by name find their place: inputs and float outputs of the file leave the tensors in between."""
    if recording.is_complete:
        return recording
    rest = dict(recording.integers)
    inputs = {name: rest.pop(name) for name in signature.inputs if name in rest}
    outputs = {n: rest.pop(n) for n in signature.outputs if n in rest and rest[n].dtype.kind not in "iu"}
    return Recording(
        list(inputs.values()), list(outputs.values()), rest, tuple(inputs), tuple(outputs), is_complete=False
    )


def _batches(inputs: Any, signature: Signature) -> Iterator[Recording]:
    if isinstance(inputs, (np.ndarray, tuple, Mapping, str, os.PathLike)) or _is_tensor(inputs):
        yield from _one_batch(inputs, signature)
    elif isinstance(inputs, Iterable) and not isinstance(inputs, bytes):
        for batch in inputs:
            yield from _one_batch(batch, signature)
    else:
        raise UsageError(
            f"verify: a {type(inputs).__name__} is no input. Give an array, a tuple or mapping of arrays (one batch), an "
            ".npz file, or an iterable of these."
        )


def _one_batch(batch: Any, signature: Signature) -> Iterator[Recording]:
    if isinstance(batch, (str, os.PathLike)):
        for recording in load_recordings(batch):
            yield _only_inputs(recording, Path(batch), signature)
    elif isinstance(batch, Mapping):
        arrays = [np.asarray(a) for a in batch.values()]
        yield Recording(arrays, input_names=tuple(str(name) for name in batch))
    else:
        yield Recording([np.asarray(a) for a in batch] if isinstance(batch, tuple) else [np.asarray(batch)])


def _only_inputs(recording: Recording, path: Path, signature: Signature) -> Recording:
    """The inputs of a file: those of a recording; in a plain file by name, or in order where the names differ."""
    if recording.is_complete:
        return Recording(recording.inputs, input_names=recording.input_names)
    found: dict[str, NDArray[Any]] = recording.integers
    if all(name in found for name in signature.inputs):
        return Recording([found[name] for name in signature.inputs], input_names=signature.inputs)
    if len(found) == len(signature.inputs):
        return Recording(list(found.values()))
    raise UsageError(
        f"{path}: it holds {listing(found) or 'nothing'}; the model's inputs are {listing(signature.inputs)}."
    )


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
