# SPDX-License-Identifier: Apache-2.0
"""Compare recordings with the file: numpy reference and ONNX Runtime, integer by integer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.files.model_io import ModelLike, load
from linger.verification.digest import fingerprint
from linger.verification.proof.bodies import look_inside
from linger.verification.proof.certificate import stamp
from linger.verification.proof.comparison import Batch, Comparison, Way
from linger.verification.proof.flips import find_flips
from linger.verification.proof.fused_divergence import narrow_down
from linger.verification.proof.result import Evidence, Flip, Verification
from linger.verification.proof.saturation_cause import find_cause
from linger.verification.recording import Recording

KEPT_BYTES = 1 << 28
"""Inputs up to this size stay in memory after a verification, so that a certificate can be written."""


def verify_file(
    model: ModelLike,
    recordings: Iterable[Recording],
    *,
    way: Way | None = None,
    seeds: Sequence[int] = (),
    kept_bytes: int = KEPT_BYTES,
    loaded: ir.Model | None = None,
) -> Verification:
    """Run the file on each recording's inputs and compare every integer with equality.

    A recording without integers (inputs only) compares the computations of the file with each other.

    Args:
        model: The file.
        recordings: One per batch.
        way: Levels and options of ONNX Runtime; None: its defaults.
        seeds: With which the inputs were made, where they were.
        kept_bytes: Inputs up to this size are kept for a certificate.
        loaded: What is in the file, where it has been read already.

    Raises:
        UsageError: The inputs do not fit the file.
    """
    way = way or Way()
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    loaded = loaded or load(model)
    stamped = () if path is None else stamp(path, loaded)
    comparison = Comparison(loaded, way)
    kept = _Kept(0 if seeds else kept_bytes)  # a seed is enough
    has_recorded = False
    flips = _Flips()
    for recording in recordings:
        batch = comparison.add(recording)
        flips.add(comparison, batch)
        kept.add(batch.feeds)
        has_recorded = has_recorded or bool(recording.integers or recording.outputs)
    comparison.first = narrow_down(comparison)
    comparison.first = look_inside(comparison)
    outputs = list(comparison.output_rows.values())
    return Verification(
        rows=list(comparison.rows.values()),
        batches=comparison.batches,
        first=comparison.first,
        missing=tuple(comparison.missing),
        output_differences=sum(row.differing for row in outputs),
        float_error=max((row.error for row in outputs if not row.is_exact), default=0.0),
        levels=way.levels,
        outputs=outputs,
        cause=find_cause(loaded, comparison),
        expected_by=way.recorded_by if has_recorded else "numpy",
        flips=() if comparison.missing else flips.found,
        evidence=Evidence(path, kept.inputs, tuple(seeds), kept.fingerprints, dict(way.options), stamped),
    )


class _Flips:
    """Flips by tensor; none as soon as a batch differs in another way."""

    def __init__(self) -> None:
        self._known: dict[str, Flip] | None = {}
        self._differing = 0

    def add(self, comparison: Comparison, batch: Batch) -> None:
        """Look at a batch that was just compared, where it differs."""
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
        """All of them."""
        return tuple((self._known or {}).values())


class _Kept:
    """The inputs of every batch, until they are too many; their fingerprints in any case."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.inputs: list[Mapping[str, NDArray[Any]]] | None = []
        self.fingerprints: list[dict[str, str]] = []
        self._bytes = 0

    def add(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        self.fingerprints.append({name: fingerprint(array) for name, array in feeds.items()})
        self._bytes += sum(array.nbytes for array in feeds.values())
        if self._bytes > self._most:
            self.inputs = None
        if self.inputs is not None:
            self.inputs.append(dict(feeds))
