"""Every op × sample as compiled C: exactly the numbers of NumpyKernel, or a refusal that is listed here with its reason.

Each sample is written twice: with its constants known, which tightens the intervals, and with none known. Agreement is not
correctness: a few numbers are worked out by hand, and planted faults show that the comparison sees them.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import numpy as np
import pytest

from linger.errors import UnsupportedError, UsageError
from tests.support.arithmetic import NumpyKernel, fixed
from tests.support.c_compiler import SANITIZERS, call, checking_program, load, require_compiler, run_program
from tests.support.c_units import CFunction, Input, Scope, Unit, kernel, nodes, products, rules
from tests.support.comparison import difference
from tests.support.ops import find_op
from tests.support.samples import arrays, every_op, title

REFUSED: dict[str, str] = {}
"""Samples that have no C, whether their constants are known or not, and why."""

REFUSED_OPEN = {
    f"iqAdaptiveAvgPool: {sample.name}": "a table of 32 numbers is read at indices"
    for sample in find_op("iqAdaptiveAvgPool").samples
}
"""Samples that have C only where their constants are known: the areas of windows come from matrices."""

NEEDED = {"iqPad": (1,)}
"""Inputs that must be known, by their place: the pads decide the shape of the result."""

CHOSEN = {"Gather": (1,), "iqPad": (1,), "iqAdaptiveAvgPool": (1, 2), "iqInterpolate": (1, 2)}
"""Inputs that are places or choices, not data, so that extremes make no sense."""


@dataclass(frozen=True)
class Case:
    """One function with the inputs that it is called with."""

    name: str
    function: CFunction
    inputs: list
    attributes: dict


@dataclass
class Built:
    """The functions of an op's samples in one file; those written without known constants are `open`."""

    unit: Unit = field(default_factory=Unit)
    cases: list[Case] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    refused_open: dict[str, str] = field(default_factory=dict)


def write(built, op, sample, name, *, is_known):
    """Add the function of one sample, or note why there is none."""
    given = arrays(sample)
    needed = NEEDED.get(op.name, ())
    declared = [
        None if x is None else Input.of(x, is_known=i in needed or (is_known and i > 0)) for i, x in enumerate(given)
    ]
    attributes, what = op.complete(sample.attributes), f"{title(op)}: {sample.name}"
    try:
        function = built.unit.add(name, op.body, op.arrange(declared), attributes, title=what)
    except UnsupportedError as error:
        (built.refused if is_known else built.refused_open)[what] = str(error)
        return
    built.cases.append(Case(f"{what} ({name})", function, op.arrange(given), attributes))


def build(op, samples=None) -> Built:
    """C for samples of an op, by default all of them."""
    built = Built()
    for number, sample in enumerate(op.samples if samples is None else samples):
        write(built, op, sample, f"known_{number}", is_known=True)
        if len(sample.inputs) > 1:
            write(built, op, sample, f"open_{number}", is_known=False)
    return built


@cache
def built_op(op) -> Built:
    """The same, once for all tests of this process."""
    return build(op)


def reference(op, inputs, attributes):
    """All outputs of the reference."""
    results = op.body(NumpyKernel(), *inputs, **attributes)
    return results if isinstance(results, tuple) else (results,)


def mismatches(op, cases, library):
    """Where compiled functions differ from the reference."""
    found = []
    for case in cases:
        expected = reference(op, case.inputs, case.attributes)
        made = call(library, case.function, case.inputs)
        assert len(made) == len(expected)
        differences = [difference(*pair) for pair in zip(made, expected, strict=True)]
        found += [f"{case.name}: {d}" for d in differences if d is not None]
    return found


@pytest.mark.parametrize("op", every_op(), ids=title)
@pytest.mark.thin(every=4)
def test_compiled_c_equals_numpy(op, tmp_path):
    require_compiler()
    built = built_op(op)
    known = [case for case in built.cases if case.function.name.startswith("known")]
    assert len(known) + len(built.refused) == len(op.samples)
    assert mismatches(op, built.cases, load(built.unit.source(), tmp_path)) == []


