# SPDX-License-Identifier: Apache-2.0
"""The inside of a job of `linger quantize` that its tests look at: its data, its settings, its files, how it is judged.

This is the one place that knows where the package keeps it.
"""

from linger.reporting.facts import LayerFacts, Proof, Quality, Run, read_run
from linger.reporting.verdict import verdict_of
from linger.workflow import quantize as job
from linger.workflow.delivery import RunFile, Work, exported, placed, reported, sha256
from linger.workflow.file_facts import FileFacts
from linger.workflow.file_layers import CHUNK, Grid, Tally, origin_of
from linger.workflow.model_quality import (
    QualityPass,
    batch_size,
    data_cautions,
    guessing_note,
    is_goal_met,
    judged,
    missed_figure,
    usual_budget,
)
from linger.workflow.quantized import QuantizeSettings, require_free
from linger.workflow.samples import (
    Piece,
    Samples,
    checked_arguments,
    edges_of,
    limited,
    of_arrays,
    of_user,
    seen_before,
)

__all__ = [
    "CHUNK",
    "FileFacts",
    "Grid",
    "LayerFacts",
    "Piece",
    "Proof",
    "Quality",
    "QualityPass",
    "QuantizeSettings",
    "Run",
    "RunFile",
    "Samples",
    "Tally",
    "Work",
    "batch_size",
    "checked_arguments",
    "data_cautions",
    "edges_of",
    "exported",
    "guessing_note",
    "is_goal_met",
    "job",
    "judged",
    "limited",
    "missed_figure",
    "of_arrays",
    "of_user",
    "origin_of",
    "placed",
    "read_run",
    "reported",
    "require_free",
    "seen_before",
    "sha256",
    "usual_budget",
    "verdict_of",
]
