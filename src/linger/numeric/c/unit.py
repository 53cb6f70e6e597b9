# SPDX-License-Identifier: Apache-2.0
"""C functions of ops, and the file that holds them.

    unit = Unit()
    function = unit.add("conv1", op.body, inputs, attributes, title="Conv2dInt")
    unit.source()  # the text of the file

Names come from the caller of `add`, who must not take them from a model's file; everything else is named here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from linger.errors import UsageError
from linger.numeric.c import rules
from linger.numeric.c.kernel import OFFSET_BITS, SLOPE_BITS, CKernel
from linger.numeric.c.nodes import FLOAT, RANGES, Array, Buffer, Node, Shape, Tables, Target, size_of, walk
from linger.numeric.c.scope import PROOF, Draft, Scope
from linger.numeric.c.tiled_windows import write_tiles
from linger.numeric.c.views import Fixed, Number, Real, Value

PROLOGUE = """\
#include <stdint.h>

/* Right shifts of negative numbers must round down; this does not compile where they do not. */
typedef char linger_shift_is_arithmetic[((int32_t)-1 >> 1) == -1 && ((int64_t)-1 >> 1) == -1 ? 1 : -1];
"""

_CLIP = """\
/* x limited to low ... high */
static inline int{bits}_t linger_clip{bits}(int{bits}_t x, int{bits}_t low, int{bits}_t high) {{
    const int{bits}_t raised = x < low ? low : x;
    return raised > high ? high : raised;
}}
"""

_DIVIDE = """\
/* a / b rounded down, of b > 0 */
static inline int{bits}_t linger_floor_div{bits}(int{bits}_t a, int{bits}_t b) {{
    const int{bits}_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}}
"""

_COUNT = """\
/* how many of n rising numbers are not above x */
static inline int32_t linger_count{bits}_{ctype}(const {ctype} *steps, int32_t n, int{bits}_t x) {{
    int32_t low = 0, high = n;
    while (low < high) {{
        const int32_t middle = low + (high - low) / 2;
        if (steps[middle] <= x) {{
            low = middle + 1;
        }} else {{
            high = middle;
        }}
    }}
    return low;
}}
"""

_PIECES = f"""\
/* a curve of straight pieces at x, searched for from one of them on. A piece is a start, a slope and an offset; after
   the last one comes its end. x lies between the first start and that end. */
static inline int32_t linger_pieces(const int16_t *middle, int32_t x) {{
    const int16_t *piece = middle;
    while (piece[0] > x) {{
        piece -= 3;
    }}
    while (piece[3] <= x) {{
        piece += 3;
    }}
    return (piece[1] * (x - piece[0]) + (int32_t)piece[2] * {1 << (SLOPE_BITS - OFFSET_BITS)}) >> {SLOPE_BITS};
}}
"""

_FLOOR = """\
/* x rounded down and limited to low ... high; no number at all gives low */
static inline int32_t linger_floor_clip(float x, int32_t low, int32_t high) {
    int32_t whole;
    if (!(x > (float)low)) {
        return low;
    }
    if (x >= (float)high) {
        return high;
    }
    whole = (int32_t)x;
    return (float)whole > x ? whole - 1 : whole;
}
"""

_FLOOR_NARROW = """\
/* x rounded down and limited to low ... high, which float32 holds exactly; NaN gives 0, as numpy does. It has no branches, so that
   compilers can take many at a time. */
