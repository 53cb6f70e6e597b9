# SPDX-License-Identifier: Apache-2.0
"""The C sources of a network: what computes, what converts real numbers, and the constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linger.c.exported_folder import C_TYPES
from linger.c.folder.interface import Interface, StateVariable, weight_places
from linger.c.steps import Edge
from linger.c.weights_text import array_declaration, array_definition, array_pointer
from linger.c.writer import BARRIER, PROOF_TEXT, WrittenEdge, core_prototype, core_text, edge_pointer

NOTE = "/* Written by linger. Change the model and export it again instead of changing this file. */"

_CRC_TEXT = """\
/* The CRC-32 of the weights that this program was written with, and how it is computed. */
static uint32_t {name}_crc(const uint8_t *bytes, uint32_t count) {{
    uint32_t crc = 0xFFFFFFFFu;
    for (uint32_t i = 0u; i < count; i++) {{
        crc ^= bytes[i];
        for (int32_t bit = 0; bit < 8; bit++) {{
            crc = ((crc & 1u) != 0u) ? ((crc >> 1u) ^ 0xEDB88320u) : (crc >> 1u);
        }}
    }}
    return crc ^ 0xFFFFFFFFu;
}}

int32_t {name}_check_weights(const void *weights, uint32_t bytes) {{
    static const uint16_t one = 1u;
    int32_t is_right = 0;
    if ((weights != NULL) && (bytes == {stem}_WEIGHTS_BYTES) && (*(const uint8_t *)&one == 1u)) {{
        if ({name}_crc((const uint8_t *)weights, bytes) == {crc}u) {{
            is_right = 1;
        }}
    }}
    return is_right;
}}
"""


def internal_text(face: Interface) -> str:
    """The header that the program's own files share."""
    guard = f"{face.stem}_INTERNAL_H"
    parts = [f"#ifndef {guard}\n#define {guard}\n\n{NOTE}\n/* Only for the files of this folder. */\n"]
    parts += [f'#include <stddef.h>\n#include <stdint.h>\n\n#include "{face.name}.h"\n', BARRIER, PROOF_TEXT]
    parts.append("/* Runs every step on the arena. */")
    parts.append(f"{core_prototype(face.source, has_weights=face.has_callers_weights)};\n")
    if not face.has_callers_arena:
        parts.append("\n".join(_arena_lines(face)))
    parts.append("#endif\n")
    return "\n".join(parts)


def _arena_lines(face: Interface) -> list[str]:
    """The arena as a union, which aligns it."""
    return [
        "/* The arena begins where numbers of every type may begin. */",
        "typedef union {",
        f"    uint8_t bytes[{face.stem}_ARENA_BYTES];",
        "    int64_t aligned;",
        f"}} {face.name}_memory;",
        "",
        f"extern {face.name}_memory {face.name}_arena;",
        "",
    ]


def source_text(face: Interface, crc: int = 0) -> str:
    """The functions that compute with integers.

    Args:
        face: The interface.
        crc: The CRC-32 of the weights, where they are a file.
    """
    places = weight_places(face.source) if face.has_callers_weights else None
    includes = [f"{face.name}_internal.h", *([] if face.has_callers_weights else [f"{face.name}_weights.h"])]
    parts = [_top(includes), face.source.functions, core_text(face.source, places)]
    if not face.has_callers_arena:
        parts.append(f"{face.name}_memory {face.name}_arena;\n")
    if face.has_callers_weights:
        parts.append(_CRC_TEXT.format(name=face.name, stem=face.stem, crc=hex(crc)))
    parts += [_reset_text(face), _run_text(face, quantized=face.is_quantized)]
    return "\n".join(part for part in parts if part)


def float_text(face: Interface) -> str:
    """The function that takes and gives real numbers; who calls the other one links none of it."""
    return "\n".join([_top([f"{face.name}_internal.h"]), face.source.conversions, _run_text(face, quantized=False)])


def _top(includes: Sequence[str]) -> str:
    return "\n".join([NOTE, "", *(f'#include "{name}"' for name in includes), ""])


