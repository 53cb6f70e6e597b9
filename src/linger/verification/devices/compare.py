# SPDX-License-Identifier: Apache-2.0
"""linger.compare: compare two files, or a file and the dumps of a device, tensor by tensor in LSB."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TypeGuard, Union

import numpy as np
import onnx_ir as ir

from linger.dialect import is_known
from linger.errors import UsageError, listing
from linger.files import file_stem
from linger.graph.core.nodes import required_inputs
from linger.graph.files.model_io import ModelLike
from linger.progress import progress
from linger.verification.array_files import Array
from linger.verification.devices.comparison_result import FileComparison, TensorDifference
from linger.verification.devices.dump_manifest import NAMES
from linger.verification.devices.dump_values import (
    DUMP_SUFFIXES,
    RAW_SUFFIXES,
    Dumps,
    DumpTensor,
    FoundInputs,
    Matched,
    find_inputs,
    prepare,
    read_dumps,
)
from linger.verification.devices.file_runner import FileRunner, TensorFact
from linger.verification.feeds import Feed, given_feeds, spread_feeds
from linger.verification.proof.comparison import FAR

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
class _Matches:
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


def match_tensors(a: Side, b: Side) -> _Matches:
    """Pair the tensors of two files.

    Names decide first; names that are mere numbers, as exporters give them, only after the structure. Whatever has no partner
    then is paired as an output in the same position, by equal content, or by its position between paired tensors.
    """
    found = _Matches(a, b)
    for name in a.values:
        if name in b.values and not name.isdigit():
            found.pair(name, name, "name")
    _pair_by_structure(found)
    for name in found.rest_a():
        if name in b.values and _form(a, name) == _form(b, name):
            found.pair(name, name, "name")
    _pair_outputs(found)
    _pair_by(found, "content", lambda n: _content(a.values[n]), lambda n: _content(b.values[n]), is_strict=False)
    gaps_a = _last_anchors(a.values, {name: name for name in found.pairs})
    gaps_b = _last_anchors(b.values, {name_b: name_a for name_a, (name_b, _) in found.pairs.items()})
    _pair_by(found, "position", lambda n: (gaps_a[n], _form(a, n)), lambda n: (gaps_b[n], _form(b, n)), is_strict=True)
    return found


def _pair_by_structure(found: _Matches) -> None:
    """Pair tensors that the same ops compute from the same inputs; attributes and weights may differ."""
    numbers: dict[Hashable, int] = {}
    anchors_b = {name_b: name_a for name_a, (name_b, _) in found.pairs.items()}
    marks_a = _marks(found.a.model, {name: name for name in found.pairs}, numbers)
    marks_b = _marks(found.b.model, anchors_b, numbers)
    _pair_by(found, "structure", marks_a.get, marks_b.get, is_strict=False)


def _marks(model: ir.Model, anchors: Mapping[str, str], numbers: dict[Hashable, int]) -> dict[str, int]:
    """A number per tensor, equal for tensors of equal structure in both files; a new key gets a new number."""

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    marks = {value.name or "": number(("input", i)) for i, value in enumerate(required_inputs(model))}
    for node in model.graph:
        inputs = tuple(None if v is None else marks.get(v.name or "", number("constant")) for v in node.inputs)
        for index, output in enumerate(node.outputs):
            name = output.name or ""
            if name in anchors:
                marks[name] = number(("pair", anchors[name]))
            elif (node.domain, node.op_type) == ("", "Identity") and inputs[0] is not None:
                marks[name] = inputs[0]
            else:
                marks[name] = number("constant" if node.op_type == "Constant" else (node.op_type, inputs, index))
    return marks


def _pair_outputs(found: _Matches) -> None:
    names_a, names_b = ([v.name or "" for v in side.model.graph.outputs] for side in (found.a, found.b))
    if len(names_a) == len(names_b):
        for name_a, name_b in zip(names_a, names_b, strict=True):
            if name_a not in found.a.values or name_b not in found.b.values:
                continue
            if (name_a in found.pairs) != (name_b in found.taken):
                found.outputs.append((name_a, name_b))
            else:
                found.pair(name_a, name_b, OUTPUT_POSITION)


def _pair_by(found: _Matches, how: str, key_a: Key, key_b: Key, *, is_strict: bool) -> None:
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


def _form(side: Side, name: str) -> Hashable:
    return (side.values[name].dtype.str, side.values[name].shape)


def _content(array: Array) -> Hashable:
    """A key for equal numbers; None for a tensor that is too plain: one number, or the same number everywhere."""
    if array.size < 2 or array.dtype.kind not in "iufb" or (array == array.flat[0]).all():
        return None
    plain = np.ascontiguousarray(array.astype(np.float64)) + 0.0  # no negative zero
    return (array.shape, hashlib.sha256(plain.tobytes()).hexdigest())


def _last_anchors(names: Iterable[str], anchors: Mapping[str, str]) -> dict[str, str]:
    """For every tensor of a file the name in a of the last paired tensor before it."""
    last, found = "", {}
    for name in names:
        last = anchors.get(name, last)
        found[name] = last
    return found


class _NameMatcher:
    """Finds the tensors of a file by the names in dumps: first exactly, then more and more loosely."""

    def __init__(self, facts: Mapping[str, TensorFact]) -> None:
        self._names = list(facts)
        first: dict[str, str] = {}
        for fact in facts.values():
            first.setdefault(fact.node, fact.name)
        # devices often name the first output of a node after the node
        nodes = {name: [node] for node, name in first.items() if node}
        rules: list[tuple[str, Keys, Callable[[str], str]]] = [
            ("name", lambda f: [f.name], str),
            ("file name", lambda f: [file_stem(f.name), file_stem(f"root.{f.name}")], str),
            ("node name", lambda f: nodes.get(f.name, []), str),
            ("normalized name", lambda f: [normalized(f.name)], normalized),
            ("normalized node name", lambda f: map(normalized, nodes.get(f.name, [])), normalized),
            ("normalized name without its number", lambda f: [normalized(f.name)], _without_number),
            (
                "normalized node name without its number",
                lambda f: map(normalized, nodes.get(f.name, [])),
                _without_number,
            ),
            ("layer name", lambda f: _layer_names(f.name), str),
        ]
        self._rules = [(how, _tensors_by_key(facts.values(), keys), reading) for how, keys, reading in rules]

    def find(self, name: str) -> tuple[str, str] | str:
        """The tensor and how it was found, or a sentence that says why there is none."""
        for how, index, reading in self._rules:
            found = index.get(reading(name), [])
            if len(found) == 1:
                return found[0], how
            if found:
                return f"{name} may be {listing(found, limit=5)} ({how}). Rename it to one of them."
        near = get_close_matches(name, self._names, n=3) if len(self._names) <= _MOST_NAMES else []
        hint = f"Is {' or '.join(near)} meant?" if near else f"The file has {listing(self._names, limit=5)}."
        return f"{name}: the file has no tensor of this name. {hint}"


def normalized(name: str) -> str:
    """A name in lower-case letters, digits and single underscores.

    >>> normalized("/layer1/conv.Conv2dInt"), normalized("layer1__conv_Conv2dInt_")
    ('layer1_conv_conv2dint', 'layer1_conv_conv2dint')
    """
    return _ODD.sub("_", name.lower()).strip("_")


def _without_number(name: str) -> str:
    return _LEADING_NUMBER.sub("", normalized(name))


def _layer_names(name: str) -> list[str]:
    """`conv1` and `root.conv1` for the tensor `conv1.Conv2dInt`: what linger.Dumper calls the layer."""
    layer, dot, op_type = name.rpartition(".")
    return [layer, f"root.{layer}"] if dot and layer and is_known(op_type) else []


def _tensors_by_key(facts: Iterable[TensorFact], keys: Keys) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fact in facts:
        for key in dict.fromkeys(keys(fact)):
            if key and fact.name not in found.setdefault(key, []):
                found[key].append(fact.name)
    return found


DumpLike = Union[str, "os.PathLike[str]"]

_SHOWN_PROBLEMS = 20
_SHOWN_FILES = 5


def compare(
    a: ModelLike,
    b: ModelLike | DumpLike,
    inputs: object = None,
    *,
    seed: int = 0,
    batches: int = 1,
    engine: str = "onnxruntime",
    float_tolerance: float | None = None,
    allow_unknown: bool = False,
) -> FileComparison:
    """Compare two ONNX files, or an ONNX file and the dumps of a device, tensor by tensor.

    Numbers are compared with equality, in units of the last bit. A float tensor whose scale the file gives (the output of a
    Dequant) is converted, so that it can be compared with an integer tensor. Whatever is left out is named.

    Args:
        a: An ONNX file: a path, bytes, a ModelProto or an onnx_ir model.
        b: Another one; or a folder of dumps, an .npz, .npy or text file.
        inputs: An .npz file, an array, a mapping from names to arrays, or a list of such feeds. None: those among the
            dumps; for two files, random ones.
        seed: Seed of the random ones.
        batches: How many random feeds.
        engine: "onnxruntime", or "numpy" for linger's reference.
        float_tolerance: How far floats without a scale may lie apart, as a part of the tensor's largest value. None: not
            at all for two files, which run in one engine; a thousandth for dumps, whose float ops are another library's.
        allow_unknown: Whether dumps that match no tensor of the file are listed instead of refused.

    Returns:
        A row per tensor in the order of execution; `.ok` is the verdict, `.first` the first divergence.

    Raises:
        UsageError: Inputs or dumps that are damaged or do not fit; all of them are named.
        GraphError: A file that is no model, or that cannot run.
    """
    if float_tolerance is not None and not float_tolerance >= 0:
        raise UsageError(f"float_tolerance {float_tolerance} is negative. Give 0 or a small part of one.")
    if batches < 1:
        raise UsageError(f"batches {batches}: at least one is needed.")
    if is_dump(a):
        raise UsageError(f"{a!s}: these are dumps. Give the ONNX file first and the dumps second.")
    if is_dump(b):
        runner = FileRunner(a, "a", engine)
        allowed = FAR if float_tolerance is None else float_tolerance
        return compare_with_dumps(runner, Path(b), inputs, float_tolerance=allowed, allow_unknown=allow_unknown)
    pair = _FilePair(FileRunner(a, "a", engine), FileRunner(b, "b", engine), float_tolerance or 0.0)
    model = pair.a.model
    feeds = spread_feeds(model, seed=seed, batches=batches) if inputs is None else given_feeds(inputs, model)
    for feed in progress(feeds, "compare"):
        pair.add(feed)
    return pair.result()


def is_dump(source: object) -> TypeGuard[DumpLike]:
    """Whether a source is the path of a folder or file of tensors, and of no model."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    is_named = path.suffix in (*DUMP_SUFFIXES, *RAW_SUFFIXES) or path.name in NAMES
    try:
        return is_named or path.is_dir()
    except (OSError, ValueError):  # there is no such file, which the reader of dumps or models reports
        return False


