# SPDX-License-Identifier: Apache-2.0
"""OpenVINO on one thread: the float32 file quantized by NNCF, or ONNX Runtime's quantized file; what stays float as it chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

Array = NDArray[np.float32]
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}


def by_nncf(path: Path, samples: Array, folder: Path) -> Path:
    """The model that NNCF makes of a float32 file with its own settings."""
    import nncf

    nncf.set_log_level("ERROR")
    model = openvino.Core().read_model(path)
    quantized = nncf.quantize(model, nncf.Dataset([sample[None] for sample in samples]), subset_size=len(samples))
    made = folder / "nncf.xml"
    openvino.save_model(quantized, made, compress_to_fp16=False)
    return made


def opened(path: Path) -> Callable[[Array], Callable[[], Any]]:
    """A model ready to run; bound to a sample it runs without arguments."""
    core = openvino.Core()
    request = core.compile_model(core.read_model(path), "CPU", ONE_THREAD).create_infer_request()
    return lambda x: lambda: request.infer([x], share_inputs=True)[0]
