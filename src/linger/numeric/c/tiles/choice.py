# SPDX-License-Identifier: Apache-2.0
"""Which loops write the sums of a primitive."""

from __future__ import annotations

from collections.abc import Callable

from linger.numeric.c import accumulation
from linger.numeric.c.accumulation import Accumulate, Total
from linger.numeric.c.nodes import Node
from linger.numeric.c.scope import Filled, Scope
from linger.numeric.c.tiles.lines import only_total
from linger.numeric.c.tiles.rows import tile_matrices, tile_rows
from linger.numeric.c.tiles.windows import tile_convolution, tile_transposed, tile_window_largest, tile_window_sum

_WRITERS: dict[Accumulate, Callable[[Scope, Filled, Node], bool]] = {
    accumulation.multiply_rows: tile_rows,
    accumulation.multiply_matrices: tile_matrices,
    accumulation.convolve: tile_convolution,
    accumulation.convolve_transposed: tile_transposed,
    accumulation.sum_window: tile_window_sum,
    accumulation.largest_of_window: tile_window_largest,
}


def write_tiles(scope: Scope, filled: Filled) -> bool:
    """Write the loops for nodes that the sums of one primitive are part of; False where that is not possible."""
    total = only_total(filled)
    if total is None:
        return False
    assert isinstance(total.rule, Total)
    writer = _WRITERS.get(total.rule.accumulate)
    return writer is not None and writer(scope, filled, total)