class _FilePair:
    """Two files on the same inputs."""

    def __init__(self, a: FileRunner, b: FileRunner, tolerance: float) -> None:
        self.a, self.b = a, b
        self._tolerance = tolerance
        self._inputs = _input_pairs(a, b)
        self._matches: _Matches | None = None
        self._rows: dict[tuple[str, str], TensorDifference] = {}
        self._batches = 0

    def add(self, feed: Feed) -> None:
        in_a = self.a.run(feed)
        in_b = self.b.run({self._inputs[name]: array for name, array in feed.items()})
        if self._matches is None:
            self._matches = match_tensors(Side(self.a.model, in_a), Side(self.b.model, in_b))
        for name, other, how in self._pairs(in_a):
            fact = self.a.facts[name]
            row = self._rows.setdefault((name, other), TensorDifference(name, other, how, fact.op_type))
            row.add(
                self._batches,
                in_a[name],
                in_b[other],
                scale_a=fact.scale,
                scale_b=self.b.facts[other].scale,
                bits=fact.bits,
                tolerance=self._tolerance,
            )
        self._batches += 1

    def _pairs(self, in_a: Feed) -> Iterator[tuple[str, str, str]]:
        """Every pair in the order of execution of a; further pairs of outputs follow their tensor."""
        assert self._matches is not None  # the caller has matched
        outputs: dict[str, list[str]] = {}
        for name, other in self._matches.outputs:
            outputs.setdefault(name, []).append(other)
        for name in in_a:
            if name in self._matches.pairs:
                yield name, *self._matches.pairs[name]
            for other in outputs.get(name, []):
                yield name, other, OUTPUT_POSITION

    def result(self) -> FileComparison:
        assert self._matches is not None  # there is at least one feed
        inside_a, inside_b = set(self.a.inside), set(self.b.inside)
        only_a = [*self._matches.rest_a(), *(name for name in self.a.inside if name not in inside_b)]
        only_b = [*self._matches.rest_b(), *(name for name in self.b.inside if name not in inside_a)]
        missing = [n for n in only_a if n in self.a.outputs] + [n for n in only_b if n in self.b.outputs]
        return FileComparison(
            a=self.a.label,
            b=self.b.label,
            rows=tuple(self._rows.values()),
            batches=self._batches,
            only_a=tuple(only_a),
            only_b=tuple(only_b),
            missing_outputs=tuple(missing),
            notes=(*self.a.notes(), *self.b.notes(), *self._weight_notes()),
        )

    def _weight_notes(self) -> list[str]:
        """Weights are not among the tensors that a run computes, but weights that differ explain other differences."""
        in_a, in_b = self.a.model.graph.initializers, self.b.model.graph.initializers
        pairs = {name: (in_a[name].const_value, in_b[name].const_value) for name in in_a if name in in_b}
        known = {name: (a.numpy(), b.numpy()) for name, (a, b) in pairs.items() if a is not None and b is not None}
        wrong = [name for name, (a, b) in known.items() if not np.array_equal(a, b)]
        return [f"Initializers of the same name that differ: {listing(wrong, limit=5)}."] if wrong else []


