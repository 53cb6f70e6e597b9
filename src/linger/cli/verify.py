# SPDX-License-Identifier: Apache-2.0
"""linger verify: a file against the numpy reference, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from linger.cli.arrays import read_feeds
from linger.errors import VerificationError
from linger.graph.recording import Recording
from linger.progress import progress
from linger.reporting.tables import verification_table
from linger.runtime.generated import generated_feeds
from linger.runtime.session import Session
from linger.verification.verify import verify_file


def verify(
    model: Annotated[Path, typer.Argument(help="A dialect or bare ONNX file.")],
    inputs: Annotated[Path | None, typer.Option(help="An .npz file with the inputs; random ones without it.")] = None,
    batches: Annotated[int, typer.Option(help="How many random batches.", min=1)] = 4,
) -> None:
    """Compare every integer that ONNX Runtime computes with the numpy reference."""
    session = Session(model)
    feeds = (
        [generated_feeds(session, seed) for seed in range(batches)] if inputs is None else [read_feeds(inputs, session)]
    )
    recordings = (Recording(inputs=list(feed.values())) for feed in progress(feeds, "verify"))
    result = verify_file(model, recordings)
    Console().print(verification_table(result))
    if not result.ok:
        raise VerificationError(f"{model}: {result.summary()}")
