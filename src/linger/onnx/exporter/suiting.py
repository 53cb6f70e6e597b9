# SPDX-License-Identifier: Apache-2.0
"""Write a graph as a chip computes it exactly: the same integers, in forms that its packer takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from linger.checks.limits.memory import MemoryLimits, scratch_shortage
from linger.checks.limits.packing import PackingLimits
from linger.checks.limits.products import ProductLimits
from linger.checks.limits.windows import WindowLimits
from linger.graph.core.finding import Changes
from linger.graph.lowering.bodies import known_tensors
from linger.graph.passes.chip_axes import (
    count_axes_from_the_front,
    flatten_norms,
    flatten_products,
    give_transposed_biases,
    pad_more_axes,
    reserve_scratch,
    slice_parts,
    turn_fewer_axes,
)
from linger.graph.passes.chip_windows import (
    join_groups,
    name_platform,
    own_parameters,
    replace_idle_clips,
    split_max_pools,
    step_global_pools_by_one,
    widen_kernels,
)
from linger.targets import Target, filled

logger = logging.getLogger(__name__)

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
    packing = filled(PackingLimits, target.limits["packing"])
    passes: list[Pass] = [
        count_axes_from_the_front,
        slice_parts,
        widen_kernels,
        partial(join_groups, reaches_kernel=windows.groups_reach_kernel, most_groups=windows.groups),
        give_transposed_biases,
        partial(_reserve, target=target),  # before layers are flattened: what it adds is named after their results
        partial(flatten_products, most_axes=products.axes),
        partial(flatten_norms, fewest_axes=products.layer_norm_axes),
        turn_fewer_axes,
        partial(pad_more_axes, rank=packing.padded_rank),
    ]
    if not windows.has_global_stride:
        passes.append(step_global_pools_by_one)
    if windows.largest_max_pool is not None:
        passes.append(partial(split_max_pools, largest=windows.largest_max_pool))
    if not target.takes("Clip"):
        passes.append(replace_idle_clips)
    passes.append(own_parameters)  # behind every pass that makes or shares some
    if not target.is_default:
        passes.append(partial(name_platform, platform=target.name))
    return passes


def _reserve(model: ir.Model, *, target: Target) -> Changes:
    """Let the packer reserve the scratch that the engine writes. This costs something, so it is said."""
    limits = filled(MemoryLimits, target.limits["memory"])
    missing = scratch_shortage(model, known_tensors(model).shapes, limits) if limits.scratch_written else {}
    changes = reserve_scratch(model, missing, per_number=limits.scratch_reserved["LinearInt"]) if missing else Changes()
    for change in changes:
        logger.warning("export for %s: %s: %s.", target.name, change.where, change.what)
    return changes
