# SPDX-License-Identifier: Apache-2.0
"""save_config and init(config_file=…): the same integers from the same weights; a file that does not fit is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.quantization import ranges_of
from tests.support.settings_files import config_of


class Net(nn.Module):
    """Fused pairs, a residual sum, a softmax, a recurrent layer of two directions, a table, a part that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.mix = nn.Conv2d(8, 8, 3, padding=1)
        self.lstm = nn.LSTM(8, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.words = nn.Embedding(5, 8)
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.relu(x + self.mix(x)).flatten(2).transpose(1, 2)
        y, _ = self.lstm(x)
        return torch.softmax(self.head(self.tail(y + self.words(words).unsqueeze(1))), -1), x.mean(1)


@pytest.fixture(scope="module")
def float_net() -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    for x in torch.randn(4, 8, 1, 4, 4):
        net(x, torch.zeros(8, dtype=torch.long))  # statistics of the batch norm
    return net.eval()


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 1, 4, 4, generator=generator), torch.arange(6) % 5


def tuned(float_net: nn.Module, data: tuple[Tensor, Tensor]) -> nn.Module:
    """Decided upon in every way that there is."""
    net = copy.deepcopy(float_net)
    linger.trace_layers(net, *data)
    linger.normalize_module(net.mix, normalize_weight_value=0.1, normalize_bias_value=None, normalize_output_value=2.0)
    linger.normalize_layers(net, normalize_weight_value=None, normalize_bias_value=None)
    linger.quant_module(net.mix, parameter_bits=16, out_bits=16)
    linger.quant_module(net.words, [nn.Embedding])
    linger.disable_quant(net.tail)
    net = linger.init(net, target="arcs", switches=linger.Switches(sigmoid=False), parameter_bits=8).eval()
    with linger.calibration():
        net(*data)
    linger.choose_ranges(net, weights="mse", outputs="percentile:99")
    ranges = ranges_of(net)
    for key in ("head.w", "lstm.hw", "conv.o"):
        ranges[key].choose(ranges[key].scale * 2)
    with torch.no_grad():
        net.head.weight.mul_(1.3)
    return net


def integers(model: nn.Module, data: tuple[Tensor, Tensor]) -> list[Tensor]:
    return [tensor.integers() for name, tensor in zip("ab", model(*data), strict=True)]


