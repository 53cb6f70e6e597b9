# SPDX-License-Identifier: Apache-2.0
"""Names of nodes and tensors, which packers read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from linger.checks.findings.node_places import CheckedModel, NodePlace, model_finding
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import NOTE, Finding

_REWRITTEN = "Scale"
"""The packer writes this beginning of a tensor's name in small letters."""


def name_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Names of nodes and, of a file in the dialect, of tensors."""
    counts = Counter(_key(checked, place) for place in checked.places if place.node.name)
    for place in checked.places:
        name, count = place.node.name, counts[_key(checked, place)]
        if not name and checked.has_dialect:
            yield place.finding(rules.EMPTY_NAME, "it has no name", "Name it; linger.repair does.")
        elif name and count > 1:
            yield place.finding(
                rules.DUPLICATE_NAME,
                f"{count} nodes are called {name!r}",
                "Give each a name of its own; linger.repair does.",
                severity=None if checked.has_dialect else NOTE,  # only packers take a name for the node
            )
    if checked.has_dialect:
        yield from _rewritten(checked)


def _key(checked: CheckedModel, place: NodePlace) -> str:
    """What must be unique: in a file for packers the node's name, in any other its path."""
    return place.node.name or "" if checked.has_dialect else place.path


def _rewritten(checked: CheckedModel) -> Iterator[Finding]:
    graph = checked.model.graph
    tensors = [*graph.inputs, *graph.initializers.values()]
    tensors += [value for place in checked.places for value in place.node.outputs]
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
