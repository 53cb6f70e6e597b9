# SPDX-License-Identifier: Apache-2.0
"""Where a call of F.linear or F.conv2d in a user's own forward becomes an integer layer: what `init` was asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from linger.constraint.marks import QUANTIZATION, Widths
from linger.quantization.core.runtime import Frame


@dataclass(frozen=True)
class ProductPolicy:
    """Ops that are wanted, modules that stay float, and the widths (input, parameters, output) unless one is marked."""

    ops: frozenset[str]
    float_paths: frozenset[str]
    widths: Widths

    def allows(self, op_name: str, frame: Frame) -> bool:
        """Whether this op may be computed as integers in the module at work."""
        return op_name in self.ops and frame.path not in self.float_paths

    def widths_in(self, module: nn.Module) -> Widths:
        """The module's own widths, if `quant_module` gave it some."""
        choice = QUANTIZATION.of(module)
        return self.widths if choice is None or choice.widths is None else choice.widths


def holds_matrices(modules: Collection[nn.Module]) -> bool:
    """Whether a module that is none of torch's own layers has a parameter or buffer that may be a product's weight."""
    return any(
        t is not None and t.dim() > 1 and t.is_floating_point()
        for module in modules
        if not type(module).__module__.startswith("torch.nn.modules.")
        for t in (*module._parameters.values(), *module._buffers.values())  # noqa: SLF001 - its own, not its children's
    )
