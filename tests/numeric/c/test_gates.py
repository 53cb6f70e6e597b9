"""Gate curves as straight pieces: exactly the table's numbers at every place, in C too, in a few hundred bytes."""

import dataclasses
import re

import numpy as np
import pytest

from tests.support.arithmetic import NumpyKernel, curves
from tests.support.c_compiler import SANITIZERS, call, checking_program, load, require_compiler, run_program
from tests.support.c_units import Input, Unit, kernel
from tests.support.comparison import difference
from tests.support.ops import find_op
from tests.support.samples import arrays

straight_pieces = kernel.straight_pieces  # as it is, whatever a test puts in its place

EVERY_INT16 = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)
GATES = np.stack([EVERY_INT16, EVERY_INT16], axis=1)
BIAS = np.zeros(2, np.int32)
CURVES = {"sigmoid": curves.gate_curves().sigmoid, "tanh": curves.gate_curves().tanh}


def gates_body(k, x, b):
    """Sigmoid of the first column and tanh of both, by the words that LSTMInt and GRUInt use."""
    kit = curves.GateKit(k, ("sigmoid", "tanh"), b)
    sigmoid, tanh = kit.activated(k.narrow(x))
    factor = k.narrow(k.scalar(128.0))  # a sigmoid comes as a factor
    return k.store(k.mul(sigmoid, factor), 8), k.store(tanh, 8), k.store(kit.tanh(k.narrow(x)), 8)


def written():
    """The C function of the gates."""
    unit = Unit()
    function = unit.add("gates", gates_body, [Input.of(GATES), Input.of(BIAS)], {}, title="gates")
    return unit, function


def expected():
    """What the tables say, by their definition."""
    tables = curves.gate_curves()
    place = np.clip(EVERY_INT16.astype(np.int64), tables.low, tables.high) - tables.low
    sigmoid, tanh = (np.array(curve, np.int8)[place][:, None] for curve in (tables.sigmoid, tables.tanh))
    return sigmoid, tanh, np.concatenate([tanh, tanh], axis=1)


def differences(folder):
    """Where compiled C differs from the tables, curve by curve."""
    unit, function = written()
    made = call(load(unit.source(), folder), function, [GATES, BIAS])
    return [difference(*pair) for pair in zip(made, expected(), strict=True)]


def wrong_places(pieces, values):
    """Where pieces give other numbers than the table, in Python's integers; the last one that has begun counts."""
    found = []
    for x, value in enumerate(values):
        piece = max((p for p in pieces if p.start <= x), key=lambda p: p.start)
        if (piece.slope * (x - piece.start) + piece.offset * 2**10) // 2**18 != value:
            found.append(x)
    return found


def test_the_reference_gives_the_tables():
    made = gates_body(NumpyKernel(), GATES, BIAS)
    assert [difference(*pair) for pair in zip(made, expected(), strict=True)] == [None, None, None]


def test_compiled_curves_equal_the_tables_at_every_input(tmp_path):
    require_compiler()
    assert differences(tmp_path) == [None, None, None]


@pytest.mark.parametrize("curve", CURVES)
def test_pieces_give_every_number_of_the_table(curve):
    assert wrong_places(straight_pieces(CURVES[curve]), CURVES[curve]) == []


@pytest.mark.parametrize("curve", CURVES)
def test_stored_numbers_have_16_bits_and_every_step_32(curve):
    values = CURVES[curve]
    pieces = straight_pieces(values)
    assert all(-(1 << 15) <= v < 1 << 15 for v in kernel.piece_array(pieces, len(values)))
    ends = [*(p.start for p in pieces[1:]), len(values)]
    for piece, end in zip(pieces, ends, strict=True):
        product, offset = piece.slope * (end - 1 - piece.start), piece.offset * 2**10
        assert max(abs(product), abs(offset), abs(product + offset)) < 1 << 31


def test_the_curves_need_300_bytes_and_no_64_bits():
    unit, function = written()
    tables = re.findall(r"static const (\w+) linger_table_\d+\[(\d+)\]", unit.source())
    assert {ctype for ctype, _ in tables} == {"int16_t"}
    assert sum(2 * int(size) for _, size in tables) <= 300
    helper = unit.source().partition("linger_pieces(")[2].partition("\n}\n")[0]
    assert "int64_t" not in function.text + helper


