"""Networks as C programs: exported, compiled with every warning as an error, and compared tensor by tensor with numpy."""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from linger.c import Program, build, export
from linger.c.network import load_network, value_names
from linger.graph import load
from linger.graph.files.model_io import ModelLike
from linger.runtime.reference import Reference
from linger.verification.feeds import spread_feeds
from tests.support.c_compiler import STRICT
from tests.support.streams import dialect, network, recurrent

Arrays = Mapping[str, np.ndarray]
FLAGS = ("-O1", *STRICT)
MOST_ARENA = 1.05
"""How much larger than the lower bound an arena may be."""

_SIZES = ("Shape", "Size")

QUANTIZED = (np.int8, np.int16, np.int32)
"""Tensors of these types must be shown; real ones, and wide integers, need not be there any more."""


@dataclass(frozen=True)
class Proof:
    """What comparing a program with the numpy reference of the file has found.

    Attributes:
        tensors: How many tensors were compared, each once.
        integers: How many elements were compared, over all samples; the outputs of both builds count.
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
    reference = Reference(model)
    prepared = network.reference  # has tensors that are new: a Quant that was moved before a Pad, say
    wanted = [
        {**sample, **prepared.intermediates(dict(sample)), **reference.intermediates(dict(sample))}
        for sample in samples
    ]
    with build(folder, cc, target=target, flags=flags) as program:
        return compared(program, samples, wanted, _data(load(model), network.constants), seconds)


def prove_stream(
    model: ModelLike, folder: Path, steps: Sequence[Arrays], states: Mapping[str, str], **options
) -> Proof:
    """The same for a file that is one step of a stream: the program carries its states, the reference is given them.

    `states` names the output that each input of the file takes from the step before; all begin with zeros.
    """
    begin = time.process_time()
    export(model, folder, stream=0)
    seconds = time.process_time() - begin
    loaded, reference = load(model), Reference(model)
    shapes = {str(v.name): v.shape.numpy() for v in loaded.graph.inputs if v.name in states and v.shape is not None}
    carried = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    wanted = []
    for step in steps:
        wanted.append({**step, **carried, **reference.intermediates({**step, **carried})})
        carried = {name: wanted[-1][output] for name, output in states.items()}
    data = _data(loaded, load_network(model).constants)
    with build(folder, flags=FLAGS, **options) as program:
        return compared(program, steps, wanted, data, seconds)


def compared(
    program: Program,
    samples: Iterable[Arrays],
    wanted: Sequence[Arrays],
    data: Collection[str] = (),
    seconds: float = 0.0,
) -> Proof:
    """Compare every tensor that a proof build shows, and the outputs of the build without proof; `data` must be shown."""
    samples = list(samples)
    shown, plain = program.intermediates_many(samples), program.run_many(samples)
    wrong: dict[str, list[int]] = {}
    names: set[str] = set()
    integers = 0
    for found, outputs, wants in zip(shown, plain, wanted, strict=True):
        names |= found.keys()
        for name, array in [*found.items(), *outputs.items()]:
            if name in wants:
                integers += array.size
                wrong.setdefault(name, []).append(differing(array, wants[name]))
    counts = {name: sum(several) for name, several in sorted(wrong.items())}
    return Proof(
        len(names),
        integers,
        tuple(f"{name}: {count} in {len(samples)} samples" for name, count in counts.items() if count),
        tuple(
            sorted(name for name in set(data) - names if name not in wanted[0] or wanted[0][name].dtype in QUANTIZED)
        ),
        tuple(sorted(names - wanted[0].keys())),
        *figures(program.folder.path),
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
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest["arena_bytes"], manifest["arena_least"], manifest["weight_bytes"]


def differing(found: np.ndarray, wanted: np.ndarray) -> int:
    """How many elements are not the same; all of them where shape or type is another one."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return max(1, wanted.size)
    if found.dtype.kind == "f":  # the same bits: zeros have signs, and what is no number equals itself
        found, wanted = (np.ascontiguousarray(a).view(np.int32) for a in (found, wanted))
    return int((found != wanted).sum())


def assert_proven(proof: Proof, *, most_arena: float = MOST_ARENA) -> None:
    """Every tensor of the file was compared, none differs, and the arena is nearly as small as can be."""
    print(proof)  # noqa: T201 - shown when the test fails
    assert proof.differing == ()
    assert proof.missing == ()
    assert proof.unknown == ()
    assert proof.tensors > 0
    assert proof.integers > 0
    assert proof.arena <= max(16, most_arena * proof.least)


def with_fixed_input(
    path: Path, name: str, content: np.ndarray, shapes: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """A file whose input `name` is a constant, and whose other inputs have the sizes of `shapes`."""
    model = onnx.load(path)
    left = [value for value in model.graph.input if value.name != name]
    del model.graph.input[:]
    model.graph.input.extend(left)
    model.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
    for value in model.graph.input:
        element = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, element, shapes[value.name]))
    return model


