# SPDX-License-Identifier: Apache-2.0
"""Functions that join the torch side and the deployment side, which do not know each other."""

from __future__ import annotations

from typing import Any

from linger.graph.model_io import ModelLike
from linger.onnx.recorder import as_batches, record
from linger.reporting.progress import progress
from linger.verification.result import Verification
from linger.verification.verify import verify_file


def verify(model: Any, path: ModelLike, inputs: Any) -> Verification:
    """Prove that a file computes what a quantised model simulates: every integer, with equality.

    Three computations meet: the torch simulation, the numpy reference on the file, and stock ONNX Runtime.

    Args:
        model: The quantised model; it stays as it was.
        path: The exported file (any form that names dialect tensors: dialect or bare).
        inputs: A tuple like the export's args, a tensor, or an iterable of either.

    Returns:
        Counts, a row per tensor, the first divergence; `.ok` is the verdict.
    """
    batches = as_batches(inputs)
    recordings = (made for batch in progress(batches, "verify") for made in record(model, batch))
    return verify_file(path, recordings)
