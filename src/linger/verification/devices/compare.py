# SPDX-License-Identifier: Apache-2.0
"""linger.compare: two files, or a file and the dumps of a device, tensor by tensor in LSB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

from linger.errors import UsageError, listing
from linger.graph.files.model_io import ModelLike
from linger.progress import progress
from linger.verification.devices.comparison_result import FileComparison
from linger.verification.devices.dump_comparison import compare_with_dumps
from linger.verification.devices.dump_folder import DUMP_SUFFIXES, RAW_SUFFIXES
from linger.verification.devices.dump_manifest import NAMES
from linger.verification.devices.file_runner import FileRunner
from linger.verification.devices.tensor_difference import TensorDifference
from linger.verification.devices.tensor_matching import OUTPUT_POSITION, Matches, Side, match_tensors
from linger.verification.feeds import Feed, generated_feeds, given_feeds
from linger.verification.proof.comparison import FAR

DumpLike = Union[str, "os.PathLike[str]"]


def compare(
    a: ModelLike,
    b: ModelLike | DumpLike,
    inputs: Any = None,
    *,
    seed: int = 0,
    batches: int = 1,
    engine: str = "onnxruntime",
    float_tolerance: float | None = None,
    allow_unknown: bool = False,
) -> FileComparison:
    """Compare two ONNX files, or an ONNX file and what a device dumped, tensor by tensor.

    Numbers are compared with equality, in units of the last bit. A float tensor whose scale the file gives (the output of a
    Dequant) is converted, so that it can meet an integer tensor. Nothing is left out without being named.

    Args:
        a: An ONNX file: a path, bytes, a ModelProto or an onnx_ir model.
        b: Another one; or a folder of dumps, an .npz, .npy or text file.
        inputs: An .npz file, an array, a mapping from names to arrays, or a list of such feeds. None: those among the
            dumps; for two files, random ones.
        seed: Seed of the random ones.
        batches: How many random feeds.
        engine: "onnxruntime", or "numpy" for linger's reference.
        float_tolerance: How far floats without a scale may lie apart, as a part of the tensor's largest value. None: not
            at all for two files, which run in one engine; a thousandth for dumps, whose float ops are another library's.
        allow_unknown: Whether dumps that mean no tensor of the file are listed instead of refused.

    Returns:
        A row per tensor in the order of execution; `.ok` is the verdict, `.first` the first divergence.

    Raises:
        UsageError: Inputs or dumps that are damaged or do not fit; all of them are named.
        GraphError: A file that is no model, or that cannot run.
    """
    if float_tolerance is not None and not float_tolerance >= 0:
        raise UsageError(f"float_tolerance {float_tolerance} is negative. Give 0 or a small part of one.")
    if batches < 1:
        raise UsageError(f"batches {batches}: at least one is needed.")
    if is_dump(a):
        raise UsageError(f"{a!s}: these are dumps. Give the ONNX file first and the dumps second.")
    if is_dump(b):
        assert isinstance(b, (str, os.PathLike))  # is_dump has looked
        runner = FileRunner(a, "a", engine)
        allowed = FAR if float_tolerance is None else float_tolerance
        return compare_with_dumps(runner, Path(b), inputs, float_tolerance=allowed, allow_unknown=allow_unknown)
    pair = _FilePair(FileRunner(a, "a", engine), FileRunner(b, "b", engine), float_tolerance or 0.0)
    model = pair.a.model
    feeds = generated_feeds(model, seed=seed, batches=batches) if inputs is None else given_feeds(inputs, model)
    for feed in progress(feeds, "compare"):
        pair.add(feed)
    return pair.result()


def is_dump(source: Any) -> bool:
    """Whether a source is a folder or file of tensors, and no model."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    try:
        path.stat()
    except (OSError, ValueError):  # nothing there, or a name that no file can have: for others to say
        return path.suffix in (*DUMP_SUFFIXES, *RAW_SUFFIXES) or path.name in NAMES
    return path.is_dir() or path.suffix in (*DUMP_SUFFIXES, *RAW_SUFFIXES) or path.name in NAMES


class _FilePair:
    """Two files on the same inputs."""

    def __init__(self, a: FileRunner, b: FileRunner, tolerance: float) -> None:
        self.a, self.b = a, b
        self._tolerance = tolerance
        self._inputs = _input_pairs(a, b)
        self._matches: Matches | None = None
        self._rows: dict[tuple[str, str], TensorDifference] = {}
        self._batches = 0

    def add(self, feed: Feed) -> None:
        in_a = self.a.run(feed)
        in_b = self.b.run({self._inputs[name]: array for name, array in feed.items()})
        if self._matches is None:
            self._matches = match_tensors(Side(self.a.model, in_a), Side(self.b.model, in_b))
        for name, other, how in self._pairs(in_a):
            fact = self.a.facts[name]
            row = self._rows.setdefault((name, other), TensorDifference(name, other, how, fact.op_type))
            row.add(
                self._batches,
                in_a[name],
                in_b[other],
                scale_a=fact.scale,
                scale_b=self.b.facts[other].scale,
                bits=fact.bits,
                tolerance=self._tolerance,
            )
        self._batches += 1

    def _pairs(self, in_a: Feed) -> Iterator[tuple[str, str, str]]:
        """Every pair in the order of execution of a, outputs that meet in a second place behind their tensor."""
        assert self._matches is not None  # the caller has matched
        outputs: dict[str, list[str]] = {}
        for name, other in self._matches.outputs:
            outputs.setdefault(name, []).append(other)
        for name in in_a:
            if name in self._matches.pairs:
                yield name, *self._matches.pairs[name]
            for other in outputs.get(name, []):
                yield name, other, OUTPUT_POSITION

    def result(self) -> FileComparison:
        assert self._matches is not None  # there is at least one feed
        only_a, only_b = self._matches.rest_a(), self._matches.rest_b()
        missing = [n for n in only_a if n in self.a.outputs] + [n for n in only_b if n in self.b.outputs]
        return FileComparison(
            a=self.a.label,
            b=self.b.label,
            rows=tuple(self._rows.values()),
            batches=self._batches,
            only_a=tuple(only_a),
            only_b=tuple(only_b),
            missing_outputs=tuple(missing),
            notes=(*self.a.notes(), *self.b.notes(), *self._weight_notes()),
        )

    def _weight_notes(self) -> list[str]:
        """Weights are no tensors that a run computes, but a different one explains much."""
        in_a, in_b = self.a.model.graph.initializers, self.b.model.graph.initializers
        wrong = [name for name in in_a if name in in_b and not _same_content(in_a[name], in_b[name])]
        return [f"Initializers of the same name that differ: {listing(wrong, limit=5)}."] if wrong else []


def _same_content(a: Any, b: Any) -> bool:
    if a.const_value is None or b.const_value is None:
        return True
    x, y = a.const_value.numpy(), b.const_value.numpy()
    return x.shape == y.shape and bool((x == y).all())


def _input_pairs(a: FileRunner, b: FileRunner) -> dict[str, str]:
    """The inputs of b by those of a: by name, or one by one where the names differ."""
    if set(a.inputs) == set(b.inputs):
        return {name: name for name in a.inputs}
    if len(a.inputs) == len(b.inputs):
        return dict(zip(a.inputs, b.inputs, strict=True))
    raise UsageError(
        f"the two files take different inputs: {a.label} has {listing(a.inputs) or 'none'}, "
        f"{b.label} has {listing(b.inputs) or 'none'}. Only files with equally many inputs can be compared."
    )
