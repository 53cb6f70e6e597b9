# SPDX-License-Identifier: Apache-2.0
"""The same float network quantized by ONNX Runtime: static, QDQ, a float scale per channel of the weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor

import linger
from networks import Batch, Network, Outputs

OPSET = 17


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime.quantization has no types
    """Hands the tuning batches to ONNX Runtime's calibration."""

    def __init__(self, batches: Sequence[Batch], names: Sequence[str]) -> None:
        feeds = ({name: t.numpy() for name, t in zip(names, batch, strict=False)} for batch in batches)
        self._feeds: Iterator[dict[str, np.ndarray]] = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch, or None after the last."""
        return next(self._feeds, None)


def quantized_by_runtime(network: Network, folder: Path) -> Callable[..., Outputs]:
    """The quantized file as a function of a batch.

    It is run with graph optimizations off, so that the figures are those of its scales: on CPUs without VNNI the
    optimized kernels saturate sums of products and lose more.
    """
    exported, prepared, static = (folder / f"{name}.onnx" for name in ("float", "prepared", "static"))
    export_float(network, exported)
    quant_pre_process(exported, prepared, skip_symbolic_shape=True)
    session = onnxruntime.InferenceSession(prepared, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    quantize_static(
        prepared,
        static,
        Reader(single_steps(network) if network.is_stepwise else network.tuning, names),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    quantized = onnxruntime.InferenceSession(static, settings, providers=["CPUExecutionProvider"])

    def run(*batch: Tensor) -> Outputs:
        feeds = {name: t.numpy() for name, t in zip(names, batch, strict=False)}
        return tuple(torch.from_numpy(np.asarray(found)) for found in quantized.run(None, feeds))

    return streamed(run) if network.is_stepwise else run


def export_float(network: Network, path: Path) -> None:
    """The float model as torch writes it."""
    linger.restore()  # linger.init makes torch's export linger's
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a Transformer in one operator cannot be exported
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces the end of this exporter
            torch.onnx.export(
                network.model,
                network.proof[0],
                str(path),
                input_names=list(network.inputs),
                dynamic_axes={name: dict(axes) for name, axes in network.axes.items()},
                opset_version=OPSET,
                dynamo=False,
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)


def single_steps(network: Network) -> list[Batch]:
    """The tuning batches of a stream as steps of one chunk, with the float model's state before each."""
    found = []
    for x, h, c in network.tuning:
        state = (h[:, :1], c[:, :1])
        for i in range(x.shape[1]):
            found.append((x[:1, i : i + 1], *state))
            with torch.no_grad():
                state = network.model(*found[-1])[1:]
    return found


def streamed(step: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """A function of whole streams from one of single steps of one stream."""

    def run(x: Tensor, h: Tensor, c: Tensor) -> Outputs:
        columns = []
        for stream in range(len(x)):
            state, found = (h[:, stream : stream + 1], c[:, stream : stream + 1]), []
            for i in range(x.shape[1]):
                y, *state = step(x[stream : stream + 1, i : i + 1], *state)
                found.append(y)
            columns.append((torch.cat(found, 1), *state))
        ys, hs, cs = zip(*columns, strict=True)
        return torch.cat(ys), torch.cat(hs, 1), torch.cat(cs, 1)

    return run