def _input_pairs(a: FileRunner, b: FileRunner) -> dict[str, str]:
    """The input of b for each input of a: by name, or in order where the names differ."""
    if set(a.inputs) == set(b.inputs):
        return {name: name for name in a.inputs}
    if len(a.inputs) == len(b.inputs):
        return dict(zip(a.inputs, b.inputs, strict=True))
    raise UsageError(
        f"the two files take different inputs: {a.label} has {listing(a.inputs) or 'none'}, "
        f"{b.label} has {listing(b.inputs) or 'none'}. Only files with equally many inputs can be compared."
    )


def compare_with_dumps(
    runner: FileRunner, path: Path, inputs: object = None, *, float_tolerance: float = 0.0, allow_unknown: bool = False
) -> FileComparison:
    """Run a file on the inputs that a device had, and compare the tensors that the device dumped.

    Raises:
        UsageError: Damaged dumps, names that the file does not have, inputs that are missing; all of them at once.
    """
    dumps = read_dumps(path)
    comparison = _DumpComparison(runner, dumps, float_tolerance)
    matched = {number: comparison.match(number, found) for number, found in sorted(dumps.tensors.items())}
    fed = find_inputs(runner.model, matched, inputs)
    comparison.problems += fed.problems
    for number, parts in progress(fed.feeds.items(), "compare", total=len(fed.feeds)):
        # a dumped input that was fed would be compared with itself
        comparison.add({n: found for n, found in matched[number].items() if n not in fed.used}, parts)
    problems = [*comparison.problems, *([] if allow_unknown else comparison.unknown.values())]
    if problems:
        shown = " ".join(problems[:_SHOWN_PROBLEMS])
        more = f" And {len(problems) - _SHOWN_PROBLEMS} more." if len(problems) > _SHOWN_PROBLEMS else ""
        where = f"{path}: " if path.is_dir() else ""  # the sentences about a single file name it themselves
        raise UsageError(f"{where}{shown}{more}")
    return comparison.result(str(path), fed)


