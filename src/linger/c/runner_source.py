# SPDX-License-Identifier: Apache-2.0
"""The main program that runs an exported network on the samples of a file, and the format of the files it reads and writes.

in.bin holds the number of samples (int32) and, for each sample, the bytes of every input. out.bin holds records: the id
of a tensor (int32), the number of bytes (int32), the bytes. Proof tensors have the ids of the manifest; outputs, the counter
and the end have negative ones. All numbers are little-endian, like every machine that is supported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.c.exported_folder import Edge, ExportedFolder, Tensor
from linger.c.interface import rendered
from linger.c.writer import array_definition, array_pointer
from linger.errors import LingerError, UsageError, listing, printable

Feeds = Mapping[str, NDArray[Any]]

EXIT_REASONS: Mapping[int, str] = {
    81: "it could not read its inputs",
    82: "it could not write its outputs",
    83: "the processor met a fault, such as an access to memory that is not there or not aligned",
    84: "its stack overflowed",
}
"""What the exit codes of the runner mean; linger_runner.h has the same numbers."""

_FIRST_OUTPUT = -1
_COUNTER = -(1 << 30)
_STACK = _COUNTER - 1
_END = -(1 << 31)
_HEADER = struct.Struct("<ii")
_ARENA_ALIGNMENT = 16


@dataclass(frozen=True)
class Variant:
    """Which of the programs of a folder is meant.

    Attributes:
        quantized: It calls the integer interface.
        proof: It shows every tensor.
        counting: It counts instructions and bytes of the stack.
    """

    quantized: bool = False
    proof: bool = False
    counting: bool = False

    @property
    def stem(self) -> str:
        """A file name for it."""
        marks = [name for name in ("quantized", "proof", "counting") if getattr(self, name)]
        return "_".join(["program", *marks])


@dataclass
class SampleResult:
    """What one sample gave: outputs by position, proof tensors by id, ticks of the counter, bytes of the stack."""

    outputs: dict[int, bytes] = field(default_factory=dict)
    tensors: dict[int, bytes] = field(default_factory=dict)
    ticks: int = 0
    stack: int = 0


def runner_file(name: str) -> str:
    """The text of one of the runner's own C files or linker scripts."""
    return (files("linger.c") / "runner" / name).read_text(encoding="utf-8")


def main_source(folder: ExportedFolder, variant: Variant) -> str:
    """The main program; of the manifest's texts only the network's name, a checked identifier, is part of it."""
    inputs, outputs = (
        [e.layout(quantized=variant.quantized) for e in edges] for edges in (folder.inputs, folder.outputs)
    )
    own = {
        "&state": folder.is_streaming,
        "linger_runner_weights()": folder.weights is not None,
        "arena": folder.has_caller_arena,
    }
    arguments = [name for name, is_taken in own.items() if is_taken]
    arguments += [f"input_{n}" for n in range(len(inputs))] + [f"output_{n}" for n in range(len(outputs))]
    return rendered(
        "runner.c",
        runner=runner_file("linger_runner.h"),
        folder=folder,
        variant=variant,
        inputs=inputs,
        outputs=outputs,
        arguments=arguments,
        alignment=_ARENA_ALIGNMENT,
        counter=_COUNTER,
        stack=_STACK,
        end=_END,
    )


def weights_source(content: bytes) -> str:
    """A C file that holds a file of weights, so that they lie in the flash of a microcontroller."""
    array = np.frombuffer(content or bytes(1), np.int8)
    return "\n".join(
        [
            "#include <stdint.h>",
            f"__attribute__((aligned({_ARENA_ALIGNMENT}))) static {array_definition('rows', array)}",
            "const void *linger_runner_weights(void);",
            f"const void *linger_runner_weights(void) {{ return {array_pointer('rows', array)}; }}",
            "",
        ]
    )


def packed_inputs(edges: Sequence[Edge], samples: Sequence[Feeds], *, quantized: bool) -> bytes:
    """The content of in.bin.

    Raises:
        UsageError: A feed lacks an input, or has one that is unknown or has another type or shape.
    """
    for feeds in samples:
        _check_feeds(edges, feeds, quantized=quantized)
    arrays = (edge.packed(np.asarray(feeds[edge.name])) for feeds in samples for edge in edges)
    return b"".join([struct.pack("<i", len(samples)), *arrays])


