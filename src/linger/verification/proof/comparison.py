# SPDX-License-Identifier: Apache-2.0
"""Hold recordings against a file, batch by batch: numpy reference, and ONNX Runtime at every level asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import inputs_within
from linger.graph.facts.stated_formats import is_quantising
from linger.runtime.reference import Reference
from linger.runtime.session import Options, Session, make_session_options
from linger.verification.differences import (
    INTEGER_TYPES,
    Arrays,
    far_apart,
    first_index,
    largest_distance,
    unequal,
)
from linger.verification.proof.result import Divergence, FloatRow, TensorRow
from linger.verification.recording import Recording

RUNTIME = "ONNX Runtime"
PLAIN = ", run plainly"
"""Added where nothing but the outputs is watched, as a user runs the file."""


@dataclass(frozen=True)
class Way:
    """How the file is run: levels of ONNX Runtime, session options, and what the recordings are called."""

    levels: tuple[str, ...] = ("all",)
    options: Options = field(default_factory=dict)
    recorded_by: str = "recording"

    def label(self, level: str) -> str:
        """What ONNX Runtime at a level is called; its own default needs no addition."""
        return RUNTIME if self.levels == ("all",) else f"{RUNTIME} at {level}"


@dataclass(frozen=True)
class Batch:
    """One batch: what was recorded, and what each computation made of its inputs."""

    number: int
    recording: Recording
    feeds: Arrays
    reference: Arrays
    watched: Mapping[str, Arrays]
    outputs: Mapping[str, Arrays]

    def expected(self, name: str) -> NDArray[Any] | None:
        """What a tensor should be: as recorded, else as numpy has it."""
        recorded = self.recording.integers.get(name)
        return self.reference.get(name) if recorded is None else recorded


class Comparison:
    """Runs the file on recording after recording and keeps count."""

    def __init__(self, model: ir.Model, way: Way) -> None:
        self.way = way
        self.sessions = {
            way.label(level): Session(model, make_session_options(level, way.options)) for level in way.levels
        }
        session = next(iter(self.sessions.values()))
        self.model = session.model  # in the order of computation
        self._reference = Reference(model)
        self._inputs = [i.name for i in session.get_inputs()]
        self._outputs = [o.name for o in session.get_outputs()]
        self._exact = _dequantized_outputs(model)
        self._producers = {o.name: node for node in self.model.graph for o in node.outputs if o.name}
        self._dialect_integers = [name for name in session.integer_tensors() if name in self._producers]
        self.rows: dict[str, TensorRow] = {}
        self.output_rows: dict[str, FloatRow] = {}
        self.missing: dict[str, None] = {}
        self.first: Divergence | None = None
        self.first_batch: Batch | None = None
        self.batches = 0

    @property
    def differing(self) -> int:
        """How many values differ so far, integers and outputs."""
        rows: list[TensorRow | FloatRow] = [*self.rows.values(), *self.output_rows.values()]
        return sum(row.differing for row in rows)

    def add(self, recording: Recording) -> Batch:
        """Run one batch and compare everything.

        Raises:
            UsageError: The recording does not fit the file.
            GraphError: The numpy reference cannot run the file.
        """
        batch = self._run(recording)
        self._note_missing(batch)
        for name in self._producers:
            self._compare(name, batch)
        self._compare_outputs(batch)
        if self.first is not None and self.first_batch is None:
            self.first_batch = batch
        self.batches += 1
        return batch

    def _run(self, recording: Recording) -> Batch:
        feeds = self._feeds(recording)
        # first: they say what is wrong with unfit inputs
        watched = {label: _arrays(session.intermediates(feeds)) for label, session in self.sessions.items()}
        outputs = {
            label: _arrays(dict(zip(self._outputs, session.run(None, feeds), strict=True)))
            for label, session in self.sessions.items()
        }
        reference = self._reference.intermediates(feeds)
        return Batch(self.batches, recording, feeds, reference, watched, outputs)

    def _feeds(self, recording: Recording) -> dict[str, NDArray[Any]]:
        if len(self._inputs) != len(recording.inputs):
            raise UsageError(
                f"verify: the file has {len(self._inputs)} inputs ({listing(self._inputs)}), {len(recording.inputs)} were "
                "given. Pass the same arguments as for the export: (x, y) is one batch of two inputs, [x1, x2] are two "
                "batches of one."
            )
        return dict(zip(recording.input_names or self._inputs, recording.inputs, strict=True))

    def _note_missing(self, batch: Batch) -> None:
        recorded = batch.recording.integers
        self.missing |= dict.fromkeys(name for name in recorded if name not in self._producers)
        if recorded and batch.recording.is_complete:
            self.missing |= dict.fromkeys(name for name in self._dialect_integers if name not in recorded)

    def _compare(self, name: str, batch: Batch) -> None:
        expected, recorded = batch.expected(name), batch.recording.integers.get(name)
        found = {by: tensors[name] for by, tensors in batch.watched.items() if name in tensors}
        if expected is None or not found:
            return
        is_integer = any(a.dtype in INTEGER_TYPES for a in (expected, *found.values()))
        if recorded is not None and name in batch.reference:
            found = {"numpy": batch.reference[name], **found}
        if is_integer:
            row = self.rows.setdefault(name, TensorRow(name))
            row.add(expected)
            row.differing += self._count(name, batch, expected, found)
        elif recorded is not None:
            self._compare_floats(name, batch, expected, found)

    def _compare_outputs(self, batch: Batch) -> None:
        """The sessions as a user runs them, without extra outputs, must give the recorded outputs."""
        for name, recorded in self._recorded_outputs(batch.recording).items():
            expected = batch.reference.get(name) if recorded is None else recorded
            found = {f"{by}{PLAIN}": a[name] for by, a in batch.outputs.items() if name in a}
            if recorded is not None and name in batch.reference:
                found = {"numpy": batch.reference[name], **found}
            if expected is not None:
                self._compare_floats(name, batch, expected, found)

    def _recorded_outputs(self, recording: Recording) -> dict[str, NDArray[Any] | None]:
        names = recording.output_names or (tuple(self._outputs) if recording.outputs else ())
        unknown = [name for name in names if name not in self._outputs]
        if len(names) != len(recording.outputs) or unknown:
            given = listing(unknown) if unknown else f"{len(recording.outputs)} outputs"
            raise UsageError(f"verify: the recording has {given}; the file's outputs are {listing(self._outputs)}.")
        return dict.fromkeys(self._outputs) | dict(zip(names, recording.outputs, strict=True))

    def _compare_floats(self, name: str, batch: Batch, expected: NDArray[Any], found: Arrays) -> None:
        is_exact = name in self._exact or expected.dtype.kind != "f"
        made = FloatRow(name, is_exact=is_exact, is_output=name in self._outputs)
        row = self.output_rows.setdefault(name, made)
        row.add(expected)
        row.error = max([row.error, *(largest_distance(expected, have) for have in found.values())])
        row.differing += self._count(name, batch, expected, found, is_exact=row.is_exact)

    def _count(self, name: str, batch: Batch, expected: NDArray[Any], found: Arrays, *, is_exact: bool = True) -> int:
        """How many values any of the computations has wrong; the first such tensor is kept."""
        wrong = np.zeros(1, bool)
        for by, array in found.items():
            differs = unequal(expected, array) if is_exact else far_apart(expected, array)
            if differs.any() and self.first is None:
                self.first = self._divergence(name, batch, differs, expected, (by, array))
            wrong = wrong | differs.reshape(-1)
        return int(np.count_nonzero(wrong))

    def _divergence(
        self,
        name: str,
        batch: Batch,
        differs: NDArray[np.bool_],
        expected: NDArray[Any],
        found: tuple[str, NDArray[Any]],
    ) -> Divergence:
        is_recorded = expected is not batch.reference.get(name)
        index, want, have = first_index(differs, expected, found[1])
        expected_by = self.way.recorded_by if is_recorded else "numpy"
        made = Divergence(name, batch.number, index, expected_by, want, found[0], have)
        node = self._producers.get(name)
        if node is None:
            return made
        inputs = self._inputs_of(node, batch, found[0], is_recorded=is_recorded)
        return replace(made, node=describe(node), op_type=node.op_type, inputs=inputs)

    def _inputs_of(self, node: ir.Node, batch: Batch, by: str, *, is_recorded: bool) -> dict[str, bool | None]:
        """Whether each tensor that goes into a node is the same on both sides."""
        other = batch.reference if by == "numpy" else batch.watched.get(by, {})  # a plain run shows no inputs
        states: dict[str, bool | None] = {}
        for name in dict.fromkeys(v.name for v in inputs_within(node)):
            if name not in self._producers or name is None:
                continue  # inputs of the file and weights are what they are
            recorded = batch.recording.integers.get(name)
            expected = recorded if is_recorded else batch.reference.get(name)
            have = other.get(name)
            states[name] = None if expected is None or have is None else not unequal(expected, have).any()
        return states


def _arrays(found: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Tensors; sequences and maps, which no quantised file has, are left out."""
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


def _dequantized_outputs(model: ir.Model) -> set[str]:
    """Outputs that are made of integers by one exact step: a Dequant's, a DequantizeLinear's."""
    return {
        value.name
        for value in model.graph.outputs
        if value.name
        and (node := value.producer()) is not None
        and (is_quantising(node) or (node.domain == "" and node.op_type == "DequantizeLinear"))
    }
