# SPDX-License-Identifier: Apache-2.0
"""The ranges of models as they were, so that a calibration that fails changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from linger.dialect import Interval
from linger.quantization.core.statistics import ZEROS, QuantizedBase

_KEPT = ("histograms", "bits_of", "method_of", "input_range", "beyond", "floor", "_bounds")
"""What a pass changes in a layer beside its buffers and the uses of its ranges."""


@dataclass(frozen=True)
class _Before:
    buffers: dict[str, Tensor | None]
    attributes: dict[str, Any]
    uses: dict[str, Interval | None]


def _nothing(model: nn.Module) -> None:
    """Does nothing."""


@dataclass
class Backup:
    """The ranges of every model that ran in a block, as they were before.

    Attributes:
        models: These models, or the modules of them whose forward began a pass.
        first_seen: Called with each of them before its first pass.
    """

    models: list[nn.Module] = field(default_factory=list)
    first_seen: Callable[[nn.Module], None] = _nothing
    _layers: dict[QuantizedBase, _Before] = field(default_factory=dict)

    def keep(self, model: nn.Module) -> None:
        """Copy what a pass of this model may change."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        self.first_seen(model)
        for layer in model.modules():
            if isinstance(layer, QuantizedBase) and layer not in self._layers:
                buffers = {name: None if b is None else b.detach().clone() for name, b in layer._buffers.items()}  # noqa: SLF001 - by name, with None
                own = layer.__dict__
                attributes = {name: copy.copy(own[name]) for name in _KEPT if name in own}
                uses = {name: layer.known_use(name) for name in layer.range_names()}
                self._layers[layer] = _Before(buffers, attributes, uses)

    def restore(self) -> None:
        """Undo what passes have changed; layers of functions that they made are removed."""
        for layer, before in self._layers.items():
            layer._buffers.clear()  # noqa: SLF001 - setattr would ask for a registration again
            layer._buffers.update(before.buffers)  # noqa: SLF001 - as above
            for name in _KEPT:
                layer.__dict__.pop(name, None)
            layer.__dict__.update(before.attributes)
            for name, interval in before.uses.items():
                layer.set_use(name, interval)
            layer.forget_known()
        for model in self.models:
            for module in list(model.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, QuantizedBase) and child not in self._layers:
                        delattr(module, name)

    def ranges_before(self, wanted: list[tuple[QuantizedBase, str]]) -> list[float]:
        """Ranges as they were; 0 where there was none. A device is asked once."""
        none = _Before({}, {}, {})
        found = [self._layers.get(layer, none).buffers.get(f"running_{name}") for layer, name in wanted]
        present = [buffer for buffer in found if buffer is not None]
        values = iter(torch.cat([b.reshape(1).to(present[0].device) for b in present]).tolist() if present else [])
        numbers = [0.0 if buffer is None else float(next(values)) for buffer in found]
        return [number if math.isfinite(number) and number > ZEROS else 0.0 for number in numbers]