def _check_feeds(edges: Sequence[Edge], feeds: Feeds, *, quantized: bool) -> None:
    expected = {edge.name: edge.layout(quantized=quantized) for edge in edges}
    wrong = [f"lacks {printable(name)}" for name in expected if name not in feeds]
    wrong += [f"has the unknown input {printable(str(name))}" for name in feeds if name not in expected]
    wrong += filter(None, (_difference(name, feeds[name], x) for name, x in expected.items() if name in feeds))
    if wrong:
        names = listing(printable(name) for name in expected)
        raise UsageError(f"the feed {listing(wrong)}. The inputs of the C code are {names}.")


def _difference(name: str, array: NDArray[Any], layout: Tensor) -> str:
    """How an array differs from what C takes; empty if it does not."""
    given = np.asarray(array)
    if given.dtype == layout.dtype and given.shape == layout.shape:
        return ""
    return f"gives {printable(name)} as {given.dtype}{list(given.shape)}, not {layout.dtype}{list(layout.shape)}"


def read_results(folder: ExportedFolder, content: bytes, samples: int, variant: Variant) -> list[SampleResult]:
    """The records of out.bin, sample by sample.

    Raises:
        LingerError: The file is short, or the C code did not show what the manifest promises.
    """
    results = [SampleResult()]
    for number, data in _records(folder, content):
        current = results[-1]
        if number == _COUNTER:
            current.ticks = int.from_bytes(data, "little")
        elif number == _STACK:
            current.stack = int.from_bytes(data, "little")
        elif number >= 0:
            _keep_tensor(folder, current, number, data)
        else:
            _keep_output(folder, current, number, data, variant)
            if len(current.outputs) == len(folder.outputs):
                results.append(SampleResult())
    complete = results[:-1]
    if len(complete) != samples:
        raise LingerError(f"{printable(str(folder.path))}: the program gave {len(complete)} of {samples} samples.")
    if variant.proof:
        _require_all_tensors(folder, complete)
    return complete


def _records(folder: ExportedFolder, content: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + _HEADER.size <= len(content):
        number, size = _HEADER.unpack_from(content, start)
        start += _HEADER.size
        if number == _END:
            return
        if size < 0 or start + size > len(content):
            break
        yield number, content[start : start + size]
        start += size
    raise LingerError(
        f"{printable(str(folder.path))}: the program ended before all of its outputs were written (out.bin has "
        f"{len(content)} bytes)."
    )


def _keep_tensor(folder: ExportedFolder, result: SampleResult, number: int, data: bytes) -> None:
    tensor = folder.by_id.get(number)
    if tensor is None:
        raise LingerError(f"{printable(str(folder.path))}: the C code shows tensor {number}, which the manifest lacks.")
    if len(data) != tensor.layout.bytes or number in result.tensors:
        what = "twice in a run" if number in result.tensors else f"with {len(data)} bytes, not {tensor.layout.bytes}"
        raise LingerError(f"{printable(str(folder.path))}: the C code shows {printable(tensor.name)} {what}.")
    result.tensors[number] = data


def _keep_output(folder: ExportedFolder, result: SampleResult, number: int, data: bytes, variant: Variant) -> None:
    position = _FIRST_OUTPUT - number
    edges = folder.outputs[position : position + 1]
    if not edges or len(data) != edges[0].layout(quantized=variant.quantized).bytes:
        raise LingerError(f"{printable(str(folder.path))}: the C code shows tensor {number}, which the manifest lacks.")
    result.outputs[position] = data


def _require_all_tensors(folder: ExportedFolder, results: Sequence[SampleResult]) -> None:
    missing = {t.name for result in results for t in folder.tensors if t.id not in result.tensors}
    if missing:
        names = listing(printable(name) for name in sorted(missing))
        raise LingerError(f"{printable(str(folder.path))}: the C code never shows the tensors {names}.")
