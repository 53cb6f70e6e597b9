# SPDX-License-Identifier: Apache-2.0
"""Files of linger 3.x: the same Config as a file of linger's own; what means something else is said, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.quantization import Widths
from tests.support.settings_files import Config, Constraint, FunctionConfig, LayerConfig, as_text, read_config

DEFAULT = """
open_quant: true
quant_method: NATIVE
device: cuda
dtype: torch.float32
seed: 42
platform: venusA
clamp_info: {clamp_weight_value: null, clamp_bias_value: null, clamp_activation_value: 8, clamp_factor_value: 7}
quant_info: {weight_bits: 8, activate_bits: 8, bias_bits: 32, a_strategy: RANGE_MEAN, w_strategy: RANGE_MEAN,
             is_symmetry: true, is_perchannel: false, round_mode: floor_add, activation_type: none, qat_method: MOM}
"""


def config(content: str, folder: Path) -> Config:
    (folder / "c.yaml").write_text(content)
    return read_config(folder / "c.yaml")


def test_the_defaults_mean_8_bits_on_venusA(tmp_path: Path) -> None:
    assert config(DEFAULT, tmp_path) == Config(
        target="venusA", constrain={"*": Constraint(output=8.0, weight_factor=7.0)}
    )
    assert config("seed: 1", tmp_path) == config(DEFAULT, tmp_path), "a key that is left out has its default of 3.x"


def test_parts_begin_from_the_defaults_and_become_patterns(tmp_path: Path) -> None:
    found = config(
        """
platform: venus
quant_info: {weight_bits: 4, activate_bits: 16}
encoder: {name: [enc.a, enc.b], quant_info: {input_bits: 16, output_bits: 32}}
head: {name: head, clamp_info: {clamp_weight_value: 2}}
tail: {name: 'tail*', quant_info: {weight_bits: 16}}
""",
        tmp_path,
    )
    enc = LayerConfig(bits=Widths(16, 8, 32))
    assert found.layers == {
        "*": LayerConfig(bits=Widths(16, 4, 16)),
        "enc.a.*": enc,
        "enc.b.*": enc,
        "tail*": LayerConfig(bits=Widths(8, 16, 8)),
    }
    assert list(found.functions) == ["*", "enc.a.*", "enc.b.*", "tail*"]
    assert found.functions["enc.a.*"] == FunctionConfig(bits={"o": 16}), "the widest that a function has"
    assert found.constrain["head.*"] == Constraint(weight=2.0, output=8.0)
    assert (found.target, found.parameter_bits, found.scales) == ("venus", 4, "running")


def test_learned_scales_and_calibrators(tmp_path: Path) -> None:
    found = config("quant_info: {qat_method: TQT, w_calibrate_name: w_like}", tmp_path)
    assert found.scales == "tqt"
    assert found.calibration == {"weights": "mse", "inputs": "topk:10", "outputs": "topk:10"}
    assert config("quant_info: {a_calibrate_name: percentile}", tmp_path).calibration == {
        "inputs": "percentile",
        "outputs": "percentile",
    }
    (tmp_path / "t.yaml").write_text("scales: tqt")
    with pytest.warns(UserWarning, match=r"asks for learned scales. Call linger.learn_scales\(model, 'tqt'\)"):
        model = linger.init(nn.Sequential(nn.Linear(2, 2)), tmp_path / "t.yaml")
    linger.restore()
    linger.save_config(model, tmp_path / "again.yaml")
    assert read_config(tmp_path / "again.yaml").scales == "tqt"


def test_what_is_read_can_be_written_as_lingers_own(tmp_path: Path) -> None:
    found = config(DEFAULT + "a: {name: [b], quant_info: {weight_bits: 4}}\n", tmp_path)
    assert config(as_text(found, "Net"), tmp_path) == found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("platfrom: venus\nseed: 1", "platfrom: 'platfrom' is unknown (is platform meant?)"),
        ("platform: mars", "platform: 'mars' is not supported: linger has no target file for this chip (known: venus"),
        ("platform: jupiter", "platform: 'jupiter' is not supported"),
        ("quant_info: {weight_bit: 4}", "quant_info.weight_bit is not known (is weight_bits meant?)"),
        ("quant_info: {weight_bits: 5}", "quant_info.weight_bits is not one of 4, 8, 16 (5)"),
        ("quant_info: {activate_bits: 32}", "quant_info.activate_bits is not one of 4, 8, 16 (32)"),
        ("quant_info: {bias_bits: 16}", "bias_bits is not 32, and nothing else has a meaning here: a bias always has 32 bits (16)"),
        ("quant_info: {is_perchannel: true}", "is_perchannel is not False, and nothing else has a meaning here: a tensor has one scale (True)"),
        ("quant_info: {is_symmetry: false}", "formats are symmetric"),
        ("quant_info: {round_mode: ceil}", "rounded by floor(x + ½)"),
        ("quant_info: {qat_method: LSQ}", "qat_method is not one of 'MOM', 'TQT' ('LSQ')"),
        ("quant_info: {a_calibrate_name: top10}", "(is top_10 meant?)"),
        ("quant_info: {a_strategy: KDL}", "'TQT' ('KDL') (is KLD meant?)"),
        ("quant_info: 8", "quant_info is not an object (8)"),
        ("clamp_info: {clamp_weight_value: 0}", "clamp_info.clamp_weight_value is not a positive number (0)"),
        ("quant_method: CUDE", "('CUDE') (is CUDA meant?)"),
        ("dtype: torch.float16", "dtype is not one of 'torch.float32', 'float32' ('torch.float16')"),
        ("open_quant: false", "open_quant is not True, and nothing else has a meaning here"),
        ("a: {name: 3}", "a.name is not a path, or a list of paths (3)"),
        ("a: {name: [b], quant_infos: {}}", "a.quant_infos is not known (is quant_info meant?)"),
        ("a: {name: [b], quant_info: {qat_method: TQT}}", "a.quant_info.qat_method: 'TQT': this is chosen for the whole"),
        ("seed: 1\na: {quant_info: {}}", "nor is it a part: a mapping with the key 'name'"),
    ],
)  # fmt: skip
def test_what_means_something_else_here_is_said(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(linger.UsageError) as caught:
        config(content, tmp_path)
    assert said in str(caught.value)


def test_every_complaint_comes_at_once_and_files_of_two_kinds_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(linger.UsageError, match=r"platform.*clamp_bias_value.*weight_bits"):
        config("platform: x\nquant_info: {weight_bits: 3}\nclamp_info: {clamp_bias_value: -1}", tmp_path)
    with pytest.raises(linger.UsageError, match=r"two kinds: target of linger, quant_info of linger 3\.x"):
        config("target: venus\nquant_info: {weight_bits: 4}", tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(linger.UsageError, match=r"is empty\. Write settings into it"):
        config("", tmp_path)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head((y + y.relu()).transpose(1, 2))


def test_a_file_gives_the_integers_of_the_same_settings_by_hand(tmp_path: Path) -> None:
    (tmp_path / "3.yaml").write_text("""