static inline int32_t linger_floor_clip_narrow(float x, int32_t low, int32_t high) {
    const float number = x == x ? x : 0.0f;
    const float raised = number > (float)low ? number : (float)low;
    const float limited = raised < (float)high ? raised : (float)high;
    const int32_t whole = (int32_t)limited;
    return whole - ((float)whole > limited ? 1 : 0);
}
"""

_ALL = {
    **{f"linger_clip{bits}": _CLIP.format(bits=bits) for bits in (32, 64)},
    **{f"linger_floor_div{bits}": _DIVIDE.format(bits=bits) for bits in (32, 64)},
    **{
        f"linger_count{bits}_{ctype}": _COUNT.format(bits=bits, ctype=ctype)
        for bits in (32, 64)
        for ctype in ("int8_t", "int16_t", "int32_t", "int64_t")
    },
    "linger_pieces": _PIECES,
    "linger_floor_clip": _FLOOR,
    "linger_floor_clip_narrow": _FLOOR_NARROW,
}


def helper_text(names: Iterable[str]) -> str:
    """The definitions of these functions, each after a blank line."""
    used = set(names)
    return "".join("\n" + text for name, text in _ALL.items() if name in used)


_TYPES = {"float32": FLOAT, **dict.fromkeys(("bool", "uint8"), "uint8_t")}
_TYPES |= {f"int{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)}
_WIDTH_OF = {"uint8_t": 8, FLOAT: 32, **{f"int{bits}_t": bits for bits in (8, 16, 32, 64)}}
_PLAIN = {
    "⌊": "floor(", "⌋": ")", "⌉": " + 0.5)", "½": "0.5", "·": "*", "∗": "conv", "−": "-", "Σ": "sum ", "ᵀ": "'",
    "√": "sqrt", "σ": "sigmoid", "→": "to", "≥": ">=", "≤": "<=", "…": "...", "±∞": "+-inf",
}  # fmt: skip
"""ASCII for the symbols of formulas: some compilers read nothing else."""

_PROOF_LINES = re.compile(rf"#ifdef {PROOF}\n.*?#endif\n", re.DOTALL)
_LONGEST_TITLE = 300
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED = frozenset([
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern",
    "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed",
    "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "main",
])  # fmt: skip


@dataclass(frozen=True)
class Input:
    """An input of an op: its shape and element type, and its content where that never changes.

    Args:
        shape: The size of each axis.
        dtype: int8, uint8, int16, int32, int64, float32 or bool.
        known: The array that it always is. It tightens the intervals; the function still takes it as a parameter.
        order: Its axes from the outermost to the innermost in memory; None: as they come.
    """

    shape: Shape
    dtype: str
    known: Array | None = None
    order: Shape | None = None
    may_change: bool = False
    """Whether the caller stores other numbers where the function asks for them (`CFunction.changed`)."""

    @staticmethod
    def of(array: Array, *, is_known: bool = False) -> Input:
        """The input that an array is an example of, or the only one."""
        return Input(tuple(array.shape), str(array.dtype), array if is_known else None)


@dataclass(frozen=True)
class CFunction:
    """One function: its name, what it takes in the order of its parameters, and its text.

    The caller provides `scratch`; its content matters only while the function runs. An input that is None has no
    parameter. No parameter may overlap another one that is written.
    """

    name: str
    inputs: tuple[Buffer | None, ...]
    outputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    text: str
    in_place: frozenset[int] = frozenset()
    """Inputs whose memory the first output may share: element i is read before element i is written, and never after."""
    is_static: bool = False
    is_apart: bool = False
    """Whether compilers must not make it part of its caller (LINGER_SHARED of `linger_simd.h`)."""
    changed: Mapping[int, Array] = field(default_factory=dict)
    """What inputs that may change must hold instead of what they are known as: biases with what rounds the sums."""

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Inputs, outputs, scratch."""
        return (*(i for i in self.inputs if i is not None), *self.outputs, *self.scratch)

    @property
    def prototype(self) -> str:
        """The declaration, without a semicolon."""
        constant = [f"const {i.ctype} *{i.name}" for i in self.inputs if i is not None]
        written = [f"{b.ctype} *{b.name}" for b in (*self.outputs, *self.scratch)]
        kind = "LINGER_SHARED " if self.is_apart else "static " if self.is_static else ""
        return f"{kind}void {self.name}({', '.join(constant + written)})"


