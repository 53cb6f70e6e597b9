# SPDX-License-Identifier: Apache-2.0
"""The program test.c of a folder: runs the network on vectors and says what differs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.exported_folder import C_TYPES
from linger.c.interface import Interface, plain, scale_of_edge
from linger.c.source_files import NOTE
from linger.c.steps import Edge, Layout, in_memory_order
from linger.c.writer import WrittenEdge, numbers_text
from linger.verification.feeds import Feed, spread_feeds

Array = NDArray[Any]

GRID = 4
"""Real inputs are multiples of 1/4 of a step of their integers, so that ties and saturation occur."""

_SAMPLES = 2
_STEPS = 4
_LARGE = 1 << 15
"""From so many numbers at the edges on there is one sample."""
_SEED = 17
_WIDER = 1.5
"""Real inputs are spread so much wider than usual that some saturate."""


@dataclass(frozen=True)
class Sample:
    """One run, or one step of a stream.

    Attributes:
        inputs: For each input what its real numbers are multiples of (see GRID), or its content; as the caller has it.
        integers: For each input the integers that the other interface takes.
        outputs: For each output its integers, or its content where it has none.
        digests: The CRC-32 of every tensor as it lies in memory, by its number.
    """

    inputs: Sequence[Array]
    integers: Sequence[Array]
    outputs: Sequence[Array]
    digests: Sequence[int]


def golden_samples(face: Interface) -> list[Sample]:
    """What the test of a folder compares with; the same for the same network."""
    network = face.source.plan.network
    states: dict[str, Array] = {state.taken: state.initial for state in face.states}
    samples = []
    for drawn in spread_feeds(network.model, seed=_SEED, batches=_count(face)):
        grids = {e.edge.name: _grid(e.edge, drawn) for e in face.inputs}
        feed = {**{e.edge.name: _real(e.edge, grids[e.edge.name]) for e in face.inputs}, **states}
        found = {**feed, **network.reference.intermediates(feed)}
        samples.append(_sample(face, grids, found))
        states = {state.taken: found[state.given] for state in face.states}
    return samples


def _count(face: Interface) -> int:
    if face.states:
        return _STEPS
    numbers = sum(face.tensor(e.edge, quantized=False).count for e in (*face.inputs, *face.outputs))
    return _SAMPLES if numbers < _LARGE else 1


def _grid(edge: Edge, drawn: Feed) -> Array:
    """An input as multiples of a part of its integers' step; other inputs as they are."""
    scale = scale_of_edge(edge)
    if scale is None:
        return drawn[edge.name]
    steps = np.rint(drawn[edge.name].astype(np.float64) * scale * GRID * _WIDER)
    ends = np.iinfo(np.int32)  # inputs of 32 bits reach beyond
    return np.clip(steps, ends.min, ends.max).astype(np.int32)


def _real(edge: Edge, grid: Array) -> Array:
    """The real numbers of a grid, computed as C computes them: one division of float32."""
    scale = scale_of_edge(edge)
    if scale is None:
        return grid
    return np.asarray(grid.astype(np.float32) / np.float32(GRID * scale))


def _sample(face: Interface, grids: Mapping[str, Array], found: Mapping[str, Array]) -> Sample:
    def laid(edge: Edge, array: Array) -> Array:
        return _in_memory(array, Layout(face.order(edge)))

    return Sample(
        [laid(e.edge, grids[e.edge.name]) for e in face.inputs],
        [laid(e.edge, found[e.edge.tensor]) for e in face.inputs],
        [laid(e.edge, found[e.edge.tensor]) for e in face.outputs],
        [zlib.crc32(_in_memory(found[s.name], s.layout).tobytes()) for s in face.source.shown],
    )


def _in_memory(array: Array, layout: Layout) -> Array:
    return np.asarray(array).reshape(-1)[in_memory_order(array.shape, layout)]


_PROOF = """\
#ifdef LINGER_PROOF
/* The CRC-32 of every tensor as it lies in memory (little-endian), and its name. */
static const uint32_t digests[SAMPLES][{count}] = {{
{digests}}};

static const char *const names[{count}] = {{
{names}}};

static int32_t shown;

static uint32_t crc_of(const uint8_t *bytes, int32_t count) {{
    uint32_t crc = 0xFFFFFFFFu;
    for (int32_t i = 0; i < count; i++) {{
        crc ^= bytes[i];
        for (int32_t bit = 0; bit < 8; bit++) {{
            crc = ((crc & 1u) != 0u) ? ((crc >> 1u) ^ 0xEDB88320u) : (crc >> 1u);
        }}
    }}
    return crc ^ 0xFFFFFFFFu;
}}

/* The network calls it with every tensor as soon as that is complete. */
void linger_proof(int32_t tensor, const void *data, int32_t bytes);

void linger_proof(int32_t tensor, const void *data, int32_t bytes) {{
    shown++;
    if ((tensor < 0) || (tensor >= {count})) {{
        (void)printf("%s, sample %ld: there is no tensor %ld\\n", function, (long)sample, (long)tensor);
        failures++;
    }} else if (crc_of((const uint8_t *)data, bytes) != digests[sample][tensor]) {{
        if (failures == 0) {{
            (void)printf("%s, sample %ld: tensor %ld (%s) is the first that differs\\n", function, (long)sample,
                         (long)tensor, names[tensor]);
        }}
        failures++;
    }} else {{
        /* as it must be */
    }}
}}
#endif
"""