def assert_same(first: nn.Module, second: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(integers(first, data), integers(second, data), strict=True):
        assert torch.equal(one, other)


def parameters_alone(model: nn.Module) -> dict[str, Any]:
    """The weights and the statistics of batch norms, without any range."""
    ranges = {
        id(b) for layer in model.modules() for n, b in layer.named_buffers(recurse=False) if n.startswith("scale_")
    }
    names = {n for n, b in model.named_buffers() if id(b) in ranges}
    dropped = names | {n.replace("scale_", "running_") for n in names} | {n.replace("scale_", "chosen_") for n in names}
    return {key: value for key, value in model.state_dict().items() if key not in dropped}


def test_the_same_integers_from_the_same_weights(
    float_net: nn.Module, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    model, path = tuned(float_net, data), tmp_path / "c.yaml"
    linger.save_config(model, path)
    # the model as it was written, the tuned checkpoint
    again = linger.init(copy.deepcopy(float_net), config_file=path).eval()
    again.load_state_dict(model.state_dict())
    assert_same(model, again, data)
    # weights alone: the scales are those of the file
    bare = linger.init(copy.deepcopy(float_net), config_file=path).eval()
    missing = bare.load_state_dict(parameters_alone(model), strict=False)
    assert not missing.unexpected_keys
    assert_same(model, bare, data)
    assert config_of(bare) == config_of(model)
    assert str(bare) == str(model)


def test_a_model_that_was_traced_already_fits_too(
    float_net: nn.Module, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    model, path = tuned(float_net, data), tmp_path / "c.yaml"
    linger.save_config(model, path)
    traced = copy.deepcopy(float_net)
    linger.trace_layers(traced, *data)
    again = linger.init(traced, config_file=path).eval()
    again.load_state_dict(model.state_dict())
    assert_same(model, again, data)


def test_saved_models_and_files_of_copies(float_net: nn.Module, data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    model = tuned(float_net, data)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert config_of(loaded) == config_of(model)
    fresh = linger.init(copy.deepcopy(float_net), config_file=_saved(model, tmp_path))
    fresh.load_state_dict(torch.load(_state(model, tmp_path)))
    assert config_of(fresh) == config_of(model)  # although no pass has run since


def _saved(model: nn.Module, folder: Path) -> Path:
    linger.save_config(model, folder / "c.yaml")
    return folder / "c.yaml"


def _state(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "state.pt")
    return folder / "state.pt"


def test_a_softmax_beyond_its_format_keeps_its_subtraction(tmp_path: Path) -> None:
    torch.manual_seed(0)
    float_model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    with torch.no_grad():
        float_model[0].weight.mul_(400)
    points = torch.randn(50, 4)
    model = linger.init(copy.deepcopy(float_model)).eval()
    with pytest.warns(UserWarning, match="ends at ±64"), linger.calibration():
        model(points)
    again = linger.init(float_model, config_file=_saved(model, tmp_path)).eval()
    assert torch.equal(model(points).integers(), again(points).integers())


def test_a_batch_norm_folded_for_good(float_net: nn.Module, data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    model = tuned(float_net, data)
    model.conv.fold_batch_norm()
    path = _saved(model, tmp_path)
    assert "folded: true" in path.read_text()
    again = linger.init(copy.deepcopy(float_net), config_file=path).eval()
    assert again.conv.bn is None
    again.load_state_dict(model.state_dict())
    assert_same(model, again, data)


def test_a_layer_alone_and_a_file_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    (tmp_path / "c.yaml").write_text('layers: {"": {bits: 8/4/16}}')
    model = linger.init(nn.Linear(4, 3), config_file=tmp_path / "c.yaml")
    assert str(model.widths) == "8/4/16"
    (tmp_path / "d.yaml").write_text("layers: {'0': {bits: 8/16/8}}\nstays_float: ['1']")
    pair = linger.init(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), config_file=tmp_path / "d.yaml")
    assert str(pair[0].widths) == "8/16/8"
    assert type(pair[1]) is nn.Linear


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("layers: {cnv: {}}", "layers: 'cnv' is unknown (is conv meant?)"),
        ("layers: {conv: {op: LinearInt}}", "conv: Conv2d becomes Conv2dInt, and the file has LinearInt"),
        (
            "layers: {conv: {shape: [1, 2, 3, 3]}}",
            "conv: its weights are [8, 1, 3, 3], and those of the file [1, 2, 3, 3]",
        ),
        ("layers: {conv: {scales: {io: 2^3}}}", "conv.scales: 'io' is unknown"),
        ("layers: {lstm: {scales: {o_l7: 2^3}}}", "lstm.scales: 'o_l7' is unknown (is o_l1 meant?)"),
        ("layers: {tail.1: {}}", "tail.1: ReLU has no integer form"),
        ("stays_float: [tale]", "stays_float: 'tale' is unknown (is tail meant?)"),
        ("fused: [{conv: conv, bn: head}]", "conv (Conv2d) and head (Linear) cannot be one layer"),
        ("fused: [{conv: conv, bn: bnn}]", "fused: 'bnn' is unknown (is bn meant?)"),
        ("limits: {tail.1: {output: 8}}", "limits.tail.1: ReLU cannot be kept within limits"),
        ("types: [Conv2e]", "types: 'Conv2e' is unknown (is Conv2d meant?)"),
        ("functions: {tial.iqadd_0: {}}", "functions: 'tial' is unknown (is tail meant?)"),
        ("functions: {iqadd__default_index_0: {scales: {w: 2^3}}}", "'w' is unknown (known: o)"),
        ("complete: true", "conv: the file says nothing about this Conv2d; bn: the file says"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(
    float_net: nn.Module, tmp_path: Path, content: str, said: str
) -> None:
    net = copy.deepcopy(float_net)
    before = str(net)
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(linger.UsageError) as caught:
        linger.init(net, config_file=tmp_path / "c.yaml")
    assert said in str(caught.value)
    assert str(net) == before


def test_other_arguments_beside_a_file_are_refused(float_net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("target: venus")
    with pytest.raises(linger.UsageError, match="config_file says target, parameter_bits already"):
        linger.init(copy.deepcopy(float_net), config_file=tmp_path / "c.yaml", target="venus", parameter_bits=4)


def test_a_float_model_has_nothing_to_save(float_net: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(linger.UsageError, match="save_config: the model is not quantized"):
        linger.save_config(float_net, tmp_path / "c.yaml")
    assert not (tmp_path / "c.yaml").exists()


class Limited(nn.Module):
    """Layers before ReLU6, with and without a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.depth = nn.Conv2d(8, 8, 3, groups=8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.relu6(self.depth(self.block(x))))


@pytest.mark.parametrize("is_traced", [False, True])
def test_an_equalized_model_comes_back(tmp_path: Path, *, is_traced: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 8, 8)
    float_model = Limited()
    float_model(x)
    float_model.eval()
    with torch.no_grad():
        float_model.depth.weight[0].mul_(30)
        float_model.block[0].weight[1].mul_(30)
    model = copy.deepcopy(float_model)
    if is_traced:
        linger.trace_layers(model, x)
    linger.equalize(model, x)
    if not is_traced:
        linger.trace_layers(model, x)
    model = linger.init(model).eval()
    with linger.calibration():
        model(x)
    path = _saved(model, tmp_path)
    assert "channel_limits" in path.read_text()
    again = linger.init(copy.deepcopy(float_model), config_file=path).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(x).integers(), again(x).integers())
    assert config_of(again) == config_of(model)


def test_biases_that_were_added_come_back_with_the_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(32, 6)
    float_model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    model = linger.init(copy.deepcopy(float_model)).eval()
    with linger.calibration():
        model(x)
    model[0].shift_output(torch.full((8,), 0.25))  # as correct_biases does
    again = linger.init(copy.deepcopy(float_model), config_file=_saved(model, tmp_path)).eval()
    again.load_state_dict(torch.load(_state(model, tmp_path)))
    assert again[0].bias is not None
    assert torch.equal(model(x).integers(), again(x).integers())


class Mixed(nn.Module):
    """Layers and functions in a part, behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.pool, self.last = nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.Linear(4, 3)
        self.part = nn.Sequential(nn.GELU(), nn.Conv2d(4, 4, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.part(self.pool(self.first(x))).flatten(1))


def _with_a_layer_inside(net: nn.Module) -> nn.Module:
    linger.disable_quant(net.part)
    linger.quant_module(net.part[1])
    return linger.init(net)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(
            lambda net: linger.init(net, disable_submodel=["part"]), "stays_float:\n  - part\n\n", id="a part"
        ),
        pytest.param(
            _with_a_layer_inside,
            "stays_float:\n  - part.0\n  - part.2\nstays_float_alone:\n  - part\n\n",
            id="a layer inside is quantized",
        ),
        pytest.param(
            lambda net: linger.init(net, disable_module=[nn.GELU, nn.AvgPool2d]),
            "stays_float:\n  - pool\n  - part.0\n\n",
            id="types",
        ),
        # its function is an integer op all the same
        pytest.param(
            lambda net: linger.init(net, quant_modules=[nn.Conv2d, nn.Linear]),
            "not_quantized:\n  - pool\n\n",
            id="unasked",
        ),
    ],
)
def test_functions_are_integers_and_floats_as_before(
    made: Callable[[nn.Module], nn.Module], said: str, tmp_path: Path
) -> None:
    x = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    model = made(Mixed()).eval()
    with linger.calibration():
        model(x)
    assert said in _saved(model, tmp_path).read_text()
    again = linger.init(Mixed(), config_file=tmp_path / "c.yaml").eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(x).integers(), again(x).integers())
    assert config_of(again) == config_of(model)
    with linger.calibration():
        again(x)
    ops = [[(o.where, o.op, o.is_integer) for o in linger.coverage(m).ops] for m in (model, again)]
    assert ops[0] == ops[1]
