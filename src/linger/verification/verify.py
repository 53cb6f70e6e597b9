# SPDX-License-Identifier: Apache-2.0
"""Compare recordings with the file: numpy reference and ONNX Runtime, integer by integer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError
from linger.graph.dialect_node import is_dialect
from linger.graph.model_io import ModelLike, load
from linger.graph.recording import Recording
from linger.runtime.reference import Reference
from linger.runtime.session import Session
from linger.verification.result import Divergence, TensorRow, Verification

FAR = 1e-3
"""Outputs that float ops compute may differ in their last bits, and those add up; a lost op differs by far more."""

Arrays = Mapping[str, NDArray[Any]]


def verify_file(model: ModelLike, recordings: Iterable[Recording]) -> Verification:
    """Run the file on each recording's inputs, twice, and compare every integer with equality.

    A recording without integers (inputs only) compares the two computations of the file with each other.

    Raises:
        UsageError: The inputs do not fit the file.
    """
    comparison = _Comparison(model)
    for recording in recordings:
        comparison.add(recording)
    return comparison.result()


class _Comparison:
    def __init__(self, model: ModelLike) -> None:
        loaded = load(model)
        self._session, self._reference = Session(loaded), Reference(loaded)
        self._exact_outputs = _dequantized_outputs(loaded)
        self._rows: dict[str, TensorRow] = {}
        self._missing: dict[str, None] = {}
        self._first: Divergence | None = None
        self._batches = 0
        self._output_differences = 0
        self._float_error = 0.0

    def add(self, recording: Recording) -> None:
        feeds = self._feeds(recording)
        in_runtime = self._session.intermediates(feeds)  # first: it says what is wrong with unfit inputs
        computed = {"numpy": self._reference.intermediates(feeds), "ONNX Runtime": in_runtime}
        integers = _integers(computed["ONNX Runtime"])
        if recording.integers:
            self._missing |= dict.fromkeys(n for n in recording.integers if n not in integers)
            nodes = set(self._session.integer_tensors())
            self._missing |= dict.fromkeys(n for n in nodes if n not in recording.integers)
        for name in [*recording.integers, *(n for n in integers if n not in recording.integers)]:
            if name in integers:
                self._compare(name, recording.integers.get(name), {by: c[name] for by, c in computed.items()})
        self._compare_outputs(recording, feeds, computed["numpy"])
        self._batches += 1

    def _feeds(self, recording: Recording) -> dict[str, NDArray[Any]]:
        names = [i.name for i in self._session.get_inputs()]
        if len(names) != len(recording.inputs):
            raise UsageError(
                f"verify: the file has {len(names)} inputs ({', '.join(names)}), {len(recording.inputs)} were given. "
                "Pass the same arguments as for the export."
            )
        return dict(zip(names, recording.inputs, strict=True))

    def _compare(self, name: str, expected: NDArray[Any] | None, found: Mapping[str, NDArray[Any]]) -> None:
        row = self._rows.setdefault(name, TensorRow(name))
        expected_by, reference = ("torch", expected) if expected is not None else ("numpy", found["numpy"])
        row.add(reference)
        wrong = np.zeros(reference.shape, bool)
        for by, array in found.items():
            differs = reference != array if reference.shape == array.shape else np.ones(reference.shape, bool)
            if differs.any() and self._first is None:
                self._first = _divergence(name, self._batches, differs, (expected_by, reference), (by, array))
            wrong |= differs
        row.differing += int(np.count_nonzero(wrong))

    def _compare_outputs(self, recording: Recording, feeds: Arrays, reference: Arrays) -> None:
        """The session as a user runs it, without extra outputs, must give the simulation's outputs."""
        names = [o.name for o in self._session.get_outputs()]
        found = self._session.run(None, feeds)
        expected = recording.outputs or [reference[name] for name in names]
        for name, want, have in zip(names, expected, found, strict=True):
            if want.shape != have.shape:
                self._output_differences += max(want.size, have.size)
            elif name in self._exact_outputs:
                self._output_differences += int(np.count_nonzero(want != have))
            elif want.size:
                self._float_error = max(self._float_error, float(np.max(np.abs(want - have))))
                self._output_differences += _far_apart(want, have)

    def result(self) -> Verification:
        return Verification(
            rows=list(self._rows.values()),
            batches=self._batches,
            first=self._first,
            missing=tuple(self._missing),
            output_differences=self._output_differences,
            float_error=self._float_error,
        )


def _integers(tensors: Arrays) -> dict[str, NDArray[Any]]:
    return {name: t for name, t in tensors.items() if t.dtype in (np.int8, np.int16, np.int32)}


def _far_apart(want: NDArray[Any], have: NDArray[Any]) -> int:
    """How many float values differ by more than rounding can explain, which is a thousandth of the largest of them."""
    if want.dtype.kind != "f":
        return int(np.count_nonzero(want != have))
    finite = np.abs(want[np.isfinite(want)])
    allowed = FAR * float(finite.max(initial=0.0))
    is_near = (want == have) | (np.isnan(want) & np.isnan(have))
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        is_near |= np.abs(want - have) <= allowed
    return int(np.count_nonzero(~is_near))


def _dequantized_outputs(model: ir.Model) -> set[str]:
    """Outputs that are a Dequant's: exact in every computation."""
    return {
        value.name
        for value in model.graph.outputs
        if value.name and (node := value.producer()) is not None and is_dialect(node)
    }


def _divergence(
    name: str, batch: int, differs: NDArray[Any], expected: tuple[str, NDArray[Any]], found: tuple[str, NDArray[Any]]
) -> Divergence:
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    have = found[1][index].item() if found[1].shape == differs.shape else f"shape {found[1].shape}"
    return Divergence(name, batch, index, expected[0], expected[1][index].item(), found[0], have)
