# SPDX-License-Identifier: Apache-2.0
"""The two dialects: the ops of the newer one, what a node of either states about its tensors, bytes as files carry them.

The older dialect (domain `thinker`) is `linger.dialect.ops()`; linger computes its ops. An op of the newer dialect
(domain `linger`, Q names) is read as the older one whose file names it (`newer=`); attributes that both have under different
names are customary ones. Reading never fails: an attribute that is missing or of a wrong type states nothing, and the
checks say what a node must have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN, PLATFORM_QUANT, Newer, Op, find_op, is_known, ops
from linger.errors import UsageError, listing
from linger.graph.core.nodes import all_nodes, inner_graphs, is_dialect, is_dialect_domain
from linger.targets import DEFAULT_TARGET

OLDER = DOMAIN
NEWER = "linger"
NEWER_VERSION = 1
DIALECTS = (OLDER, NEWER)
_INSIDE_OLDER = f"{OLDER}."

QUANT_MODE = "floor_add"
"""The one rounding that both dialects have: ⌊v + ½⌋. The newer one also knows floor, round and ceil."""


DEFAULT_PLATFORM = DEFAULT_TARGET.name
"""The chip of a node that names none; nodes of the older dialect name only others."""

QUANT, DEQUANT, REQUANT = "Quant", "Dequant", "Requant"
"""The ends of what is quantized, which both dialects call so, and the older one's change of a scale or width."""

CELL_BITS = 32
CELL_SCALE = 32768.0
"""Width and usual scale of a cell state that comes in as integers."""


_WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")
_RENAMED = {"x_bits": "data_bits", "w_bits": "parameter_bits", "stride": "strides", "scale_x": "scale_i", "axis": "dim"}
"""Newer attributes by the name that older ops have for them, if they have one."""


@dataclass(frozen=True)
class NewerOp:
    """One op of the newer dialect.

    Attributes:
        declared: The declaration in the file of the older op.
        older: The op of the older dialect, or of standard ONNX, that computes the same; None: there is none.
        inputs: Names of its inputs, in order. `("xs",)`: any number of them.
        renamed: Attributes that have another name in the older op.
        own: Attributes that the older op has no name for.
        result: The attributes that hold the scale and the width of its first output; None: it keeps those of its first input.
        real_outputs: How many real outputs follow the first.
        why_not: Why there is no older op.
    """

    declared: Newer
    older: str | None
    inputs: tuple[str, ...] = ("x",)
    renamed: Mapping[str, str] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    result: tuple[str, str] | None = ("scale_o", "o_bits")
    real_outputs: int = 0
    why_not: str = ""

    @property
    def name(self) -> str:
        """Its type in the file."""
        return self.declared.name

    @property
    def fixed(self) -> dict[str, Any]:
        """Attributes that the older op has no name for, with the only value that the older op can compute."""
        return {name: value for name, value in self.declared.own.items() if value is not None}

    @property
    def older_names(self) -> dict[str, str]:
        """Attributes of the newer op by their name in the older one; the customary name if there are two."""
        return {older: newer for newer, older in self.renamed.items() if newer != "stride"}


def _of_op(op: Op, declared: Newer) -> NewerOp:
    """A newer op as the file of the older one describes it."""
    inputs = declared.inputs or op.inputs
    renamed = {n: o for n, o in _RENAMED.items() if op.has_attribute(o) and o != op.output_bits}
    # not every older op has a name for the widths of its inputs
    has_widths = op.output_bits is not None and "x" not in op.real_inputs
    widths = {f"{name}_bits" for name in {"x", "y"}.intersection(inputs if has_widths else ())}
    return NewerOp(
        declared=declared,
        older=None if declared.unlike else op.name,
        inputs=inputs,
        renamed=renamed,
        own=frozenset(declared.own) | widths - renamed.keys(),
        result=_result(op, {older: newer for newer, older in renamed.items()}),
        real_outputs=len(op.outputs) - 1,
        why_not=declared.unlike and f"it {declared.unlike}",
    )


def _result(op: Op, newer_names: Mapping[str, str]) -> tuple[str, str] | None:
    """Where the first output's format is stated: at the output, or at the input whose format the op keeps."""
    if op.output_bits is None or op.name == QUANT:
        return None if op.output_bits is None else ("scale_x", op.output_bits)
    bits = op.repeats.get("o_bits", "o_bits")
    return op.repeats.get("scale_o", "scale_o"), newer_names.get(bits, bits)


_WITHOUT_A_FILE = (
    NewerOp(
        Newer("QGLU", is_packed=False),
        None,
        own=frozenset({"dim"}),
        why_not="the scale between its gate and its product is not in the file",
    ),
    NewerOp(Newer("Squeeze"), "Squeeze", result=None),
)
"""Ops of the newer dialect that none of the older one computes."""

