# SPDX-License-Identifier: Apache-2.0
"""Verify a file: compare every recording with the numpy reference, ONNX Runtime and witnesses, and explain what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from linger.graph.network import Network, NetworkLike
from linger.verification.proof.causes import find_cause, find_flips, look_inside, narrow_down
from linger.verification.proof.certificate import Evidence, file_sha256
from linger.verification.proof.comparison import Arrays, Batch, RecordingComparison, Way
from linger.verification.proof.result import Cause, Flip, Verification, fingerprint
from linger.verification.proof.witness import Witness, require_same_model
from linger.verification.recording import Recording

KEPT_BYTES = 1 << 28
"""Inputs up to this size stay in memory after a verification, so that a certificate can be written."""


def verify_file(
    model: NetworkLike,
    recordings: Iterable[Recording],
    *,
    way: Way | None = None,
    seeds: Sequence[int] = (),
    kept_bytes: int = KEPT_BYTES,
    witnesses: Sequence[Witness] = (),
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

    Raises:
        UsageError: The inputs do not fit the file, or a witness was made from another file.
        LingerError: A witness crashed.
    """
    way = way or Way()
    network = Network.of(model)
    path, files = network.path, network.files
    _require_same_model(witnesses, path)
    comparison = RecordingComparison(network, way, witnesses)
    kept = _KeptInputs(0 if seeds else kept_bytes)  # a seed is enough
    flips = _Flips()
    for recording in recordings:
        batch = comparison.add(recording)
        flips.add(comparison, batch)
        kept.add(batch.feeds)
    cause = _explain(network.model, comparison)
    return _result(
        comparison,
        way,
        cause,
        flips,
        Evidence(path, kept.inputs, tuple(seeds), kept.fingerprints, dict(way.options), files),
    )


def _require_same_model(witnesses: Sequence[Witness], path: Path | None) -> None:
    """Refuse witnesses of another file; a model in memory has no fingerprint to compare."""
    if path is not None and witnesses:
        require_same_model(witnesses, lambda: file_sha256(path), str(path))


def _result(
    comparison: RecordingComparison, way: Way, cause: Cause | None, flips: _Flips, evidence: Evidence
) -> Verification:
    return Verification(
        rows=list(comparison.rows.values()),
        batches=comparison.batches,
        first=comparison.first,
        missing=tuple(comparison.missing),
        output_differences=sum(row.differing for row in comparison.output_rows.values()),
        float_error=comparison.float_error,
        levels=way.levels,
        outputs=list(comparison.output_rows.values()),
        cause=cause,
        expected_by=way.recorded_by if comparison.has_recorded else "numpy",
        flips=() if comparison.missing else flips.found,
        evidence=evidence,
        witnesses=[stand.row for stand in comparison.witnesses.values()],
    )


def _explain(model: ir.Model, comparison: RecordingComparison) -> Cause | None:
    """Follow the first difference to its origin; the result is its cause, where that was found."""
    if comparison.first is None:
        return None
    comparison.first = narrow_down(comparison)
    comparison.first = look_inside(comparison)
    return find_cause(model, comparison)


class _Flips:
    """Flips by tensor; none as soon as one batch differs in another way."""

    def __init__(self) -> None:
        self._known: dict[str, Flip] | None = {}
        self._differing = 0

    def add(self, comparison: RecordingComparison, batch: Batch) -> None:
        """Look for flips in a batch that was just compared, if it differs."""
        before, self._differing = self._differing, comparison.differing
        if self._differing == before or self._known is None:
            return
        flips = find_flips(comparison, batch)
        if not flips:
            self._known = None
            return
        for flip in flips:
            known = self._known.get(flip.tensor)
            self._known[flip.tensor] = flip if known is None else replace(flip, values=flip.values + known.values)

    @property
    def found(self) -> tuple[Flip, ...]:
        """All flips so far."""
        return tuple((self._known or {}).values())


class _KeptInputs:
    """The inputs of every batch, unless they are too many, and their fingerprints in any case."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self.inputs: list[Arrays] | None = []
        self.fingerprints: list[dict[str, str]] = []

    def add(self, feeds: Arrays) -> None:
        self.fingerprints.append({name: fingerprint(array) for name, array in feeds.items()})
        self._bytes += sum(array.nbytes for array in feeds.values())
        if self._bytes > self._most_bytes:
            self.inputs = None
        if self.inputs is not None:
            self.inputs.append(dict(feeds))
