# SPDX-License-Identifier: Apache-2.0
"""linger c: a network as C, built for a target and proven there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import console, say, say_result
from linger.cli.arguments.options import Json, Machine, Seed, one_of
from linger.errors import UsageError, VerificationError, listing, printable

if TYPE_CHECKING:
    from linger.c.program import Program
    from linger.c.proof import CProof


class Arena(StrEnum):
    """Who owns the memory."""

    static = "static"
    caller = "caller"


class Edges(StrEnum):
    """How images and signals lie at the edges."""

    file = "file"
    nhwc = "nhwc"


class Weights(StrEnum):
    """Where the weights are."""

    c = "c"
    file = "file"


class Framework(StrEnum):
    """Whose layout the folder has."""

    zephyr = "zephyr"
    esp_idf = "esp-idf"
    arduino = "arduino"


@dataclass(frozen=True)
class _Measured:
    """What a build has shown; None where nobody has looked."""

    target: str
    description: str
    code: int
    constants: int
    flash: int
    ram: int
    instructions: int | None = None
    stack: int | None = None


def c(
    model: Annotated[Path, typer.Argument(help="An ONNX file of the dialect, with fixed sizes.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write; it must not exist, or be empty.")],
    name: Annotated[
        str | None, typer.Option(help="What every symbol begins with; else made of the file's name.")
    ] = None,
    arena: Annotated[Arena, typer.Option(help="The program's own memory, or given with every call.")] = Arena.static,
    layout: Annotated[
        Edges, typer.Option(help="Images at the edges as in the file, or channels innermost.")
    ] = Edges.file,
    weights: Annotated[Weights, typer.Option(help="Compiled, or a file beside the program.")] = Weights.c,
    framework: Annotated[Framework | None, typer.Option(help="The folder as a module or library of it.")] = None,
    stream: Annotated[
        int | None, typer.Option(help="Frames of one step of a stream; 0: the file is one step already.", min=0)
    ] = None,
    time: Annotated[
        list[str] | None,
        typer.Option(
            help="Which axis of an input is time, as in x=1; once for each. With --stream.", metavar="INPUT=AXIS"
        ),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            help="An output that an input takes in the next step, as in hn=h0; once for each. With --stream.",
            metavar="OUTPUT=INPUT",
        ),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="A certificate of the file: the manifest names it.")] = None,
    target: Machine = None,
    cc: Annotated[str | None, typer.Option(help="The C compiler; else the first that is found.")] = None,
    *,
    cut: Annotated[
        bool, typer.Option("--cut", help="Leave float ops outside: write the integer part, and name where it ends.")
    ] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Run it there, and compare every tensor with numpy.")] = False,
    batches: Annotated[int | None, typer.Option(help="How many random batches; with --prove.", min=1)] = None,
    samples: Annotated[int | None, typer.Option("--samples", hidden=True, min=1)] = None,
    seed: Seed = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that this command wrote before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a network as C99 without dependencies, and build and prove it on this machine or an emulated one.

    Exit code 1: an integer differs, or the network has no C

    Examples:
        linger c digits.onnx digits_c
        linger c digits.onnx digits_c --target cortex-m4 --prove
        linger c detector.onnx detector_c --cut --prove
    """
    from linger.c.exporter import export
    from linger.c.toolchains import toolchain

    one_of("c", batches=batches, samples=samples)
    samples = batches or samples
    if samples is not None and not prove:
        raise UsageError("c: --batches belongs to --prove. Add --prove, or leave it out.")
    if prove or target is not None:  # what is missing is said before anything is written
        chain = toolchain(target)
        chain.find_compiler(cc)
        chain.require_emulator()
    elif cc is not None:
        raise UsageError("c: --cc names a compiler, and nothing is built. Add --target or --prove, or leave it out.")
    written = export(
        model,
        folder,
        name=name,
        arena=arena.value,
        layout=layout.value,
        weights=weights.value,
        framework=None if framework is None else framework.value,
        stream=stream,
        time=None if not time else {key: _axis(key, axis) for key, axis in _parted("--time", "x=1", time)},
        pairs=None if not pairs else dict(_parted("--pairs", "hn=h0", pairs)),
        certificate=certificate,
        cut=cut,
        overwrite=overwrite,
    )
    proof, measured = None, None
    if prove or target is not None:
        proof, measured = _built(model, written, target, cc, samples if prove else None, seed, is_proven=prove)
    _show(written, measured, proof, as_json=as_json)
    if proof is not None and not proof.ok:
        raise VerificationError(f"{written}: {proof.summary()}")


def _parted(option: str, example: str, values: list[str]) -> list[tuple[str, str]]:
    """The two sides of values such as x=1; a name may hold the sign, too, before the last one."""
    wrong = [value for value in values if not all(value.rpartition("="))]
    names = [value.rpartition("=")[0] for value in values]
    if wrong:
        raise UsageError(
            f"c: {option} {listing(map(printable, wrong))}: expected a name, = and what it is given, as in {example}."
        )
    if len(set(names)) < len(names):
        raise UsageError(f"c: {option} names {listing(map(printable, names))}: expected each name once.")
    return [(name, value.rpartition("=")[2]) for name, value in zip(names, values, strict=True)]