class _DumpComparison:
    def __init__(self, runner: FileRunner, dumps: Dumps, tolerance: float) -> None:
        self._runner, self._dumps, self._tolerance = runner, dumps, tolerance
        self._matcher = _NameMatcher(runner.facts)
        self._rows: dict[str, TensorDifference] = {}
        self._runs = 0
        self.problems = list(dumps.problems)
        self.unknown: dict[str, str] = {}

    def match(self, batch: int, tensors: list[DumpTensor]) -> Matched:
        """The dumps of one batch, by the tensors that they match."""
        found: Matched = {}
        for dump in tensors:
            match = self._matcher.find(dump.name)
            if isinstance(match, str):
                self.unknown[dump.name] = f"{dump.source}: {match}"
            elif match[0] in found:
                other, where = found[match[0]][0].source, f" of batch {batch}" if batch else ""
                self.problems.append(f"{match[0]}{where} has two files, {other} and {dump.source}. Remove one.")
            else:
                found[match[0]] = (dump, match[1])
        return found

    def add(self, matched: Matched, feeds: list[Feed]) -> None:
        """Compare one batch of dumps, which may hold several batches of the file."""
        for part, feed in enumerate(feeds):
            computed = self._runner.run(feed)
            for name, (dump, how) in matched.items():
                tensor = feed.get(name, computed.get(name))
                if tensor is not None:
                    self._compare(name, how, dump, tensor, (part, len(feeds)))
            self._runs += 1

    def _compare(self, name: str, how: str, dump: DumpTensor, tensor: Array, part: tuple[int, int]) -> None:
        fact = self._runner.facts[name]
        try:
            array, notes = prepare(dump, _part(dump, *part), tensor, name, fact.scale)
        except UsageError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return
        row = self._rows.setdefault(name, TensorDifference(name, dump.name, how, fact.op_type))
        row.notes |= dict.fromkeys(notes)
        row.add(
            self._runs,
            tensor,
            array,
            scale_a=fact.scale,
            scale_b=dump.scale if dump.scale is not None else fact.scale,
            bits=fact.bits,
            tolerance=self._tolerance,
        )

    def result(self, label: str, fed: FoundInputs) -> FileComparison:
        facts = self._runner.facts
        rows = sorted(self._rows.values(), key=lambda row: facts[row.name].order)
        absent = [n for n in facts if n not in self._rows and n not in self._runner.constants]
        notes = [*self._runner.notes(), *fed.notes]
        if self._dumps.unread:
            notes.append(f"Not read: {listing(self._dumps.unread, limit=_SHOWN_FILES)}.")
        return FileComparison(
            a=self._runner.label,
            b=label,
            rows=tuple(rows),
            batches=self._runs,
            only_a=tuple(name for name in absent if name not in self._runner.inputs and name not in fed.used),
            only_b=tuple(self.unknown),
            notes=tuple(notes),
        )


def _part(dump: DumpTensor, number: int, count: int) -> Array:
    """One of several equal parts of a dump, along its first axis."""
    if count == 1:
        return dump.array
    if dump.array.size % count:
        raise UsageError(
            f"{dump.source}: its {dump.array.size} numbers cannot be divided among the {count} inputs of the batch."
        )
    parts: Array = dump.array.reshape(count, -1)
    return np.asarray(parts[number])
