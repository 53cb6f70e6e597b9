# SPDX-License-Identifier: Apache-2.0
"""The layer classes and type lists of linger 1.x: for `isinstance`, and for lists of types.

Here one class computes every op, so a class of 1.x is a question about the op: `isinstance(layer, linger.Conv2dInt)`.
"""

from __future__ import annotations

from typing import NoReturn

from torch import nn

from linger.constraint.batch_norm import NormalizeBatchNorm2d
from linger.constraint.conv_bn import NormalizeConvBN1d, NormalizeConvBN2d, NormalizeConvTransposeBN2d
from linger.constraint.normalize import DEFAULT_TYPES
from linger.constraint.normalized import (
    NormalizeConv1d,
    NormalizeConv2d,
    NormalizeConvTranspose2d,
    NormalizeEmbedding,
    NormalizeLayerNorm,
    NormalizeLinear,
)
from linger.constraint.recurrent import NormalizeFastGRU, NormalizeFastLSTM
from linger.errors import UsageError
from linger.quantization.core.quantized import QuantizedBase


class _OfOneOp(type):
    """A class whose objects are all quantised layers with certain ops; none can be made by calling it."""

    ops: tuple[str, ...]
    instead: str

    def __instancecheck__(cls, instance: object) -> bool:
        """Whether a layer computes one of the ops."""
        computed = [getattr(instance, name, "") for name in ("op_name", "function_op")]
        return isinstance(instance, QuantizedBase) and any(op in cls.ops for op in computed)

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        """Say what to write instead."""
        raise UsageError(
            f"{cls.__name__}: quantised layers are made by linger.init. Write {cls.instead} in the model, and call "
            "linger.init(model); linger.quant_module chooses other widths."
        )


def _layer(name: str, op: str, instead: str, what: str) -> _OfOneOp:
    """The class of this name in linger 1.x, for layers with an op."""
    return _OfOneOp(name, (), {"ops": (op,), "instead": instead, "__doc__": what, "__module__": __name__})


Conv1dInt = _layer("Conv1dInt", "Conv1dInt", "torch.nn.Conv1d", "A quantised nn.Conv1d.")
Conv2dInt = _layer("Conv2dInt", "Conv2dInt", "torch.nn.Conv2d", "A quantised nn.Conv2d.")
ConvTranspose2dInt = _layer(
    "ConvTranspose2dInt", "ConvTranspose2dInt", "torch.nn.ConvTranspose2d", "A quantised nn.ConvTranspose2d."
)
LinearInt = _layer("LinearInt", "LinearInt", "torch.nn.Linear", "A quantised nn.Linear.")
BatchNormInt = _layer(
    "BatchNormInt", "BatchNorm2dInt", "torch.nn.BatchNorm2d", "A quantised nn.BatchNorm2d or nn.BatchNorm1d."
)
LayerNormInt = _layer("LayerNormInt", "LayerNormInt", "torch.nn.LayerNorm", "A quantised nn.LayerNorm.")
AvgPool2dInt = _layer(
    "AvgPool2dInt", "AvgPool2dInt", "torch.nn.AvgPool2d", "A quantised nn.AvgPool2d or nn.AdaptiveAvgPool2d."
)
ReLU6Int = _layer("ReLU6Int", "Clip", "torch.nn.ReLU6", "A quantised nn.ReLU6.")
EmbeddingInt = _layer("EmbeddingInt", "Gather", "torch.nn.Embedding", "A quantised nn.Embedding.")
LSTMInt = _layer("LSTMInt", "LSTMInt", "torch.nn.LSTM", "A quantised nn.LSTM.")
GRUInt = _layer("GRUInt", "GRUInt", "torch.nn.GRU", "A quantised nn.GRU.")
BmmInt = _layer(
    "BmmInt", "BmmInt", "torch.bmm(x, y)", "The range of a product of two quantised tensors in a module's forward."
)
iqAddLayer = _layer("iqAddLayer", "iqAdd", "x + y", "The range of a sum in a module's forward.")
iqMulLayer = _layer("iqMulLayer", "iqMul", "x * y", "The range of a product in a module's forward.")
iqDivLayer = _layer("iqDivLayer", "iqDiv", "x / y", "The range of a quotient in a module's forward.")
iqSumLayer = _layer("iqSumLayer", "iqSum", "x.sum(dim)", "The range of a sum over axes in a module's forward.")
iqCatLayer = _layer(
    "iqCatLayer", "iqCat", "torch.cat((x, y), dim)", "The range of joined tensors in a module's forward."
)
iqSigmoidLayer = _layer(
    "iqSigmoidLayer", "iqSigmoid", "torch.sigmoid(x)", "The ranges of a sigmoid in a module's forward."
)
iqTanhLayer = _layer("iqTanhLayer", "iqTanh", "torch.tanh(x)", "The ranges of a tanh in a module's forward.")
iqClampLayer = _layer(
    "iqClampLayer", "iqClamp", "torch.clamp(x, low, high)", "The range of limited numbers in a module's forward."
)
softmaxIntLayer = _layer(
    "softmaxIntLayer", "SoftmaxInt", "torch.softmax(x, dim)", "The ranges of a softmax in a module's forward."
)
logsoftmaxIntLayer = _layer(
    "logsoftmaxIntLayer",
    "LogSoftmaxInt",
    "torch.log_softmax(x, dim)",
    "The ranges of a log-softmax in a module's forward.",
)


DefaultQuantIntXOP = (
    *(nn.BatchNorm2d, nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.AvgPool2d, nn.Conv1d, nn.ReLU6, nn.GRU, nn.LSTM),
    *(NormalizeConvBN1d, NormalizeConvBN2d, NormalizeConvTransposeBN2d, NormalizeConv2d, NormalizeConv1d),
    *(NormalizeConvTranspose2d, NormalizeLinear, NormalizeFastLSTM, NormalizeFastGRU),
)
"""What `init` of linger 1.x quantised; here, without `quant_modules`, every type that linger has an op for but embeddings."""

SupportQuantTorchModules = (
    *DefaultQuantIntXOP,
    *(NormalizeBatchNorm2d, NormalizeLayerNorm, NormalizeEmbedding, nn.Embedding, nn.LayerNorm, nn.Upsample),
)
"""What could be named to `init` of linger 1.x; here Upsample, which it could not replace, works too."""

SupportQuantedIntModules = (
    *(BatchNormInt, LinearInt, Conv2dInt, ConvTranspose2dInt, AvgPool2dInt, Conv1dInt, ReLU6Int, GRUInt, LSTMInt),
    *(EmbeddingInt, LayerNormInt, BmmInt),
)
"""The classes of quantised layers, for `isinstance`."""

DefaultNormalizeIntXModule = DEFAULT_TYPES
"""What `normalize_layers` limits."""

SupportNormalizeTorchModules = (*DEFAULT_TYPES, nn.Embedding, nn.LayerNorm)
"""What can be named to `normalize_layers`."""