def test_every_refusal_is_listed_with_its_reason():
    refused = {name: why for op in every_op() for name, why in built_op(op).refused.items()}
    refused_open = {name: why for op in every_op() for name, why in built_op(op).refused_open.items()}
    assert set(refused) == set(REFUSED)
    assert set(refused_open) == set(REFUSED) | set(REFUSED_OPEN)
    for name, why in (*refused.items(), *refused_open.items()):
        expected = REFUSED.get(name) or REFUSED_OPEN[name]
        assert why.startswith(f"{name}: ")
        assert expected in why


@pytest.mark.parametrize("op", every_op(), ids=title)
@pytest.mark.thin(every=5)
def test_text_has_no_library_and_no_float_between_integers(op):
    source = built_op(op).unit.source()
    assert source.isascii()
    assert source.count("#include") == 1
    for word in ("malloc", "double", "math.h", "<<="):
        assert word not in source
    has_real = bool(op.real_inputs) or not op.has_integer_output or op.name == "Quant" or len(op.outputs) > 1
    unread = ("float *in_3", "float *in_4") if op.unread_inputs else ()
    for pointer in unread:
        source = source.replace(pointer, "")
    assert ("float" in source) == has_real


def test_equal_input_gives_equal_text():
    op = find_op("LSTMInt")
    assert build(op, op.samples[:3]).unit.source() == build(op, op.samples[:3]).unit.source()


# numbers worked out by hand


def run(name, inputs, tmp_path, *, known=(), platform=None, **attributes):
    """One op, compiled and called."""
    require_compiler()
    op = find_op(name, platform)
    unit = Unit()
    declared = [None if x is None else Input.of(x, is_known=i in known) for i, x in enumerate(inputs)]
    function = unit.add("under_test", op.body, op.arrange(declared), op.complete(attributes), title=name)
    return [r.tolist() for r in call(load(unit.source(), tmp_path), function, op.arrange(inputs))]


def test_ties_round_up_for_both_signs(tmp_path):
    # shift 3: −12/8 = −1½ → −1, −4/8 = −½ → 0, 4/8 → 1, 12/8 = 1½ → 2, −128/8 = −16, 127/8 = 15.9 → 16
    x = np.int8([-12, -5, -4, -3, 3, 4, 5, 12, -128, 127])
    widths = {"data_bits": 8, "o_bits": 8, "scale_x": 8.0, "scale_o": 1.0}
    assert run("Requant", [x], tmp_path, **widths) == [[-1, -1, 0, 0, 0, 1, 1, 2, -16, 16]]


def test_results_saturate_at_both_ends(tmp_path):
    # shift −3: 15·8 = 120, 16·8 = 128 → 127, −16·8 = −128, −17·8 = −136 → −128
    widths = {"data_bits": 8, "o_bits": 8, "scale_x": 1.0, "scale_o": 8.0}
    assert run("Requant", [np.int8([15, 16, -16, -17])], tmp_path, **widths) == [[120, 127, -128, -128]]


def test_a_linear_layer_by_hand(tmp_path):
    # 1·20/8 = 2½ → 3; −20/8 = −2½ → −2; (127 + 16000)/8 = 2015.9 → 127
    x, w, b = np.int8([[1]]), np.int8([[20], [-20], [127]]), np.int32([0, 0, 16000])
    scales = {"scale_x": 8.0, "scale_w": 8.0, "scale_o": 8.0}
    widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
    for known in ((), (1, 2)):
        assert run("LinearInt", [x, w, b], tmp_path, known=known, **scales, **widths) == [[[3, -2, 127]]]


def test_quant_adds_in_float32_and_takes_the_floor_of_negatives(tmp_path):
    # 0.49999997 + 0.5 is 1 in float32; −0.5 + 0.5 = 0; −1.5 + 0.5 = −1; −2.6 + 0.5 = −2.1 → −3; beyond the ends they hold
    x = np.float32([0.49999997, 0.5, -0.5, -1.5, -2.6, 126.6, 3e38, -3e38, np.inf, -np.inf])
    expected = [1, 1, 0, -1, -3, 127, 127, -128, 127, -128]
    assert run("Quant", [x], tmp_path, data_bits=8, scale_x=1.0) == [expected]


