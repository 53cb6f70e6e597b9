# SPDX-License-Identifier: Apache-2.0
"""The C files of a program as text: header, sources, constants, and test.c, which runs the network on vectors."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.exported_folder import C_TYPES
from linger.c.interface import Interface, Parameter, plain, rendered, weight_places, weights_file
from linger.c.steps import Layout, in_memory_order
from linger.c.writer import (
    WrittenEdge,
    array_declaration,
    array_definition,
    array_pointer,
    core_prototype,
    core_text,
    numbers_text,
)
from linger.graph.passes.streaming_states import State
from linger.verification.feeds import spread_feeds

Array = NDArray[Any]

GRID = 4
"""Real inputs of vectors are multiples of 1/4 of a step of their integers, so that ties and saturation occur."""

_EXACT_IN_FLOAT = 2**24
_SAMPLES = 2
_STEPS = 4
_LARGE = 1 << 15
"""From so many numbers at the edges on there is one sample."""
_SEED = 17
_WIDER = 1.5
"""Real inputs are spread so much wider than usual that some saturate."""


def c_files(face: Interface) -> dict[str, str]:
    """The text of every C file but the test, by its name."""
    name = face.name
    texts = {
        f"{name}.h": _header_text(face),
        f"{name}_internal.h": rendered(
            "internal.h", face=face, core=core_prototype(face.source, has_weights=face.has_callers_weights)
        ),
        f"{name}.c": source_text(face),
    }
    if face.is_quantized:  # who calls the functions on integers links none of it
        texts[f"{name}_float.c"] = rendered("network.c", is_float=True, face=face, **_run_values(face, quantized=False))
    if not face.has_callers_weights:
        weights = face.source.weights
        declarations = [array_declaration(w.name, w.content) for w in weights]
        definitions = "\n".join(array_definition(w.name, w.content) for w in weights)
        texts[f"{name}_weights.h"] = rendered("weights.h", face=face, declarations=declarations)
        texts[f"{name}_weights.c"] = rendered("weights.c", face=face, definitions=definitions)
    return texts


def _header_text(face: Interface) -> str:
    """The header: sizes, shapes, scales, functions."""
    network = face.source.plan.network
    graph, own = plain(network.model.graph.name or ""), {"float32": lambda scale: repr(float(np.float32(scale)))}
    return rendered("header.h", face=face, graph=graph, tensors=network.tensors, of_nan=_of_nan, **own)


def _of_nan(parameter: Parameter) -> int:
    """What an input makes of NaN: zero, but the lowest integer where float32 does not hold every one (see `linger_floor_clip`)."""
    low = parameter.ends[0]
    return 0 if -low <= _EXACT_IN_FLOAT else low


def source_text(face: Interface) -> str:
    """The functions that compute with integers."""
    places = weight_places(face.source) if face.has_callers_weights else None
    return rendered(
        "network.c",
        is_float=False,
        face=face,
        core=core_text(face.source, places),
        crc=hex(zlib.crc32(weights_file(face.source))) if face.has_callers_weights else "",
        states=[_initial(face, field, state) for field, state in face.states.items()],
        **_run_values(face, quantized=face.is_quantized),
    )


def _initial(face: Interface, field: str, state: State) -> dict[str, object]:
    """How the reset function fills the field of a state: from an array, or with one number where all are equal."""
    content, name = state.initial.reshape(-1), f"{face.name}_{field}_initial"
    if content.size and (content != content[0]).any():
        definition, value = array_definition(name, content), f"{array_pointer(name, content)}[i]"
    else:
        number = content[0].item() if content.size else 0
        definition, value = "", f"{number!r}f" if isinstance(number, float) else str(int(number))
    return {"definition": definition, "field": field, "count": content.size, "value": value}


def _run_values(face: Interface, *, quantized: bool) -> dict[str, object]:
    """What the template needs for the function that runs the network, on integers or real numbers."""
    source = face.source
    fields = {edge: field for field, state in face.states.items() for edge in (state.input, state.output)}

    def values(written: WrittenEdge) -> dict[str, object]:
        edge = written.edge
        is_state = edge.name in fields
        place = source.place(edge.tensor)
        return {
            "function": written.copy if quantized and not is_state else written.convert,
            "outside": f"state->{fields[edge.name]}" if is_state else face.names[edge.name],
            "ctype": source.plan.network.tensors[edge.tensor].ctype,
            "place": place,
            "shows": source.shows(edge.tensor, f"&memory[{place}]"),
        }

    inputs, outputs = list(map(values, source.inputs)), list(map(values, source.outputs))
    return {"quantized": quantized, "inputs": inputs, "outputs": outputs}


@dataclass(frozen=True)
class Sample:
    """One run, or one step of a stream, that test.c compares with.

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


