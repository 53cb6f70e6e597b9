# SPDX-License-Identifier: Apache-2.0
"""linger: from a PyTorch model to fixed-point hardware, proven bit for bit on the way.

Names in the order of the pipeline; each is loaded on first use, so importing linger imports nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from linger.errors import missing_extra

if TYPE_CHECKING:
    from linger import graph as graph
    from linger import onnx as onnx
    from linger.analysis.advice import Advice as Advice
    from linger.analysis.result import Analysis as Analysis
    from linger.analysis.weights import wb_analyse as wb_analyse
    from linger.checks.check import check as check
    from linger.checks.check_result import CheckResult as CheckResult
    from linger.checks.repair.fix_dequant import Repair as Repair
    from linger.checks.repair.fix_dequant import fix_dequant as fix_dequant
    from linger.checks.repair.fix_dequant import parser_dequant as parser_dequant
    from linger.constraint.advising import advise as advise
    from linger.constraint.batch_norm import NormalizeBatchNorm2d as NormalizeBatchNorm2d
    from linger.constraint.conv_bn import EmptyBatchNorm as EmptyBatchNorm
    from linger.constraint.conv_bn import NormalizeConvBN1d as NormalizeConvBN1d
    from linger.constraint.conv_bn import NormalizeConvBN2d as NormalizeConvBN2d
    from linger.constraint.conv_bn import NormalizeConvTransposeBN1d as NormalizeConvTransposeBN1d
    from linger.constraint.conv_bn import NormalizeConvTransposeBN2d as NormalizeConvTransposeBN2d
    from linger.constraint.normalize import disable_normalize as disable_normalize
    from linger.constraint.normalize import normalize_layers as normalize_layers
    from linger.constraint.normalize import normalize_module as normalize_module
    from linger.constraint.normalized import NormalizeConv1d as NormalizeConv1d
    from linger.constraint.normalized import NormalizeConv2d as NormalizeConv2d
    from linger.constraint.normalized import NormalizeConvTranspose2d as NormalizeConvTranspose2d
    from linger.constraint.normalized import NormalizeEmbedding as NormalizeEmbedding
    from linger.constraint.normalized import NormalizeLayerNorm as NormalizeLayerNorm
    from linger.constraint.normalized import NormalizeLinear as NormalizeLinear
    from linger.constraint.recurrent import NormalizeFastGRU as NormalizeFastGRU
    from linger.constraint.recurrent import NormalizeFastLSTM as NormalizeFastLSTM
    from linger.constraint.tracing import trace_layers as trace_layers
    from linger.errors import GraphError as GraphError
    from linger.errors import LingerError as LingerError
    from linger.errors import UnsupportedError as UnsupportedError
    from linger.errors import UsageError as UsageError
    from linger.errors import VerificationError as VerificationError
    from linger.graph.conversion.convert import Conversion as Conversion
    from linger.graph.conversion.convert import convert_dialect as convert_dialect
    from linger.numeric.fixed_point import FixedPoint as FixedPoint
    from linger.onnx.exporter.redirect import redirect as redirect
    from linger.onnx.exporter.redirect import restore as restore
    from linger.onnx.recorder import record as record
    from linger.pipeline import init as init
    from linger.pipeline import plot_layers as plot_layers
    from linger.pipeline import plot_tensors as plot_tensors
    from linger.proof import verify as verify
    from linger.quantization.core.calibrate import calibration as calibration
    from linger.quantization.core.qtensor import QTensor as QTensor
    from linger.quantization.diagnosis.comparison_result import LayerComparison as LayerComparison
    from linger.quantization.diagnosis.coverage import coverage as coverage
    from linger.quantization.diagnosis.dumper import Dumper as Dumper
    from linger.quantization.diagnosis.layer_comparison import compare_layers as compare_layers
    from linger.quantization.diagnosis.sensitivity_ranking import sensitivity as sensitivity
    from linger.quantization.diagnosis.sensitivity_result import Sensitivity as Sensitivity
    from linger.quantization.layers.channels import channel_shuffle as channel_shuffle
    from linger.quantization.setup.marking import QuantMode as QuantMode
    from linger.quantization.setup.marking import disable_quant as disable_quant
    from linger.quantization.setup.marking import quant_module as quant_module
    from linger.quantization.setup.tensor_quantizer import quant_tensor as quant_tensor
    from linger.runtime.session import Session as Session
    from linger.settings import PlatFormQuant as PlatFormQuant
    from linger.settings import SetBnMomentumUpdate as SetBnMomentumUpdate
    from linger.settings import SetCastorBiasInt16 as SetCastorBiasInt16
    from linger.settings import SetFunctionBmmQuant as SetFunctionBmmQuant
    from linger.settings import SetFunctionChannelShuffleQuant as SetFunctionChannelShuffleQuant
    from linger.settings import SetFunctionLinearQuant as SetFunctionLinearQuant
    from linger.settings import SetIQCat2AddZero as SetIQCat2AddZero
    from linger.settings import SetIQTensorAdd as SetIQTensorAdd
    from linger.settings import SetIQTensorCat as SetIQTensorCat
    from linger.settings import SetIQTensorClamp as SetIQTensorClamp
    from linger.settings import SetIQTensorDiv as SetIQTensorDiv
    from linger.settings import SetIQTensorLogSoftmax as SetIQTensorLogSoftmax
    from linger.settings import SetIQTensorMul as SetIQTensorMul
    from linger.settings import SetIQTensorSigmoid as SetIQTensorSigmoid
    from linger.settings import SetIQTensorSoftmax as SetIQTensorSoftmax
    from linger.settings import SetIQTensorSum as SetIQTensorSum
    from linger.settings import SetIQTensorTanh as SetIQTensorTanh
    from linger.settings import SetIQTensorVar as SetIQTensorVar
    from linger.settings import SetPlatFormQuant as SetPlatFormQuant
    from linger.settings import Switches as Switches
    from linger.verification.devices.compare import compare as compare
    from linger.verification.devices.comparison_result import FileComparison as FileComparison
    from linger.verification.devices.vectors import write_vectors as write_vectors
    from linger.verification.proof.recheck import check_certificate as check_certificate
    from linger.verification.proof.result import Verification as Verification
    from linger.verification.recording import Recording as Recording
    from linger.verification.recording_files import load_recordings as load_recordings
    from linger.verification.recording_files import save_recordings as save_recordings

__version__ = "0.1.0"

_PACKAGES = frozenset({"graph", "onnx"})
_HOME = {
    "wb_analyse": "linger.analysis.weights",
    "Analysis": "linger.analysis.result",
    "advise": "linger.constraint.advising",
    "Advice": "linger.analysis.advice",
    "plot_tensors": "linger.pipeline",
    "plot_layers": "linger.pipeline",
    "trace_layers": "linger.constraint.tracing",
    "EmptyBatchNorm": "linger.constraint.conv_bn",
    "NormalizeConv1d": "linger.constraint.normalized",
    "NormalizeConv2d": "linger.constraint.normalized",
    "NormalizeConvTranspose2d": "linger.constraint.normalized",
    "NormalizeLinear": "linger.constraint.normalized",
    "NormalizeLayerNorm": "linger.constraint.normalized",
    "NormalizeEmbedding": "linger.constraint.normalized",
    "NormalizeBatchNorm2d": "linger.constraint.batch_norm",
    "NormalizeFastLSTM": "linger.constraint.recurrent",
    "NormalizeFastGRU": "linger.constraint.recurrent",
    "NormalizeConvBN1d": "linger.constraint.conv_bn",
    "NormalizeConvBN2d": "linger.constraint.conv_bn",
    "NormalizeConvTransposeBN1d": "linger.constraint.conv_bn",
    "NormalizeConvTransposeBN2d": "linger.constraint.conv_bn",
    "normalize_layers": "linger.constraint.normalize",
    "normalize_module": "linger.constraint.normalize",
    "disable_normalize": "linger.constraint.normalize",
    "FixedPoint": "linger.numeric.fixed_point",
    "disable_quant": "linger.quantization.setup.marking",
    "quant_module": "linger.quantization.setup.marking",
    "QuantMode": "linger.quantization.setup.marking",
    "quant_tensor": "linger.quantization.setup.tensor_quantizer",
    "Switches": "linger.settings",
    **dict.fromkeys(
        (
            "PlatFormQuant",
            "SetPlatFormQuant",
            "SetBnMomentumUpdate",
            "SetCastorBiasInt16",
            "SetFunctionBmmQuant",
            "SetFunctionChannelShuffleQuant",
            "SetFunctionLinearQuant",
            "SetIQCat2AddZero",
            "SetIQTensorAdd",
            "SetIQTensorCat",
            "SetIQTensorClamp",
            "SetIQTensorDiv",
            "SetIQTensorLogSoftmax",
            "SetIQTensorMul",
            "SetIQTensorSigmoid",
            "SetIQTensorSoftmax",
            "SetIQTensorSum",
            "SetIQTensorTanh",
            "SetIQTensorVar",
        ),
        "linger.settings",
    ),
    "init": "linger.pipeline",
    "calibration": "linger.quantization.core.calibrate",
    "channel_shuffle": "linger.quantization.layers.channels",
    "coverage": "linger.quantization.diagnosis.coverage",
    "Dumper": "linger.quantization.diagnosis.dumper",
    "Sensitivity": "linger.quantization.diagnosis.sensitivity_result",
    "LayerComparison": "linger.quantization.diagnosis.comparison_result",
    "sensitivity": "linger.quantization.diagnosis.sensitivity_ranking",
    "compare_layers": "linger.quantization.diagnosis.layer_comparison",
    "QTensor": "linger.quantization.core.qtensor",
    "Session": "linger.runtime.session",
    "convert_dialect": "linger.graph.conversion.convert",
    "Conversion": "linger.graph.conversion.convert",
    "redirect": "linger.onnx.exporter.redirect",
    "restore": "linger.onnx.exporter.redirect",
    "record": "linger.onnx.recorder",
    "Recording": "linger.verification.recording",
    "save_recordings": "linger.verification.recording_files",
    "load_recordings": "linger.verification.recording_files",
    "verify": "linger.proof",
    "check_certificate": "linger.verification.proof.recheck",
    "fix_dequant": "linger.checks.repair.fix_dequant",
    "parser_dequant": "linger.checks.repair.fix_dequant",
    "Repair": "linger.checks.repair.fix_dequant",
    "Verification": "linger.verification.proof.result",
    "check": "linger.checks.check",
    "CheckResult": "linger.checks.check_result",
    "compare": "linger.verification.devices.compare",
    "FileComparison": "linger.verification.devices.comparison_result",
    "write_vectors": "linger.verification.devices.vectors",
    "LingerError": "linger.errors",
    "UsageError": "linger.errors",
    "UnsupportedError": "linger.errors",
    "GraphError": "linger.errors",
    "VerificationError": "linger.errors",
}

__all__ = [*sorted(_HOME), "__version__", *sorted(_PACKAGES)]  # noqa: PLE0604 - the names are strings


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"linger.{name}")
    if name in _HOME:
        try:
            return getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            raise missing_extra(f"linger.{name}", error) from error
    raise AttributeError(f"module 'linger' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