def test_the_mean_of_six_uses_the_reciprocal_of_the_device(tmp_path):
    # the reciprocal of 6 is a little above 1/6, so −3/6 = −½ goes to −1; that of 10 is below, so 5/10 goes to 0
    six = {"kernel_shape": (2, 3), "strides": (2, 3), "pads": (0, 0, 0, 0), "data_bits": 8, "o_bits": 8}
    x = np.int8([[[[-3, 0, 0], [0, 0, 0]]]])
    assert run("AvgPool2dInt", [x], tmp_path, **six, scale_x=16.0, scale_o=16.0) == [[[[[-1]]]]]


def test_division_by_zero_saturates_by_the_sign(tmp_path):
    # 5/2 = 2½ → 3, −5/2 = −2½ → −2, 5/−2 → −2, 7/0 → 127, −7/0 → −128, 0/0 = 0
    x, y = np.int8([5, -5, 5, 7, -7, 0]), np.int8([2, 2, -2, 0, 0, 0])
    assert run("iqDiv", [x, y], tmp_path, scale_x=1.0, scale_y=1.0, scale_o=1.0) == [[3, -2, -2, 127, -128, 0]]


@pytest.mark.parametrize(("required", "outcome"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_without_a_compiler_nothing_is_skipped_where_that_is_not_allowed(monkeypatch, required, outcome):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LINGER_REQUIRE_SHARED", required)
    with pytest.raises(outcome, match="can be found"):
        require_compiler()


# what is refused


def test_a_sum_beyond_64_bits_is_refused_by_name():
    op = find_op("BmmInt")
    wide = Input((1, 64), "int32"), Input((64, 1), "int32")
    scales = {"scale_x": 1.0, "scale_y": 1.0, "scale_o": 1.0}
    with pytest.raises(UnsupportedError, match=r"^scores: a sum over many elements .* need 70 bits; C has 64\.$"):
        Unit().add("bmm", op.body, wide, op.complete(scales), title="scores")


def test_known_weights_keep_an_accumulator_in_32_bits():
    op = find_op("LinearInt")
    # 200000·128·128 > 2^31, but with Σ|w| = 200000 known it is 200000·128 < 2^25
    widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 1.0, "scale_w": 1.0, "scale_o": 1.0}
    x = Input((1, 200000), "int8")
    texts = []
    for weight in (Input((1, 200000), "int8"), Input.of(np.full((1, 200000), 1, np.int8), is_known=True)):
        function = Unit().add("fc", op.body, [x, weight, None], op.complete(widths), title="fc")
        texts.append(function.text)
    assert ["int64_t" in text for text in texts] == [True, False]


def test_pads_that_are_not_known_are_refused():
    op = find_op("iqPad")
    given = [Input((2,), "int8"), Input((2,), "int64"), Input((), "int8")]
    with pytest.raises(UnsupportedError, match="the pads are not known"):
        Unit().add("pad", op.body, given, op.complete({}), title="iqPad")


@pytest.mark.parametrize("name", ["", "1st", "while", "a b", "x;y", "é", "linger_clip32", "Conv", "a\n", "main"])
def test_names_that_are_no_identifiers_are_refused(name):
    op = find_op("Relu")
    with pytest.raises(UsageError, match="cannot name a C function"):
        Unit().add(name, op.body, [Input((1,), "int8")], {}, title="Relu")


def test_a_name_is_taken_once():
    op, unit = find_op("Relu"), Unit()
    unit.add("act", op.body, [Input((1,), "int8")], {}, title="Relu")
    with pytest.raises(UsageError, match="has a function of this name"):
        unit.add("act", op.body, [Input((1,), "int8")], {}, title="Relu")


def test_a_title_cannot_leave_its_comment(tmp_path):
    require_compiler()
    op, unit = find_op("Relu"), Unit()
    title_of_file = 'conv */ #error "x" /* \n */ int y; // \\\n ??/ '
    function = unit.add("act", op.body, [Input((1,), "int8")], {}, title=title_of_file)
    assert call(load(unit.source(), tmp_path), function, [np.int8([-3])])[0].tolist() == [0]


def test_a_sum_is_written_once_for_one_output_element(tmp_path, monkeypatch):
    require_compiler()
    op, original, indices = find_op("Conv2dInt"), products.convolve, []

    def convolve(place, node, index):
        indices.append(index)
        return original(place, node, index)

    monkeypatch.setattr(products, "convolve", convolve)
    built = Built(unit=Unit())
    write(built, op, op.samples[0], "convolution", is_known=True)
    assert len(indices) == 1
    assert mismatches(op, built.cases, load(built.unit.source(), tmp_path)) == []


def test_bodies_that_follow_each_other_are_fused(tmp_path):
    require_compiler()
    sample = find_op("Conv2dInt").samples[0]
    x, w, b = arrays(sample)
    conv, relu, add, dequant = (find_op(name) for name in ("Conv2dInt", "Relu", "iqAdd", "Dequant"))
    scales = add.complete({"scale_x": 8.0, "scale_y": 16.0, "scale_o": 4.0})
    of_conv = conv.complete(sample.attributes)

    def network(k, x, w, b, other):
        y = relu.body(k, conv.body(k, x, w, b, **of_conv))
        return dequant.body(k, add.body(k, y, other, **scales), scale_o=4.0)

    shape = conv.body(NumpyKernel(), x, w, b, **of_conv).shape
    inputs = [x, w, b, np.arange(-60, 60, dtype=np.int8)[: shape[1]].reshape(-1, 1, 1)]
    unit = Unit()
    function = unit.add("net", network, [Input.of(i) for i in inputs], {}, title="network")
    assert function.scratch == ()
    (made,) = call(load(unit.source(), tmp_path), function, inputs)
    assert difference(made, network(NumpyKernel(), *inputs)) is None


# planted faults


def shift_less(monkeypatch):
    """Right shifts are one bit short."""
    original = rules.Shift.write

    def wrong(self, place, node, index):
        return original(rules.Shift(max(self.bits - 1, 0)), place, node, index)

    monkeypatch.setattr(rules.Shift, "write", wrong)


def leave_saturation_out(monkeypatch):
    """Nothing is limited."""
    monkeypatch.setattr(kernel.CKernel, "clip", lambda self, x, low, high: x)
    monkeypatch.setattr(kernel.CKernel, "store", _store_anything)


def _store_anything(self, x, bits, *, is_unsigned=False):
    found = self.whole(x)
    return dataclasses.replace(found, ctype=f"{'u' if is_unsigned else ''}int{fixed.storage_bits(bits)}_t")


def halve_the_reach(monkeypatch):
    """Sums of products are thought to be 2^20 times smaller than they can be."""
    original = products.Total.type_in

    def wrong(self, place):
        reach = tuple(end >> 20 for end in self.reach)
        return original(dataclasses.replace(self, reach=reach, result=reach), place)

    monkeypatch.setattr(products.Total, "type_in", wrong)


def take_the_shift_of_the_next_channel(monkeypatch):
    """A shift per channel is that of the channel after it."""
    original = rules.listed_node
    monkeypatch.setattr(rules, "listed_node", lambda values, shape: original((*values[1:], values[0]), shape))


FAULTS = {
    "a shift is off by one": (shift_less, "Requant"),
    "saturation is missing": (leave_saturation_out, "Requant"),
    "an interval is too small": (halve_the_reach, "Conv2dInt"),
    **{
        f"a channel of {name} has the shift of another": (take_the_shift_of_the_next_channel, name)
        for name in ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "LinearInt", "LSTMInt", "GRUInt")
    },
}


