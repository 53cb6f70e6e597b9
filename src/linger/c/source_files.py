# SPDX-License-Identifier: Apache-2.0
"""The C files of a network: header, source and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.exported_folder import C_TYPES
from linger.c.steps import Edge
from linger.c.weights_text import array_declaration, array_definition
from linger.c.writer import BARRIER, PROOF_TEXT, Source, WrittenEdge, core_text, edge_pointer
from linger.graph.core.dialect_node import attributes_of, op_of

_NOTE = "/* Written by linger. Change the model and export it again instead of changing this file. */"


@dataclass(frozen=True)
class StateVariable:
    """A tensor that goes from one step of a stream to the next.

    Attributes:
        field: Its name in the struct.
        taken: The input that it comes in by.
        given: The output that its next content comes from.
        initial: What it is before the first step.
    """

    field: str
    taken: str
    given: str
    initial: NDArray[Any]


@dataclass(frozen=True)
class Interface:
    """The functions that a program offers.

    Attributes:
        source: The program.
        names: The C name of each input and output, by its name in the file.
        states: What a stream carries from step to step; empty for a network that runs as a whole.
        is_callers_arena: Whether the caller provides the arena.
    """

    source: Source
    names: Mapping[str, str]
    states: tuple[StateVariable, ...] = ()
    is_callers_arena: bool = False

    @property
    def inputs(self) -> list[WrittenEdge]:
        """The inputs that the caller gives."""
        hidden = {state.taken for state in self.states}
        return [e for e in self.source.inputs if e.edge.name not in hidden]

    @property
    def outputs(self) -> list[WrittenEdge]:
        """The outputs that the caller gets."""
        hidden = {state.given for state in self.states}
        return [e for e in self.source.outputs if e.edge.name not in hidden]

    @property
    def stem(self) -> str:
        """The name in capitals, for macros."""
        return self.source.name.upper()

    def ctype(self, edge: Edge, *, quantized: bool) -> str:
        """The element type of a parameter."""
        return C_TYPES[self.source.plan.network.tensors[edge.tensor if quantized else edge.name].dtype]

    def prototype(self, *, quantized: bool) -> str:
        """The declaration of the function that computes."""
        verb = ("step" if self.states else "run") + ("_q" if quantized else "")
        own = [f"{self.source.name}_state *state"] if self.states else []
        own += ["void *arena"] if self.is_callers_arena else []
        given = [f"const {self.ctype(e.edge, quantized=quantized)} *{self.names[e.edge.name]}" for e in self.inputs]
        made = [f"{self.ctype(e.edge, quantized=quantized)} *{self.names[e.edge.name]}" for e in self.outputs]
        return f"void {self.source.name}_{verb}({', '.join([*own, *given, *made])})"


def scale_of_edge(edge: Edge) -> float | None:
    """The number that real values at an edge are multiplied with; None where they are not converted."""
    if edge.node is None:
        return None
    attributes = attributes_of(edge.node, op_of(edge.node))
    return float(attributes["scale_x" if edge.node.op_type == "Quant" else "scale_o"])


def header_text(face: Interface) -> str:
    """The header: sizes, shapes, scales, functions."""
    source, stem = face.source, face.stem
    lines = [
        f"#ifndef {stem}_H",
        f"#define {stem}_H",
        "",
        _NOTE,
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* Memory for everything between inputs and outputs, in bytes. */",
        f"#define {stem}_ARENA_BYTES {max(source.arena.size, 16)}",
        "",
    ]
    for edges, is_input in ((face.inputs, True), (face.outputs, False)):
        for edge in edges:
            lines += _edge_lines(face, edge.edge, is_input=is_input)
    lines += _state_lines(face)
    lines += _function_lines(face)
    lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)


def _edge_lines(face: Interface, edge: Edge, *, is_input: bool) -> list[str]:
    tensor, name = face.source.plan.network.tensors[edge.name], face.names[edge.name]
    macro, scale = f"{face.stem}_{name.upper()}", scale_of_edge(edge)
    shape = " x ".join(map(str, tensor.shape)) or "1"
    what = "input" if is_input else "output"
    lines = [f"/* The {what} {name}: {shape}, the last axis innermost. */", f"#define {macro}_SIZE {tensor.count}"]
    if scale is not None:
        lines += [f"/* Its integers are the real numbers times {scale:g}. */", f"#define {macro}_SCALE {scale!r}f"]
    return [*lines, ""]


def _state_lines(face: Interface) -> list[str]:
    if not face.states:
        return []
    name = face.source.name
    lines = ["/* What one stream carries from step to step. One for each stream; reset it before the first step. */"]
    lines += ["typedef struct {"]
    for state in face.states:
        tensor = face.source.plan.network.tensors[state.taken]
        lines.append(f"    {C_TYPES[tensor.dtype]} {state.field}[{max(tensor.count, 1)}];")
    return [*lines, f"}} {name}_state;", "", f"void {name}_reset({name}_state *state);", ""]


def _function_lines(face: Interface) -> list[str]:
    arena = (
        f"The arena has {face.stem}_ARENA_BYTES bytes and begins at a multiple of 16. Calls with different arenas may run at the same time."
        if face.is_callers_arena
        else "There is one arena, so calls must not run at the same time."
    )
    verb = "Computes the next step of a stream" if face.states else "Runs the network"
    lines = [f"/* {verb}. {arena} */", f"{face.prototype(quantized=False)};", ""]
    if any(e.edge.node is not None for e in (*face.inputs, *face.outputs)):
        lines += ["/* The same with integers where the network converts real numbers. */"]
        lines += [f"{face.prototype(quantized=True)};", ""]
    return lines


def source_text(face: Interface) -> str:
    """The functions."""
    source = face.source
    arena = [] if face.is_callers_arena else _arena_lines(face)
    parts = [
        f'{_NOTE}\n\n#include <stddef.h>\n\n#include "{source.name}.h"\n#include "{source.name}_weights.h"\n',
        source.functions,
        BARRIER,
        PROOF_TEXT,
        core_text(source),
        "\n".join(arena),
        _reset_text(face),
        _run_text(face, quantized=False),
    ]
    if any(e.edge.node is not None for e in (*face.inputs, *face.outputs)):
        parts.append(_run_text(face, quantized=True))
    return "\n".join(part for part in parts if part)


def _arena_lines(face: Interface) -> list[str]:
    """The arena as a union, which aligns it."""
    name = face.source.name
    return [
        "/* The arena begins where numbers of every type may begin. */",
        "static union {",
        f"    uint8_t bytes[{face.stem}_ARENA_BYTES];",
        "    int64_t aligned;",
        f"}} {name}_arena;",
        "",
    ]


def _reset_text(face: Interface) -> str:
    if not face.states:
        return ""
    name = face.source.name
    lines = [f"void {name}_reset({name}_state *state) {{"]
    for state in face.states:
        count, content = state.initial.size, state.initial.reshape(-1)
        if content.size and (content != content[0]).any():
            value = f"{name}_{state.field}_initial[i]"
        else:
            value = "0" if not content.size or content[0] == 0 else str(content[0].item())
        lines += [
            f"    for (int32_t i = 0; i < {count}; i++) {{",
            f"        state->{state.field}[i] = {value};",
            "    }",
        ]
    return "\n".join([*lines, "}", ""])


def _run_text(face: Interface, *, quantized: bool) -> str:
    source = face.source
    fields = {s.taken: s.field for s in face.states} | {s.given: s.field for s in face.states}
    numbers = {shown.name: shown.number for shown in source.shown}
    lines = [f"{face.prototype(quantized=quantized)} {{"]
    base = "(uint8_t *)arena" if face.is_callers_arena else f"{source.name}_arena.bytes"
    lines.append(f"    uint8_t *const memory = {base};")
    tensors = source.plan.network.tensors

    def outside(edge: Edge) -> str:
        return f"state->{fields[edge.name]}" if edge.name in fields else face.names[edge.name]

    def function(edge: WrittenEdge) -> str:
        is_state = edge.edge.name in fields
        return edge.copy if quantized and not is_state else edge.convert

    for edge in source.inputs:
        place = edge_pointer(source, edge.edge, constant=False)
        lines.append(f"    {function(edge)}({outside(edge.edge)}, {place});")
        aliases = [a for a in source.plan.aliases if source.plan.root(a) == edge.edge.tensor]
        shown = [edge.edge.tensor, *aliases]
        at = f"&memory[{source.place(edge.edge.tensor)}]"
        lines += [f"    LINGER_SHOW({numbers[n]}, {at}, {tensors[n].bytes});" for n in shown]
    lines += ["    LINGER_NEXT();", f"    {source.name}_core(memory);"]
    for edge in source.outputs:
        place = edge_pointer(source, edge.edge, constant=True)
        lines.append(f"    {function(edge)}({place}, {outside(edge.edge)});")
    return "\n".join([*lines, "}", ""])


def weights_files(source: Source) -> dict[str, str]:
    """The header and the source of the constants."""
    name = source.name
    declared = "".join(f"extern {array_declaration(w.name, w.content)};\n" for w in source.weights)
    guard = f"{name.upper()}_WEIGHTS_H"
    header = f"#ifndef {guard}\n#define {guard}\n\n{_NOTE}\n\n#include <stdint.h>\n\n{declared}\n#endif\n"
    defined = "\n".join(array_definition(w.name, w.content) for w in source.weights)
    return {
        f"{name}_weights.h": header,
        f"{name}_weights.c": f'{_NOTE}\n\n#include "{name}_weights.h"\n\n{defined}',
    }


def weight_bytes(source: Source) -> int:
    """The constants in bytes."""
    return sum(int(w.content.nbytes) for w in source.weights)


def ordered(order: Sequence[int] | None, axes: int) -> list[int]:
    """An order as a list of axes."""
    return list(range(axes)) if order is None else list(order)


def bits_of(array: NDArray[Any]) -> int:
    """The width of an element."""
    return int(np.dtype(array.dtype).itemsize * 8)
