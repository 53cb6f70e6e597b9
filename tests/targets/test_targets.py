"""Chips are data: one file each, over the one that they share."""

import re
from dataclasses import replace

import pytest

from linger.checks.limits.operands import OperandLimits
from linger.checks.limits.packing import PackingLimits
from linger.checks.limits.products import ProductLimits
from linger.checks.limits.target_findings import tables_of, target_findings
from linger.checks.limits.windows import WindowLimits
from linger.errors import UsageError
from linger.targets import DEFAULT_TARGET, TARGETS, chips_with, find_target, read_target
from tests.support.chip import WIDTHS, WINDOW, model_of, node

VENUS, ARCS, VENUS_A = (tables_of(TARGETS[name]) for name in ("venus", "arcs", "venusA"))


@pytest.mark.parametrize("name", ["venus", "arcs", "venusA"])
def test_target_is_known_and_frozen(name):
    target = TARGETS[name]
    assert target.name == name
    assert not target.has_clip
    with pytest.raises(AttributeError):
        target.name = "other"


def test_documented_limits_of_venus():
    windows, products, operands = VENUS[WindowLimits], VENUS[ProductLimits], VENUS[OperandLimits]
    assert (windows.kernel, windows.dilated_kernel, windows.signal_kernel) == ((1, 5), (1, 5), (1, 5))
    assert (windows.strides, windows.pads, windows.dilations) == ((1, 2, 4), (0, 4), (1,))
    assert (windows.weight_bits, windows.output_bits, windows.input_bytes) == ((8,), (8,), 64 * 1024)
    assert (products.weight_bits, products.output_bits) == ((8,), (8, 16, 32))
    assert (products.softmax_axis, products.layer_norm_bits) == ("dim", 32)
    assert (operands.curve_bits, operands.mixed_join_bits, operands.multiplies_by_channel_only) == (16, 8, True)
    assert VENUS[PackingLimits].transposed_axes == 3
    assert TARGETS["venus"].uncompared_ops == {"GRUInt", "iqVar", "Gather"}


def test_documented_limits_of_the_others():
    for tables in (ARCS, VENUS_A):
        windows, products, operands = tables[WindowLimits], tables[ProductLimits], tables[OperandLimits]
        assert (windows.kernel, windows.dilated_kernel, windows.signal_kernel) == ((1, 5), (1, 12), (1, 12))
        assert (windows.strides, windows.pads, windows.dilations) == ((1, 2, 4), (0, 11), (1, 2, 4, 8))
        assert (windows.input_bytes, products.layer_norm_bits, operands.mixed_join_bits) == (None, None, None)
        assert (products.softmax_axis, operands.multiplies_by_channel_only) == ("axis", False)
        assert tables[PackingLimits].transposed_axes is None
    assert ARCS[WindowLimits].weight_bits == ARCS[ProductLimits].weight_bits == (4, 8)
    assert ARCS[WindowLimits].output_bits == ARCS[ProductLimits].output_bits == (8, 32)
    assert (ARCS[OperandLimits].curve_bits, ARCS[PackingLimits].data_bits) == (8, (8, 32))
    assert VENUS_A[WindowLimits].weight_bits == VENUS_A[ProductLimits].weight_bits == (4, 8, 16, 32)
    assert VENUS_A[WindowLimits].output_bits == VENUS_A[ProductLimits].output_bits == (8, 16, 32)
    assert (VENUS_A[OperandLimits].curve_bits, VENUS_A[PackingLimits].data_bits) == (None, (8, 16, 32))
    assert TARGETS["arcs"].uncompared_ops == {"GRUInt", "LSTMInt", "LayerNormInt", "LogSoftmaxInt"}