@pytest.mark.parametrize(("plant", "name"), FAULTS.values(), ids=FAULTS)
def test_the_contract_catches(plant, name, tmp_path, monkeypatch):
    require_compiler()
    op = find_op(name)
    plant(monkeypatch)
    built = build(op)
    assert mismatches(op, built.cases, load(built.unit.source(), tmp_path, warnings=False)) != []


# sanitizers


def extremes(op, case):
    """The inputs of a case with the data at one end of its type and the constants at the same or the other end."""
    fixed = CHOSEN.get(op.name, ())
    for first, others in product(("min", "max"), repeat=2):
        yield [
            x if x is None or x.dtype == np.int64 or i in fixed else _filled(x, others if i else first)
            for i, x in enumerate(case.inputs)
        ]


def _filled(x, end):
    """All elements at one end; real ones far beyond every integer, but so that their products are finite."""
    if x.dtype.kind == "f":
        return np.full_like(x, {"min": -1e30, "max": 1e30}[end])
    return np.full_like(x, getattr(np.iinfo(x.dtype), end))


def all_cases(op, built):
    """(function, inputs, expected outputs) of the samples, and of extremes where nothing was known."""
    for c in built.cases:
        is_open = c.function.name.startswith("open") or len(c.inputs) == 1
        for inputs in (c.inputs, *(extremes(op, c) if is_open else ())):
            yield c.function, inputs, reference(op, inputs, c.attributes)


