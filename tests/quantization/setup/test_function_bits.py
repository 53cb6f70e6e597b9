# SPDX-License-Identifier: Apache-2.0
"""Widths of functions: chosen by name, honored by what computes, reads and writes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from tests.support.quantization import OutputError, error_db

Function = Callable[[Tensor, Tensor], Tensor]

FUNCTIONS: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1.0),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "stack": lambda x, y: torch.stack([x, y], 1).flatten(1),
    "matmul": lambda x, y: x @ y.transpose(0, 1),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "mean": lambda x, y: x.mean(1, keepdim=True),
    "sum": lambda x, y: x.sum(1, keepdim=True),
    "var": lambda x, y: x.var(1, keepdim=True),
    "softmax": lambda x, y: x.softmax(-1),
    "log_softmax": lambda x, y: F.log_softmax(x, -1),
    "gelu": lambda x, y: F.gelu(x),
    "silu": lambda x, y: F.silu(x),
    "hardswish": lambda x, y: F.hardswish(x),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.1),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "layer_norm": lambda x, y: F.layer_norm(x, (8,)),
    "group_norm": lambda x, y: F.group_norm(x, 2),
}


class Two(nn.Module):
    """A function of two layers' results."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.left, self.right, self.function = nn.Linear(6, 8), nn.Linear(6, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.left(x), self.right(x))


def calibrated(model: nn.Module, x: Tensor) -> Any:
    quantized = linger.init(model).eval()
    with linger.calibration():
        quantized(x)
    return quantized


