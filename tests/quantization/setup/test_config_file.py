# SPDX-License-Identifier: Apache-2.0
"""The settings file: written for a reader, read back the same; whatever means nothing is named, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

import linger
from tests.support.quantization import Limits, Widths
from tests.support.settings_files import (
    ChannelLimit,
    Config,
    Constraint,
    FunctionConfig,
    Fused,
    LayerConfig,
    as_text,
    read_config,
    write_config,
)

EVERYTHING = Config(
    complete=True,
    target="venus",
    parameter_bits=4,
    types=("Conv2d", "Linear"),
    scales="lsq",
    calibration={"inputs": "topk:5", "weights": "mse"},
    switches={"add": False, "freezes_batch_norm": True},
    stays_float=("head", "odd: name"),
    stays_float_alone=("block",),
    not_quantized=("pool",),
    channel_limits={"a.conv": ChannelLimit(6.0, (8, 1, 1))},
    fused=(Fused("a.conv", "a.bn"), Fused("b.conv", "b.bn", folded=True)),
    constrain={"*": Constraint(bias=2.0, output=8.0, weight_factor=7.0)},
    limits={"head": Limits(output=8.0)},
    parts={"attention": Widths(8, 4, 16)},
    layers={
        "a.conv": LayerConfig(
            "Conv2dInt",
            (8, 3, 3, 3),
            Widths(8, 16, 32),
            True,
            Limits(8.0, None, 0.1),
            {"o": 2.0**-3},
            {"o": "percentile:99.9"},
        ),
        "": LayerConfig(adopts_input=True),
    },
    functions={"a.iqadd_0": FunctionConfig({"o": 32.0}, {"o": "mse"}, {"o": 16}, subtracts_max=True)},
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_config(EVERYTHING, "Net", tmp_path / "c.yaml")
    assert read_config(tmp_path / "c.yaml") == EVERYTHING
    write_config(Config(), "Net", tmp_path / "usual.yaml")
    assert read_config(tmp_path / "usual.yaml") == Config()


def test_a_reader_sees_powers_of_two_and_widths() -> None:
    lines = as_text(EVERYTHING, "Net").splitlines()
    assert lines[0].startswith("# How Net is quantized")
    assert "    bits: 8/16/32" in lines
    assert "    scales: {o: 2^-3}" in lines
    assert "  - {conv: b.conv, bn: b.bn, folded: true}" in lines
    assert "    limits: {weight: 8.0, output: 0.1}" in lines


BOMB = "run: &a0 [1, 1]\n" + "".join(f"r{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
"""Two numbers, ten of these lists, ten of those, nine times over."""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("layrs: {}", "layrs is not known (is layers meant?)"),
        ("layers: {conv: {bit: 8/8/8}}", "layers.conv.bit is not known (is bits meant?)"),
        (
            "layers: {conv: {bits: 8/7/8}}",
            "layers.conv.bits is not widths (write input/weights/output: 8/16/8) ('8/7/8')",
        ),
        (
            "layers: {conv: {scales: {o: 2^x}}}",
            "layers.conv.scales.o is not a scale (write a power of two: 2^5 or 2^-3) ('2^x')",
        ),
        ("layers: {conv: {scales: {o: 2^900}}}", "is not a scale"),
        ("layers: {conv: {scales: {o: 32}}}", "2^-3) (32)"),
        ("layers: {conv: {limits: {weight: -1}}}", "layers.conv.limits.weight is not a positive number (-1)"),
        ("layers: {conv: {relu_ahead: 1}}", "layers.conv.relu_ahead is not true or false (1)"),
        ("scales: tqt2", "scales is not one of 'running', 'tqt', 'lsq' ('tqt2') (is tqt meant?)"),
        ("calibration: {inputs: msee}", "calibration.inputs: 'msee' is no method of calibration. Did you mean 'mse'?"),
        (
            "calibration: {output: max}",
            "the name 'output' in calibration is not one of 'inputs', 'weights', 'outputs' ('output') (is outputs meant?)",
        ),
        ("constrain: {'*': {weight_factors: 7}}", "constrain.*.weight_factors is not known (is weight_factor meant?)"),
        ("layers: [conv]", "layers is not an object (['conv'])"),
        ("layers: {conv: 8}", "layers.conv is not an object (8)"),
        ("target: venos", "('venos') (is venus meant?)"),
        ("parameter_bits: 5", "parameter_bits is not one of 4, 8, 16 (5)"),
        ("switches: {ad: true}", "('ad') (is add meant?)"),
        ("fused: [{conv: a}]", "fused[0].bn is missing"),
        ("fused: {conv: a}", "fused is not a list"),
        ("stays_float: head", "stays_float is not a list ('head')"),
        ("functions: {a.iqadd_0: {bits: {o: 9}}}", "functions.a.iqadd_0.bits.o is not one of 4, 8, 16, 32 (9)"),
        ("version: 2", "version is not 1, which this linger reads (2)"),
        ("- 1", "its content is not an object ([1])"),
        ("layers: {a: {}, a: {}}", "the key 'a' stands twice"),
        ("layers: &all {conv: *all}", "its aliases stand for too much"),
        ("layers: {conv: {color: 1}}", "layers.conv.color is not known (known: op, shape, bits"),
        (BOMB, "its aliases stand for too much"),
        (f"parameter_bits: {'9' * 6000}", "is no YAML"),
        (f"parameter_bits: 0x{'F' * 6000}", "cannot be read (number out of range"),
        ("run: {a: 2024-13-45}", "is no YAML: month must be in 1..12"),
        (f"target: {'x' * 1_000_000}", "xxx...xxx"),
        ("layers: {", "is no YAML"),
        ("!!python/object/apply:os.getcwd []", "is no YAML"),
    ],
)
def test_what_means_nothing_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(linger.UsageError) as caught:
        read_config(tmp_path / "c.yaml")
    assert said in str(caught.value)


def test_every_complaint_comes_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("target: x\nlayers: {a: {bits: 1}, b: {opp: c}}\nnothing: 1")
    with pytest.raises(linger.UsageError) as caught:
        read_config(tmp_path / "c.yaml")
    assert all(part in str(caught.value) for part in ("target", "layers.a.bits", "is op meant", "nothing"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(linger.UsageError, match=r"cannot be read \(No such file"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(linger.UsageError, match="is no YAML"):
        read_config(tmp_path / "c.yaml")
