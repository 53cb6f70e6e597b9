# SPDX-License-Identifier: Apache-2.0
"""LiteRT on one thread: the float module converted, pictures with channels last, and quantized to int8, its own way.

Its files take and give int8, so that whoever has floats quantizes them first. One way counts that in numpy, one does not.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litert_torch
import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import recipe
from ai_edge_quantizer.quantizer import Quantizer
from numpy.typing import NDArray

Array = NDArray[np.float32]


def quantized_file(plain: torch.nn.Module, samples: Array, folder: Path) -> Path:
    """The module as an int8 file, calibrated on the samples."""
    with contextlib.redirect_stdout(io.StringIO()):  # progress
        return _quantized_file(copy.deepcopy(plain), samples, folder)


def _quantized_file(model: torch.nn.Module, samples: Array, folder: Path) -> Path:
    exported, made = folder / "float.tflite", folder / "int8.tflite"
    if _is_picture(samples[:1]):
        model = litert_torch.to_channel_last_io(model, args=[0]).eval()
    litert_torch.convert(model, (torch.from_numpy(_as_taken(samples[:1])),)).export(str(exported))
    ((key, signature),) = Interpreter(str(exported)).get_signature_list().items()
    quantizer = Quantizer(str(exported), recipe.static_wi8_ai8())
    feeds = [{signature["inputs"][0]: _as_taken(sample[None])} for sample in samples]
    quantizer.quantize(quantizer.calibrate({key: feeds}, num_threads=1)).export_model(str(made), overwrite=True)
    return made


def opened(path: Path, *, counts_input: bool) -> Callable[[Array], Callable[[], Array]]:
    """A file ready to run; bound to a sample it runs without arguments, with or without quantizing that sample each time."""
    interpreter = Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    into, out = interpreter.get_input_details()[0], interpreter.get_output_details()[0]

    def bound(x: Array) -> Callable[[], Array]:
        given = _quantized(_as_taken(x), into)

        def run() -> Array:
            interpreter.set_tensor(into["index"], _quantized(_as_taken(x), into) if counts_input else given)
            interpreter.invoke()
            return _real(interpreter.get_tensor(out["index"]), out)

        return run

    return bound


def _is_picture(x: Array) -> bool:
    return x.ndim == len("NCHW")


def _as_taken(x: Array) -> Array:
    """The sample with its channels last."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if _is_picture(x) else x


def _quantized(x: Array, details: dict[str, Any]) -> NDArray[Any]:
    scale, zero = details["quantization"]
    if details["dtype"] == np.float32:
        return x
    return np.clip(np.rint(x * np.float32(1 / scale)) + zero, -128, 127).astype(details["dtype"])


def _real(y: NDArray[Any], details: dict[str, Any]) -> Array:
    scale, zero = details["quantization"]
    return y if details["dtype"] == np.float32 else (y.astype(np.float32) - zero) * np.float32(scale)