NEWER_OPS: Mapping[str, NewerOp] = MappingProxyType(
    {
        newer.name: newer
        for newer in (*(_of_op(op, declared) for op in ops().values() for declared in op.newer), *_WITHOUT_A_FILE)
    }
)
"""Every op of the newer dialect by its type."""


def is_newer(node: ir.Node) -> bool:
    """Whether a node belongs to the newer dialect."""
    return node.domain == NEWER


def packed_name(node: ir.Node) -> str:
    """The op that a packer takes a node of either dialect for; the type of any other node."""
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    name = node.op_type if newer is None else newer.older or node.op_type
    return find_op(name).name if is_quantizing(node) and is_known(name) else name


def user_scopes(model: ir.Model) -> Iterator[ir.Function | None]:
    """The main graph (None) and the functions that are the user's own: bodies of dialect ops are linger's."""
    yield None
    yield from (f for f in model.functions.values() if not is_dialect_domain(f.domain))


def scope_nodes(model: ir.Model, scope: ir.Function | None) -> Iterator[ir.Node]:
    """Every node of the main graph (None) or of a function."""
    return all_nodes(model if scope is None else scope)


def is_node_of(node: ir.Node, dialect: str, model: ir.Model) -> bool:
    """Whether a node is of a dialect; one of the domain `linger` that calls a function of the file is the user's."""
    if dialect == OLDER:
        return is_dialect(node)
    return node.domain == NEWER and node.op_identifier() not in model.functions


def has_nodes_of(model: ir.Model, dialect: str) -> bool:
    """Whether a model, one of its sub-graphs or of its own functions has a node of a dialect."""
    return any(is_node_of(node, dialect, model) for scope in user_scopes(model) for node in scope_nodes(model, scope))


def is_quantizing(node: ir.Node) -> bool:
    """Whether a node belongs to one of the two dialects."""
    return is_quantizing_domain(node.domain)


def is_quantizing_domain(domain: str) -> bool:
    """Whether a domain is that of a dialect, or a sub-domain of the older one."""
    return domain in DIALECTS or domain.startswith(_INSIDE_OLDER)


def is_dequant(node: ir.Node | None) -> bool:
    """Whether a node of either dialect turns integers into real numbers, and depends on nothing else.

    A Dequant without a tensor does nothing; one with more inputs, or with a graph in it, cannot be moved before its other
    readers.
    """
    if node is None or node.op_type != DEQUANT or not is_quantizing(node):
        return False
    return len(node.outputs) == 1 and len(node.inputs) == 1 and node.inputs[0] is not None and not inner_graphs(node)


def input_names(node: ir.Node, op: NewerOp) -> tuple[str, ...]:
    """Return the name of each input of a node; a recurrent op has its weights last, and states only if given."""
    count = len(node.inputs)
    if op.inputs == ("xs",):
        return ("xs",) * count
    if op.real_outputs:
        states = op.inputs[1 : -len(_WEIGHTS)]
        return ("x", *states[: max(0, count - 1 - len(_WEIGHTS))], *_WEIGHTS)[:count]
    return op.inputs[:count]


_STATED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "x": (("scale_x", "scale_i"), ("data_bits", "x_bits")),
        "y": (("scale_y",), ("y_bits",)),
        "w": (("scale_w",), ("parameter_bits", "w_bits")),
        "w_ih": (("scale_iw",), ("parameter_bits", "w_bits")),
        "w_hh": (("scale_hw",), ("parameter_bits", "w_bits")),
        "h": (("scale_h",), ("o_bits",)),
        "c": (("scale_c",), ()),
    }
)
"""Where nodes state the scale and the width of an input of this name; the last width is the newer dialect's.

Biases are not among them: their scales are products of others.
"""

_DATA = frozenset({"x", "y", "xs"})
_STATED_BY_NEWER = frozenset({*_STATED, "xs"})
_STATED_BY_OLDER = _STATED_BY_NEWER - {"h", "c"}
"""States are integers in the newer dialect only."""

_WIDEST = 32
_NUMBERS = (ir.AttributeType.FLOAT, ir.AttributeType.INT)


class StatedFormat(NamedTuple):
    """The scale and the width that a node states for one tensor; None for what it does not state.

    Attributes:
        scale: int = real · scale.
        bits: Width of the integers.
        attribute: The attribute that holds the scale, for messages.
        is_unsigned: Of an output, that it has unsigned bytes.
    """

    scale: float | None = None
    bits: int | None = None
    attribute: str = ""
    is_unsigned: bool = False