class Unit:
    """A translation unit: functions with the tables and helpers that they share.

    Args:
        is_tiled: Sums call the functions of `linger_dots.h` and its neighbors, many elements at a time.
        is_static: The functions have internal linkage.
    """

    def __init__(self, *, is_tiled: bool = False, is_static: bool = False) -> None:
        self._is_static = is_static
        self.tables = Tables()
        """The constant arrays that the functions read."""
        self._tiles = write_tiles if is_tiled else None
        self._functions: dict[str, CFunction] = {}
        self._helpers: set[str] = set()
        self.includes: set[str] = set()
        """The headers that the file needs, `stdint.h` not counted."""

    def add(
        self,
        name: str,
        body: Callable[..., Any],
        inputs: Sequence[Input | None],
        attributes: Mapping[str, Any],
        *,
        title: str,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
        orders: Sequence[Shape | None] = (),
        taps: Sequence[str] = (),
    ) -> CFunction:
        """Write the function of one op.

        Args:
            name: The function's name in C.
            body: The op's body; or a function that calls several bodies one after the other, which fuses them: what only
                the next one reads, element by element, is not stored.
            inputs: What the body takes, in its order (`Op.arrange`); None for one that is absent.
            attributes: The body's attributes, complete (`Op.complete`).
            title: What error messages call the op.
            input_names: Names for the parameters; by default their numbers.
            output_names: The same for the outputs.
            orders: For each output its axes from the outermost to the innermost in memory; None, or none at all: as they come.
            taps: Names of global arrays that proof builds write more results to: those that the body returns behind the
                outputs. They have the shape of the first output, and lie in memory as it does.

        Raises:
            UnsupportedError: An intermediate may need more than 64 bits, or the body does what has no C.
            UsageError: A name is no C identifier, or taken.
        """
        if _checked(name) in self._functions:
            raise UsageError(f"{name!r}: the file has a function of this name. Choose another one.")
        draft = Draft(title, self.tables, self._tiles)
        scope = Scope(draft, 1)
        kernel = CKernel(draft, scope)
        nodes = [_input(draft, x, n) for x, n in zip(inputs, _named("in", input_names, len(inputs)), strict=True)]
        draft.may_change = _changeable(nodes, inputs)
        results = body(kernel, *map(_value, nodes), **attributes)
        several = results if isinstance(results, tuple) else (results,)
        several, tapped = several[: len(several) - len(taps)], several[len(several) - len(taps) :]
        names = _named("out", output_names, len(several))
        placed = zip(several, names, orders or (None,) * len(several), strict=True)
        outputs = tuple(
            _write_output(kernel, scope, result, (name, order), [] if i else list(zip(tapped, taps, strict=True)))
            for i, (result, name, order) in enumerate(placed)
        )
        places = _in_place(nodes, kernel, several, outputs)
        function = CFunction(
            name, tuple(map(_buffer, nodes)), outputs, tuple(draft.scratch), "", places, is_static=self._is_static
        )
        is_apart = self._is_static and draft.is_crowded and bool(draft.includes)
        changed = {i: draft.changed[b.name] for i, b in enumerate(function.inputs) if b and b.name in draft.changed}
        function = replace(function, changed=changed, is_apart=is_apart)
        function = replace(function, text=_function_text(function, body, title, draft.lines))
        self._functions[name] = function
        self._helpers |= draft.helpers
        self.includes |= draft.includes
        return function

    def source(self, *, before: str = "", more: str = "") -> str:
        """The text of the file; equal input gives equal text. `more` functions may read `tables`."""
        bodies = "\n".join([f.text for f in self._functions.values()] + ([more] if more else []))
        # tables that only a proof build reads are there in a proof build only
        needed, proof = (
            frozenset(re.findall(r"linger_table_\d+", text)) for text in (_PROOF_LINES.sub("", bodies), bodies)
        )
        lines = self.tables.lines(needed)
        if proof - needed:
            lines += [f"#ifdef {PROOF}", *self.tables.lines(proof - needed), "#endif"]
        tables = "".join(f"{line}\n" for line in lines)
        includes = "".join(f'#include "{name}"\n' for name in sorted(self.includes))
        includes = f"\n#include <stddef.h>\n\n{includes}" if includes else ""
        return "\n".join(
            part for part in (PROLOGUE + includes + helper_text(self._helpers), tables, before, bodies) if part
        )


