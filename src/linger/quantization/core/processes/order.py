# SPDX-License-Identifier: Apache-2.0
"""One order of the functions of a model in all processes.

A module gets the child that holds a function's range when the function is first called, and processes may call functions in
different orders. torch's wrappers pair the buffers of two processes by their order, not by their names.
"""

from __future__ import annotations

from torch import nn

from linger.quantization.core.statistics import QuantizedBase


def order_functions(root: nn.Module) -> None:
    """Put the functions of every module behind its other children, in the order of their names."""
    for module in list(root.modules()):
        children = module._modules  # noqa: SLF001 - torch has no public way to move a child
        functions = {name: m for name, m in children.items() if isinstance(m, QuantizedBase) and not m.is_layer}
        wanted = sorted(functions)
        if list(children)[len(children) - len(wanted) :] != wanted:
            for name in wanted:
                children[name] = children.pop(name)
