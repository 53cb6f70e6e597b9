# SPDX-License-Identifier: Apache-2.0
"""Write a graph as a chip computes it exactly: the same integers, in forms that its packer takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from linger.checks.limits.products import ProductLimits
from linger.checks.limits.windows import WindowLimits
from linger.graph.core.changes import Changes
from linger.graph.passes.chip_axes import (
    count_axes_from_the_front,
    flatten_norms,
    flatten_products,
    give_transposed_biases,
    slice_parts,
)
from linger.graph.passes.chip_transposes import turn_fewer_axes
from linger.graph.passes.chip_windows import join_groups, split_max_pools, widen_kernels
from linger.graph.passes.suit_target import name_platform, replace_idle_clips
from linger.targets import Target, filled

Pass = Callable[[ir.Model], Changes]


def suit(model: ir.Model, target: Target) -> Changes:
    """Make the changes that a chip wants and that change no integer of any tensor.

    What a chip computes otherwise and no change of form can mend (ReLU6, subtraction) is decided by `linger.init(target=)`, so
    that the simulation follows.
    """
    changes = Changes()
    for each in _passes(target):
        changes.entries += each(model).entries
    return changes


def _passes(target: Target) -> list[Pass]:
    windows = filled(WindowLimits, target.limits["windows"])
    products = filled(ProductLimits, target.limits["products"])
    passes: list[Pass] = [
        count_axes_from_the_front,
        slice_parts,
        widen_kernels,
        partial(join_groups, fewest_inputs=windows.group_inputs, most_groups=windows.groups),
        give_transposed_biases,
        partial(flatten_products, most_axes=products.axes),
        partial(flatten_norms, fewest_axes=products.layer_norm_axes),
        turn_fewer_axes,
    ]
    if windows.largest_max_pool is not None:
        passes.append(partial(split_max_pools, largest=windows.largest_max_pool))
    if not target.takes("Clip"):
        passes.append(replace_idle_clips)
    if not target.is_default:
        passes.append(partial(name_platform, platform=target.name))
    return passes
