# SPDX-License-Identifier: Apache-2.0
"""Verify a file: compare recordings, batch by batch, with the numpy reference, ONNX Runtime at every level, and witnesses.

Integers are compared with equality; floats that float ops compute may differ by what rounding can explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.graph.core.dialects import POSITIVE, carried, is_quantizing, positive_part, stands_for
from linger.graph.core.nodes import describe, inputs_within, required_inputs
from linger.graph.core.rewiring import needed_nodes
from linger.graph.network import Network, NetworkLike
from linger.runtime.reference import Reference
from linger.runtime.session import Options, Session, as_expected, fastest, make_session_options
from linger.verification.array_files import Array
from linger.verification.proof.certificate import Evidence, file_sha256
from linger.verification.proof.result import PLAIN, Cause, Divergence, Flip, FloatRow, TensorRow, Verification
from linger.verification.proof.witness import Statement, Witness, WitnessStand, make_stands, require_same_model
from linger.verification.recording import Recording

Arrays = Mapping[str, Array]

INTEGER_TYPES = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32))
"""Types of quantized tensors and their sums; 64-bit integers are shapes and indices."""

FAR = 1e-3
"""Outputs of float ops may differ in their last bits, and such differences add up; a lost op makes a far larger one."""

RUNTIME = "ONNX Runtime"
FASTEST = "linger.Session"
"""What messages call the graph that `linger.Session` chooses for this CPU."""

KEPT_BYTES = 1 << 28
"""Inputs up to this size stay in memory after a verification, so that a certificate can be written."""


def fingerprint(array: Array) -> str:
    """The SHA-256 of one array.

    >>> import numpy as np
    >>> fingerprint(np.array([1, 2], np.int8)) == fingerprint(np.array([1, 2], np.int16))
    False
    """
    row = TensorRow("")
    count(row, array)
    return row.sha256


def count(row: TensorRow | FloatRow, array: Array) -> None:
    """Count one batch, whose type, shape and little-endian content also go into the fingerprint of the row."""
    array = np.asarray(array)
    row.dtype = str(array.dtype)
    row.values += array.size
    row.digest.update(f"{array.dtype.name}{list(array.shape)};".encode())
    if array.dtype.hasobject or array.dtype.kind in "SU":
        row.digest.update("\0".join(map(str, array.reshape(-1).tolist())).encode())
    else:
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        row.digest.update(little.reshape(-1).view(np.uint8).data if little.size else b"")


def count_integers(row: TensorRow, array: Array) -> None:
    """Count one batch of integers, those at the ends of their type, and the different ones."""
    count(row, array)
    if array.dtype.kind in "iu":
        ends = np.iinfo(array.dtype)
        is_at_the_end = array == ends.max
        if array.dtype.kind == "i":  # the least unsigned number is zero, which occurs without saturation
            is_at_the_end |= array == ends.min
        row.saturated += int(np.count_nonzero(is_at_the_end))
        row.seen = np.union1d(row.seen, array)


@dataclass(frozen=True)
class Way:
    """How the file is run: levels of ONNX Runtime, session options, and what messages call the recordings."""

    levels: tuple[str, ...] = ("all",)
    options: Options = field(default_factory=dict)
    recorded_by: str = "recording"

    def label(self, level: str) -> str:
        """What messages call ONNX Runtime at a level; its own default needs no addition."""
        return RUNTIME if self.levels == ("all",) else f"{RUNTIME} at {level}"


@dataclass(frozen=True)
class Batch:
    """One batch: the recording, the tensors of each computation on its inputs, and what each witness says."""

    number: int
    recording: Recording
    feeds: Arrays
    reference: Arrays
    watched: Mapping[str, Arrays]
    outputs: Mapping[str, Arrays]
    witnessed: Mapping[str, Statement] = field(default_factory=dict)

    def expected(self, name: str) -> Array | None:
        """The expected content of a tensor: the recorded one, else that of numpy."""
        recorded = self.recorded(name)
        return self.reference.get(name) if recorded is None else recorded

    def recorded(self, name: str) -> Array | None:
        """The recorded content of a tensor; of one that the file has in part, that part, and of a carrier, what it carries."""
        whole = self.recording.integers.get(stands_for(name))
        if whole is None or name in self.recording.integers:
            return whole
        zero = carried(name)[1]
        return positive_part(whole) if zero is None else (whole.astype(np.int16) + zero).astype(np.uint8)

    @property
    def has_other_witness(self) -> bool:
        """Whether a witness computes another number than the file does, which flips between model and file cannot explain."""
        said = [(name, array) for statement in self.witnessed.values() for name, array in statement.tensors.items()]
        return any(unequal(self.reference[name], array).any() for name, array in said)


class RecordingComparison:
    """Runs a file, which has been checked, on one recording after another and counts what differs."""

    def __init__(self, model: ir.Model | Network, way: Way, witnesses: Sequence[Witness] = ()) -> None:
        self.way, network = way, Network.of(model, is_checked=True)
        self.sessions = {
            way.label(level): Session(network, make_session_options(level, way.options), as_written=True)
            for level in way.levels
        }
        self._fastest = _fastest_session(network, way)
        session = next(iter(self.sessions.values()))
        self.model = session.model  # in the order of computation
        self._reference = Reference(network)
        self._inputs = {i.name: i.type for i in session.get_inputs()}
        self._outputs = [o.name for o in session.get_outputs()]
        self._exact = {value.name for value in network.model.graph.outputs if value.name and _is_dequantized(value)}
        made = [(o.name, node) for node in self.model.graph for o in node.outputs if o.name]
        self._producers = {name: node for output, node in made for name in (carried(output)[0], output)}
        self._dialect_integers = [name for name in session.integer_tensors() if name in self._producers]
        taken = ("numpy", way.recorded_by, *self.sessions)
        self.witnesses = make_stands(witnesses, self._outputs, taken=taken) if witnesses else {}
        self.rows: dict[str, TensorRow] = {}
        self.output_rows: dict[str, FloatRow] = {}
        self.missing: dict[str, None] = {}
        self.first: Divergence | None = None
        self.first_batch: Batch | None = None
        self.batches = 0
        self.has_recorded = False

    @property
    def differing(self) -> int:
        """How many values differ so far, integers and outputs, and other values of witnesses."""
        rows: list[TensorRow | FloatRow] = [*self.rows.values(), *self.output_rows.values()]
        others = sum(stand.row.other_differences for stand in self.witnesses.values())
        return sum(row.differing for row in rows) + others

    @property
    def float_error(self) -> float:
        """The largest difference of outputs that need not be equal."""
        return max((row.error for row in self.output_rows.values() if not row.is_exact), default=0.0)

    def add(self, recording: Recording) -> Batch:
        """Run one batch and compare everything.

        Raises:
            UsageError: The recording does not fit the file.
            GraphError: The numpy reference cannot run the file.
            LingerError: A witness crashed.
        """
        batch = self._run(recording)
        self._note_missing(batch)
        for name in self._producers:
            if carried(name)[0] == name:  # else it is compared as what it stands for
                self._compare(name, batch)
        self._compare_outputs(batch)
        if self.first is not None and self.first_batch is None:
            self.first_batch = batch
        self.batches += 1
        self.has_recorded = self.has_recorded or bool(recording.integers or recording.outputs)
        return batch

    def result(self, cause: Cause | None, flips: tuple[Flip, ...], evidence: Evidence) -> Verification:
        """What was compared so far, with the reasons that were found."""
        return Verification(
            rows=list(self.rows.values()),
            batches=self.batches,
            first=self.first,
            missing=tuple(self.missing),
            output_differences=sum(row.differing for row in self.output_rows.values()),
            float_error=self.float_error,
            levels=self.way.levels,
            outputs=list(self.output_rows.values()),
            cause=cause,
            expected_by=self.way.recorded_by if self.has_recorded else "numpy",
            flips=() if self.missing else flips,
            evidence=evidence,
            witnesses=[stand.row for stand in self.witnesses.values()],
        )

    def _run(self, recording: Recording) -> Batch:
        feeds = self._feeds(recording)
        # ONNX Runtime first: its messages say what is wrong with unfit inputs
        watched = {label: _arrays(session.intermediates(feeds)) for label, session in self.sessions.items()}
        sessions = dict(self.sessions)
        if self._fastest is not None:
            watched[FASTEST] = _arrays(self._fastest.fastest_intermediates(feeds))
            sessions[FASTEST] = self._fastest
        outputs = {
            label: _arrays(dict(zip(self._outputs, session.run(None, feeds), strict=True)))
            for label, session in sessions.items()
        }
        reference = _limited(self._reference.intermediates(feeds))
        witnessed = {
            label: stand.ask(feeds, reference, self._reference.intermediates) for label, stand in self.witnesses.items()
        }
        return Batch(self.batches, recording, feeds, reference, watched, outputs, witnessed)

    def _feeds(self, recording: Recording) -> dict[str, Array]:
        if len(self._inputs) != len(recording.inputs):
            raise UsageError(
                f"verify: the file has {len(self._inputs)} inputs ({listing(self._inputs)}), {len(recording.inputs)} were "
                "given. Pass the same arguments as for the export: (x, y) is one batch of two inputs, [x1, x2] are two "
                "batches of one."
            )
        named = zip(recording.input_names or self._inputs, recording.inputs, strict=True)
        return {name: as_expected(array, self._inputs.get(name, "")) for name, array in named}

    def _note_missing(self, batch: Batch) -> None:
        recorded = batch.recording.integers
        self.missing |= dict.fromkeys(
            name for name in recorded if name not in self._producers and f"{name}{POSITIVE}" not in self._producers
        )
        if recorded and batch.recording.is_complete:
            extra = [name for name in self._dialect_integers if name not in recorded]
            self.missing |= dict.fromkeys(name for name in extra if not self._is_step(name, recorded))

    def _is_step(self, name: str, recorded: Arrays) -> bool:
        """Whether a tensor leads to one that was recorded, and nowhere else: `x.MaxPool.stage1` to `x.MaxPool`, for a chip."""
        whole = name.rpartition(".")[0]
        if whole not in recorded or whole not in self._producers:
            return False
        beside = self._producers[whole].outputs  # of a recurrent layer: its states
        waiting = [output for output in self._producers[name].outputs if output.name == name]
        for value in waiting:  # the list grows while it is walked
            readers = value.consumers()
            if value.name != whole and (readers or value not in beside):
                if value.name in recorded or value.is_graph_output() or not readers:
                    return False
                waiting += {output for node in readers for output in node.outputs}.difference(waiting)
        return True

    def _compare(self, name: str, batch: Batch) -> None:
        expected, recorded = batch.expected(name), batch.recorded(name)
        found = {by: tensors[name] for by, tensors in batch.watched.items() if name in tensors}
        if expected is None or not found:
            return
        is_integer = any(a.dtype in INTEGER_TYPES for a in (expected, *found.values()))
        found = self._with_numpy(name, batch, found, recorded)
        # integers that are constant or unused need not be shown
        is_due = is_integer and bool(batch.witnessed) and name in self._computed
        said = self._said(name, batch, is_due=is_due)
        if is_integer:
            row = self.rows.setdefault(name, TensorRow(name))
            count_integers(row, expected)
            row.differing += self._count(name, batch, expected, {**found, **said})
        elif recorded is not None:
            self._compare_floats(name, batch, expected, {**found, **said})
        else:
            self._count(name, batch, expected, said)

    @staticmethod
    def _with_numpy(name: str, batch: Batch, found: dict[str, Array], recorded: Array | None) -> dict[str, Array]:
        """The computations of a tensor, with that of numpy where the recorded one is expected."""
        is_compared = recorded is not None and name in batch.reference
        return {"numpy": batch.reference[name], **found} if is_compared else found

    def _said(self, name: str, batch: Batch, *, is_due: bool, is_plain: bool = False) -> dict[str, Array]:
        """A tensor as each witness shows it, or returns it from a plain run; one that is due and not there is noted."""
        shown = {}
        for by, statement in batch.witnessed.items():
            tensors = statement.outputs if is_plain else statement.tensors
            if name in tensors:
                shown[f"{by}{PLAIN}" if is_plain else by] = tensors[name]
            elif is_due and not statement.is_empty:
                self.witnesses[by].row.add_missing(name)
        return shown

    @cached_property
    def _computed(self) -> frozenset[str]:
        """The tensors of the main graph that depend on an input, and on which an output depends."""
        needed, varying = needed_nodes(self.model), set[ir.Value](required_inputs(self.model))
        for node in self.model.graph:
            if node in needed and not varying.isdisjoint(inputs_within(node)):
                varying.update(node.outputs)
        return frozenset(value.name for value in varying if value.name and value.producer() is not None)

    def _compare_outputs(self, batch: Batch) -> None:
        """Compare the outputs of the sessions as a user runs them, without extra outputs."""
        for name, recorded in self._recorded_outputs(batch.recording).items():
            expected = batch.reference.get(name) if recorded is None else recorded
            found = {f"{by}{PLAIN}": a[name] for by, a in batch.outputs.items() if name in a}
            found = self._with_numpy(name, batch, found, recorded)
            found |= self._said(name, batch, is_due=True, is_plain=True)
            if expected is not None:
                self._compare_floats(name, batch, expected, found)

    def _recorded_outputs(self, recording: Recording) -> dict[str, Array | None]:
        names = recording.output_names or (tuple(self._outputs) if recording.outputs else ())
        unknown = [name for name in names if name not in self._outputs]
        if len(names) != len(recording.outputs) or unknown:
            given = listing(unknown) if unknown else f"{len(recording.outputs)} outputs"
            raise UsageError(f"verify: the recording has {given}; the file's outputs are {listing(self._outputs)}.")
        return dict.fromkeys(self._outputs) | dict(zip(names, recording.outputs, strict=True))

    def _compare_floats(self, name: str, batch: Batch, expected: Array, found: Arrays) -> None:
        is_exact = name in self._exact or expected.dtype.kind != "f"
        row = self.output_rows.setdefault(name, FloatRow(name, is_exact, name in self._outputs))
        distances = (largest_distance(expected, have) for by, have in found.items() if self._stand(by) is None)
        row.error = max(row.error, *distances, 0.0)
        count(row, expected)
        row.differing += self._count(name, batch, expected, found, is_exact=row.is_exact)

    def _count(self, name: str, batch: Batch, expected: Array, found: Arrays, *, is_exact: bool = True) -> int:
        """How many values differ in any of the computations; the first difference of all is kept.

        Witnesses are held to equality everywhere: where recorded floats may differ by rounding, to the file's own numbers.
        """
        wrong = np.zeros(1, bool)
        for by, array in found.items():
            stand = self._stand(by)
            own = expected if is_exact or stand is None else batch.reference.get(name, expected)
            want = own if own.shape == expected.shape else expected
            differs = self.places(want, array, is_exact=is_exact or stand is not None)
            if stand is not None:
                stand.row.add(name, differs, is_integer=want.dtype in INTEGER_TYPES and not by.endswith(PLAIN))
            if differs.any() and self.first is None:
                self.first = self._divergence(name, batch, differs, want, (by, array))
            wrong = wrong | differs.reshape(-1)
        return int(np.count_nonzero(wrong))

    @staticmethod
    def places(want: Array, have: Array, *, is_exact: bool) -> NDArray[np.bool_]:
        """Where two arrays differ: at all, or by more than rounding can explain."""
        return unequal(want, have) if is_exact else far_apart(want, have)

    def _stand(self, by: str) -> WitnessStand | None:
        """The witness of this label, plain or not; None for a computation of the file."""
        return self.witnesses.get(by.removesuffix(PLAIN))

    def _divergence(
        self,
        name: str,
        batch: Batch,
        differs: NDArray[np.bool_],
        expected: Array,
        found: tuple[str, Array],
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
        """Whether each input of a node is the same on both sides."""
        known = {"numpy": batch.reference, **batch.watched, **{b: s.tensors for b, s in batch.witnessed.items()}}
        other = known.get(by, {})  # a plain run returns outputs only
        states: dict[str, bool | None] = {}
        for name in dict.fromkeys(v.name for v in inputs_within(node)):
            if name not in self._producers or name is None:
                continue  # inputs of the file and weights are the same on both sides
            recorded = batch.recorded(name)
            expected = recorded if is_recorded else batch.reference.get(name)
            have = other.get(name)
            states[name] = None if expected is None or have is None else not unequal(expected, have).any()
        return states


def _arrays(found: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors among the results; sequences and maps, which no quantized file has, are left out."""
    return _limited({name: value for name, value in found.items() if isinstance(value, np.ndarray)})


