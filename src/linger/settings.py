# SPDX-License-Identifier: Apache-2.0
"""Settings as frozen objects, and the only place that reads the environment."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from linger.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """What the environment may decide.

    Attributes:
        shared: Folder with other people's files that examples may use (`LINGER_SHARED`).
    """

    shared: Path | None = None

    @classmethod
    def from_environment(cls) -> Settings:
        """Settings as the environment has them now."""
        folder = os.environ.get("LINGER_SHARED")
        return cls(shared=Path(folder) if folder else None)


@dataclass(frozen=True)
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
        bmm: products of two quantised tensors (`SetFunctionBmmQuant`), and with them attention.
        channel_shuffle: `linger.channel_shuffle` as an op of its own, or as reshapes of the same integers
            (`SetFunctionChannelShuffleQuant`).
        freezes_batch_norm: Fused and quantised batch norms keep their statistics (`SetBnMomentumUpdate`).
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

    def __post_init__(self) -> None:
        wrong = [f"{name}={value!r}" for name, value in asdict(self).items() if not isinstance(value, bool)]
        if wrong:
            raise UsageError(f"Switches: {', '.join(wrong)}: a switch is True or False.")


# a context variable: what one thread or task chooses, no other one sees
_CHOSEN: ContextVar[Switches | None] = ContextVar("linger_switches", default=None)


def chosen_switches() -> Switches:
    """What the setters have chosen in this context, for the models that are initialised next."""
    return _CHOSEN.get() or Switches()


def choose(**changes: bool) -> None:
    """Change switches of this context; models that are initialised already keep theirs."""
    _CHOSEN.set(replace(chosen_switches(), **changes))