def _reset_text(face: Interface) -> str:
    if not face.states:
        return ""
    parts = [array_definition(_initial(face, s), s.initial.reshape(-1)) for s in face.states if _varies(s)]
    parts = [f"static {text}" for text in parts]
    lines = [f"void {face.name}_reset({face.name}_state *state) {{"]
    for state in face.states:
        lines += [
            f"    for (int32_t i = 0; i < {state.initial.size}; i++) {{",
            f"        state->{state.field}[i] = {_initial_value(face, state)};",
            "    }",
        ]
    return "\n".join([*parts, *lines, "}", ""])


def _varies(state: StateVariable) -> bool:
    content = state.initial.reshape(-1)
    return bool(content.size) and bool((content != content[0]).any())


def _initial(face: Interface, state: StateVariable) -> str:
    return f"{face.name}_{state.field}_initial"


def _initial_value(face: Interface, state: StateVariable) -> str:
    content = state.initial.reshape(-1)
    if _varies(state):
        return f"{array_pointer(_initial(face, state), content)}[i]"
    value = content[0].item() if content.size else 0
    return f"{value!r}f" if isinstance(value, float) else str(int(value))


def _run_text(face: Interface, *, quantized: bool) -> str:
    source = face.source
    fields = {s.taken: s.field for s in face.states} | {s.given: s.field for s in face.states}
    numbers = {shown.name: shown.number for shown in source.shown}
    lines = [f"{face.prototype(quantized=quantized)} {{"]
    base = "(uint8_t *)arena" if face.has_callers_arena else f"{source.name}_arena.bytes"
    lines.append(f"    uint8_t *const memory = {base};")
    tensors = source.plan.network.tensors

    def outside(edge: Edge) -> str:
        return f"state->{fields[edge.name]}" if edge.name in fields else face.names[edge.name]

    def function(edge: WrittenEdge) -> str:
        return edge.copy if quantized and edge.edge.name not in fields else edge.convert

    for edge in source.inputs:
        place = edge_pointer(source, edge.edge, constant=False)
        lines.append(f"    {function(edge)}({outside(edge.edge)}, {place});")
        aliases = [a for a in source.plan.aliases if source.plan.root(a) == edge.edge.tensor]
        at = f"&memory[{source.place(edge.edge.tensor)}]"
        lines += [f"    LINGER_SHOW({numbers[n]}, {at}, {tensors[n].bytes});" for n in (edge.edge.tensor, *aliases)]
    weights = "(const uint8_t *)weights, " if face.has_callers_weights else ""
    lines += ["    LINGER_NEXT();", f"    {source.name}_core({weights}memory);"]
    for edge in source.outputs:
        place = edge_pointer(source, edge.edge, constant=True)
        lines.append(f"    {function(edge)}({place}, {outside(edge.edge)});")
    return "\n".join([*lines, "}", ""])


def weights_texts(face: Interface) -> dict[str, str]:
    """The header and the source of the constants."""
    name, weights = face.name, face.source.weights
    declared = "".join(f"extern {array_declaration(w.name, w.content)};\n" for w in weights)
    guard = f"{face.stem}_WEIGHTS_H"
    header = f"#ifndef {guard}\n#define {guard}\n\n{NOTE}\n\n#include <stdint.h>\n\n{declared}\n#endif\n"
    defined = "\n".join(array_definition(w.name, w.content) for w in weights)
    return {
        f"{name}_weights.h": header,
        f"{name}_weights.c": f'{NOTE}\n\n#include "{name}_weights.h"\n\n{defined}',
    }


def state_bytes(face: Interface) -> int:
    """The size of the struct of states, every member at a multiple of its type's size; 0 where there is none."""
    tensors = face.source.plan.network.tensors
    size, widest = 0, 1
    for state in face.states:
        item = np.dtype(tensors[state.taken].dtype).itemsize
        widest = max(widest, item)
        size = _rounded_up(size, item) + item * max(tensors[state.taken].count, 1)
    return _rounded_up(size, widest)


def _rounded_up(size: int, step: int) -> int:
    return -(-size // step) * step


def state_fields(face: Interface) -> list[str]:
    """The members of the struct of states."""
    tensors = face.source.plan.network.tensors
    return [f"{C_TYPES[tensors[s.taken].dtype]} {s.field}[{max(tensors[s.taken].count, 1)}];" for s in face.states]