def rows() -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("bits", [(8, 16), (16, 8), (8, 4)], ids=["wider", "narrower", "4 bits"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_width_that_was_chosen(name: str, bits: tuple[int, int]) -> None:
    operands, result = bits
    model = Two(FUNCTIONS[name])
    linger.quant_module(model, out_bits=operands)
    linger.quant_function(model, name, out_bits=result)
    model = calibrated(model, rows())
    assert model(rows()).bits == result
    assert linger.coverage(model).float_ops == ()


@pytest.mark.parametrize("bits", [(8, 16), (16, 8), (8, 4)], ids=["wider", "narrower", "4 bits"])
def test_files_have_the_same_integers(bits: tuple[int, int], tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Two(lambda x, y: tuple(function(x, y) for function in FUNCTIONS.values()))  # type: ignore[arg-type, return-value]
    linger.quant_module(model, out_bits=bits[0])
    model = calibrated(linger.quant_function(model, out_bits=bits[1]), rows())
    linger.onnx.export(model, (rows(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (rows(),)).ok


@pytest.mark.parametrize("name", ["+", "torch.add", "torch.Tensor.add_", "__add__", "iqAdd"])
def test_one_function_has_many_names(name: str) -> None:
    model = calibrated(linger.quant_function(Two(FUNCTIONS["add"]), [name], out_bits=16), rows())
    assert model(rows()).bits == 16


def test_all_functions_at_once_and_back() -> None:
    model = calibrated(Two(FUNCTIONS["add"]), rows())
    assert model(rows()).bits == 8
    linger.quant_function(model, out_bits=16)
    assert model(rows()).bits == 16
    linger.quant_function(model, "add", out_bits=None)
    assert model(rows()).bits == 8


def test_a_single_call_has_a_width_of_its_own() -> None:
    model = calibrated(Two(lambda x, y: (x + y) + x), rows())
    first = model._linger_round_tensor_iqadd__default_index_0
    first.out_bits = 16
    seen: list[int] = []
    runtime = model(rows()).runtime
    runtime.observers.append(lambda name, op, operands, attributes, result: seen.append(result.bits))
    model(rows())
    assert seen[-2:] == [16, 16]
    model._linger_round_tensor_iqadd__default_index_1.out_bits = 8
    model(rows())
    assert seen[-2:] == [16, 8]


def test_wide_sums_are_exact_where_narrow_ones_are_rounded() -> None:
    model = Two(FUNCTIONS["add"])
    for layer, factor in ((model.left, 1.0), (model.right, 2.0)):
        nn.init.zeros_(layer.bias)
        nn.init.constant_(layer.weight, factor / 8)
    x = torch.tensor([[1.0], [0.5]]).expand(2, 6)  # 6/8 and 12/8: scales 128 (96) and 64 (96); the sum is 2.25
    narrow = calibrated(copy.deepcopy(model), x)
    wide = calibrated(linger.quant_function(model, "add", out_bits=16), x)
    assert (narrow(x).scale, wide(x).scale) == (32.0, 64.0)  # 2.25·32 = 72 ≤ 127; a sum is no finer than its operands
    assert (narrow(x).integers()[0, 0], wide(x).integers()[0, 0]) == (72, 144)


def test_layers_read_a_wide_tensor_at_their_own_width() -> None:
    class Read(Two):
        def __init__(self) -> None:
            super().__init__(FUNCTIONS["add"])
            self.narrow, self.wide = nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = super().forward(x)
            return self.narrow(y), self.wide(y)

    model = linger.quant_function(Read(), "add", out_bits=16)
    linger.quant_module(model.wide, data_bits=16)
    model = calibrated(model, rows())
    nodes: list[tuple[str, int]] = []
    model(rows())[0].runtime.observers.append(
        lambda name, op, o, a, result: nodes.append((name, a.get("data_bits", 0)))
    )
    model(rows())
    assert [(name, bits) for name, bits in nodes if name.startswith(("narrow", "wide"))] == [
        ("narrow.Requant", 16),
        ("narrow.LinearInt", 8),
        ("wide.LinearInt", 16),
    ]


class Residual(nn.Module):
    """Blocks that each add a little to a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 10)
        self.blocks = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x.mean((2, 3)))


def residual_db(bits: int) -> float:
    torch.manual_seed(3)
    model = Residual().eval()
    reference, x = copy.deepcopy(model), torch.randn(8, 3, 12, 12)
    linger.quant_function(model, "add", out_bits=bits)
    if bits == 16:
        linger.quant_module(model.stem, out_bits=16)
    quantized = linger.init(model).eval()
    with linger.calibration():
        quantized(x[:4])
    return error_db(OutputError(reference, [(x[4:],)])(quantized))


def test_a_wide_residual_stream_has_less_noise() -> None:
    narrow, wide = residual_db(8), residual_db(16)
    assert wide > narrow + 1.5


def test_training_learns_through_a_wide_sum() -> None:
    model = linger.init(linger.quant_function(Two(FUNCTIONS["add"]), "add", out_bits=16)).train()
    result = model(rows())
    assert result.bits == 16
    result.dequantize().sum().backward()
    assert model.left.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("bits", [(8, 16), (16, 8)], ids=["wider", "narrower"])
def test_the_width_stands_in_the_settings_file(bits: tuple[int, int], tmp_path: Path) -> None:
    model = linger.quant_module(Two(FUNCTIONS["add"]), out_bits=bits[0])
    model = calibrated(linger.quant_function(model, "add", out_bits=bits[1]), rows())
    linger.save_config(model, tmp_path / "net.yaml")
    again = linger.init(Two(FUNCTIONS["add"]), config_file=tmp_path / "net.yaml").eval()
    again.load_state_dict(model.state_dict())
    assert again(rows()).bits == bits[1]
    assert torch.equal(again(rows()).integers(), model(rows()).integers())


def test_copies_keep_the_width() -> None:
    model = calibrated(linger.quant_function(Two(FUNCTIONS["add"]), "add", out_bits=16), rows())
    assert copy.deepcopy(model)(rows()).bits == 16


# what is refused
@pytest.mark.parametrize(
    ("names", "bits", "sentence"),
    [
        ("ad", 16, "there is no function 'ad' (is 'add' meant?)"),
        (["iqAddd", "add"], 16, "is 'iqAdd' meant?"),
        ("nonsense", 16, "known: add, bmm"),
        (
            "linear",
            16,
            "'linear' is a product with weights, whose widths are those of a layer; use linger.quant_module",
        ),
        ("sigmoid", 16, "'sigmoid' returns the width of its input, or has one format only"),
        ("relu", 16, "'relu' returns the width of its input, or has one format only"),
        ("add", 12, "out_bits=12 is no width; use 4, 8 or 16"),
        ("add", True, "out_bits=True is no width"),
        ([3], 16, "3 is no name of a function"),
    ],
)
def test_a_wrong_name_or_width_changes_nothing(names: Any, bits: Any, sentence: str) -> None:
    model = Two(FUNCTIONS["add"])
    with pytest.raises(linger.UsageError) as error:
        linger.quant_function(model, names, out_bits=bits)
    assert sentence in str(error.value)
    assert calibrated(model, rows())(rows()).bits == 8


def test_all_problems_are_named_together() -> None:
    with pytest.raises(linger.UsageError, match=r"out_bits=3 .*'ad'.*'sigmoid'"):
        linger.quant_function(Two(FUNCTIONS["add"]), ["ad", "sigmoid"], out_bits=3)
    with pytest.raises(linger.UsageError, match="needs a module, not a str"):
        linger.quant_function("model", "add", out_bits=16)  # type: ignore[arg-type]
