# SPDX-License-Identifier: Apache-2.0
"""The header of a program: its functions, and what their parameters mean."""

from __future__ import annotations

import numpy as np

from linger.c.exported_folder import C_TYPES
from linger.c.folder.interface import Interface, ends_of_edge, scale_of_edge
from linger.c.folder.safe_names import plain
from linger.c.source_files import NOTE, state_bytes, state_fields
from linger.c.steps import Edge

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