class StatedFormats(NamedTuple):
    """What a node states about all its tensors.

    Attributes:
        integers: Inputs that must hold quantized integers, by index.
        reals: Inputs that must hold real numbers.
        outputs: One entry per output; None for real numbers.
        kept: The input whose numbers the node moves or selects without changing them; None where it computes new ones.
        signed: Inputs among the integers that cannot be unsigned bytes.
    """

    integers: Mapping[int, StatedFormat] = MappingProxyType({})
    reals: frozenset[int] = frozenset()
    outputs: tuple[StatedFormat | None, ...] = ()
    kept: int | None = None
    signed: frozenset[int] = frozenset()


def stated_formats(node: ir.Node) -> StatedFormats:
    """What a node of either dialect states about its tensors."""
    if node.op_type == QUANT:
        made = StatedFormat(read_scale(node, "scale_x"), read_bits(node, "data_bits"), "scale_x", makes_unsigned(node))
        return StatedFormats(reals=frozenset({0}), outputs=(made,))
    if node.op_type == DEQUANT:
        return StatedFormats(integers={0: StatedFormat()}, outputs=(None,))
    newer = NEWER_OPS.get(node.op_type) if node.domain == NEWER else None
    return _of_older(node) if newer is None else _of_newer(node, newer)


def _of_older(node: ir.Node) -> StatedFormats:
    """Read the formats as the op's file declares them; for an unknown op, by the names of its attributes."""
    op = _older_op(node.op_type, node.domain)
    if op is not None and op.output_bits is None:
        return StatedFormats(kept=0, outputs=(StatedFormat(),))
    names = _input_names(node, op)
    integers = {i: _of_input(node, name, i, op) for i, name in enumerate(names) if name in _STATED_BY_OLDER}
    real = () if op is None else (*op.real_inputs, *op.unread_inputs)
    reals = frozenset(i for i, name in enumerate(names) if name in real)
    scale = read_scale(node, "scale_o") or _default_scale(node, op)
    output = StatedFormat(scale, read_bits(node, "o_bits") or _default_bits(op), "scale_o", makes_unsigned(node))
    return StatedFormats(integers, reals, _one_quantized(node, output), signed=_signed(op, tuple(names)))


@cache
def _older_op(op_type: str, domain: str) -> Op | None:
    return find_op(op_type) if domain != NEWER and is_known(op_type) else None


def _of_newer(node: ir.Node, op: NewerOp) -> StatedFormats:
    """Read the formats by the table of the newer dialect."""
    if op.result is None:
        return StatedFormats(kept=0, outputs=(StatedFormat(),))
    names = input_names(node, op)
    integers = {i: _of_input(node, name, i, by_newer=True) for i, name in enumerate(names) if name in _STATED_BY_NEWER}
    scale, bits = op.result
    own = [name for name in ("scale_o", scale) if name in node.attributes]
    attribute = [*own, "scale_o"][0]
    output = StatedFormat(read_scale(node, *own), read_bits(node, "o_bits", bits), attribute, makes_unsigned(node))
    older = None if op.older is None else _older_op(op.older, OLDER)
    return StatedFormats(integers, outputs=_one_quantized(node, output), signed=_signed(older, tuple(names)))


@cache
def _signed(op: Op | None, names: tuple[str, ...]) -> frozenset[int]:
    """The inputs that cannot be unsigned bytes; of an unknown op nothing is known."""
    taken = names if op is None else _DATA if op.takes_unsigned else ()
    return frozenset(i for i, name in enumerate(names) if name not in taken)


def makes_unsigned(node: ir.Node) -> bool:
    """Whether a node says that its output has unsigned bytes."""
    return "o_unsigned" in node.attributes.data and read_bits(node, "o_unsigned") == 1


def read_scale(node: ir.Node, *names: str) -> float | None:
    """The first of some attributes that is a number above zero; None where there is none."""
    attributes = node.attributes.data  # ten times as fast as without data
    for name in names:
        attribute = attributes.get(name)
        if attribute is not None and not attribute.is_ref() and attribute.type in _NUMBERS:
            value = float(attribute.value)
            if math.isfinite(value) and value > 0:
                return value
    return None


def read_bits(node: ir.Node, *names: str) -> int | None:
    """The first of some attributes that is a width; None where there is none."""
    attributes = node.attributes.data
    for name in names:
        attribute = attributes.get(name)
        if attribute is not None and not attribute.is_ref() and attribute.type is ir.AttributeType.INT:
            value = int(attribute.value)
            if 0 < value <= _WIDEST:
                return value
    return None


def _input_names(node: ir.Node, op: Op | None) -> tuple[str, ...]:
    """Return the names of the inputs; for an unknown op, those that its attributes suggest."""
    count = len(node.inputs)
    if op is not None and op.is_variadic:
        return ("xs",) * count
    if op is not None:
        try:
            return op.form(count)
        except UsageError:
            return op.inputs[:count]
    if any(f"scale_x_{i}" in node.attributes for i in range(count)):
        return ("xs",) * count
    second = "y" if "scale_y" in node.attributes else "w" if "scale_w" in node.attributes else "b"
    return ("x", second, "b", "b", "b")[:count]


