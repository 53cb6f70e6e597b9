# SPDX-License-Identifier: Apache-2.0
"""The documented setters: each changes one switch for the models that this thread or task initialises afterwards.

A model that is initialised keeps what it got. `linger.init(model, switches=linger.Switches(…))` says the same for one
model, without a trace elsewhere.
"""

from __future__ import annotations

import warnings
from enum import Enum

from linger.errors import UsageError
from linger.settings import choose


class PlatFormQuant(Enum):
    """Kinds of chip arithmetic in files; there is one."""

    luna_quant = 1


def SetPlatFormQuant(platform_quant: PlatFormQuant | str = PlatFormQuant.luna_quant) -> None:
    """Accept the one platform there is. A chip is chosen by `linger.init(…, target=…)`.

    Raises:
        UsageError: It is another one.
    """
    if platform_quant not in (PlatFormQuant.luna_quant, PlatFormQuant.luna_quant.name):
        raise UsageError(f"SetPlatFormQuant: unknown platform {platform_quant!r}. Use PlatFormQuant.luna_quant.")


def SetIQTensorAdd(enable: bool) -> None:
    """Let `+` of quantised tensors be an integer op, or keep it float."""
    choose(add=enable)


def SetIQTensorMul(enable: bool) -> None:
    """Let `*` of quantised tensors be an integer op, or keep it float."""
    choose(mul=enable)


def SetIQTensorDiv(enable: bool) -> None:
    """Let `/` of quantised tensors be an integer op, or keep it float."""
    choose(div=enable)


def SetIQTensorSum(enable: bool) -> None:
    """Let sums of quantised tensors be integer ops, or keep them float."""
    choose(sum=enable)


def SetIQTensorCat(enable: bool) -> None:
    """Let `torch.cat` of quantised tensors be an integer op, or keep it float."""
    choose(cat=enable)


def SetIQTensorClamp(enable: bool) -> None:
    """Let `torch.clamp` of quantised tensors be an integer op, or keep it float."""
    choose(clamp=enable)


def SetIQTensorSigmoid(enable: bool) -> None:
    """Let `torch.sigmoid` of quantised tensors be an integer op, or keep it float."""
    choose(sigmoid=enable)


def SetIQTensorTanh(enable: bool) -> None:
    """Let `torch.tanh` of quantised tensors be an integer op, or keep it float."""
    choose(tanh=enable)


def SetIQTensorSoftmax(enable: bool) -> None:
    """Let `torch.softmax` of quantised tensors, also in attention, be an integer op, or keep it float."""
    choose(softmax=enable)


def SetIQTensorLogSoftmax(enable: bool) -> None:
    """Let `torch.log_softmax` of quantised tensors be an integer op, or keep it float."""
    choose(log_softmax=enable)


def SetIQTensorVar(enable: bool) -> None:
    """Let `torch.var` and `torch.std` of quantised tensors be integer ops, or keep them float."""
    choose(var=enable)


def SetFunctionLinearQuant(enable: bool) -> None:
    """Let `F.linear` and `x @ parameter` in a forward be integer layers, or keep them float.

    The documented setter had no effect; nn.Linear, which is a layer, is still not concerned.
    """
    choose(linear=enable)


def SetFunctionBmmQuant(enable: bool) -> None:
    """Let products of two quantised tensors, also in attention, be integer ops, or keep them float.

    Here they are integers unless this is called with False. The original kept them float unless it was called with True,
    although its own documents said otherwise.
    """
    choose(bmm=enable)


def SetFunctionChannelShuffleQuant(enable: bool) -> None:
    """Let `linger.channel_shuffle` be one ShuffleChannel node, or reshapes and a transposition of the same integers.

    Here it is one node unless this is called with False; the original was the other way round.
    """
    choose(channel_shuffle=enable)


def SetBnMomentumUpdate(disable: bool = True) -> None:
    """Stop (True) or let go on (False) the learning of batch statistics: the momentum of fused batch norms is 0.

    Read by `trace_layers`, `normalize_layers` and `init`. It concerns batch norms that are fused with a convolution, have
    limits, or are quantised; a plain nn.BatchNorm learns as before.
    """
    choose(freezes_batch_norm=disable)


def SetIQCat2AddZero(enable: bool = True) -> None:  # noqa: ARG001 - as documented
    """Accepted as documented; it never had an effect, and says so."""
    _warn("SetIQCat2AddZero")


def SetCastorBiasInt16(bias_int16: bool = True) -> None:  # noqa: ARG001
    """Accepted as documented; it never worked, has no effect, and says so: a bias has 32 bits."""
    _warn("SetCastorBiasInt16")


def _warn(name: str) -> None:
    warnings.warn(f"linger.{name} has no effect. Remove the call.", UserWarning, stacklevel=3)
