"""Networks as C programs: exported, compiled with every warning as an error, and compared tensor by tensor with numpy."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from linger.c.exporter import export
from linger.c.network import load_network, value_names
from linger.c.program import Program, build
from linger.graph.files.model_io import ModelLike, load
from linger.runtime.reference import Reference
from linger.verification.feeds import spread_feeds
from tests.support.c_compiler import STRICT

Arrays = Mapping[str, np.ndarray]
FLAGS = ("-O1", *STRICT)
_SIZES = ("Shape", "Size")
MOST_ARENA = 1.05
"""How much larger than the lower bound an arena may be."""


@dataclass(frozen=True)
class Proof:
    """What comparing a program with the numpy reference has found.

    Attributes:
        tensors: How many tensors were compared, each once.
        integers: How many elements were compared, over all samples.
        differing: Tensors with other elements, and how many of how many.
        missing: Tensors of the file that the program did not show.
        unknown: Tensors that it showed, and the file does not have.
        arena: Bytes of the arena.
        least: The lower bound of the arena.
        weights: Bytes of weights.
        seconds: Processor time of the export.
    """

    tensors: int
    integers: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    arena: int
    least: int
    weights: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.tensors} tensors, {self.integers} integers, {len(self.differing)} tensors differ, arena {self.arena} "
            f"(least {self.least}), weights {self.weights}, export {self.seconds:.1f} s"
        )


def prove(model, folder: Path, samples: Sequence[Arrays] | None = None, *, target=None, cc=None, flags=FLAGS) -> Proof:
    """Export a network, build it, and compare every tensor of every sample; without samples with three random ones."""
    begin = time.process_time()
    export(model, folder)
    seconds = time.process_time() - begin
    network = load_network(model)
    if samples is None:
        samples = spread_feeds(network.model, seed=5, batches=3)
    with build(folder, cc, target=target, flags=flags) as program:
        return compared(program, model, samples, network.constants, seconds)


def compared(
    program: Program, model: ModelLike, samples: Sequence[Arrays], constants: Collection[str] = (), seconds: float = 0.0
) -> Proof:
    """Compare every tensor of every sample with those of the file as it is, and the outputs of the build without proof."""
    samples, reference = list(samples), Reference(model)
    data = _data(load(model), constants)
    shown, plain = program.intermediates_many(samples), program.run_many(samples)
    wrong: dict[str, list[int]] = {}
    names: set[str] = set()
    missing: set[str] = set()
    unknown: set[str] = set()
    integers = 0
    for sample, found, outputs in zip(samples, shown, plain, strict=True):
        wanted = {**sample, **reference.intermediates(dict(sample))}
        names |= found.keys()
        unknown |= found.keys() - wanted.keys()
        missing |= data - found.keys()
        for name, array in [*found.items(), *outputs.items()]:
            if name in wanted:
                integers += array.size
                count = differing(array, wanted[name])
                if count:
                    wrong.setdefault(name, []).append(count)
    folder = program.folder
    return Proof(
        len(names),
        integers,
        tuple(f"{name}: {sum(counts)} in {len(counts)} samples" for name, counts in sorted(wrong.items())),
        tuple(sorted(missing)),
        tuple(sorted(unknown)),
        *figures(folder.path),
        seconds,
    )


def _data(model: ir.Model, constants: Collection[str]) -> set[str]:
    """The tensors of a file whose content decides the outputs, without constants; of some only the size matters."""
    wanted = set(value_names(model.graph.outputs))
    for node in reversed(list(model.graph)):
        if node.op_type not in _SIZES and not wanted.isdisjoint(value_names(node.outputs)):
            wanted |= {*value_names(node.inputs), *value_names(node.outputs)}
    fixed = {*constants, *model.graph.initializers}
    for node in model.graph:
        if node.op_type in _SIZES or fixed.issuperset(value_names(node.inputs)):
            fixed.update(value_names(node.outputs))
    return wanted - fixed - set(value_names(model.graph.inputs))


def figures(folder: Path) -> tuple[int, int, int]:
    """Bytes of the arena, its lower bound, and bytes of weights, as the manifest of a folder states them."""
    import json

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest["arena_bytes"], manifest["arena_least"], manifest["weight_bytes"]


def differing(found: np.ndarray, wanted: np.ndarray) -> int:
    """How many elements are not the same; all of them where shape or type is another one."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return max(1, wanted.size)
    if found.dtype.kind == "f":  # the same bits: zeros have signs, and numbers that are none are equal
        return int((found.view(np.int32) != wanted.view(np.int32)).sum())
    return int((found != wanted).sum())


def assert_proven(proof: Proof, *, tensors: int = 1) -> None:
    """Every tensor of the file was compared, none differs, and the arena is as small as it can be, nearly."""
    assert proof.differing == ()
    assert proof.missing == ()
    assert proof.unknown == ()
    assert proof.tensors >= tensors
    assert proof.integers > 0
    assert proof.arena <= max(16, MOST_ARENA * proof.least)