def test_what_all_chips_share():
    for tables in (VENUS, ARCS, VENUS_A):
        windows, products, packing = tables[WindowLimits], tables[ProductLimits], tables[PackingLimits]
        assert (windows.divided_area, windows.pool_sum, windows.weight_bytes) == (127, 32767, 32 * 1024)
        assert (products.softmax_length, products.left_bytes, products.right_bytes) == (2048, 64 * 1024, 32 * 1024)
        assert [products.alignment_of(bits) for bits in (8, 16, 32)] == [(4, 8), (4, 2), (2, 2)]
        assert (packing.plane_bytes, packing.model_bytes) == (64 * 1024, 8 * 1024 * 1024)
        assert tables[OperandLimits].packed_curve_bits == {"iqTanh": 16}


def test_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TARGETS["new"] = TARGETS["venus"]


def test_what_failed_in_the_packer_is_not_listed():
    for target in TARGETS.values():
        assert not {"Clip", "iqSum", "iqClamp", "iqMax"} & target.ops


def test_one_chip_is_the_default():
    assert [target.name for target in TARGETS.values() if target.is_default] == ["venus"] == [DEFAULT_TARGET.name]


def test_which_chips_run_an_op():
    assert chips_with("Conv2dInt") == ("venus", "arcs", "venusA")
    assert chips_with("iqGelu") == chips_with("QGelu") == ("venusA",)
    assert chips_with("iqSum") == ()


def test_an_unknown_chip_is_named_with_the_known_ones():
    assert find_target("arcs") is TARGETS["arcs"]
    with pytest.raises(UsageError, match=r"no chip 'mars'\. Choose one of venus, arcs, venusA"):
        find_target("mars")


def test_a_file_is_a_chip(tmp_path):
    (tmp_path / "tiny.toml").write_text("[windows]\nkernel = [1, 2]\n")
    tiny = read_target(tmp_path / "tiny.toml")
    assert (tiny.name, tiny.is_default, tiny.ops) == ("tiny", False, TARGETS["venus"].ops)
    assert tables_of(tiny)[WindowLimits].kernel == (1, 2)
    assert tables_of(tiny)[ProductLimits] == replace(VENUS_A[ProductLimits], weight_bits=(8,))
    model = model_of(node("Conv2dInt", "x, w", **WIDTHS, **WINDOW), w=(8, 8, 3, 3))
    reasons = [finding.reason for finding in target_findings(model, tiny)]
    assert "a kernel of 3×3; tiny has 1 to 2" in reasons


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("kernel = [1", r"bad\.toml: the chip file is no TOML \(.*\)\. Correct it there\."),
        ("\xff", r"bad\.toml: the chip file is no TOML"),
        ("has_clip = 1", r"the chip file .*bad\.toml: has_clip = 1, expected bool\. Compare it with .*packer\.toml"),
        ('ops = "Relu"', r"ops = 'Relu', expected frozenset\[str\]"),
        ("ops = [1]", r"ops = \[1\], expected frozenset\[str\]"),
        (
            "op = []\nhas_clips = true",
            r"no value 'op' \(is 'ops' meant\?\); there is no value 'has_clips' \(is 'has_clip'",
        ),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, content, message):
    (tmp_path / "bad.toml").write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match=message):
        read_target(tmp_path / "bad.toml")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: the chip file cannot be read \(No such file or directory\)"):
        read_target(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[windows]\nkernel = [1, 2, 3]", "[windows]: kernel = [1, 2, 3], expected tuple[int, int]"),
        ("[windows]\nstrides = 1", "[windows]: strides = 1, expected tuple[int, ...]"),
        ("[windows]\nkernels = [1, 2]", "[windows]: there is no value 'kernels' (is 'kernel' meant?)"),
        (
            "[products]\nalignment = [[8, 4]]",
            "[products]: alignment = [[8, 4]], expected tuple[tuple[int, int, int], ...]",
        ),
        ("[products]\nlayer_norm_bits = true", "[products]: layer_norm_bits = True, expected int | None"),
        ("[operands]\npacked_curve_bits = 16", "[operands]: packed_curve_bits = 16, expected Mapping[str, int]"),
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
        UsageError, match=r"no table \[more\]; \[windows\]: kernel = 3.*; \[packing\]: slice_axes = 1\.5"
    ):
        tables_of(read_target(tmp_path / "bad.toml"))