def _limited(arrays: Arrays) -> dict[str, Array]:
    """The arrays; those that a ReLU behind them will limit, limited, as the simulation has them."""
    return {name: positive_part(array) if name.endswith(POSITIVE) else array for name, array in arrays.items()}


def _fastest_session(network: Network, way: Way) -> Session | None:
    """The file as `linger.Session` runs it, where that is another graph than the file's."""
    if network.once(fastest) is None:
        return None
    level = "all" if "all" in way.levels else way.levels[-1]
    return Session(network, make_session_options(level, way.options))


def _is_dequantized(value: ir.Value) -> bool:
    """Whether an output is computed from integers in one exact step."""
    node = value.producer()
    return node is not None and (is_quantizing(node) or (node.domain, node.op_type) == ("", "DequantizeLinear"))


def unequal(want: Array, have: Array) -> NDArray[np.bool_]:
    """Which values differ, in the shape of `want`: all of them where types or shapes differ."""
    if not _is_alike(want, have):
        return np.ones(want.shape if want.size else (1,), bool)
    is_equal = want == have
    if want.dtype.kind == "f":
        is_equal |= np.isnan(want) & np.isnan(have)
    return ~np.asarray(is_equal, bool)


def far_apart(want: Array, have: Array) -> NDArray[np.bool_]:
    """Which values differ by more than rounding can explain: by a thousandth of the largest one."""
    differs = unequal(want, have)
    if want.dtype.kind != "f" or not _is_alike(want, have):
        return differs
    allowed = FAR * float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞
        differs &= ~(np.abs(want - have) <= allowed)
    return differs


