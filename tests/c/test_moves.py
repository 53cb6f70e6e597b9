"""Standard nodes that only move elements: as maps, as loops of C, as memory that needs no step."""

import numpy as np
import pytest

from linger.c import build, export, prove
from linger.c.moves import move_function, parts_of
from linger.c.network import load_network
from linger.c.steps import make_plan
from linger.numeric.c.nodes import Tables
from tests.support.c_compiler import require_compiler
from tests.support.dialect_text import quantizing

MOVES = {
    "turned": ("int8[1,6,4,3]", "Transpose <perm = [0, 3, 1, 2]> (w)"),
    "sliced": ("int8[1,4,2,3]", "Slice (w, starts, ends, axes, steps)"),
    "first": ("int8[1,1,3,6]", None),
    "rest": ("int8[1,3,3,6]", None),
    "joined": ("int8[1,9,3,6]", "Concat <axis = 1> (w, w, first)"),
    "picked": ("int8[1,4,2,6]", "Gather <axis = 2> (w, chosen)"),
    "spread": ("int8[2,4,3,6]", "Expand (w, sizes)"),
    "tiled": ("int8[1,8,3,12]", "Tile (w, often)"),
    "bordered": ("int8[1,4,5,7]", "Pad (w, pads, value)"),
    "zeros": ("int8[1,4,5,7]", "Pad (w, pads)"),
    "mirrored": ("int8[1,4,5,7]", 'Pad <mode = "reflect"> (w, pads)'),
    "blocked": ("int8[1,1,6,12]", "DepthToSpace <blocksize = 2> (w)"),
    "unblocked": ("int8[1,16,3,3]", None),
    "flat": ("int8[8,9]", "Reshape (w, shape)"),
}
EXTRA = (
    "int64[2] starts = {2, -1}, int64[2] ends = {0, -7}, int64[2] axes = {2, 3}, int64[2] steps = {-1, -2}, "
    "int64[2] split = {1, 3}, int64[2] chosen = {2, 0}, int64[4] sizes = {2, 4, 3, 6}, int64[4] often = {1, 2, 1, 2}, "
    "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 0}, int8 value = {-7}, int64[2] shape = {8, 9}, "
    "int64[4] even = {1, 4, 6, 6}, int64[4] kernel = {1, 1, 1, 1}"
)
BODY = """
    q = Q16(x)
    w = thinker.MaxPool <kernel_shape = [1, 1], strides = [1, 1], pads = [0, 0, 0, 0], dilations = [1, 1], ceil_mode = 0> (q)
    first, rest = Split <axis = 1> (w, split)
    doubled = Concat <axis = 2> (w, w)
    unblocked = SpaceToDepth <blocksize = 2> (doubled)
"""


def every_move():
    lines = "".join(f"    {name} = {op}\n" for name, (_, op) in MOVES.items() if op is not None)
    outputs = ", ".join(f"{kind} {name}" for name, (kind, _) in MOVES.items())
    return quantizing(BODY + lines, inputs="float[1,4,3,6] x", outputs=outputs, extra=f"<{EXTRA}>")


def test_every_move_gives_the_numbers_of_the_reference(tmp_path):
    require_compiler()
    model = every_move()
    with build(export(model, tmp_path / "c")) as program:
        found = prove(program, model, samples=3)
    assert found.ok, found.summary()
    assert {row.name for row in found.rows} >= set(MOVES)


def test_reshapes_and_transposes_of_what_lies_in_memory_are_no_steps():
    plan = make_plan(load_network(every_move()))
    assert "turned" in plan.aliases  # channels are innermost already
    assert plan.layouts["turned"].order == (0, 3, 1, 2)
    assert "flat" not in plan.aliases  # its rows are spread over memory
    assert plan.aliases.keys().isdisjoint({"sliced", "joined", "bordered", "blocked"})


def test_a_map_of_boxes_is_found():
    places = np.arange(24).reshape(4, 6)
    joined = np.concatenate([places[:2], places[3:, :], places[:1]])
    (whole,) = parts_of(places, [24])
    assert (whole.first, whole.steps) == (0, (6, 1))
    (table,) = parts_of(joined, [24])
    assert table.steps == ((0, 6, 18, 0), 1)
    assert [p.source for p in parts_of(np.concatenate([places[:2], places[:2] + 24]), [24, 48])] == [0, 1]


def test_a_map_that_no_axis_explains_is_none():
    assert parts_of(np.array([[0, 1], [3, 2]]), [4]) is None


@pytest.mark.parametrize(
    ("places", "size", "loops"),
    [
        (
            [[0, 1], [3, 2]],
            4,
            ["for (int32_t i0 = 0; i0 < 4; i0++) {", "out_0[i0] = in_0[(int32_t)linger_table_0[i0]];"],
        ),
        ([[4, 5], [2, 3]], 6, ["i0 < 2", "i1 < 2", "out_0[i0 * 2 + i1] = in_0[4 + i0 * -2 + i1];"]),
        ([[1, 2], [3, 4]], 9, ["i0 < 4", "out_0[i0] = in_0[1 + i0];"]),  # one run
        ([[-1, -1]], 2, ["(void)in_0;", "i0 < 2", "out_0[i0] = 7;"]),
    ],
    ids=["no sum of axes", "axes", "one run", "a value"],
)
def test_a_map_becomes_the_fewest_loops(places, size, loops):
    tables = Tables()
    text = move_function("move", np.array(places), [("int8_t", size)], "int8_t", tables, "7")
    assert text.startswith("static void move(const int8_t *in_0, int8_t *out_0) {")
    at = [text.find(part) for part in loops]
    assert -1 not in at, text
    assert at == sorted(at)
    assert text.count("for (") == sum("< " in part for part in loops)
