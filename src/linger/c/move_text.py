# SPDX-License-Identifier: Apache-2.0
"""C functions that only move elements from arrays to another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.moves import Part, parts_of
from linger.numeric.c.text import Tables

Array = NDArray[Any]


def move_function(
    name: str, places: Array, inputs: Sequence[tuple[str, int]], output: str, tables: Tables, value: str = "0"
) -> str:
    """The text of a function that fills an array.

    Args:
        name: Its name.
        places: For each element of the result, in memory order, the place in the inputs, counted through all of them;
            negative: `value`.
        inputs: Type and number of elements of each input.
        output: The type of the result.
        tables: Where places that follow no rule go.
        value: What elements have that come from no input.
    """
    parameters = [f"const {ctype} *in_{i}" for i, (ctype, _) in enumerate(inputs)]
    ends = np.cumsum([size for _, size in inputs]).tolist()
    walked = _squeezed(places)
    parts = parts_of(walked, ends)
    if parts is None:
        walked = places.reshape(-1)
        parts = parts_of(walked, ends) or []
    lines = [line for part in parts for line in _loops(part, walked.shape, tables, value)]
    names = [*(f"in_{i}" for i in range(len(inputs))), "out_0"]
    unused = [f"    (void){each};" for each in names if not any(f"{each}[" in line for line in lines)]
    return "\n".join(
        [f"static void {name}({', '.join([*parameters, f'{output} *out_0'])}) {{", *unused, *lines, "}", ""]
    )


def _squeezed(places: Array) -> Array:
    """The map without axes of size 1, and with those joined that are walked through in one run."""
    joined = places.reshape([n for n in places.shape if n != 1] or [1])
    axis = joined.ndim - 1
    while axis > 0:
        merged = joined.reshape(*joined.shape[: axis - 1], -1, *joined.shape[axis + 1 :])
        if _is_run(merged, axis - 1):
            joined = merged
        axis -= 1
    return joined


def _is_run(places: Array, axis: int) -> bool:
    """Whether moving along an axis always moves by one element."""
    return bool((np.diff(places, axis=axis) == 1).all())


def _loops(part: Part, shape: tuple[int, ...], tables: Tables, value: str) -> list[str]:
    lines, target, source = [], [], [str(part.first)] if part.first else []
    strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    depth = 1
    for axis, (begin, size, stride) in enumerate(zip(part.begin, part.shape, strides, strict=True)):
        at = "0"
        if size > 1:
            at = f"i{axis}"
            lines.append(f"{'    ' * depth}for (int32_t {at} = 0; {at} < {size}; {at}++) {{")
            depth += 1
        target += _term(at, stride) + ([str(begin * stride)] if begin else [])
        if part.source is not None:
            source += _source_term(at, part.steps[axis], tables)
    element = value if part.source is None else f"in_{part.source}[{' + '.join(source) or '0'}]"
    lines.append(f"{'    ' * depth}out_0[{' + '.join(target) or '0'}] = {element};")
    while depth > 1:
        depth -= 1
        lines.append(f"{'    ' * depth}}}")
    return lines


def _term(at: str, step: int) -> list[str]:
    return [] if at == "0" or step == 0 else [at if step == 1 else f"{at} * {step}"]


def _source_term(at: str, step: int | tuple[int, ...], tables: Tables) -> list[str]:
    if isinstance(step, int):
        return _term(at, step)
    return [f"(int32_t){tables.name(step)}[{at}]"]
