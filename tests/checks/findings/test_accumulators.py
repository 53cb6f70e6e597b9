"""What accumulators and outputs can reach, worked out by hand."""

import numpy as np
import onnx_ir as ir
import pytest

import linger
from linger.checks.findings.parameters import _Accumulator, accumulator_findings, row_sums
from linger.checks.findings.structure import places_of
from tests.support.check_cases import text_model
from tests.support.onnx_text import parse


@pytest.fixture
def place():
    return next(places_of(parse("[n] y = Abs(x)").graph))


def layer(weights, bias, dtype=np.int8, **changes):
    weights = np.asarray(weights, dtype)
    settings = {"data_bits": 8, "output_bits": 8, "ratio": None, "bias_name": "b"} | changes
    return _Accumulator(sums=row_sums(ir.tensor(weights), len(weights)), bias=np.asarray(bias, np.int64), **settings)


def found(place, made):
    return [(f.rule, f.reason) for f in accumulator_findings(place, made)]


def test_the_bound_is_the_sum_of_magnitudes_times_the_reach_and_the_bias():
    # channel 0: (3 + 2)·128 + 7 = 647; channel 1: (128 + 127)·128 + 100 = 32740
    made = layer([[3, -2], [-128, 127]], [7, -100])
    assert made.bounds() == [647, 32740]
    # 16 bits: (3 + 2)·32768 + 7
    assert layer([[3, -2], [-128, 127]], [7, -100], data_bits=16).bounds()[0] == 163847


def test_the_ends_are_reached_by_some_input():
    # x in −128 … 127; 3·x0 − 2·x1 + 7: at most 3·127 + 2·128 + 7 = 644, at least −3·128 − 2·127 + 7 = −631
    smallest, largest = layer([[3, -2]], [7]).ends()
    assert (smallest, largest) == ([-631], [644])


@pytest.mark.parametrize(
    ("bias", "rule"),
    [(16777215 - 640, None), (16777216 - 640, "LGR502"), (2**31 - 1 - 640, "LGR502"), (2**31 - 640, "LGR501")],
)
def test_limits_are_met_exactly(place, bias, rule):
    # |3| + |−2| = 5, 5·128 = 640
    assert [r for r, _ in found(place, layer([[3, -2]], [bias]))] == ([] if rule is None else [rule])


def test_overflow_names_the_worst_channel_and_the_number(place):
    made = layer([[1, 0], [100, 0], [-128, 0]], [2**31 - 1, 2**31 - 1, -(2**31) + 1])
    # 128·128 + 2^31 − 1 = 16384 + 2147483647
    assert found(place, made)[0] == (
        "LGR501",
        "the bound Σ|w|·128 + |b| of channel 2 is 2147500031; a 32-bit accumulator ends at 2147483647 (3 channels are above it)",
    )


def test_wide_numbers_do_not_wrap_in_the_bound_itself(place):
    # 4 weights of −2^31 times 2^31: 2^64
    made = layer([[-(2**31)] * 4], [0], np.int32, data_bits=32, output_bits=32)
    assert made.bounds() == [2**64]
    assert [rule for rule, _ in found(place, made)] == ["LGR501"]


@pytest.mark.parametrize("end", [2**31 - 1, -(2**31)])
def test_a_bias_at_the_end_was_cut_off(place, end):
    assert ("LGR504", f"'b' is {end} at channel 1, the end of int32") in found(place, layer([[0], [0]], [0, end]))
    assert "LGR504" not in [rule for rule, _ in found(place, layer([[0], [0]], [0, end - np.sign(end)]))]


@pytest.mark.parametrize(
    ("bias", "is_stuck"),
    [
        # 10·x + b with ratio 1/64: at least (−1280 + b)/64, saturated for every x once that rounds to 128: 127.5·64 = 8160
        (9439, False),
        (9440, True),
        # at most (1270 + b)/64, below −128 once it rounds to −129: −128.5·64 = −8224, which rounds up to −128
        (-9494, False),
        (-9495, True),
    ],
)
def test_a_channel_that_no_input_moves(place, bias, is_stuck):
    rules = [rule for rule, _ in found(place, layer([[10]], [bias], ratio=1 / 64))]
    assert ("LGR505" in rules) == is_stuck


def test_the_stuck_channels_are_counted_and_the_first_is_named(place):
    made = layer([[10], [1], [1]], [0, 100000, -99999], ratio=1 / 64)
    # (100000 − 128)/64 = 1560.5, which rounds up; (100000 + 127)/64 = 1564.48…
    assert found(place, made) == [
        ("LGR505", "channel 1 is 127 for every input: it could only reach 1561 to 1564 (2 channels are so)")
    ]


