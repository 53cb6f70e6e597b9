# SPDX-License-Identifier: Apache-2.0
"""Which tensor of a file a dump means: names on a device are often mangled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from linger.dialect import is_known
from linger.errors import listing
from linger.files import file_stem
from linger.verification.tensor_facts import TensorFact

_ODD = re.compile(r"[^0-9a-z]+")
_MOST_NAMES = 2000
"""Similar names are looked for among so many; beyond, that would take longer than the comparison."""

_LEADING_NUMBER = re.compile(r"^\d+_(?=.)")

Keys = Callable[[TensorFact], Iterable[str]]


@dataclass(frozen=True)
class NameMatch:
    """The tensor that a dump is, and how it was found."""

    tensor: str
    how: str


class NameMatcher:
    """Finds the tensors of one file by the names that dumps have for them: exactly first, then more and more loosely."""

    def __init__(self, facts: Mapping[str, TensorFact]) -> None:
        self._names = list(facts)
        nodes = _first_outputs(facts.values())
        rules: list[tuple[str, Keys, Callable[[str], str]]] = [
            ("name", lambda f: [f.name], _same),
            ("file name", lambda f: [file_stem(f.name), file_stem(f"root.{f.name}")], _same),
            ("node name", lambda f: nodes.get(f.name, []), _same),
            ("normalised name", lambda f: [normalised(f.name)], normalised),
            ("normalised node name", lambda f: map(normalised, nodes.get(f.name, [])), normalised),
            ("normalised name without its number", lambda f: [normalised(f.name)], _without_number),
            (
                "normalised node name without its number",
                lambda f: map(normalised, nodes.get(f.name, [])),
                _without_number,
            ),
            ("layer name", lambda f: _layer_names(f.name), _same),
        ]
        self._rules = [(how, _index(facts.values(), keys), reading) for how, keys, reading in rules]

    def find(self, name: str) -> NameMatch | str:
        """The tensor, or a sentence that says why there is none."""
        for how, index, reading in self._rules:
            found = index.get(reading(name), [])
            if len(found) == 1:
                return NameMatch(found[0], how)
            if found:
                return f"{name} may be {listing(found, limit=5)} ({how}). Rename it to one of them."
        near = get_close_matches(name, self._names, n=3) if len(self._names) <= _MOST_NAMES else []
        hint = f"Is {' or '.join(near)} meant?" if near else f"The file has {listing(self._names, limit=5)}."
        return f"{name}: the file has no tensor of this name. {hint}"


def normalised(name: str) -> str:
    """A name in small letters and digits alone.

    >>> normalised("/layer1/conv.Conv2dInt"), normalised("layer1__conv_Conv2dInt_")
    ('layer1_conv_conv2dint', 'layer1_conv_conv2dint')
    """
    return _ODD.sub("_", name.lower()).strip("_")


def _without_number(name: str) -> str:
    return _LEADING_NUMBER.sub("", normalised(name))


def _same(name: str) -> str:
    return name


def _layer_names(name: str) -> list[str]:
    """`conv1` and `root.conv1` for the tensor `conv1.Conv2dInt`: what linger.Dumper calls the layer."""
    layer, dot, op_type = name.rpartition(".")
    return [layer, f"root.{layer}"] if dot and layer and is_known(op_type) else []


def _first_outputs(facts: Iterable[TensorFact]) -> dict[str, list[str]]:
    """The first output of every node, with the node's name: that is what a device means by it."""
    first: dict[str, str] = {}
    for fact in facts:
        if fact.node:
            first.setdefault(fact.node, fact.name)
    return {name: [node] for node, name in first.items()}


def _index(facts: Iterable[TensorFact], keys: Keys) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fact in facts:
        for key in dict.fromkeys(keys(fact)):
            if key and fact.name not in found.setdefault(key, []):
                found[key].append(fact.name)
    return found
