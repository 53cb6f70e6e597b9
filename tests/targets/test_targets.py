"""Chips are data: one file each, over the one that they share."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import linger.targets
from linger.checks import target_findings
from linger.checks.limits.products import OperandLimits, PackingLimits, ProductLimits
from linger.checks.limits.target_findings import tables_of
from linger.checks.limits.windows import WindowLimits
from linger.checks.memory_use import MemoryLimits
from linger.errors import UsageError
from linger.targets import (
    CHIPS,
    DEFAULT_TARGET,
    TARGETS,
    Status,
    chips_with,
    find_chip,
    find_target,
    read_target,
    refuse_numbers,
)
from tests.support.chip import WIDTHS, WINDOW, model_of, node

KNOWN = [TARGETS[name] for name in ("venus", "arcs", "venusA")]
VENUS, ARCS, VENUS_A = (tables_of(TARGETS[name]) for name in ("venus", "arcs", "venusA"))


@pytest.mark.parametrize("name", ["venus", "arcs", "venusA"])
def test_target_is_known_and_frozen(name):
    target = TARGETS[name]
    assert target.name == name
    assert not target.takes("Clip")
    with pytest.raises(AttributeError):
        target.name = "other"


def test_documented_limits_of_venus():
    windows, products, operands = VENUS[WindowLimits], VENUS[ProductLimits], VENUS[OperandLimits]
    assert (windows.kernel, windows.dilated_kernel, windows.signal_kernel) == ((1, 5), (1, 5), (1, 5))
    assert (windows.strides, windows.pads, windows.dilations) == ((1, 2, 4), (0, 4), (1,))
    assert (windows.weight_bits, windows.output_bits, windows.transposed_input_bytes) == ((8,), (8,), 64 * 1024)
    assert (windows.groups_reach_kernel, windows.largest_max_pool, windows.signal_dilations) == (True, 5, (1,))
    assert (windows.has_global_stride, windows.spilled_bytes, windows.pooled_bytes) == (False, 2592, (65536, 61440))
    assert (windows.uneven_averaged_bytes, windows.averaged_bytes, windows.global_area) == (65536, None, None)
    assert (products.weight_bits, products.output_bits, products.left_bytes) == ((4, 8), (8, 16, 32), 64 * 1024)
    assert (products.softmax_axis, products.layer_norm_bits) == ("dim", 32)
    assert VENUS[MemoryLimits].scratch_written == {"LayerNormInt": 8, "LSTMInt": 40}
    assert (operands.curve_bits, operands.mixed_join_bits, operands.factor_shapes) == (16, 8, "channel")
    assert operands.repeated_axes == 0
    assert (VENUS[PackingLimits].transposed_axes, VENUS[PackingLimits].turned_bytes) == (4, 64 * 1024)
    assert (VENUS[MemoryLimits].tensor_bytes, VENUS[MemoryLimits].product_bytes) == (640 * 1024, None)
    assert VENUS[MemoryLimits].op_options == {"ConvTranspose2dInt": "-m params:share-mem"}


def test_documented_limits_of_the_others():
    for tables in (ARCS, VENUS_A):
        windows, products, operands = tables[WindowLimits], tables[ProductLimits], tables[OperandLimits]
        assert (windows.kernel, windows.dilated_kernel, windows.signal_kernel) == ((1, 5), (1, 12), (1, 12))
        assert (windows.strides, windows.pads, windows.dilations) == ((1, 2, 4), (0, 11), (1, 2, 4, 8))
        assert (windows.transposed_input_bytes, windows.groups_reach_kernel, windows.global_area) == (None, False, 4)
        assert (products.layer_norm_bits, operands.mixed_join_bits, windows.spilled_bytes) == (None, None, None)
        assert (windows.averaged_bytes, windows.largest_average_pool) == (72 * 1024, 15)
        assert windows.weight_bits == products.weight_bits == windows.output_bits == (8,)
        assert tables[MemoryLimits].has_two_layers
        assert (windows.has_global_stride, tables[MemoryLimits].scratch_written) == (True, {})
        assert (products.softmax_axis, tables[PackingLimits].turned_bytes) == ("axis", None)
        assert (tables[MemoryLimits].tensor_bytes, tables[MemoryLimits].op_options) == (384 * 1024, {})
    assert (ARCS[ProductLimits].output_bits, VENUS_A[ProductLimits].output_bits) == ((8, 32), (8, 16, 32))
    assert (ARCS[WindowLimits].signal_dilations, VENUS_A[WindowLimits].signal_dilations) == ((1,), (1, 2, 4, 8))
    assert (ARCS[WindowLimits].largest_max_pool, VENUS_A[WindowLimits].largest_max_pool) == (12, 12)
    assert (ARCS[WindowLimits].signal_samples, VENUS_A[WindowLimits].signal_samples) == (3999, None)
    assert (VENUS_A[ProductLimits].rows, VENUS_A[ProductLimits].softmax_axes) == (1, 2)
    assert (VENUS_A[OperandLimits].has_mixed_joins, VENUS_A[PackingLimits].orders) == (False, ("0132", "0231", "0312"))
    assert (ARCS[OperandLimits].factor_shapes, VENUS_A[OperandLimits].factor_shapes) == ("channel", "equal")
    assert (ARCS[OperandLimits].repeated_axes, VENUS_A[OperandLimits].repeated_axes) == (0, 0)
    assert (ARCS[PackingLimits].transposed_axes, VENUS_A[PackingLimits].transposed_axes) == (4, 4)
    assert (ARCS[MemoryLimits].product_bytes, VENUS_A[MemoryLimits].product_bytes) == (384 * 1024, None)
    assert (ARCS[ProductLimits].left_bytes, VENUS_A[ProductLimits].left_bytes) == (None, 64 * 1024)
    assert (ARCS[OperandLimits].curve_bits, ARCS[PackingLimits].data_bits) == (8, (8, 32))
    assert (VENUS_A[OperandLimits].curve_bits, VENUS_A[PackingLimits].data_bits) == (None, (8, 16, 32))


def test_forms_and_dialects_that_packers_take():
    assert [(target.form, target.reads_newer) for target in KNOWN] == [
        ("bare", False), ("dialect", True), ("dialect", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("op_type", "statuses"),
    [
        ("Conv2dInt", (Status.EXACT, Status.EXACT, Status.EXACT)),
        ("iqSub", (Status.DIFFERS, Status.DIFFERS, Status.UNTRIED)),
        ("LayerNormInt", (Status.EXACT, Status.DIFFERS, Status.DIFFERS)),
        ("LSTMInt", (Status.EXACT, Status.REFUSED, Status.REFUSED)),
        ("GRUInt", (Status.DIFFERS, Status.DIFFERS, Status.DIFFERS)),
        ("Gather", (Status.EXACT, Status.EXACT, Status.UNTRIED)),
        ("ShuffleChannel", (Status.EXACT, Status.REFUSED, Status.REFUSED)),
        ("iqVar", (Status.DIFFERS, Status.DIFFERS, Status.UNTRIED)),
        ("Conv1dInt", (Status.EXACT, Status.EXACT, Status.DIFFERS)),
        ("Requant", (Status.EXACT, Status.EXACT, Status.EXACT)),
        ("Clip", (Status.REFUSED, Status.REFUSED, Status.REFUSED)),
        ("iqGelu", (Status.REFUSED, Status.REFUSED, Status.UNTRIED)),
        ("NoSuchOp", (Status.REFUSED, Status.REFUSED, Status.REFUSED)),
    ],
)
def test_what_came_of_an_op(op_type, statuses):
    assert tuple(target.status_of(op_type) for target in KNOWN) == statuses


def test_the_same_op_on_real_numbers_has_a_status_of_its_own():
    assert [target.status_of("Relu") for target in KNOWN] == [Status.EXACT, Status.EXACT, Status.EXACT]
    assert [target.status_of("Relu", is_float=True) for target in KNOWN] == [
        Status.DIFFERS,
        Status.DIFFERS,
        Status.UNTRIED,
    ]
    assert TARGETS["venus"].status_of("Sigmoid", is_float=True) is Status.REFUSED
    assert TARGETS["venus"].status_of("Transpose", is_float=True) is Status.EXACT  # as the packer packs by default
    for op_type in ("Tanh", "Add", "Mul", "Concat", "LogSoftmax"):
        assert [t.status_of(op_type, is_float=True) for t in KNOWN[1:]] == [Status.REFUSED, Status.REFUSED]


def test_an_op_has_one_status():
    for target in TARGETS.values():
        lists = (
            target.exact_ops | target.exact_without_ends,
            target.differing_ops,
            target.refused_ops,
            target.unpacked_ops,
        )
        assert len(frozenset().union(*lists)) == sum(map(len, lists)), target.name
        named = {name.removeprefix("float ") for name in frozenset().union(*lists[:3])}
        assert named <= target.ops, target.name


def test_what_all_chips_share():
    for tables in (VENUS, ARCS, VENUS_A):
        windows, products, packing = tables[WindowLimits], tables[ProductLimits], tables[PackingLimits]
        assert (windows.divided_area, windows.pool_sum, windows.weight_bytes) == (127, 32767, 32 * 1024)
        assert (products.softmax_length, products.right_bytes) == (2048, 32 * 1024)
        assert [products.alignment_of(bits) for bits in (8, 16, 32)] == [(4, 8), (4, 2), (2, 2)]
        assert (packing.plane_bytes, packing.model_bytes) == (64 * 1024, 8 * 1024 * 1024)
        assert (packing.padded_axes, packing.dequant_bits, windows.groups) == (2, 8, 8)
        assert tables[MemoryLimits].batch_option == "--dynamic_shape {}=1:1"
        assert tables[OperandLimits].packed_curve_bits == {"iqTanh": 16}


def test_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TARGETS["new"] = TARGETS["venus"]


def test_what_failed_in_the_packer_is_not_taken():
    for target in CHIPS.values():
        assert [op for op in ("Clip", "iqSum", "iqClamp", "iqMax", "iqGelu") if target.takes(op)] == []
        assert target.takes("Conv2dInt")
    assert [target.takes("iqSub") for target in KNOWN] == [False, False, False]
    assert [target.takes("Expand") for target in KNOWN] == [True, True, False]  # nobody has tried it on the last


def test_one_chip_is_the_default():
    assert [target.name for target in TARGETS.values() if target.is_default] == ["venus"] == [DEFAULT_TARGET.name]


def test_which_chips_run_an_op():
    assert {"venus", "arcs", "venusA"} <= set(chips_with("Conv2dInt"))
    assert chips_with("iqGelu") == chips_with("QGelu") == ("venusA",)
    assert "venus" in chips_with("iqTanh")
    assert "arcs" not in chips_with("iqTanh")
    assert chips_with("iqSum") == ()


def test_an_unknown_chip_is_named_with_the_known_ones():
    assert find_target("arcs") is TARGETS["arcs"]
    with pytest.raises(
        UsageError, match=rf"no chip 'pluto'\. Choose one of {', '.join(TARGETS)}, or None for no limits"
    ):
        find_target("pluto")


@pytest.mark.parametrize(("name", "meant"), [("venusa", "venusA"), ("VENUS", "venus"), ("arc", "arcs")])
def test_the_nearest_chip_is_named(name, meant):
    with pytest.raises(UsageError, match=rf"no chip '{name}' \(is '{meant}' meant\?\)\. Choose one of"):
        find_target(name)


def test_a_file_is_a_chip(tmp_path):
    (tmp_path / "tiny.toml").write_text("[windows]\nkernel = [1, 2]\n")
    tiny = read_target(tmp_path / "tiny.toml")
    assert (tiny.name, tiny.is_default, tiny.ops) == ("tiny", False, TARGETS["venus"].ops)
    assert tables_of(tiny)[WindowLimits].kernel == (1, 2)
    assert tables_of(tiny)[ProductLimits] == replace(
        VENUS_A[ProductLimits], weight_bits=(8,), left_bytes=None, rows=None, softmax_axes=None
    )
    model = model_of(node("Conv2dInt", "x, w", **WIDTHS, **WINDOW), w=(8, 8, 3, 3))
    reasons = [finding.reason for finding in target_findings(model, tiny)]
    assert "a kernel of 3×3; tiny has 1 to 2" in reasons


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("kernel = [1", r"bad\.toml: the chip file is no TOML \(.*\)\. Correct it there\."),
        ("\xff", r"bad\.toml: the chip file is no TOML"),
        (
            "is_default = 1",
            r"the chip file .*bad\.toml: is_default is not true or false \(1\)\. Compare it with .*packer\.toml",
        ),
        ('ops = "Relu"', r"ops is not a list \('Relu'\)"),
        ("ops = [1]", r"ops\[0\] is not a text \(1\)"),
        (
            "op = []\nreads_new = true",
            r"op is not known \(is ops meant\?\), reads_new is not known \(is reads_newer",
        ),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, content, message):
    (tmp_path / "bad.toml").write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match=message):
        read_target(tmp_path / "bad.toml")


@pytest.mark.parametrize("chip", TARGETS)
def test_our_own_files_are_right(chip):
    """They are read without being checked, because every command reads them."""
    assert read_target(Path(linger.targets.__file__).with_name(f"{chip}.toml")) == TARGETS[chip]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: the chip file cannot be read \(No such file or directory\)"):
        read_target(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[windows]\nkernel = [1, 2, 3]", "[windows].kernel is not a list of 2 ([1, 2, 3])"),
        ("[windows]\nstrides = 1", "[windows].strides is not a list (1)"),
        ("[windows]\nkernels = [1, 2]", "[windows].kernels is not known (is kernel meant?)"),
        (
            "[products]\nalignment = [[8, 4]]",
            "[products].alignment[0][2] is missing",
        ),
        ("[products]\nlayer_norm_bits = true", "[products].layer_norm_bits is not an integer (True)"),
        ("[operands]\npacked_curve_bits = 16", "[operands].packed_curve_bits is not an object (16)"),
        ("[window]\nkernel = [1, 2]", "there is no table [window]"),
    ],
)
def test_tables_that_no_limit_can_read_are_refused(tmp_path, content, problem):
    (tmp_path / "bad.toml").write_text(content)
    with pytest.raises(UsageError, match=f"the chip file of bad: {re.escape(problem)}. Compare it with"):
        target_findings(model_of("y = Relu(x)"), read_target(tmp_path / "bad.toml"))


def test_all_problems_of_the_tables_are_named_at_once(tmp_path):
    (tmp_path / "bad.toml").write_text("[windows]\nkernel = 3\n[packing]\nslice_axes = 1.5\n[more]\n")
    with pytest.raises(
        UsageError,
        match=r"no table \[more\]; \[windows\]\.kernel is not a list \(3\).*; \[packing\]\.slice_axes is not an integer \(1\.5\)",
    ):
        tables_of(read_target(tmp_path / "bad.toml"))


PROGRAMS = ("c", "onnxruntime")


def test_what_is_no_chip_has_no_limits_and_all_numbers():
    assert (*CHIPS, *PROGRAMS) == tuple(TARGETS)
    for name in PROGRAMS:
        target = find_target(name)
        assert (target.is_chip, target.is_default, target.per_channel, target.unsigned) == (False, False, True, True)
        assert (target.limits, target.ops, target.refused_ops, target.form) == ({}, frozenset(), frozenset(), "dialect")
        assert target.takes("Clip")
        assert target.status_of("iqSub") is Status.EXACT
        assert target_findings(model_of("y = Clip(x)"), target) == ()
        assert name not in chips_with("Conv2dInt")
    assert [(chip.per_channel, chip.unsigned) for chip in CHIPS.values()] == [(False, False)] * 3


def test_a_chip_is_found_where_there_are_limits():
    assert find_chip("venus") is find_chip(TARGETS["venus"]) is TARGETS["venus"]
    assert [find_chip(name) for name in (None, *PROGRAMS, TARGETS["c"])] == [None] * 4
    with pytest.raises(UsageError, match="no chip 'C'"):
        find_chip("C")


@pytest.mark.parametrize("chip", CHIPS)
def test_a_chip_refuses_numbers_that_it_does_not_have(chip):
    with pytest.raises(
        UsageError, match=rf"{chip} does not have per_channel=True and unsigned=True\. .*c, onnxruntime"
    ):
        refuse_numbers("init", chip, per_channel=True, unsigned=True)
    refuse_numbers("init", chip, per_channel=False, unsigned=None)
    refuse_numbers("init", "c", per_channel=True, unsigned=True)
    refuse_numbers("init", None, per_channel=True, unsigned=True)


def test_a_file_that_is_no_chip_has_no_limits(tmp_path):
    (tmp_path / "own.toml").write_text("is_chip = false\nunsigned = true\n")
    own = read_target(tmp_path / "own.toml")
    assert (own.is_chip, own.per_channel, own.unsigned, own.limits) == (False, False, True, {})
    (tmp_path / "own.toml").write_text("is_chip = false\n[windows]\nkernel = [1, 2]\n[memory]\n")
    with pytest.raises(UsageError, match=r"own\.toml: \[windows\], \[memory\] has limits, and is_chip = false"):
        read_target(tmp_path / "own.toml")
