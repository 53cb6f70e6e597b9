# SPDX-License-Identifier: Apache-2.0
"""Settings as frozen objects, and what the documented setters keep. The environment is read nowhere.

Each setter changes one switch for the models that this thread or task initializes afterwards; a model that is initialized
keeps what it got. `linger.init(model, switches=linger.Switches(…))` says the same for one model, and changes nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from linger.errors import refuse_if


@dataclass(frozen=True, repr=False)
class Switches:
    """Which functions of one model become integer ops, and whether its batch norms learn their statistics.

    `init` copies them into the model, from `linger.init(…, switches=…)` or from the documented setters, each of which
    has one field here. What is off stays float, and `linger.coverage` says so.

    Attributes:
        add: `x + y` and its spellings (`SetIQTensorAdd`).
        mul: `x * y` (`SetIQTensorMul`), also where −x, x² or x/2 is written as one.
        div: `x / y` (`SetIQTensorDiv`).
        sum: `x.sum()` (`SetIQTensorSum`).
        cat: `torch.cat` (`SetIQTensorCat`).
        clamp: `torch.clamp` (`SetIQTensorClamp`); ReLU6 and hardtanh are no part of it.
        sigmoid: `torch.sigmoid` (`SetIQTensorSigmoid`).
        tanh: `torch.tanh` (`SetIQTensorTanh`).
        softmax: `torch.softmax` (`SetIQTensorSoftmax`), and with it attention.
        log_softmax: `torch.log_softmax` (`SetIQTensorLogSoftmax`).
        var: `torch.var` and `torch.std` (`SetIQTensorVar`).
        linear: `F.linear` and `x @ parameter` in a forward (`SetFunctionLinearQuant`); nn.Linear is a layer.
        bmm: products of two quantized tensors (`SetFunctionBmmQuant`), and with them attention.
        channel_shuffle: `linger.channel_shuffle` as an op of its own, or as reshapes of the same integers
            (`SetFunctionChannelShuffleQuant`).
        freezes_batch_norm: Fused and quantized batch norms keep their statistics (`SetBnMomentumUpdate`).
    """

    add: bool = True
    mul: bool = True
    div: bool = True
    sum: bool = True
    cat: bool = True
    clamp: bool = True
    sigmoid: bool = True
    tanh: bool = True
    softmax: bool = True
    log_softmax: bool = True
    var: bool = True
    linear: bool = True
    bmm: bool = True
    channel_shuffle: bool = True
    freezes_batch_norm: bool = False

    def __repr__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Switches({', '.join(changed)})"

    def __post_init__(self) -> None:
        wrong = [f"{name}={value!r}" for name, value in asdict(self).items() if not isinstance(value, bool)]
        refuse_if(wrong, f"Switches: {', '.join(wrong)}: a switch is True or False.")


# a context variable: the choice of one thread or task does not reach another
_CHOSEN: ContextVar[Switches | None] = ContextVar("linger_switches", default=None)


def chosen_switches() -> Switches:
    """The switches that the setters have chosen in this context, for the models that are initialized next."""
    return _CHOSEN.get() or Switches()


def choose(**changes: bool) -> None:
    """Change switches of this context; models that are initialized already keep theirs."""
    _CHOSEN.set(replace(chosen_switches(), **changes))


Content = Mapping[str, Any]
"""Settings in the words of a configuration file of linger 3.x: its keys, each with its value or a mapping."""

_NEWER: ContextVar[Content] = ContextVar("linger_newer_settings", default=MappingProxyType({}))
_KEPT_FLOAT: ContextVar[tuple[type, ...]] = ContextVar("linger_kept_float", default=())


def newer_settings() -> Content:
    """What `QUANT_CONFIGS` was given in this context: only the keys that were set."""
    return _NEWER.get()


def choose_newer(content: Content) -> None:
    """Replace what `QUANT_CONFIGS` holds in this context; the caller has checked it."""
    _NEWER.set(MappingProxyType(dict(content)))


def kept_float() -> tuple[type, ...]:
    """The layer types that `disable_quant_ops` keeps float in this context."""
    return _KEPT_FLOAT.get()


def keep_float(types: tuple[type, ...]) -> None:
    """Keep layers of these types float, too, in the models that this context initializes next."""
    _KEPT_FLOAT.set((*_KEPT_FLOAT.get(), *types))


class PlatFormQuant(Enum):
    """Kinds of chip arithmetic in files; there is one."""

    luna_quant = 1


def SetPlatFormQuant(platform_quant: PlatFormQuant | str = PlatFormQuant.luna_quant) -> None:
    """Accept the one platform there is; a chip is chosen by `linger.init(…, target=…)`."""
    refuse_if(
        platform_quant not in (PlatFormQuant.luna_quant, PlatFormQuant.luna_quant.name),
        f"SetPlatFormQuant: unknown platform {platform_quant!r}. Use PlatFormQuant.luna_quant.",
    )


class _Setter(Protocol):
    """A documented setter: turns a switch on or off."""

    def __call__(self, enable: bool) -> None:
        """Choose for the models that are initialized next."""


def _setter(name: str, switch: str, what: str) -> _Setter:
    def setter(enable: bool) -> None:
        choose(**{switch: enable})

    setter.__name__ = setter.__qualname__ = name
    setter.__doc__ = f"Let {what} of quantized tensors be integer ops, or keep them float."
    return setter


SetIQTensorAdd = _setter("SetIQTensorAdd", "add", "`+`")
SetIQTensorMul = _setter("SetIQTensorMul", "mul", "`*`")
SetIQTensorDiv = _setter("SetIQTensorDiv", "div", "`/`")
SetIQTensorSum = _setter("SetIQTensorSum", "sum", "sums")
SetIQTensorCat = _setter("SetIQTensorCat", "cat", "`torch.cat`")
SetIQTensorClamp = _setter("SetIQTensorClamp", "clamp", "`torch.clamp`")
SetIQTensorSigmoid = _setter("SetIQTensorSigmoid", "sigmoid", "`torch.sigmoid`")
SetIQTensorTanh = _setter("SetIQTensorTanh", "tanh", "`torch.tanh`")
SetIQTensorSoftmax = _setter("SetIQTensorSoftmax", "softmax", "`torch.softmax`, also in attention,")
SetIQTensorLogSoftmax = _setter("SetIQTensorLogSoftmax", "log_softmax", "`torch.log_softmax`")
SetIQTensorVar = _setter("SetIQTensorVar", "var", "`torch.var` and `torch.std`")


def SetFunctionLinearQuant(enable: bool) -> None:
    """Let `F.linear` and `x @ parameter` in a forward be integer layers, or keep them float.

    The documented setter had no effect; nn.Linear, which is a layer, is still not concerned.
    """
    choose(linear=enable)


def SetFunctionBmmQuant(enable: bool) -> None:
    """Let products of two quantized tensors, also in attention, be integer ops, or keep them float.

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
    """Stop (True) or resume (False) the learning of batch statistics: when stopped, the momentum of fused batch norms is 0.

    Read by `trace_layers`, `normalize_layers` and `init`. It concerns batch norms that are fused with a convolution, have
    limits, or are quantized; a plain nn.BatchNorm learns as before.
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