@pytest.mark.parametrize(("weight", "is_idle"), [(31, True), (32, False)])
def test_half_of_the_range_is_never_reached(place, weight, is_idle):
    # at most w·128/64 = 2·w: 62 of 127 leaves a bit idle, 64 does not
    reasons = dict(found(place, layer([[weight]], [0], ratio=1 / 64)))
    assert ("LGR506" in reasons) == is_idle
    if is_idle:
        assert reasons["LGR506"] == "no input brings the output beyond ±62 of 127"


def test_idle_range_is_no_news_for_wide_outputs_gates_and_the_finest_scale(place):
    idle = {"ratio": 1 / 64}
    assert found(place, layer([[1]], [0], **idle | {"output_bits": 32})) == []
    assert found(place, layer([[1]], [0], is_gate=True, **idle)) == []
    assert found(place, layer([[0]], [0], ratio=1.0)) == []  # scale_o cannot be finer than the product's
    assert [rule for rule, _ in found(place, layer([[1]], [0], **idle))] == ["LGR506"]


def test_a_layer_without_channels(place):
    assert found(place, layer(np.zeros((0, 3)), [], ratio=1 / 64)) == []


def test_unsigned_data_reach_twice_as_far_and_never_below_zero():
    made = layer([[3, -2]], [7], is_unsigned=(True, False))
    # (3 + 2)·255 + 7 = 1282; 3·x0 − 2·x1 + 7 with x in 0 … 255: at least −510 + 7, at most 765 + 7
    assert made.bounds() == [1282]
    assert made.ends() == ([-503], [772])


@pytest.mark.parametrize(
    ("bias", "is_stuck"),
    [
        # 10·x + b with ratio 1/64, x in −128 … 127: at most (1270 + b)/64, below 0 once it rounds to −1
        (-1302, False),
        (-1303, True),
        # at least (−1280 + b)/64, above 255 once it rounds to 256: 255.5·64 = 16352
        (17631, False),
        (17632, True),
    ],
)
def test_an_unsigned_output_saturates_at_its_own_ends(place, bias, is_stuck):
    rules = [rule for rule, _ in found(place, layer([[10]], [bias], ratio=1 / 64, is_unsigned=(False, True)))]
    assert ("LGR505" in rules) == is_stuck


@pytest.mark.parametrize(("weight", "is_idle"), [(64, True), (65, False)])
def test_half_of_an_unsigned_range_is_never_reached(place, weight, is_idle):
    # w·127/64 rounds to 127 for w = 64, and to 129 for 65; half of the range begins at 128
    reasons = dict(found(place, layer([[weight]], [0], ratio=1 / 64, is_unsigned=(False, True))))
    assert reasons.get("LGR506") == ("no input brings the output beyond 127 of 255" if is_idle else None)


def test_each_channel_ends_at_its_own_scale(place):
    # channel 1 is shifted 3 bits further: (100000 ± 128)/512 is 195, still above 127; (50000 ± 128)/512 is 98
    made = [layer([[10], [1]], [0, bias], ratio=np.array([1 / 64, 1 / 512])) for bias in (100000, 50000)]
    assert [found(place, each) for each in made] == [
        [("LGR505", "channel 1 is 127 for every input: it could only reach 195 to 196")],
        [],
    ]


CONV = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0, kernel_shape=[1, 1]"
CONV += ", strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], group=1"
MADE = "thinker.Requant<data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0, o_unsigned=1>(x)"


def of_file(extension, source):
    body = f"[s] s = {source} [l] y = thinker.Conv2dInt<{CONV}{extension}>(s, w, b)"
    model = text_model(
        body,
        inputs="int8[1,1,4,4] x",
        outputs="int8[1,2,4,4] y",
        extra="<int8[2,1,1,1] w = {10, 1}, int32[2] b = {0, 50000}>",
    )
    return {f.rule: f.reason for f in linger.check(model).findings if f.node == "l (Conv2dInt)"}


def test_a_file_says_what_its_channels_and_data_are():
    # (50000 − 128)/64 = 779.25 and (50000 + 127)/64 = 783.2; with an exponent of 3 (50000 ± 128)/512 lies within 127
    reach = "channel 1 is 127 for every input: it could only reach 779 to 783"
    assert of_file("", "Relu(x)")["LGR505"] == reach
    assert of_file(", exponents_w=[3, 0]", "Relu(x)")["LGR505"] == reach
    assert "LGR505" not in of_file(", exponents_w=[0, 3]", "Relu(x)")
    # unsigned data: 50000/64 = 781.25 and (50000 + 255)/64 = 785.2
    for source in (MADE, f"{MADE.replace('(x)', '(r)')} [r] r = Relu(x)", f"Relu(r) [r] r = {MADE}"):
        assert of_file("", source)["LGR505"] == "channel 1 is 127 for every input: it could only reach 781 to 785"
    assert (
        of_file(", o_unsigned=1", MADE)["LGR505"] == "channel 1 is 255 for every input: it could only reach 781 to 785"
    )
