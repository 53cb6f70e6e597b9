# SPDX-License-Identifier: Apache-2.0
"""Patterns in a settings file mean the same as an entry for each layer; one that fits nothing is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.quantization import Limits, limits_of
from tests.support.settings_files import fits, last_fitting


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.ModuleDict(
            {"conv": nn.Conv2d(1, 4, 3), "bn": nn.BatchNorm2d(4), "conv2": nn.Conv2d(4, 4, 3), "act": nn.ReLU()}
        )
        self.table = nn.Embedding(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block["act"](self.block["bn"](self.block["conv"](x)))
        y = self.block["conv2"](y)
        y = (y + y.relu() * 2).mean((2, 3))
        return self.head(y)


X = torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8)


def initialized(content: str, folder: Path, net: nn.Module | None = None) -> nn.Module:
    (folder / "c.yaml").write_text(content)
    made = linger.init(net or Net(), folder / "c.yaml").eval()
    linger.restore()
    return made


@pytest.mark.parametrize(
    ("pattern", "path", "is_fitting"),
    [
        ("*", "a.b", True),
        ("*", "", True),
        ("a.*", "a.b.c", True),
        ("a.*", "a", True),
        ("a.*", "ab", False),
        ("a.conv?", "a.conv2", True),
        ("a.conv[12]", "a.conv3", False),
        ("A.*", "a.b", False),
    ],
    ids=str,
)
def test_what_a_pattern_fits(pattern: str, path: str, *, is_fitting: bool) -> None:
    assert fits(pattern, path) is is_fitting


def test_a_path_stands_above_patterns_and_the_last_pattern_counts() -> None:
    entries = {"a.b": 1, "*": 2, "a.*": 3, "x*": 4}
    assert [last_fitting(entries, path) for path in ("a.b", "a.c", "c", "x")] == [1, 3, 2, 4]
    assert last_fitting({"a.*": 3}, "c") is None


def test_a_pattern_is_an_entry_for_each_layer(tmp_path: Path) -> None:
    by_pattern = initialized(
        "layers: {'*': {bits: 8/4/8}, 'block.*2': {bits: 16/16/8}, head: {bits: 8/8/16}}", tmp_path
    )
    by_path = initialized(
        "layers: {block.conv: {bits: 8/4/8}, block.bn: {bits: 8/4/8}, block.conv2: {bits: 16/16/8}, head: {bits: 8/8/16}}",
        tmp_path,
    )
    with linger.calibration():
        by_pattern(X)
        by_path(X)
    assert str(by_pattern) == str(by_path)
    assert torch.equal(by_pattern(X).integers(), by_path(X).integers())
    assert type(by_pattern.table) is nn.Embedding, "a pattern quantizes nothing that stays float without it"


def test_an_entry_leaves_alone_what_it_does_not_name(tmp_path: Path) -> None:
    net = linger.normalize_layers(linger.trace_layers(Net().eval(), X))
    made = initialized("parameter_bits: 4\nlayers: {'block.*': {limits: {weight: 1}}, head: {}}", tmp_path, net)
    assert made.block["conv"].is_ahead_of_relu
    assert made.block["conv"].limited_to == Limits(weight=1.0)
    assert made.head.limited_to == Limits(weight=8.0, output=8.0)
    assert (str(made.block["conv"].widths), str(made.head.widths)) == ("8/4/8", "8/4/8")


def test_limits_by_pattern(tmp_path: Path) -> None:
    made = initialized("stays_float: [head]\nlimits: {'*': {output: 4}, 'block.conv*': {weight: 0.25}}", tmp_path)
    assert limits_of(made.head) == Limits(output=4.0)
    assert made.block["conv2"].limited_to == Limits(weight=0.25)
    assert made.block["bn"].limited_to == Limits(output=4.0)
    again = initialized("stays_float: [head]\nlimits: {head: {output: 4}}", tmp_path)
    assert limits_of(again.head) == limits_of(made.head)


def test_widths_of_functions_by_pattern(tmp_path: Path) -> None:
    made = initialized("functions: {'*': {bits: {o: 16}}, '*iqmul*': {bits: {o: 8}}}", tmp_path)
    by_hand = Net()
    linger.quant_function(by_hand, out_bits=16)
    linger.quant_function(by_hand, "mul", out_bits=8)
    by_hand = linger.init(by_hand).eval()
    linger.restore()
    with linger.calibration():
        made(X)
        by_hand(X)
    found = {
        path: m.out_bits for path, m in made.named_modules() if isinstance(m, linger.iqAddLayer | linger.iqMulLayer)
    }
    assert sorted(found.values()) == [8, 16]
    assert torch.equal(made(X).integers(), by_hand(X).integers())
    linger.save_config(made, tmp_path / "saved.yaml")
    again = linger.init(Net(), tmp_path / "saved.yaml").eval()
    linger.restore()
    assert torch.equal(again(X).integers(), made(X).integers())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("layers: {'blok.*': {}}", "layers: the pattern 'blok.*' fits nothing (is block meant?)"),
        ("layers: {'b*': {}, 'zzz*': {}}", "layers: the pattern 'zzz*' fits nothing"),
        ("limits: {'hed*': {output: 8}}", "limits: the pattern 'hed*' fits nothing (is head meant?)"),
        ("constrain: {'hed*': {output: 8}}", "constrain: the pattern 'hed*' fits nothing"),
        ("functions: {'tail.*': {bits: {o: 16}}}", "functions: the pattern 'tail.*' fits nothing"),
        ("functions: {'*': {scales: {o: 2^3}}}", "functions.*: a pattern chooses the width of results alone"),
        ("functions: {'*': {bits: {o: 32}}}", "functions.*: a pattern chooses the width of results alone"),
        ("layers: {'*': {op: LinearInt}}", "block.conv: Conv2d becomes Conv2dInt, and the file has LinearInt"),
    ],
)
def test_a_pattern_that_fits_nothing_changes_nothing(tmp_path: Path, content: str, said: str) -> None:
    net = Net()
    before = str(net), {path: dict(vars(module)) for path, module in net.named_modules()}
    with pytest.raises(linger.UsageError) as caught:
        initialized(content, tmp_path, net)
    assert said in str(caught.value)
    assert (str(net), {path: dict(vars(module)) for path, module in net.named_modules()}) == before


def test_a_layer_that_init_refuses_stays_float(tmp_path: Path) -> None:
    refused = nn.utils.parametrizations.orthogonal(nn.Linear(2, 2))
    made = initialized("layers: {'*': {bits: 8/4/8}}", tmp_path, nn.Sequential(refused, nn.Linear(2, 2)))
    assert isinstance(made[0], nn.Linear)
    assert str(made[1].widths) == "8/4/8"


def test_the_mark_of_a_fused_pair_stands_above_that_of_its_part(tmp_path: Path) -> None:
    net = Net()
    linger.trace_layers(net, net, X)
    linger.quant_module(net.block["conv"], parameter_bits=4)
    linger.disable_quant(net.block["conv"].conv)
    made = initialized("layers: {'block.*': {bits: 8/16/8}}", tmp_path, net)
    assert str(made.block["conv"].widths) == "8/16/8"
