# SPDX-License-Identifier: Apache-2.0
"""Find the tensors that belong together: of two files by name, structure, content and position, of a dump by its name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial

import numpy as np
import onnx_ir as ir

from linger.dialect import is_known
from linger.errors import listing
from linger.files import file_stem
from linger.graph.core.nodes import required_inputs
from linger.verification.array_files import Array
from linger.verification.devices.file_runner import TensorFact

OUTPUT_POSITION = "output position"

Key = Callable[[str], Hashable]
Keys = Callable[[TensorFact], Iterable[str]]

_ODD = re.compile(r"[^0-9a-z]+")
_MOST_NAMES = 2000
"""Similar names are suggested for files up to this size; beyond, the search would take longer than the comparison."""

_LEADING_NUMBER = re.compile(r"^\d+_(?=.)")


@dataclass(frozen=True)
class Side:
    """A file with the arrays of one run, by name in the order of execution."""

    model: ir.Model
    values: Mapping[str, Array]


@dataclass
class Matches:
    """The pairs so far: for a tensor of a its partner in b, and how that was found.

    `outputs` are pairs of outputs of which one has another partner already: the float output of a Dequant in one file, and the
    integers that are the output of the other.
    """

    a: Side
    b: Side
    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    outputs: list[tuple[str, str]] = field(default_factory=list)

    def pair(self, name_a: str, name_b: str, how: str) -> None:
        """Add a pair, unless one of the two has a partner already."""
        if name_a not in self.pairs and name_b not in self.taken:
            self.pairs[name_a] = (name_b, "name" if name_a == name_b else how)
            self.taken.add(name_b)

    def rest_a(self) -> list[str]:
        """Tensors of a without a partner."""
        outputs = {name for name, _ in self.outputs}
        return [name for name in self.a.values if name not in self.pairs and name not in outputs]

    def rest_b(self) -> list[str]:
        """Tensors of b without a partner."""
        outputs = {name for _, name in self.outputs}
        return [name for name in self.b.values if name not in self.taken and name not in outputs]


def match_tensors(a: Side, b: Side) -> Matches:
    """Pair the tensors of two files.

    Names decide first; names that are mere numbers, as exporters give them, only after the structure. Whatever has no partner
    then is paired as an output in the same position, by equal content, or by its position between paired tensors.
    """
    found = Matches(a, b)
    for name in a.values:
        if name in b.values and not name.isdigit():
            found.pair(name, name, "name")
    _pair_by_structure(found)
    for name in found.rest_a():
        if name in b.values and _form(a.values[name]) == _form(b.values[name]):
            found.pair(name, name, "name")
    _pair_outputs(found)
    _pair_by(found, "content", lambda n: _content(a.values[n]), lambda n: _content(b.values[n]), is_strict=False)
    gaps_a, gaps_b = _gaps(found)
    _pair_by(
        found,
        "position",
        lambda n: (gaps_a[n], _form(a.values[n])),
        lambda n: (gaps_b[n], _form(b.values[n])),
        is_strict=True,
    )
    return found


def _pair_by_structure(found: Matches) -> None:
    """Pair tensors that the same ops compute from the same inputs; attributes and weights may differ."""
    numbers: dict[Hashable, int] = {}
    anchors_b = {name_b: name_a for name_a, (name_b, _) in found.pairs.items()}
    marks_a = _marks(found.a.model, {name: name for name in found.pairs}, numbers)
    marks_b = _marks(found.b.model, anchors_b, numbers)
    _pair_by(found, "structure", marks_a.get, marks_b.get, is_strict=False)


def _marks(model: ir.Model, anchors: Mapping[str, str], numbers: dict[Hashable, int]) -> dict[str, int]:
    """A number per tensor, equal for tensors of equal structure in both files."""
    number = partial(_number, numbers)
    marks = {value.name or "": number(("input", i)) for i, value in enumerate(required_inputs(model))}
    for node in model.graph:
        inputs = tuple(_operand(value, marks, number) for value in node.inputs)
        for index, output in enumerate(node.outputs):
            name = output.name or ""
            if name in anchors:
                marks[name] = number(("pair", anchors[name]))
            elif _is_identity(node) and inputs[0] is not None:
                marks[name] = inputs[0]
            else:
                marks[name] = number(_structure(node, inputs, index))
    return marks


def _number(numbers: dict[Hashable, int], key: Hashable) -> int:
    """The number of a key, a new one for a new key."""
    return numbers.setdefault(key, len(numbers))


def _structure(node: ir.Node, inputs: tuple[int | None, ...], index: int) -> Hashable:
    return "constant" if node.op_type == "Constant" else (node.op_type, inputs, index)


def _is_identity(node: ir.Node) -> bool:
    return node.op_type == "Identity" and not node.domain


def _operand(value: ir.Value | None, marks: Mapping[str, int], number: Callable[[Hashable], int]) -> int | None:
    if value is None:
        return None
    return marks[value.name or ""] if value.name in marks else number("constant")


def _pair_outputs(found: Matches) -> None:
    names_a, names_b = ([v.name or "" for v in side.model.graph.outputs] for side in (found.a, found.b))
    if len(names_a) == len(names_b):
        for name_a, name_b in zip(names_a, names_b, strict=True):
            if name_a not in found.a.values or name_b not in found.b.values:
                continue
            if (name_a in found.pairs) != (name_b in found.taken):
                found.outputs.append((name_a, name_b))
            else:
                found.pair(name_a, name_b, OUTPUT_POSITION)


def _pair_by(found: Matches, how: str, key_a: Key, key_b: Key, *, is_strict: bool) -> None:
    """Pair tensors of the same key, in order; with `is_strict` only where both files have equally many."""
    in_a, in_b = _grouped(found.rest_a(), key_a), _grouped(found.rest_b(), key_b)
    for key, names in in_a.items():
        others = in_b.get(key, [])
        if is_strict and len(names) != len(others):
            continue
        for name_a, name_b in zip(names, others, strict=False):
            found.pair(name_a, name_b, how)


def _grouped(names: Iterable[str], key: Key) -> dict[Hashable, list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        if (found := key(name)) is not None:
            groups.setdefault(found, []).append(name)
    return groups


def _form(array: Array) -> Hashable:
    return (array.dtype.str, array.shape)


def _content(array: Array) -> Hashable:
    """A key for equal numbers; None for a tensor that is too plain: one number, or the same number everywhere."""
    if array.size < 2 or array.dtype.kind not in "iufb" or (array == array.flat[0]).all():
        return None
    plain = np.ascontiguousarray(array.astype(np.float64)) + 0.0  # no negative zero
    return (array.shape, hashlib.sha256(plain.tobytes()).hexdigest())


def _gaps(found: Matches) -> tuple[dict[str, str], dict[str, str]]:
    """For every tensor of both files the name in a of the last paired tensor before it."""
    partner = {name_b: name_a for name_a, (name_b, _) in found.pairs.items()}
    gaps_a = _last_anchors(found.a.values, {name: name for name in found.pairs})
    return gaps_a, _last_anchors(found.b.values, partner)


def _last_anchors(names: Iterable[str], anchors: Mapping[str, str]) -> dict[str, str]:
    last, found = "", {}
    for name in names:
        last = anchors.get(name, last)
        found[name] = last
    return found


@dataclass(frozen=True)
class NameMatch:
    """The tensor that a dump belongs to, and how it was found."""

    tensor: str
    how: str


class NameMatcher:
    """Finds the tensors of a file by the names in dumps: first exactly, then more and more loosely."""

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
        self._rules = [(how, _tensors_by_key(facts.values(), keys), reading) for how, keys, reading in rules]

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
    """A name in lower-case letters, digits and single underscores.

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
    """The node's name for the first output of every node: devices often name that tensor after the node."""
    first: dict[str, str] = {}
    for fact in facts:
        if fact.node:
            first.setdefault(fact.node, fact.name)
    return {name: [node] for node, name in first.items()}


def _tensors_by_key(facts: Iterable[TensorFact], keys: Keys) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fact in facts:
        for key in dict.fromkeys(keys(fact)):
            if key and fact.name not in found.setdefault(key, []):
                found[key].append(fact.name)
    return found