def largest_distance(want: Array, have: Array) -> float:
    """The largest difference between the finite values of two float arrays of one shape."""
    if want.dtype.kind != "f" or want.shape != have.shape:
        return 0.0
    both = np.isfinite(want) & np.isfinite(have)
    return float(np.abs(want[both].astype(np.float64) - have[both]).max(initial=0.0))


def first_index(differs: NDArray[np.bool_], want: Array, have: Array) -> tuple[tuple[int, ...], Any, Any]:
    """The first index where arrays differ, and both values there; types and shapes where those differ."""
    index: tuple[int, ...] = ()
    sides: list[Any] = [f"{array.dtype}{list(array.shape)}" for array in (want, have)]
    if _is_alike(want, have):
        index = tuple(int(i) for i in np.argwhere(differs)[0])
        sides = [x.item() if isinstance(x, np.generic) else x for x in (want[index], have[index])]
    return index, sides[0], sides[1]


def _is_alike(want: Array, have: Array) -> bool:
    """Whether types and shapes are the same; all numpy types that hold text count as one."""
    is_text = want.dtype.kind in "OSU" and have.dtype.kind in "OSU"
    return want.shape == have.shape and (is_text or want.dtype == have.dtype)


class _Explainer(Protocol):
    """Finds the origin of differences, as the module `linger.verification.proof.causes` does."""

    def added_flips(
        self, flips: dict[str, Flip], comparison: RecordingComparison, batch: Batch
    ) -> dict[str, Flip] | None:
        """The flips by tensor with those of one more batch, which differs; None where flips do not explain that."""

    def explain(self, model: ir.Model, comparison: RecordingComparison) -> Cause | None:
        """Follow the first difference to its origin; the result is its cause, where that was found."""