def golden_samples(face: Interface) -> Iterator[Sample]:
    """What the test of a folder compares with; the same for the same network."""
    network = face.source.plan.network
    states: dict[str, Array] = {state.input: state.initial for state in face.states.values()}
    for drawn in spread_feeds(network.model, seed=_SEED, batches=_sample_count(face)):
        grids = {p.edge.name: _grid(p, drawn[p.edge.name]) for p in face.inputs}
        feed = {**{p.edge.name: _real(p, grids[p.edge.name]) for p in face.inputs}, **states}
        tensors = {**feed, **network.reference.intermediates(feed)}
        inputs, outputs = (
            [_in_memory(tensors[p.edge.tensor], Layout(p.order)) for p in some] for some in (face.inputs, face.outputs)
        )
        yield Sample(
            [_in_memory(grids[p.edge.name], Layout(p.order)) for p in face.inputs],
            inputs,
            outputs,
            [zlib.crc32(_in_memory(tensors[n], layout).tobytes()) for n, layout in face.source.shown.items()],
        )
        states = {state.input: tensors[state.output] for state in face.states.values()}


def _sample_count(face: Interface) -> int:
    is_large = sum(p.outer.count for p in face.parameters) >= _LARGE
    return _STEPS if face.states else 1 if is_large else _SAMPLES


def _grid(parameter: Parameter, drawn: Array) -> Array:
    """An input as multiples of a part of its integers' step; other inputs as they are."""
    if parameter.scale is None:
        return drawn
    steps = np.rint(drawn.astype(np.float64) * parameter.scale * GRID * _WIDER)
    ends = np.iinfo(np.int32)  # inputs of 32 bits reach beyond
    return np.clip(steps, ends.min, ends.max).astype(np.int32)


def _real(parameter: Parameter, grid: Array) -> Array:
    """The real numbers of a grid, computed as C computes them: one division of float32."""
    if parameter.scale is None:
        return grid
    return np.asarray(grid.astype(np.float32) / np.float32(GRID * parameter.scale))


def _in_memory(array: Array, layout: Layout) -> Array:
    return np.asarray(array).reshape(-1)[in_memory_order(array.shape, layout)]


def check_program_text(face: Interface) -> str:
    """The text of test.c, which runs the network on vectors and says what differs."""
    samples = list(golden_samples(face))
    return rendered(
        "test.c",
        face=face,
        samples=samples,
        grid=GRID,
        table=_table,
        grids=[
            [] if p.scale is None else _narrowed([sample.inputs[i] for sample in samples])
            for i, p in enumerate(face.inputs)
        ],
        integers=[[sample.integers[i] for sample in samples] for i in range(len(face.inputs))],
        wanted=[[sample.outputs[i] for sample in samples] for i in range(len(face.outputs))],
    )


def _narrowed(rows: Sequence[Array]) -> list[Array]:
    """The rows as int16 where all of them fit."""
    fit = all(row.size == 0 or (row.min() >= -(2**15) and row.max() < 2**15) for row in rows)
    return [row.astype(np.int16) for row in rows] if fit else list(rows)


def _table(name: str, rows: Sequence[Array]) -> str:
    ctype = C_TYPES[str(rows[0].dtype)]
    text = "".join(f"    {{\n{numbers_text(row)}    }},\n" for row in rows)
    return f"static const {ctype} {name}[SAMPLES][{max(rows[0].size, 1)}] = {{\n{text}}};\n"
