# SPDX-License-Identifier: Apache-2.0
"""linger c: a network as C, built for a target and proven there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linger.cli import say, say_result, say_table
from linger.cli.arguments.options import Json, Machine, Overwrite, Seed, one_of
from linger.errors import UsageError, VerificationError, listing, printable, refuse_if

if TYPE_CHECKING:
    from linger.c.program import Program
    from linger.c.proof import CProof


_Arena = Literal["static", "caller"]
_Layout = Literal["file", "nhwc"]
_Weights = Literal["c", "file"]
_Framework = Literal["zephyr", "esp-idf", "arduino"]


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
    arena: Annotated[_Arena, typer.Option(help="The program's own memory, or given with every call.")] = "static",
    layout: Annotated[
        _Layout, typer.Option(help="Images at the edges as in the file, or channels innermost.")
    ] = "file",
    weights: Annotated[_Weights, typer.Option(help="Compiled, or a file beside the program.")] = "c",
    framework: Annotated[_Framework | None, typer.Option(help="The folder as a module or library of it.")] = None,
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
    overwrite: Overwrite = False,
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
    samples, is_built = batches or samples, prove or target is not None
    refuse_if(samples is not None and not prove, "c: --batches belongs to --prove. Add --prove, or leave it out.")
    if is_built:  # what is missing is said before anything is written
        chain = toolchain(target)
        chain.find_compiler(cc)
        chain.require_emulator()
    elif cc is not None:
        raise UsageError("c: --cc names a compiler, and nothing is built. Add --target or --prove, or leave it out.")
    written = export(
        model,
        folder,
        name=name,
        arena=arena,
        layout=layout,
        weights=weights,
        framework=framework,
        stream=stream,
        time=_axes(_parted("--time", "x=1", time)),
        pairs=_parted("--pairs", "hn=h0", pairs),
        certificate=certificate,
        cut=cut,
        overwrite=overwrite,
    )
    proof, measured = None, None
    if is_built:
        proof, measured = _built(model, written, target, cc, samples, seed, is_proven=prove)
    _show(written, measured, proof, as_json=as_json)
    if proof is not None and not proof.ok:
        raise VerificationError(f"{written}: {proof.summary()}")


def _parted(option: str, example: str, values: list[str] | None) -> dict[str, str] | None:
    """The two sides of values such as x=1; a name may hold the sign, too, before the last one. None without values."""
    parts = [value.rpartition("=") for value in values or []]
    wrong = [printable("".join(part)) for part in parts if not all(part)]
    refuse_if(wrong, f"c: {option} {listing(wrong)}: expected a name, = and what it is given, as in {example}.")
    result = {name: value for name, _, value in parts}
    if len(result) < len(parts):
        names = listing(printable(name) for name, _, _ in parts)
        raise UsageError(f"c: {option} names {names}: expected each name once.")
    return result or None


def _axes(texts: dict[str, str] | None) -> dict[str, int] | None:
    axes = {}
    for name, text in (texts or {}).items():
        try:
            axes[name] = int(text)
        except ValueError:
            where = printable(f"{name}={text}")
            raise UsageError(f"c: --time {where}: the axis is no number. Use --time x=1.") from None
    return axes or None


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
    is_given, is_file = manifest["arena"] == "caller", manifest["weights"] is not None
    rows = [
        ("functions", ", ".join(_functions(manifest))),
        ("arena", f"{manifest['arena_bytes']:,} bytes{', given with every call' * is_given}"),
        ("weights", f"{manifest['weight_bytes']:,} bytes{', a file' * is_file}"),
    ]
    if manifest["states"]:
        rows.append(("state", f"{manifest['state_bytes']:,} bytes for each stream"))
    if measured is not None:
        code = f"{measured.code:,} of them code{'; without the file of weights' * is_file}"
        outside = ["arena"] * is_given + ["state"] * bool(manifest["states"]) + ["inputs", "outputs"]
        rows += [
            ("built by", measured.description),
            ("flash", f"{measured.flash:,} bytes, {code}"),
            ("RAM", f"{measured.ram:,} bytes, without {', '.join(outside)} and stack"),
        ]
        rows += [] if measured.stack is None else [("stack", f"{measured.stack:,} bytes")]
        rows += [] if measured.instructions is None else [("instructions", f"{measured.instructions:,} for one run")]
    say_table(f"{folder}", ("what", "value"), rows)
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


def _functions(manifest: dict[str, Any]) -> list[str]:
    edges = (*manifest["inputs"], *manifest["outputs"])
    verbs = ["reset", "step"] if manifest["states"] else ["run"]
    verbs += [f"{verbs[-1]}_q"] * any(edge["quantized"] is not None for edge in edges)
    return [f"{manifest['name']}_{verb}" for verb in verbs]


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
