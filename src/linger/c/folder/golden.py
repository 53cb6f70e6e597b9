# SPDX-License-Identifier: Apache-2.0
"""Vectors for the test of a folder: inputs on a grid that C can hold exactly, and what the numpy reference makes of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.folder.interface import Interface, scale_of_edge
from linger.c.layouts import Layout, in_memory_order
from linger.c.steps import Edge
from linger.verification.feeds import Feed, spread_feeds

Array = NDArray[Any]

GRID = 4
"""Real inputs are multiples of 1/4 of a step of their integers, so that ties and saturation occur."""

_SAMPLES = 2
_STEPS = 4
_LARGE = 1 << 15
"""From so many numbers at the edges on there is one sample."""
_SEED = 17
_WIDER = 1.5
"""Real inputs are spread so much wider than usual that some saturate."""


@dataclass(frozen=True)
class Sample:
    """One run, or one step of a stream.

    Attributes:
        inputs: For each input what its real numbers are multiples of (see GRID), or its content; as the caller has it.
        integers: For each input the integers that the other interface takes.
        outputs: For each output its integers, or its content where it has none.
        digests: The CRC-32 of every tensor as it lies in memory, by its number.
    """

    inputs: Sequence[Array]
    integers: Sequence[Array]
    outputs: Sequence[Array]
    digests: Sequence[int]


def golden_samples(face: Interface) -> list[Sample]:
    """What the test of a folder compares with; the same for the same network."""
    network = face.source.plan.network
    states: dict[str, Array] = {state.taken: state.initial for state in face.states}
    samples = []
    for drawn in spread_feeds(network.model, seed=_SEED, batches=_count(face)):
        grids = {e.edge.name: _grid(e.edge, drawn) for e in face.inputs}
        feed = {**{e.edge.name: _real(e.edge, grids[e.edge.name]) for e in face.inputs}, **states}
        found = {**feed, **network.reference.intermediates(feed)}
        samples.append(_sample(face, grids, found))
        states = {state.taken: found[state.given] for state in face.states}
    return samples


def _count(face: Interface) -> int:
    if face.states:
        return _STEPS
    numbers = sum(face.tensor(e.edge, quantized=False).count for e in (*face.inputs, *face.outputs))
    return _SAMPLES if numbers < _LARGE else 1


def _grid(edge: Edge, drawn: Feed) -> Array:
    """An input as multiples of a part of its integers' step; other inputs as they are."""
    scale = scale_of_edge(edge)
    if scale is None:
        return drawn[edge.name]
    steps = np.rint(drawn[edge.name].astype(np.float64) * scale * GRID * _WIDER)
    ends = np.iinfo(np.int32)  # inputs of 32 bits reach beyond
    return np.clip(steps, ends.min, ends.max).astype(np.int32)


def _real(edge: Edge, grid: Array) -> Array:
    """The real numbers of a grid, computed as C computes them: one division of float32."""
    scale = scale_of_edge(edge)
    if scale is None:
        return grid
    return np.asarray(grid.astype(np.float32) / np.float32(GRID * scale))


def _sample(face: Interface, grids: Mapping[str, Array], found: Mapping[str, Array]) -> Sample:
    def laid(edge: Edge, array: Array) -> Array:
        return _in_memory(array, Layout(face.order(edge)))

    return Sample(
        [laid(e.edge, grids[e.edge.name]) for e in face.inputs],
        [laid(e.edge, found[e.edge.tensor]) for e in face.inputs],
        [laid(e.edge, found[e.edge.tensor]) for e in face.outputs],
        [zlib.crc32(_in_memory(found[s.name], s.layout).tobytes()) for s in face.source.shown],
    )


def _in_memory(array: Array, layout: Layout) -> Array:
    return np.asarray(array).reshape(-1)[in_memory_order(array.shape, layout)]
