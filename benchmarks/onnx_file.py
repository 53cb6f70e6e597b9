# SPDX-License-Identifier: Apache-2.0
"""What an exported file costs in ONNX Runtime against the float32 file: batch 1, one thread, in one run.

The bars are for `linger.Session` and for a stock session on the form "standard". The other forms stand beside them without a bar.
Every session's result is compared with the numpy reference; a row says how many numbers differ.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from file_networks import CASES, float_file, one_thread, quantized_files, stock_session
from interleaved import samples
from numpy.typing import NDArray
from rows import DEPTHWISE_FILE, RESNET_FILE, SMALL_CNN_FILE, Row, parser, ratio_of, report

import linger
from linger.runtime.reference import Reference

CLAIMS: Mapping[str, tuple[str, float]] = {
    "ResNet-18 (CIFAR)": (RESNET_FILE, 0.8),
    "depthwise net, 64 channels at 64×64": (DEPTHWISE_FILE, 1.5),
    "small CNN, 16 and 32 channels at 32×32": (SMALL_CNN_FILE, 1.6),
}
"""A case → its claim and its bar."""

STOCK = ("standard", "dialect", "qdq")
WITH_BAR = ("Session", "standard")
COMPARED = 4
"""Pictures whose results are compared; the first one is measured."""


def measure(title: str, folder: Path, rounds: int) -> list[Row]:
    """One row for each way to run the file."""
    claim, bar = CLAIMS[title]
    case = CASES[title]
    pictures = np.random.default_rng(1).standard_normal((COMPARED, 1, *case.size)).astype(np.float32)
    paths = quantized_files(case, folder, STOCK)
    sessions: dict[str, Any] = {"float32": stock_session(float_file(case))}
    sessions["Session"] = linger.Session(paths["dialect"], one_thread())
    sessions |= {form: stock_session(paths[form]) for form in STOCK}
    name_x = sessions["Session"].get_inputs()[0].name
    reference = Reference(paths["dialect"])
    expected = np.stack([next(iter(reference.run({name_x: x}).values())) for x in pictures])
    runs = {name: partial(_outputs, session, pictures[:1]) for name, session in sessions.items()}
    times = samples(runs, rounds=rounds, warm_up=3)
    found = []
    for name in ("Session", *STOCK):
        differing = np.count_nonzero(np.stack(_outputs(sessions[name], pictures)) != expected)
        way = "linger.Session" if name == "Session" else f"stock, {name}"
        found.append(
            ratio_of(
                f"{claim}: {way}",
                times,
                name,
                base="float32",
                bar=bar if name in WITH_BAR else None,
                detail=f"{differing} of {expected.size} differ",
            )
        )
    return found


def _outputs(session: Any, pictures: NDArray[np.float32]) -> list[NDArray[Any]]:
    name = session.get_inputs()[0].name
    return [session.run(None, {name: x})[0] for x in pictures]


def rows(options: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(1)
    found = []
    for title in CASES:
        if options.only in title:
            with tempfile.TemporaryDirectory() as folder:
                found += measure(title, Path(folder), options.rounds)
    return found


def main() -> None:
    arguments = parser(__doc__, rounds=101)
    arguments.add_argument("--only", default="", help="part of a network's name")
    report(rows, arguments)


if __name__ == "__main__":
    main()