def _changeable(nodes: Sequence[Node | None], inputs: Sequence[Input | None]) -> frozenset[str]:
    """The arrays whose content the function may choose."""
    pairs = zip(map(_buffer, nodes), inputs, strict=True)
    return frozenset(b.name for b, x in pairs if b is not None and x is not None and x.may_change)


def elementwise_inputs(
    body: Callable[..., Any], inputs: Sequence[Input | None], attributes: Mapping[str, Any], *, title: str
) -> tuple[frozenset[int], int]:
    """The inputs that the only result reads element by element, and about how many operations one element costs.

    Raises:
        UnsupportedError: As `Unit.add`.
    """
    draft = Draft(title, Tables())
    kernel = CKernel(draft, Scope(draft, 1))
    nodes = [_input(draft, x, f"in_{i}") for i, x in enumerate(inputs)]
    result = body(kernel, *map(_value, nodes), **attributes)
    if isinstance(result, (tuple, Fixed)):
        return frozenset(), 0
    node = result.node if isinstance(result, Real) else kernel.whole(result).node
    return _elementwise(nodes, node), node.cost


def _elementwise(inputs: Sequence[Node | None], result: Node) -> frozenset[int]:
    """The inputs that a result reads element by element."""
    waiting, visited, else_read = [result], {result}, set[Node]()
    while waiting:
        node = waiting.pop()
        is_plain = node.rule.is_elementwise and node.buffer is None
        for arg in node.args:
            if not is_plain or arg.shape != result.shape:
                else_read.update(walk(arg))
            elif arg not in visited:
                visited.add(arg)
                waiting.append(arg)
    arrays = {id(node.buffer) for node in else_read if node.buffer is not None}
    return frozenset(
        i
        for i, node in enumerate(inputs)
        if node is not None and node in visited and node not in else_read and id(node.buffer) not in arrays
    )


def _in_place(
    inputs: Sequence[Node | None], kernel: CKernel, results: Sequence[Value], outputs: Sequence[Buffer]
) -> frozenset[int]:
    """The inputs whose memory the only output may share: read element by element, equally wide, with equal strides."""
    if len(outputs) != 1 or isinstance(results[0], Fixed):
        return frozenset()
    result, buffer = results[0], outputs[0]
    node = result.node if isinstance(result, Real) else kernel.whole(result).node
    return frozenset(
        i
        for i in _elementwise(inputs, node)
        if (array := _buffer(inputs[i])) is not None
        and _WIDTH_OF[array.ctype] == _WIDTH_OF[buffer.ctype]
        and array.strides_for(node.shape) == buffer.strides_for(node.shape) is not None
    )


def _checked(name: str) -> str:
    if not _IDENTIFIER.fullmatch(name) or name in _RESERVED or name.startswith("linger_"):
        raise UsageError(
            f"{name!r} cannot name a C function. Use lower-case letters, digits and underscores, beginning with a letter, "
            "no keyword of C, and not the prefix linger_."
        )
    return name


def _named(stem: str, names: Sequence[str], count: int) -> list[str]:
    """Names of parameters; by default their numbers."""
    return [_checked(f"{stem}_{name}") for name in names or range(count)]


def _buffer(node: Node | None) -> Buffer | None:
    return None if node is None else node.buffer


