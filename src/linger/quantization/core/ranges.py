# SPDX-License-Identifier: Apache-2.0
"""Every range of a quantised model under one name, so that its scale can be looked at, chosen and put back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn

from linger.constraint.marks import Widths
from linger.errors import UsageError
from linger.numeric.fixed import is_power_of_two, limits
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.statistics import QuantizedBase

_USUAL_BITS = 8

Saved = tuple[float, float, float | None]
"""Range, scale and chosen range of weights, as `Range.save` returns them."""


class Kind(Enum):
    """What a range belongs to."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"


_KINDS = (
    (re.compile(r"(w|iw|hw)(_l\d+)?(_reverse)?"), Kind.WEIGHT),
    (re.compile(r"(x|i)(_l\d+)?"), Kind.INPUT),
    (re.compile(r"o(_l\d+)?"), Kind.OUTPUT),
)
"""The ranges that can be chosen; the others of a recurrent layer follow from these."""


@dataclass(frozen=True, eq=False)
class Range:
    """One range of a layer or function.

    Attributes:
        key: Path of the layer and name of the range: `block.conv.o`.
        layer: The layer that keeps it.
        name: Its name there: x, w, o; of a recurrent layer i, iw, hw, o with the suffix of torch.
        kind: Input, weight or output.
        usual: The method of calibration that the model's configuration names for ranges of this kind; None: it names none.
    """

    key: str
    layer: QuantizedBase
    name: str
    kind: Kind
    usual: str | None = None

    @property
    def bits(self) -> int:
        """The width that it was last used for; of a layer's weights the one that it has."""
        widths: Widths | None = getattr(self.layer, "widths", None)
        if self.kind is Kind.WEIGHT and widths is not None:
            return widths.parameter
        known = self.layer.bits_of.get(self.name)
        if known is None and widths is not None:
            return widths.data if self.kind is Kind.INPUT else widths.output
        return _USUAL_BITS if known is None else known

    @property
    def scale(self) -> float:
        """The scale that it has now; 0 where nothing was seen yet."""
        return self.layer.read(f"scale_{self.name}")

    @property
    def largest(self) -> float:
        """The range itself: the largest magnitude seen, or what was chosen instead."""
        chosen = self.layer.chosen_range(self.name)
        return self.layer.read(f"running_{self.name}") if chosen is None else chosen

    def choose(self, scale: float) -> None:
        """Choose a scale; what lies beyond it saturates.

        The device's format may allow only a coarser one (the output of a product is never finer than its sum); the next
        pass then takes that.

        Raises:
            UsageError: It is no power of two.
        """
        if not is_power_of_two(scale):
            raise UsageError(f"{self.key}: the scale {scale!r} is no power of two.")
        self.layer.method_of.pop(self.name, None)
        largest = limits(self.bits)[1] / scale
        if self.kind is Kind.WEIGHT:
            self.layer.choose_range(self.name, largest)
        else:
            self.layer.write(f"running_{self.name}", largest)
            self.layer.write(f"scale_{self.name}", scale)
        self.layer.restart_learning(self.name)

    def save(self) -> Saved:
        """What `restore` needs to undo later choices."""
        return self.layer.read(f"running_{self.name}"), self.scale, self.layer.chosen_range(self.name)

    def restore(self, saved: Saved) -> None:
        """Undo choices."""
        running, scale, chosen = saved
        self.layer.write(f"running_{self.name}", running)
        self.layer.write(f"scale_{self.name}", scale)
        if self.kind is Kind.WEIGHT:
            self.layer.choose_range(self.name, chosen)
        self.layer.restart_learning(self.name)


def kind_of(name: str) -> Kind | None:
    """What the range of this name belongs to; None where it follows from others."""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)


def ranges_of(model: nn.Module, *, with_adopted: bool = False) -> dict[str, Range]:
    """The ranges of a quantised model that can be chosen, by key, in the order of its modules.

    A layer whose input comes from another quantised layer has that layer's scale: such an input is left out, unless
    `with_adopted` asks for it.
    """
    found: dict[str, Range] = {}
    runtime = runtime_of(model)
    methods = {} if runtime is None else runtime.methods
    for path, layer in model.named_modules():
        if not isinstance(layer, QuantizedBase):
            continue
        layer.follow_learned()
        names = [key.removeprefix("running_") for key in layer.state_dict() if key.startswith("running_")]
        for name in names:
            kind = kind_of(name)
            is_adopted = kind is Kind.INPUT and layer.input_range in ("adopted", "stale")
            if kind is None or (is_adopted and not with_adopted):
                continue
            key = f"{path}.{name}".lstrip(".")
            found[key] = Range(key, layer, name, kind, methods.get(f"{kind.value}s"))
    return found


def device_of(*modules: nn.Module) -> torch.device:
    """The device of the first tensor of these modules; the CPU if they hold none."""
    tensors = (t for module in modules for t in (*module.parameters(), *module.buffers()))
    return next((t.device for t in tensors), torch.device("cpu"))