@pytest.mark.slow
@pytest.mark.parametrize("op", every_op(), ids=title)
def test_sanitizers_are_silent(op, tmp_path):
    require_compiler()
    built = built_op(op)
    done = run_program(checking_program(built.unit.source(), all_cases(op, built)), tmp_path, *SANITIZERS)
    assert done.stderr == ""
    assert done.returncode == 0


INSIDE = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static int64_t inside(int64_t x, int64_t low, int64_t high) {
    if (x < low || x > high) {
        fprintf(stderr, "%lld is not in %lld ... %lld", (long long)x, (long long)low, (long long)high);
        abort();
    }
    return x;
}
"""


def check_every_interval(monkeypatch):
    """Every number that generated code computes is compared with its interval."""
    original = Scope.read

    def read(self, node, index):
        text = original(self, node, index)
        if node.is_real:
            return text
        ends = ", ".join(nodes.literal(end, "int64_t") for end in node.interval)
        return f"({node.ctype(self)})inside({text}, {ends})"

    monkeypatch.setattr(Scope, "read", read)


def test_a_number_outside_its_interval_is_seen(tmp_path, monkeypatch):
    require_compiler()
    op = find_op("Requant")
    monkeypatch.setattr(rules.Shift, "bounds", lambda self, node, known: (-1, 1))
    check_every_interval(monkeypatch)
    built = build(op)
    source = INSIDE + checking_program(built.unit.source(), all_cases(op, built))
    assert "is not in -1 ... 1" in run_program(source, tmp_path, "-w").stderr


@pytest.mark.slow
@pytest.mark.parametrize("op", every_op(), ids=title)
def test_no_number_leaves_its_interval(op, tmp_path, monkeypatch):
    require_compiler()
    check_every_interval(monkeypatch)
    built = build(op)
    done = run_program(INSIDE + checking_program(built.unit.source(), all_cases(op, built)), tmp_path, "-w")
    assert done.stderr == ""
    assert done.returncode == 0


def test_an_array_that_an_index_of_32_bits_does_not_reach_is_refused():
    op = find_op("Requant", None)
    attributes = op.complete({"data_bits": 8, "o_bits": 8, "scale_x": 8.0, "scale_o": 1.0})
    with pytest.raises(
        UnsupportedError, match=r"an array of shape \(32768, 65536\) has more elements than an index of 32 bits"
    ):
        Unit().add("f", op.body, op.arrange([Input((1 << 15, 1 << 16), "int8")]), attributes, title="Requant")
    Unit().add("f", op.body, op.arrange([Input((1 << 15, (1 << 16) - 1), "int8")]), attributes, title="Requant")