def _of_input(node: ir.Node, name: str, index: int, op: Op | None = None, *, by_newer: bool = False) -> StatedFormat:
    """What a node states of an input."""
    scales, widths = ((f"scale_x_{index}",), (f"x_{index}_bits",)) if name == "xs" else _STATED[name]
    bits = read_bits(node, *(widths[-1:] if by_newer else widths))  # an unknown op may be of either dialect
    if name == "y" and bits is None and op is not None and op.has_attribute("data_bits"):
        bits = read_bits(node, "data_bits")  # one width for both matrices
    present = next((scale for scale in scales if scale in node.attributes.data), scales[0])
    return StatedFormat(read_scale(node, *scales), CELL_BITS if name == "c" else bits, present)


def _one_quantized(node: ir.Node, first: StatedFormat) -> tuple[StatedFormat | None, ...]:
    """Return the formats of outputs of which the first is quantized and the others are real."""
    return (first, *[None] * (len(node.outputs) - 1))


def _default_scale(node: ir.Node, op: Op | None) -> float | None:
    return None if op is None or "scale_o" in node.attributes else op.output_scale


@cache
def _default_bits(op: Op | None) -> int | None:
    """The width of an output that the node does not state; None if the node must state it or the op is unknown."""
    width = None if op is None else next((a for a in op.attributes if a.name == op.output_bits), None)
    return None if width is None or width.is_required else int(width.default)


def unknown_arithmetic(node: ir.Node) -> list[str]:
    """Reasons why the arithmetic of an older node is unknown: its rounding mode, or its chip, is unknown."""
    wrong = []
    for name in ("platform", "platform_quant", "quant_mode"):
        attribute = node.attributes.data.get(name)
        if attribute is None or attribute.is_ref():
            continue
        value, variants = attribute.value, find_op(node.op_type).variants
        possible = {
            "platform": (DEFAULT_PLATFORM, *variants) if variants else (value,),  # others compute alike on every chip
            "platform_quant": (PLATFORM_QUANT, PLATFORM_QUANT.upper()),
            "quant_mode": (QUANT_MODE,),
        }[name]
        if not isinstance(value, str):
            wrong.append(f"{name} is of kind {attribute.type.name.lower()}, not string")
        elif value not in possible:
            wrong.append(f"what it computes with {name}={value!r:.80} is not known, only with {listing(possible)}")
    return wrong


# Signed bytes of the dialect that a file carries as unsigned ones, because ONNX's integer kernels are fast and exact only on
# those. A tensor `t` is then in the file under another name, which says how it is carried:
# - `t/u8`: t + 128;
# - `t/u7`: t itself, which is never negative;
# - `t/positive`: max(t, 0), not yet limited to 127, where a ReLU behind it is all that reads t.
OFFSET, PLAIN, POSITIVE = "/u8", "/u7", "/positive"
MIDDLE, LARGEST = 128, 127
SAFE_WEIGHT = 64
"""The largest magnitude of a signed weight with which no pair of products with unsigned bytes leaves 16 bits: 2·255·64 = 32640."""

_ZEROS = {OFFSET: MIDDLE, PLAIN: 0}


def with_carried(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All tensors, and those that are carried as unsigned bytes also as what they stand for.

    >>> shown = with_carried({"a/u8": np.array([0, 129], np.uint8), "b/u7": np.array([5], np.uint8)})
    >>> shown["a"].tolist(), shown["b"].tolist()
    ([-128, 1], [5])
    """
    results = dict(arrays)
    for name, array in arrays.items():
        base, zero = carried(name)
        if zero is not None and base not in arrays and array.dtype == np.uint8:
            results[base] = (array.astype(np.int16) - zero).astype(np.int8)
    return results


def carried(name: str) -> tuple[str, int | None]:
    """The tensor that a name stands for, and the number that stands for its zero; None where the name is its own.

    >>> carried("conv/u8"), carried("conv")
    (('conv', 128), ('conv', None))
    """
    return next(((name.removesuffix(end), zero) for end, zero in _ZEROS.items() if name.endswith(end)), (name, None))


def stands_for(name: str) -> str:
    """The tensor that a name stands for, whole or in part.

    >>> stands_for("conv/positive"), stands_for("conv")
    ('conv', 'conv')
    """
    return carried(name)[0].removesuffix(POSITIVE)


def positive_part(array: NDArray[Any]) -> NDArray[Any]:
    """The part of a tensor that `t/positive` shows, from either side: the tensor itself, or what the file has.

    >>> positive_part(np.array([-5, 7], np.int8)).tolist(), positive_part(np.array([0, 200], np.uint8)).tolist()
    ([0, 7], [0, 127])
    """
    limited: NDArray[Any] = np.clip(array, 0, LARGEST).astype(np.uint8)
    return limited
