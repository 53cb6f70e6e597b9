"""The C of recurrent layers: what of a step is computed once, and how many multiplications a sequence takes."""

import ctypes
import re
import subprocess

import numpy as np
import pytest

from linger.c import build, export, memory
from tests.support.c_compiler import require_compiler
from tests.support.c_networks import assert_proven, prove
from tests.support.c_targets import require_target
from tests.support.c_units import Input, Unit
from tests.support.ops import find_op
from tests.support.samples import arrays
from tests.support.streams import network, numbers, recurrent

OPS = {"LSTM": "LSTMInt", "GRU": "GRUInt"}
INPUT, HIDDEN = 6, 10
DIRECTIONS = {
    "forward": [{}],
    "backward": [{"go_forward": 0}],
    "both": [{}, {"go_forward": 0}],
    "forward, with a length": [{"lengths": 3}],
    "both, with a length": [{"lengths": 3}, {"lengths": 3, "go_forward": 0}],
}
ELEMENTWISE = 3
"""Multiplications for a number of the state: f·c, i·g, o·tanh; of a GRU r·h_n, n·128, z·(h − n)."""


def scratch(op, *, is_tiled):
    """The shapes of the arrays that the first sample of an op needs: five steps of two rows, with four numbers of state."""
    sample = op.samples[0]
    inputs = [None if x is None else Input(x.shape, str(x.dtype)) for x in arrays(sample)]
    unit = Unit(is_tiled=is_tiled)
    function = unit.add("f", op.body, op.arrange(inputs), op.complete(sample.attributes), title="f")
    return [buffer.shape for buffer in function.scratch]


@pytest.mark.parametrize(("name", "gates"), [("LSTMInt", 4), ("GRUInt", 3)], ids=["LSTM", "GRU"])
def test_tiles_keep_the_products_of_all_gates_of_one_step(name, gates):
    op = find_op(name)
    of_a_step = (2, 4 * gates)  # of the input, and of the state
    assert scratch(op, is_tiled=True) == [*scratch(op, is_tiled=False), of_a_step, of_a_step]


def layers(op, steps, directions, *, batch=1):
    """A network of one layer, whose directions are joined."""

    def build_graph(g, x):
        draw = np.random.default_rng(0)
        made = [recurrent(g, x, draw, (INPUT, HIDDEN), op=op, **options)[0] for options in directions]
        return g.op("Concat", *made, axis=2) if len(made) > 1 else made[0]

    sizes = f"[{steps},{batch},{INPUT}] x", f"[{steps},{batch},{HIDDEN * len(directions)}] y"
    return network(build_graph, inputs=f"int8{sizes[0]}", outputs=f"int8{sizes[1]}")


# counted multiplications

COUNTERS = """\
#include <stdint.h>
int32_t in_dots, elsewhere;
#define COUNTED(call, sums, pixels, outputs, x, x_pixel, runs, x_step, length, ...) \\
    (in_dots += (pixels) * (outputs) * (runs) * (length), \\
     call(sums, pixels, outputs, x, x_pixel, runs, x_step, length, __VA_ARGS__))
"""


def counted(line):
    """A line of C that counts its products: of a call for dot products, or those that are written in it."""
    if "linger_dots_" in line:
        return re.sub(r"(linger_dots_\w+)\(", r"COUNTED(\1, ", line)
    text, nested = line, 1
    while nested:
        text, nested = re.subn(r"\[[^][]*\]", "", text)  # what is multiplied there are sizes
    is_assignment = text.endswith(";") and " = " in text.replace(" += ", " = ") and "for (" not in text
    return f"{line} elsewhere += {text.count(' * ')};" if is_assignment else line


def multiplications(model, folder):
    """What one run takes: in calls for dot products, and elsewhere; without the straight pieces of curves."""
    path = export(model, folder, name="net") / "net.c"
    head, name, functions = path.read_text(encoding="utf-8").partition("static void step_0(")
    lines = (name + functions).splitlines()
    path.write_text("\n".join([head + COUNTERS, *map(counted, lines), ""]), encoding="utf-8")
    sources = ["net.c", "net_weights.c"]
    command = [require_compiler(), "-std=c99", "-O1", "-DLINGER_GENERIC", "-shared", "-fPIC", "-o", "net.so", *sources]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "net.so"))
    x = numbers(model, np.random.default_rng(1))["x"]
    y = np.zeros(x.size // INPUT * HIDDEN * 2, np.int8)
    library.net_run(*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)))
    return [ctypes.c_int32.in_dll(library, name).value for name in ("in_dots", "elsewhere")]


@pytest.mark.parametrize("directions", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.thin(every=2)
def test_a_sequence_takes_the_multiplications_of_its_steps(op, directions, tmp_path):
    gates = 4 if op == "LSTMInt" else 3
    for steps in (4, 8, 24):
        model = layers(op, steps, directions)
        of_steps = steps * (INPUT + HIDDEN) * gates * HIDDEN * len(directions)
        assert memory(model).macs == of_steps
        beside = steps * ELEMENTWISE * HIDDEN * len(directions)
        assert multiplications(model, tmp_path / str(steps)) == [of_steps, beside]


@pytest.mark.parametrize("directions", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.thin(every=2)
def test_every_tensor_is_the_files(op, directions, tmp_path):
    require_compiler()
    assert_proven(prove(layers(op, 7, directions), tmp_path / "c"))


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_rows_of_a_batch_share_a_step(op, tmp_path):
    require_compiler()
    assert_proven(prove(layers(op, 7, DIRECTIONS["both"], batch=3), tmp_path / "c"))


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_instructions_grow_with_the_steps_and_no_faster(op, tmp_path):
    require_target("cortex-m4")
    counts = []
    for steps in (4, 12, 20):
        model = layers(op, steps, DIRECTIONS["both"])
        feeds = numbers(model, np.random.default_rng(1))
        with build(export(model, tmp_path / str(steps)), target="cortex-m4") as program:
            counts.append(program.instructions(feeds))
    # curves search their straight pieces from the middle on, so a step takes more or fewer instructions by its numbers
    assert counts[2] - counts[1] == pytest.approx(counts[1] - counts[0], rel=0.15)


def test_what_a_step_keeps_does_not_grow_with_the_steps():
    few, many = (memory(layers("LSTMInt", steps, DIRECTIONS["forward"])) for steps in (8, 24))
    assert many.scratch_bytes - few.scratch_bytes == 16 * HIDDEN  # the results, a byte for each