def without_empty_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model without the outputs that are constants, sizes, or inputs as they are: there is nothing to compute."""
    given = {value.name for value in model.graph.input}
    known = set(given)
    for node in model.graph.node:
        if node.op_type not in _SIZES and known.intersection(node.input):
            known.update(node.output)
    left = [value for value in model.graph.output if value.name in known - given]
    del model.graph.output[:]
    model.graph.output.extend(left)
    return model


_KINDS = {"per tensor": (False, False), "per channel": (True, False), "per channel and unsigned": (True, True)}
NUMBER_SYSTEMS = tuple(_KINDS)
"""What `picture_network` and `voice_network` can be written in."""


class _Writer:
    """Writes layers of 8 bits in one number system; the same seed draws the same weights in each."""

    def __init__(self, g, numbers: str, seed: int) -> None:
        self.g, self.draw = g, np.random.default_rng(seed)
        self.has_exponents, self.is_unsigned = _KINDS[numbers]

    def exponents(self, count: int, name: str = "exponents_w") -> dict[str, list[int]]:
        """Different ones for neighbors, so that a shift of another channel is another number."""
        drawn = [int(e) for e in self.draw.permutation(np.arange(count) % 4)]
        return {name: drawn} if self.has_exponents else {}

    def product(self, op: str, x, shape, outputs: int, *, scale_o: float, is_unsigned=False, **settings):
        w = self.draw.integers(-100, 101, shape).astype(np.int8)
        b = self.draw.integers(-3000, 3000, outputs).astype(np.int32)
        exponents = self.exponents(outputs)
        scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": scale_o, **self.sign(is_unsigned=is_unsigned)}
        return dialect(self.g, op, x, w, b, **_WIDTHS, **scales, **exponents, **settings)

    def conv(self, x, channels: int, outputs: int, *, group=1, scale_o=0.5, is_unsigned=False):
        window = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": group}
        shape = (outputs, channels // group, 3, 3)
        y = self.product("Conv2dInt", x, shape, outputs, scale_o=scale_o, is_unsigned=is_unsigned, **window)
        return y if self.is_unsigned or not is_unsigned else self.g.op("Relu", y)

    def sign(self, *, is_unsigned: bool) -> dict[str, int]:
        return {"o_unsigned": 1} if is_unsigned and self.is_unsigned else {}


_WIDTHS = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}


def picture_network(numbers: str = NUMBER_SYSTEMS[-1], *, seed: int = 7, channels: int = 16, size: int = 8) -> ir.Model:
    """Every kind of layer with weights, and what reads unsigned numbers, in one of the number systems.

    Activations behind a ReLU are unsigned; their scale is the same in all number systems, so that the work is.
    """

    def build(g, image):
        n, c = _Writer(g, numbers, seed), channels
        x = dialect(g, "Quant", image, data_bits=8, scale_x=16.0)
        x = n.conv(x, 3, c, is_unsigned=True, scale_o=8.0)
        y = n.conv(x, c, c, group=c, is_unsigned=True, scale_o=4.0)
        z = n.conv(y, c, c, group=4, scale_o=1.0)
        unsigned = n.sign(is_unsigned=True)
        total = dialect(g, "iqAdd", x, z, scale_x=16.0, scale_y=16.0, scale_o=16.0, **unsigned)
        total = g.op("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2])
        pool = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "data_bits": 8, "o_bits": 8}
        mean = dialect(g, "AvgPool2dInt", y, **pool, **unsigned, scale_x=16.0, scale_o=16.0)
        scales = {"scale_x_0": 16.0, "scale_x_1": 16.0, "scale_o": 16.0}
        joined = dialect(g, "iqCat", total, mean, **scales, dim=1, **unsigned)
        window = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 2}
        shape = (2 * c, 3, 2, 2)
        more = {"output_padding": [0, 0], **window}
        large = n.product("ConvTranspose2dInt", joined, shape, 6, scale_o=2.0, **more)
        if n.is_unsigned:  # what takes signed numbers only has them at half the scale
            joined = dialect(g, "Requant", joined, data_bits=8, o_bits=8, scale_x=16.0, scale_o=8.0)
        scales = {"scale_x": 8.0, "scale_o": 256.0} if n.is_unsigned else {"scale_x": 16.0, "scale_o": 128.0}
        curve = dialect(g, "iqSigmoid", joined, **scales, **unsigned)
        flat = g.op("Flatten", curve, axis=1)
        scores = n.product("LinearInt", flat, (10, 2 * c * (size // 2) ** 2), 10, scale_o=0.125)
        return dialect(g, "Dequant", scores, scale_o=0.125), large

    inputs = f"float[1,3,{size},{size}] image"
    return network(build, inputs=inputs, outputs=f"float[1,10] scores; int8[1,6,{size},{size}] picture")


def voice_network(numbers: str = NUMBER_SYSTEMS[-1], *, op: str = "LSTMInt", seed: int = 3) -> ir.Model:
    """A Conv1d with a ReLU and a recurrent layer behind it, whose rows of gates have exponents."""

    def build(g, x):
        n = _Writer(g, numbers, seed)
        window = {"kernel_shape": [3], "strides": [1], "dilations": [1], "pads": [1, 1], "group": 1}
        y = n.product("Conv1dInt", x, (6, 4, 3), 6, scale_o=4.0, is_unsigned=True, **window)
        if n.is_unsigned:
            y = dialect(g, "Requant", y, data_bits=8, o_bits=8, scale_x=16.0, scale_o=8.0)
        y = g.op("Transpose", y, perm=[2, 0, 1])
        rows = (4 if op == "LSTMInt" else 3) * 5
        exponents = {**n.exponents(rows, "exponents_iw"), **n.exponents(rows, "exponents_hw")}
        return recurrent(g, y, n.draw, (6, 5), op=op, **exponents)[0]

    return network(build, inputs="int8[1,4,9] x", outputs="int8[9,1,5] y")