def _axis(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"c: --time {printable(f'{name}={text}')}: the axis is no number. Use --time x=1.") from None


def _built(
    model: Path, folder: Path, target: str | None, cc: str | None, samples: int | None, seed: int, *, is_proven: bool
) -> tuple[CProof | None, _Measured]:
    """Build the folder, and perhaps prove it."""
    from linger.c.program import build
    from linger.c.proof import prove

    with build(folder, cc, target=target) as program:
        proof = prove(program, model, samples=samples, seed=seed) if is_proven else None
        size = program.size()
        counts = _counts(program) if is_proven and program.toolchain.emulator else {}
        return proof, _Measured(
            target=program.toolchain.name,
            description=program.description,
            code=size.code,
            constants=size.constants,
            flash=size.flash,
            ram=size.ram,
            **counts,
        )


def _counts(program: Program) -> dict[str, int]:
    """The instructions and the stack of one run on zeros, by integers."""
    import numpy as np

    is_quantized = any(edge.tensor is not None for edge in (*program.folder.inputs, *program.folder.outputs))
    layouts = {edge.name: edge.layout(quantized=is_quantized) for edge in program.folder.inputs}
    zeros = {name: np.zeros(layout.shape, layout.dtype) for name, layout in layouts.items()}
    return {
        "instructions": program.instructions(zeros, quantized=is_quantized),
        "stack": program.stack(zeros, quantized=is_quantized),
    }


def _show(folder: Path, measured: _Measured | None, proof: CProof | None, *, as_json: bool) -> None:
    import json

    from linger.c.exported_folder import MANIFEST

    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    if as_json:
        say_result("c", _content(folder, manifest, measured, proof))
        return
    from linger.records.rich_table import table

    is_given = manifest["arena"] == "caller"
    rows = [
        ("functions", ", ".join(_functions(manifest))),
        ("arena", f"{manifest['arena_bytes']:,} bytes{', given with every call' if is_given else ''}"),
        ("weights", f"{manifest['weight_bytes']:,} bytes{'' if manifest['weights'] is None else ', a file'}"),
    ]
    if manifest["states"]:
        rows.append(("state", f"{manifest['state_bytes']:,} bytes for each stream"))
    if measured is not None:
        rows += [
            ("built by", measured.description),
            (
                "flash",
                f"{measured.flash:,} bytes, {measured.code:,} of them code"
                + ("" if manifest["weights"] is None else "; without the file of weights"),
            ),
            ("RAM", f"{measured.ram:,} bytes, without {', '.join(_callers_memory(manifest))} and stack"),
        ]
        rows += [] if measured.stack is None else [("stack", f"{measured.stack:,} bytes")]
        rows += [] if measured.instructions is None else [("instructions", f"{measured.instructions:,} for one run")]
    console().print(table(f"{folder}", ("what", "value"), rows))
    for line in cut_lines(manifest):
        say(line)
    if proof is not None and proof.ok:
        say(proof.summary())


def cut_lines(manifest: dict[str, Any]) -> list[str]:
    """Where a part of a file begins and ends, and what stays outside; nothing for a whole file."""
    cut = manifest.get("cut")
    if cut is None:
        return []
    takes, gives = (listing(map(_edge_text, manifest[side])) for side in ("inputs", "outputs"))
    outside = listing(map(printable, cut["outside"]), limit=5)
    return [f"This is a part of the file: it takes {takes} and gives {gives}.", f"Outside, for the caller: {outside}."]


def _edge_text(edge: dict[str, Any]) -> str:
    """A tensor at an edge, with its integers: `y (int8[1, 10], scale 16)`."""
    inner = edge["quantized"] or edge
    scale = "" if edge["quantized"] is None else f", scale {edge['quantized']['scale']:g}"
    return f"{printable(edge['name'])} ({inner['type']}{edge['shape']}{scale})"


def _callers_memory(manifest: dict[str, Any]) -> list[str]:
    """What is no variable of the program."""
    arena = ["arena"] if manifest["arena"] == "caller" else []
    return [*arena, *(["state"] if manifest["states"] else []), "inputs", "outputs"]


def _functions(manifest: dict[str, Any]) -> list[str]:
    name, verb = manifest["name"], "step" if manifest["states"] else "run"
    edges = (*manifest["inputs"], *manifest["outputs"])
    integers = [f"{name}_{verb}_q"] if any(edge["quantized"] is not None for edge in edges) else []
    return [*([f"{name}_reset"] if manifest["states"] else []), f"{name}_{verb}", *integers]


def _content(
    folder: Path, manifest: dict[str, Any], measured: _Measured | None, proof: CProof | None
) -> dict[str, Any]:
    from linger.records.table import picked

    return {
        "folder": folder,
        "name": manifest["name"],
        "functions": _functions(manifest),
        "files": sorted([*manifest["files"], "manifest.json"]),
        **{key: manifest[key] for key in ("arena_bytes", "arena_least", "weight_bytes", "state_bytes")},
        "cut": manifest.get("cut"),
        "measured": measured,
        "proof": None
        if proof is None
        else picked(proof, "ok summary witness samples tensors elements differing missing rows"),
    }