def verify_file(
    model: NetworkLike,
    recordings: Iterable[Recording],
    *,
    way: Way | None = None,
    seeds: Sequence[int] = (),
    kept_bytes: int = KEPT_BYTES,
    witnesses: Sequence[Witness] = (),
    explainer: _Explainer,
) -> Verification:
    """Run the file on each recording's inputs and compare every integer with equality.

    For a recording without integers (inputs only) the computations of the file are compared with each other.

    Args:
        model: The file, a model in memory, or a `Network`.
        recordings: One per batch.
        way: Levels and options of ONNX Runtime; None: its defaults.
        seeds: The seeds that generated the inputs, if any.
        kept_bytes: Inputs up to this size are kept for a certificate.
        witnesses: Further computations of the file, which must agree in every tensor.
        explainer: What finds the origin of differences: `linger.verification.proof.causes`.

    Raises:
        UsageError: The inputs do not fit the file, or a witness was made from another file.
        LingerError: A witness crashed.
    """
    way, network = way or Way(), Network.of(model)
    path = network.path
    if witnesses and path is not None:  # a model in memory has no fingerprint to compare
        require_same_model(witnesses, lambda: file_sha256(path), str(path))
    comparison = RecordingComparison(network, way, witnesses)
    kept = _KeptInputs(0 if seeds else kept_bytes)  # a seed is enough
    flips: dict[str, Flip] | None = {}  # None as soon as one batch differs in another way
    for recording in recordings:
        before = comparison.differing
        batch = comparison.add(recording)
        if comparison.differing != before and flips is not None:
            flips = explainer.added_flips(flips, comparison, batch)
        kept.add(batch.feeds)
    cause = None if comparison.first is None else explainer.explain(network.model, comparison)
    evidence = Evidence(path, kept.inputs, tuple(seeds), kept.fingerprints, dict(way.options), network.files)
    return comparison.result(cause, tuple((flips or {}).values()), evidence)


class _KeptInputs:
    """The inputs of every batch, unless they are too many, and their fingerprints in any case."""

    def __init__(self, most_bytes: int) -> None:
        self._bytes_left = most_bytes
        self.inputs: list[Arrays] | None = []
        self.fingerprints: list[dict[str, str]] = []

    def add(self, feeds: Arrays) -> None:
        self.fingerprints.append({name: fingerprint(array) for name, array in feeds.items()})
        self._bytes_left -= sum(array.nbytes for array in feeds.values())
        if self._bytes_left < 0:
            self.inputs = None
        if self.inputs is not None:
            self.inputs.append(dict(feeds))
