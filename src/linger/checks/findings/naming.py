# SPDX-License-Identifier: Apache-2.0
"""What packers read from a file beside its numbers: names of nodes and tensors, and the sizes of inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Place, Whole, model_finding
from linger.errors import listing
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import NOTE, Finding

_REWRITTEN = "Scale"
"""Tensor names that begin so lose their capital in the packer."""


def name_findings(whole: Whole) -> Iterator[Finding]:
    """Names of nodes and, of a file in the dialect, of tensors."""

    def key(place: Place) -> str:
        """Packers know names, people know paths."""
        return place.node.name or "" if whole.has_dialect else place.path

    counts = Counter(key(place) for place in whole.places if place.node.name)
    for place in whole.places:
        name = place.node.name or ""
        if not name and whole.has_dialect:
            yield place.finding(rules.EMPTY_NAME, "it has no name", "Name it; linger.repair does.")
        elif name and counts[key(place)] > 1:
            yield place.finding(
                rules.DUPLICATE_NAME,
                f"{counts[key(place)]} nodes are called {name!r}",
                "Give each a name of its own; linger.repair does.",
                severity=None if whole.has_dialect else NOTE,  # only packers take a name for the node
            )
    if whole.has_dialect:
        yield from _rewritten(whole)


def _rewritten(whole: Whole) -> Iterator[Finding]:
    graph = whole.model.graph
    tensors = [*graph.inputs, *graph.initializers.values()]
    tensors += [value for place in whole.places for value in place.node.outputs]
    names = dict.fromkeys(value.name for value in tensors if value.name)
    for name in names:
        if name.startswith(_REWRITTEN):
            after = f"scale{name[len(_REWRITTEN) :]}"
            collides = ", which is another tensor's name" if after in names else ""
            yield model_finding(
                rules.REWRITTEN_NAME,
                f"the packer calls the tensor {name!r} {after!r}{collides}",
                "Rename it.",
                tensor=name,
            )


def size_findings(whole: Whole) -> Iterator[Finding]:
    """Sizes of inputs that are open."""
    for value in whole.model.graph.inputs:
        if value.is_initializer():
            continue
        name = value.name or ""
        sizes = value.shape
        unnamed = [] if sizes is None else [i for i, n in enumerate(sizes) if _is_open(n) and not _name_of(n)]
        if sizes is None or unnamed:
            which = "no shape" if sizes is None else f"no size and no name at axis {listing(map(str, unnamed))}"
            yield model_finding(
                rules.UNNAMED_SIZE,
                f"the input {name!r} has {which}",
                "Export with fixed sizes, or name the open ones.",
                tensor=name,
                severity=None if whole.has_dialect else NOTE,  # only packers stop at it
            )
        named = [] if sizes is None else [text for n in sizes if (text := _name_of(n))]
        if named:
            yield model_finding(
                rules.DYNAMIC_SIZE,
                f"the input {name!r} has open sizes ({listing(named)})",
                "Fix them before the file goes to a device.",
                tensor=name,
            )


def _is_open(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int)


def _name_of(size: int | ir.SymbolicDim) -> str:
    return "" if isinstance(size, int) or size.value is None else str(size.value)