platform: arcs
quant_info: {weight_bits: 4}
wide: {name: [head], quant_info: {weight_bits: 8, output_bits: 16}}
""")
    x = torch.linspace(-1, 1, 48).reshape(4, 1, 12)
    by_file = linger.init(Net(), tmp_path / "3.yaml", disable_submodel=["body.2"]).eval()
    net = Net()
    linger.quant_module(net.head, data_bits=8, weight_bits=8, bias_bits=32, out_bits=16)
    by_hand = linger.init(net, target="arcs", parameter_bits=4, disable_submodel=["body.2"]).eval()
    linger.restore()
    with linger.calibration():
        by_file(x)
        by_hand(x)
    assert str(by_file) == str(by_hand)
    assert torch.equal(by_file(x).integers(), by_hand(x).integers())
    assert by_file(x).bits == 16


def test_a_part_that_fits_nothing_is_named_by_its_place_once(tmp_path: Path) -> None:
    (tmp_path / "3.yaml").write_text("wide: {name: [body, haed], quant_info: {output_bits: 16}, clamp_info: {}}")
    for function in (linger.init, linger.constrain):
        with pytest.raises(linger.UsageError, match=r": wide\.name: 'haed' fits nothing \(is head meant\?\)\. "):
            function(Net(), tmp_path / "3.yaml")


def test_a_calibrator_of_the_file_is_that_of_a_plain_calibration(tmp_path: Path) -> None:
    (tmp_path / "3.yaml").write_text("quant_info: {a_calibrate_name: top_10, w_calibrate_name: w_like}")
    x = torch.linspace(-1, 1, 64 * 12).reshape(64, 1, 12)
    x[3] *= 60
    models = [linger.init(Net(), tmp_path / "3.yaml").eval() for _ in range(3)]
    linger.restore()
    with linger.calibration():
        models[0](x)
    with linger.calibration("max", inputs="topk:10", outputs="topk:10", weights="mse"):
        models[1](x)
    with linger.calibration("max"):
        models[2](x)
    found = [{key: float(value) for key, value in m.state_dict().items() if "running" in key} for m in models]
    assert found[0] == found[1] != found[2]