@pytest.mark.parametrize("name", ["LSTMInt", "GRUInt"])
def test_recurrent_layers_hold_no_long_table(name):
    op, unit = find_op(name), Unit()
    given = [Input.of(x, is_known=i > 0) for i, x in enumerate(arrays(op.samples[0]))]
    unit.add("layer", op.body, op.arrange(given), op.complete(op.samples[0].attributes), title=name)
    sizes = [int(size) for size in re.findall(r"linger_table_\d+\[(\d+)\] = ", unit.source())]
    assert len(sizes) == 2
    assert max(sizes) <= 80


# tables of other kinds


def test_a_table_of_two_lines_by_hand():
    # 0 … 99 rises by 1 in 10, then falls by 1 in 20: two pieces, the second from the place where the table turns
    values = (*(x // 10 for x in range(100)), *(9 - x // 20 for x in range(200)))
    pieces = straight_pieces(values)
    assert len(pieces) == 2
    assert wrong_places(pieces, values) == []


def test_a_line_may_begin_at_the_lowest_number_that_can_be_stored():
    # 20 steps of 13107 are 4 short of 2^18, so the offset may be no larger than −128·2^8, and no smaller in 16 bits
    values = tuple(-128 + (13107 * x >> 18) for x in range(400))
    (piece,) = straight_pieces(values)
    assert piece.offset == -(1 << 15)
    assert wrong_places([piece], values) == []


NOT_STRAIGHT = {
    "nothing": (),
    "short": (5,),
    "as long as its pieces": (0, 100, -100, 50, 3, 90) * 20,
    "beyond 8 bits": tuple(range(300)),
    "too many places for 16 bits": (0,) * 40000 + (1,) * 40000,
    "numbers that fit in 8 bits": (0,) * 100,
}


@pytest.mark.parametrize("values", NOT_STRAIGHT.values(), ids=NOT_STRAIGHT)
def test_other_tables_stay_tables(values):
    assert straight_pieces(values) == ()


@pytest.mark.parametrize("seed", range(5))
def test_curves_that_rise_at_random_are_exact(seed):
    draw = np.random.default_rng(seed)
    values = tuple(np.clip(np.cumsum(draw.random(3000) < 0.05) - 100, -128, 127).tolist())
    pieces = straight_pieces(values)
    assert len(pieces) > 1
    assert wrong_places(pieces, values) == []


def test_a_table_that_is_not_straight_is_read_in_c(tmp_path):
    require_compiler()
    values = NOT_STRAIGHT["as long as its pieces"]
    x = np.arange(len(values), dtype=np.int16)[:, None]

    def body(k, x):
        index = k.clip(k.narrow(x), k.scalar(0.0), k.scalar(len(values) - 1.0))
        return k.store(k.entries(k.table(values), k.scalar(0.0))(index), 8)

    unit = Unit()
    function = unit.add("read", body, [Input.of(x)], {}, title="table")
    assert "linger_pieces" not in unit.source()
    assert call(load(unit.source(), tmp_path), function, [x])[0][:, 0].tolist() == list(values)


# planted faults


FAULTS = {
    "a start is late": {"start": 40},
    "a slope is too steep": {"slope": 161},
    "an offset is a tenth of a unit too large": {"offset": 26},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("curve", CURVES)
def test_a_wrong_piece_is_caught(curve, fault, tmp_path, monkeypatch):
    require_compiler()

    def wrong(values):
        pieces = list(straight_pieces(values))
        if values == CURVES[curve]:
            middle = len(pieces) // 2
            changed = {name: getattr(pieces[middle], name) + by for name, by in fault.items()}
            pieces[middle] = dataclasses.replace(pieces[middle], **changed)
        return tuple(pieces)

    monkeypatch.setattr(kernel, "straight_pieces", wrong)
    is_right = [d is None for d in differences(tmp_path)]
    assert is_right == ([False, True, True] if curve == "sigmoid" else [True, False, False])


@pytest.mark.slow
def test_sanitizers_are_silent_at_every_input(tmp_path):
    require_compiler()
    unit, function = written()
    program = checking_program(unit.source(), [(function, [GATES, BIAS], expected())])
    done = run_program(program, tmp_path, *SANITIZERS)
    assert (done.stderr, done.returncode) == ("", 0)