_CHECK = """\
/* Compares the output {name}{sort}. */
static void check_{what}(void) {{
    for (int32_t i = 0; i < {count}; i++) {{
        const {ctype} want = {want};
        if ({got}[i] != want) {{
            (void)printf("%s, sample %ld: output {name}, element %ld is {form}, expected {form}\\n", function, (long)sample,
                         (long)i, {cast}{got}[i], {cast}want);
            failures++;
            return;
        }}
    }}
}}
"""

_READ_WEIGHTS = """\
/* Reads the weights from a file. */
static int read_weights(const char *path) {{
    size_t got = 0u;
    FILE *const file = fopen(path, "rb");
    if (file != NULL) {{
        got = fread(weights.bytes, 1u, sizeof weights.bytes, file);
        (void)fclose(file);
    }}
    return {name}_check_weights(weights.bytes, (uint32_t)got);
}}
"""


def check_program_text(face: Interface, samples: Sequence[Sample]) -> str:
    """The text of test.c."""
    parts = [
        NOTE,
        "/* Runs the network on vectors of the numpy reference; returns 0 if everything is equal, else 1. */",
    ]
    parts += [
        f'#include <stdint.h>\n#include <stdio.h>\n\n#include "{face.name}.h"\n',
        f"#define SAMPLES {len(samples)}\n",
    ]
    parts += _vectors(face, samples)
    parts += _memory(face)
    parts.append('static int32_t sample;\nstatic int32_t failures;\nstatic const char *function = "";\n')
    parts.append(_proof(face, samples))
    parts += [text for number, edge in enumerate(face.outputs) for text in _checks(face, number, edge)]
    if face.has_callers_weights:
        parts.append(_READ_WEIGHTS.format(name=face.name))
    parts.append(_main(face))
    return "\n".join(parts)


def _vectors(face: Interface, samples: Sequence[Sample]) -> list[str]:
    parts = []
    for number, edge in enumerate(face.inputs):
        name = face.names[edge.edge.name]
        if edge.edge.node is not None:
            grids = [_small(sample.inputs[number]) for sample in samples]
            widest = max((g.dtype for g in grids), key=lambda kind: kind.itemsize)
            steps = f"{GRID} * {face.stem}_{name.upper()}_SCALE"
            parts.append(f"/* The input {name}: what its real numbers are multiples of, divided by {steps}. */")
            parts.append(_table(f"in_{number}_grid", [g.astype(widest) for g in grids]))
            parts.append(f"/* The input {name} as integers. */")
        parts.append(_table(f"in_{number}", [sample.integers[number] for sample in samples]))
    for number, edge in enumerate(face.outputs):
        parts.append(f"/* What the output {face.names[edge.edge.name]} must be. */")
        parts.append(_table(f"want_{number}", [sample.outputs[number] for sample in samples]))
    return parts


def _small(grid: Array) -> Array:
    fits = grid.size == 0 or (grid.min() >= -(2**15) and grid.max() < 2**15)
    return grid.astype(np.int16) if fits else grid


def _table(name: str, rows: Sequence[Array]) -> str:
    ctype = C_TYPES[str(rows[0].dtype)]
    text = "".join(f"    {{\n{numbers_text(row)}    }},\n" for row in rows)
    return f"static const {ctype} {name}[SAMPLES][{max(rows[0].size, 1)}] = {{\n{text}}};\n"


def _memory(face: Interface) -> list[str]:
    """The variables that the calls need."""
    lines = []
    for number, edge in enumerate(face.inputs):
        if edge.edge.node is not None:
            lines.append(f"static float in_{number}_real[{max(face.tensor(edge.edge, quantized=False).count, 1)}];")
    for number, edge in enumerate(face.outputs):
        for quantized, mark in ((True, ""), (False, "_real")):
            if quantized or edge.edge.node is not None:
                tensor = face.tensor(edge.edge, quantized=quantized)
                lines.append(f"static {C_TYPES[tensor.dtype]} out_{number}{mark}[{max(tensor.count, 1)}];")
    if face.has_callers_weights:
        lines.append(f"static union {{ uint8_t bytes[{face.stem}_WEIGHTS_BYTES]; int64_t aligned; }} weights;")
    if face.has_callers_arena:
        lines.append(f"static union {{ uint8_t bytes[{face.stem}_ARENA_BYTES]; int64_t aligned; }} arena;")
    if face.states:
        lines.append(f"static {face.name}_state state;")
    return [*lines, ""]


