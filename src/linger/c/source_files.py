# SPDX-License-Identifier: Apache-2.0
"""The C files of a program as text: sources, constants and the header."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linger.c.exported_folder import C_TYPES
from linger.c.interface import Interface, StateVariable, ends_of_edge, plain, scale_of_edge, weight_places
from linger.c.steps import Edge
from linger.c.writer import (
    BARRIER,
    PROOF_TEXT,
    WrittenEdge,
    array_declaration,
    array_definition,
    array_pointer,
    core_prototype,
    core_text,
    edge_pointer,
)

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


_EXACT_IN_FLOAT = 2**24

_ASSERTIONS = """\
/* What the integers were proven for; this does not compile where it is not so. */
typedef char {name}_needs_bytes_of_8_bits[(CHAR_BIT == 8) ? 1 : -1];
typedef char {name}_needs_int_of_32_bits[(INT_MAX >= 2147483647) ? 1 : -1];
typedef char {name}_needs_float_of_32_bits[((sizeof(float) == 4u) && (FLT_MANT_DIG == 24)) ? 1 : -1];
typedef char {name}_needs_shifts_that_round_down[((-1 >> 1) == -1) ? 1 : -1];
"""


def header_text(face: Interface) -> str:
    """The header: sizes, shapes, scales, functions."""
    edges = [(e.edge, True) for e in face.inputs] + [(e.edge, False) for e in face.outputs]
    parts = [
        f"#ifndef {face.stem}_H\n#define {face.stem}_H\n",
        NOTE,
        _overview(face),
        "#include <float.h>\n#include <limits.h>\n#include <stdint.h>\n",
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
        _ASSERTIONS.format(name=face.name),
        _comment("The memory for everything between inputs and outputs, in bytes."),
        f"#define {face.stem}_ARENA_BYTES {face.arena_bytes}\n",
        *_weights_lines(face),
        *(_edge_text(face, edge, is_input=is_input) for edge, is_input in edges),
        *_state_texts(face),
        *_function_texts(face),
        "#ifdef __cplusplus\n}\n#endif\n\n#endif\n",
    ]
    return "\n".join(parts)


def _comment(*sentences: str) -> str:
    """A comment of several lines."""
    if len(sentences) == 1:
        return f"/* {sentences[0]} */"
    return "\n".join(["/*", *(f" * {sentence}".rstrip() for sentence in sentences), " */"])


def _overview(face: Interface) -> str:
    graph = plain(face.source.plan.network.model.graph.name or "")
    lines = [f"The network {graph or face.name} as C. Its integers are those of the ONNX file, bit for bit."]
    if face.cut is not None:
        lines.append("It is a part of that file; README.md says where it begins and ends, and what stays outside.")
    if face.is_quantized:
        lines.append(
            f"{face.name}_{face.verb}_q takes and gives integers; {face.name}_{face.verb} converts real numbers."
        )
    return _comment(*lines, "No function allocates memory, and none keeps anything but what is said below.") + "\n"


def _weights_lines(face: Interface) -> list[str]:
    if not face.has_callers_weights:
        return []
    name = face.name
    return [
        _comment(
            f"The weights are the file {name}_weights.bin. Place its bytes at an address that is a multiple of 8 (in",
            "flash, or loaded), and give that address to every call. The machine must be little-endian.",
        ),
        f"#define {face.stem}_WEIGHTS_BYTES {face.weight_bytes}u\n",
        _comment("1 if these are the weights of this program (size and CRC-32), 0 if not."),
        f"int32_t {name}_check_weights(const void *weights, uint32_t bytes);\n",
    ]


def _edge_text(face: Interface, edge: Edge, *, is_input: bool) -> str:
    tensor, name = face.tensor(edge, quantized=False), face.names[edge.name]
    macro, scale = f"{face.stem}_{name.upper()}", scale_of_edge(edge)
    what = "input" if is_input else "output"
    lines = [f"The {what} {name}{_file_name(edge, name)}: {C_TYPES[tensor.dtype]}, {_layout(face, edge)}"]
    defines = [f"#define {macro}_SIZE {tensor.count}"]
    if scale is not None:
        inner = face.tensor(edge, quantized=True)
        lines.append(f"For {face.name}_{face.verb}_q it is {C_TYPES[inner.dtype]}: the real number times {scale:.17g},")
        if is_input:
            low, high = ends_of_edge(edge)
            lines.append(f"that is floor(x * scale + 0.5), limited to {low} ... {high}; NaN gives {_of_nan(low)}.")
        else:
            lines.append("so the real number is the integer divided by the scale.")
        defines.append(f"#define {macro}_SCALE {float(np.float32(scale))!r}f")
    lines += _time_lines(face, edge)
    defines += _time_defines(face, edge, macro)
    return "\n".join([_comment(*lines), *defines, ""])


def _of_nan(low: int) -> int:
    """What an input makes of NaN: zero, but the lowest integer where float32 does not hold every one (see `linger_floor_clip`)."""
    return 0 if -low <= _EXACT_IN_FLOAT else low


def _file_name(edge: Edge, name: str) -> str:
    return "" if edge.name == name else f' ("{plain(edge.name)}" in the file)'


def _layout(face: Interface, edge: Edge) -> str:
    shape, order = face.tensor(edge, quantized=False).shape, face.order(edge)
    sizes = " x ".join(str(n) for n in shape) or "1"
    if order is None:
        return f"{sizes}, the last axis innermost."
    laid = " x ".join(str(shape[axis]) for axis in order)
    return f"{laid}, channels innermost ({sizes} in the file)."


def _time_lines(face: Interface, edge: Edge) -> list[str]:
    timed = face.streaming(edge)
    if timed is None or timed.axis is None:
        return []
    count = f"{timed.frames} frame{'s' if timed.frames > 1 else ''}"
    lines = [f"It has {count} of the sequence, along axis {timed.axis}."]
    if timed.delay:
        lines.append(f"The first {timed.delay} frames of a stream mean nothing: the network looks ahead. The last")
        lines.append(f"{timed.delay} frames of a sequence come out only when frames follow it.")
    return lines


def _time_defines(face: Interface, edge: Edge, macro: str) -> list[str]:
    timed = face.streaming(edge)
    if timed is None or timed.axis is None:
        return []
    delay = [f"#define {macro}_DELAY {timed.delay}"] if any(e.edge is edge for e in face.outputs) else []
    return [f"#define {macro}_FRAMES {timed.frames}", *delay]


def _state_texts(face: Interface) -> list[str]:
    if not face.states:
        return []
    fields = "\n".join(f"    {field}" for field in state_fields(face))
    return [
        _comment(
            f"What one stream carries from step to step, {state_bytes(face)} bytes: one for each stream. Its members are "
            "not for callers."
        ),
        f"typedef struct {{\n{fields}\n}} {face.name}_state;\n",
        _comment("Begins a stream: call it before the first step."),
        f"void {face.name}_reset({face.name}_state *state);\n",
    ]


def _function_texts(face: Interface) -> list[str]:
    verb = "Computes the next step of a stream" if face.states else "Runs the network once"
    given = ", ".join(face.names[e.edge.name] for e in face.inputs)
    made = ", ".join(face.names[e.edge.name] for e in face.outputs)
    lines = [f"{verb}: reads {given or 'nothing'}; writes {made}. Arrays must not overlap."]
    if face.has_callers_arena:
        lines.append(
            f"arena: {face.stem}_ARENA_BYTES bytes that begin at a multiple of 8; its content does not matter."
        )
        lines.append("Calls with different arenas may run at the same time.")
    else:
        lines.append("There is one arena, so calls must not run at the same time.")
    if face.has_callers_weights:
        lines.append(f"weights: the {face.stem}_WEIGHTS_BYTES bytes of {face.name}_weights.bin, see above.")
    texts = [_comment(*lines), f"{face.prototype(quantized=False)};\n"]
    if face.is_quantized:
        texts += [_comment("The same with integers where the network converts real numbers.")]
        texts += [f"{face.prototype(quantized=True)};\n"]
    return texts
