# SPDX-License-Identifier: Apache-2.0
"""The layer classes and type lists of linger 1.x: for `isinstance`, and for lists of types.

Here one class computes every op, so a class of 1.x is a question about the op: `isinstance(layer, linger.Conv2dInt)`.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

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
from linger.quantization.core.statistics import QuantizedBase


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


class Conv1dInt(metaclass=_OfOneOp):
    """A quantised nn.Conv1d."""

    ops: ClassVar = ("Conv1dInt",)
    instead: ClassVar = "torch.nn.Conv1d"


class Conv2dInt(metaclass=_OfOneOp):
    """A quantised nn.Conv2d."""

    ops: ClassVar = ("Conv2dInt",)
    instead: ClassVar = "torch.nn.Conv2d"


class ConvTranspose2dInt(metaclass=_OfOneOp):
    """A quantised nn.ConvTranspose2d."""

    ops: ClassVar = ("ConvTranspose2dInt",)
    instead: ClassVar = "torch.nn.ConvTranspose2d"


class LinearInt(metaclass=_OfOneOp):
    """A quantised nn.Linear."""

    ops: ClassVar = ("LinearInt",)
    instead: ClassVar = "torch.nn.Linear"


class BatchNormInt(metaclass=_OfOneOp):
    """A quantised nn.BatchNorm2d or nn.BatchNorm1d."""

    ops: ClassVar = ("BatchNorm2dInt",)
    instead: ClassVar = "torch.nn.BatchNorm2d"


class LayerNormInt(metaclass=_OfOneOp):
    """A quantised nn.LayerNorm."""

    ops: ClassVar = ("LayerNormInt",)
    instead: ClassVar = "torch.nn.LayerNorm"


class AvgPool2dInt(metaclass=_OfOneOp):
    """A quantised nn.AvgPool2d or nn.AdaptiveAvgPool2d."""

    ops: ClassVar = ("AvgPool2dInt",)
    instead: ClassVar = "torch.nn.AvgPool2d"


class ReLU6Int(metaclass=_OfOneOp):
    """A quantised nn.ReLU6."""

    ops: ClassVar = ("Clip",)
    instead: ClassVar = "torch.nn.ReLU6"


class EmbeddingInt(metaclass=_OfOneOp):
    """A quantised nn.Embedding."""

    ops: ClassVar = ("Gather",)
    instead: ClassVar = "torch.nn.Embedding"


class LSTMInt(metaclass=_OfOneOp):
    """A quantised nn.LSTM."""

    ops: ClassVar = ("LSTMInt",)
    instead: ClassVar = "torch.nn.LSTM"


class GRUInt(metaclass=_OfOneOp):
    """A quantised nn.GRU."""

    ops: ClassVar = ("GRUInt",)
    instead: ClassVar = "torch.nn.GRU"


class BmmInt(metaclass=_OfOneOp):
    """The range of a product of two quantised tensors in a module's forward."""

    ops: ClassVar = ("BmmInt",)
    instead: ClassVar = "torch.bmm(x, y)"


class iqAddLayer(metaclass=_OfOneOp):
    """The range of a sum in a module's forward."""

    ops: ClassVar = ("iqAdd",)
    instead: ClassVar = "x + y"


class iqMulLayer(metaclass=_OfOneOp):
    """The range of a product in a module's forward."""

    ops: ClassVar = ("iqMul",)
    instead: ClassVar = "x * y"


class iqDivLayer(metaclass=_OfOneOp):
    """The range of a quotient in a module's forward."""

    ops: ClassVar = ("iqDiv",)
    instead: ClassVar = "x / y"


class iqSumLayer(metaclass=_OfOneOp):
    """The range of a sum over axes in a module's forward."""

    ops: ClassVar = ("iqSum",)
    instead: ClassVar = "x.sum(dim)"


class iqCatLayer(metaclass=_OfOneOp):
    """The range of joined tensors in a module's forward."""

    ops: ClassVar = ("iqCat",)
    instead: ClassVar = "torch.cat((x, y), dim)"


class iqSigmoidLayer(metaclass=_OfOneOp):
    """The ranges of a sigmoid in a module's forward."""

    ops: ClassVar = ("iqSigmoid",)
    instead: ClassVar = "torch.sigmoid(x)"


class iqTanhLayer(metaclass=_OfOneOp):
    """The ranges of a tanh in a module's forward."""

    ops: ClassVar = ("iqTanh",)
    instead: ClassVar = "torch.tanh(x)"


class iqClampLayer(metaclass=_OfOneOp):
    """The range of limited numbers in a module's forward."""

    ops: ClassVar = ("iqClamp",)
    instead: ClassVar = "torch.clamp(x, low, high)"


class softmaxIntLayer(metaclass=_OfOneOp):
    """The ranges of a softmax in a module's forward."""

    ops: ClassVar = ("SoftmaxInt",)
    instead: ClassVar = "torch.softmax(x, dim)"


class logsoftmaxIntLayer(metaclass=_OfOneOp):
    """The ranges of a log-softmax in a module's forward."""

    ops: ClassVar = ("LogSoftmaxInt",)
    instead: ClassVar = "torch.log_softmax(x, dim)"


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