def _proof(face: Interface, samples: Sequence[Sample]) -> str:
    rows = ["    {\n" + _wrapped([f"0x{d:08X}u" for d in sample.digests]) + "    },\n" for sample in samples]
    names = "".join(f'    "{plain(shown.name)}",\n' for shown in face.source.shown)
    return _PROOF.format(count=len(face.source.shown), digests="".join(rows), names=names)


def _wrapped(words: Sequence[str]) -> str:
    return "".join(f"        {', '.join(words[i : i + 8])},\n" for i in range(0, len(words), 8))


def _checks(face: Interface, number: int, edge: WrittenEdge) -> list[str]:
    """The functions that compare one output: its integers, and its real numbers where it has both."""
    name, scale = face.names[edge.edge.name], scale_of_edge(edge.edge)
    inner = face.tensor(edge.edge, quantized=True)
    shared: dict[str, Any] = {"name": name, "count": inner.count}
    is_float = inner.dtype == "float32"
    form, cast = ("%.9g", "(double)") if is_float else ("%ld", "(long)")
    texts = [
        _CHECK.format(
            **shared,
            sort="",
            what=number,
            ctype=C_TYPES[inner.dtype],
            want=f"want_{number}[sample][i]",
            got=f"out_{number}",
            form=form,
            cast=cast,
        )
    ]
    if scale is not None:
        texts.append(
            _CHECK.format(
                **shared,
                sort=" as real numbers",
                what=f"{number}_real",
                ctype="float",
                want=f"(float)want_{number}[sample][i] / {face.stem}_{name.upper()}_SCALE",
                got=f"out_{number}_real",
                form="%.9g",
                cast="(double)",
            )
        )
    return texts


def _main(face: Interface) -> str:
    """The main program: one loop over the samples, or for a stream one for each interface, each behind a reset."""
    lines = [f"int main({'int count, char **words' if face.has_callers_weights else 'void'}) {{"]
    if face.has_callers_weights:
        lines += [
            f'    if (read_weights((count > 1) ? words[1] : "{face.name}_weights.bin") == 0) {{',
            '        (void)printf("the weights cannot be read, or are not those of this program\\n");',
            "        return 1;",
            "    }",
        ]
    calls = [_call(face, quantized=quantized) for quantized in ((True, False) if face.is_quantized else (True,))]
    for body in calls if face.states else [[line for call in calls for line in call]]:
        lines += [f"    {face.name}_reset(&state);"] if face.states else []
        lines += ["    for (sample = 0; sample < SAMPLES; sample++) {", *(f"        {line}" for line in body), "    }"]
    told = f"{face.name}: %ld samples, every output is as it must be"
    lines += ["    if (failures == 0) {", f'        (void)printf("{told}\\n", (long)SAMPLES);', "    }"]
    return "\n".join([*lines, "    return (failures == 0) ? 0 : 1;", "}", ""])


def _call(face: Interface, *, quantized: bool) -> list[str]:
    """The statements of one sample for one of the interfaces."""
    entry = f"{face.name}_{face.verb}{'_q' if quantized and face.is_quantized else ''}"
    arguments = ["&state"] if face.states else []
    arguments += ["weights.bytes"] if face.has_callers_weights else []
    arguments += ["arena.bytes"] if face.has_callers_arena else []
    lines = [f'function = "{entry}";']
    for number, edge in enumerate(face.inputs):
        is_real = not quantized and edge.edge.node is not None
        arguments.append(f"in_{number}_real" if is_real else f"in_{number}[sample]")
        if is_real:
            tensor, scale = (
                face.tensor(edge.edge, quantized=False),
                f"{face.stem}_{face.names[edge.edge.name].upper()}_SCALE",
            )
            lines.append(f"for (int32_t i = 0; i < {tensor.count}; i++) {{")
            lines.append(f"    in_{number}_real[i] = (float)in_{number}_grid[sample][i] / ({GRID}.0f * {scale});")
            lines.append("}")
    marks = ["_real" if not quantized and e.edge.node is not None else "" for e in face.outputs]
    arguments += [f"out_{number}{mark}" for number, mark in enumerate(marks)]
    count = len(face.source.shown)
    return [
        *lines,
        "#ifdef LINGER_PROOF",
        "shown = 0;",
        "#endif",
        f"{entry}({', '.join(arguments)});",
        "#ifdef LINGER_PROOF",
        f"if (shown != {count}) {{",
        f'    (void)printf("%s, sample %ld: %ld tensors instead of {count}\\n", function, (long)sample, (long)shown);',
        "    failures++;",
        "}",
        "#endif",
        *(f"check_{number}{mark}();" for number, mark in enumerate(marks)),
    ]