def _input(draft: Draft, declared: Input | None, name: str) -> Node | None:
    if declared is None:
        return None
    ctype = _TYPES.get(declared.dtype)
    if ctype is None:
        raise draft.refuse(f"an input has the type {declared.dtype}; C is written for {', '.join(_TYPES)}")
    if not all(isinstance(n, int) and n >= 0 for n in declared.shape):
        raise draft.refuse(f"an input has the shape {declared.shape}; C is written for sizes that are known")
    if declared.known is not None and tuple(declared.known.shape) != declared.shape:
        raise UsageError(
            f"{draft.title}: an input of shape {declared.shape} is known as an array of {declared.known.shape}."
        )
    draft.check_size(declared.shape)
    is_real = ctype == FLOAT
    known = None if is_real else declared.known
    interval = (0, 0) if is_real else (0, 1) if declared.dtype == "bool" else RANGES[ctype]
    if known is not None and known.size:
        interval = int(np.min(known)), int(np.max(known))
    node = Node(rules.Stored(), (), declared.shape, interval=interval, is_real=is_real, known=known)
    node.buffer = Buffer(name, ctype, declared.shape, declared.order)
    return node


def _value(node: Node | None) -> Value | None:
    if node is None:
        return None
    if node.is_real:
        return Real(node, node.shape)
    assert node.buffer is not None
    return Number(node, node.shape, ctype=node.buffer.ctype)


def _write_output(
    kernel: CKernel, scope: Scope, result: Value, named: tuple[str, Shape | None], taps: Sequence[tuple[Value, str]]
) -> Buffer:
    """Write a result to an array, and in proof builds other results of its shape to theirs."""
    name, order = named
    buffer, node = _destination(kernel, result, name, order)
    filled = [(node, [Target(buffer, node.shape)])]
    for value, tap in taps:
        array, tapped = _destination(kernel, value, tap, order)
        filled.append((tapped, [Target(array, tapped.shape, is_proof=True)]))
    scope.fill_all(filled)
    return buffer


def _destination(kernel: CKernel, result: Value, name: str, order: Shape | None) -> tuple[Buffer, Node]:
    """The array for a result, and the node that is written to it."""
    if isinstance(result, Fixed):
        raise kernel.refuse("a result does not depend on the inputs")
    if isinstance(result, Real):
        return Buffer(name, FLOAT, result.shape, order), result.node
    number = kernel.whole(result)
    if number.ctype is None:
        raise kernel.refuse("a result is not stored in an integer type")
    kernel.draft.check_size(number.shape)
    node = number.node if size_of(number.node.shape) == size_of(number.shape) else kernel.shaped(number)
    return Buffer(name, number.ctype, number.shape, order), node


def _function_text(function: CFunction, body: Callable[..., Any], title: str, lines: Sequence[str]) -> str:
    """Comment, head, statements; unused parameters are cast to void, so that no compiler warns."""
    text = "\n".join(line for line in lines if "/*" not in line)
    unused = [b.name for b in function.parameters if not re.search(rf"\b{b.name}\b", text)]
    ignored = [f"    (void){name};" for name in unused]
    sizes = ", ".join(f"{b.name} {list(b.shape)}" for b in function.parameters)
    return "\n".join([_comment(title, body), f"/* {sizes} */", f"{function.prototype} {{", *ignored, *lines, "}", ""])


def _comment(title: str, body: Callable[..., Any]) -> str:
    """The formula of the op; the title comes from callers and may hold anything, so it is written in plain letters."""
    formula = (getattr(body, "func", body).__doc__ or "").strip().partition("\n")[0]  # of a partial, the function's
    for letter, plain in _PLAIN.items():
        formula = formula.replace(letter, plain)
    formula = re.sub(r"[^\w ().,:;|<>=?'+*/^\[\]-]", "", formula, flags=re.ASCII)
    safe = re.sub(r"[^\w ().,:+-]", "", title, flags=re.ASCII)[:_LONGEST_TITLE]
    # it neither begins nor ends a comment, nor holds a trigraph
    formula = re.sub(r"\?+", "?", formula.replace("*", " * "))
    return f"/* {safe}: {formula} */"
