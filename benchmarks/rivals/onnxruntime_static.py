# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's own static quantization of the same float32 files: QDQ, one float scale for each tensor.

It needs no environment of its own: it is the version that linger is tested with. It is fast and not exact: its integers depend
on the CPU (sums of unsigned and signed bytes saturate without VNNI), and its sums are rounded to other integers than the
device's.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
from file_networks import CASES, Case, float_file, stock_session
from numpy.typing import NDArray
from onnx_file import CLAIMS
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from rows import Row, measured, parser, report

CALIBRATION = 8
"""Random pictures, as many as linger's files are calibrated on."""


class Samples(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime.quantization has no types
    """Hands samples to the calibration, one after the other."""

    def __init__(self, name: str, samples: NDArray[np.float32]) -> None:
        self._feeds: Iterator[dict[str, NDArray[np.float32]]] = iter([{name: sample[None]} for sample in samples])

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """The next sample, or None after the last."""
        return next(self._feeds, None)


def quantized_file(content: bytes, samples: NDArray[np.float32], folder: Path, *, per_channel: bool = False) -> Path:
    """The float32 file, quantized: unsigned activations, signed weights."""
    prepared, static = prepared_file(content, folder), folder / "static.onnx"
    quantize_static(
        prepared,
        static,
        Samples(stock_session(prepared).get_inputs()[0].name, samples),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
    )
    return static


def prepared_file(content: bytes, folder: Path) -> Path:
    """The float32 file as ONNX Runtime wants it before it is quantized: shapes inferred, nodes joined."""
    exported, prepared = (folder / f"{name}.onnx" for name in ("exported", "prepared"))
    exported.write_bytes(content)
    quant_pre_process(exported, prepared)
    return prepared


def static_row(title: str, case: Case, rounds: int) -> Row:
    """The quantized file beside the float32 file that it was made from."""
    x = np.random.default_rng(1).standard_normal((1, *case.size)).astype(np.float32)
    content = float_file(case)
    pictures = np.random.default_rng(0).standard_normal((CALIBRATION, *case.size)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            "float32": stock_session(content),
            "static": stock_session(quantized_file(content, pictures, Path(folder))),
        }
    variants = {
        name: (lambda s=session: s.run(None, {s.get_inputs()[0].name: x})) for name, session in sessions.items()
    }
    detail = f"onnxruntime {onnxruntime.__version__}, not exact"
    return measured(CLAIMS[title][0], variants, base="float32", rounds=rounds, warm_up=3, detail=detail)


def rows(options: argparse.Namespace) -> list[Row]:
    logging.getLogger().setLevel(logging.ERROR)
    return [static_row(title, case, options.rounds) for title, case in CASES.items()]


def main() -> None:
    report(rows, parser(__doc__, rounds=101))


if __name__ == "__main__":
    main()
