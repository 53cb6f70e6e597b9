# SPDX-License-Identifier: Apache-2.0
"""QUANT_CONFIGS and its neighbors: settings of a context, which change the models initialized in it and no other."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

import linger
from linger import Switches
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.supported import supported_types

_T = TypeVar("_T")


def apart(function: Callable[[], _T]) -> _T:
    """Run in a context of its own, as a test must not choose for the next."""
    return contextvars.copy_context().run(function)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv1d(1, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.head((y + y.relu()).transpose(1, 2))


def initialized(**arguments: object) -> nn.Module:
    made = linger.init(Net(), **arguments)  # type: ignore[arg-type]  # arguments of several types
    linger.restore()
    return made


def test_settings_hold_in_their_context_alone() -> None:
    def inside() -> tuple[nn.Module, int]:
        linger.QUANT_CONFIGS.quant_info.weight_bits = 4
        linger.QUANT_CONFIGS.quant_info.activate_bits = 16
        linger.QUANT_CONFIGS.clamp_info = {"clamp_weight_value": 3}
        elsewhere: list[int] = []
        thread = threading.Thread(target=lambda: elsewhere.append(linger.QUANT_CONFIGS.quant_info.weight_bits))
        thread.start()
        thread.join()
        assert linger.QUANT_CONFIGS.clamp_info.clamp_weight_value == 3
        assert "clamp_activation_value=8" in repr(linger.QUANT_CONFIGS.clamp_info)
        assert linger.constrain(Net()).head.normalize_weight == 3
        return initialized(), elsewhere[0]

    model, elsewhere = apart(inside)
    assert (str(model.conv.widths), str(model.head.widths), elsewhere) == ("16/4/16", "16/4/16", 8)
    assert runtime_of(model).target is None
    with linger.calibration():
        out = model.eval()(torch.randn(2, 1, 8))
    assert out.bits == 16
    assert [m.out_bits for m in model.modules() if isinstance(m, linger.iqAddLayer)] == [16]
    assert str(initialized().head.widths) == "8/8/8"
    assert linger.QUANT_CONFIGS.platform is None
    assert linger.QUANT_CONFIGS.quant_info.a_calibrate_name == "abs_max"
    assert repr(linger.QUANT_CONFIGS) == "QUANT_CONFIGS()"


def test_settings_show_what_holds() -> None:
    def inside() -> str:
        linger.QUANT_CONFIGS.platform = "arcs"
        linger.QUANT_CONFIGS.platform = None
        linger.QUANT_CONFIGS.quant_info.qat_method = "TQT"
        return str(linger.QUANT_CONFIGS.quant_info.a_calibrate_name)

    assert apart(inside) == "top_10"


def test_what_means_nothing_is_refused_and_not_kept() -> None:
    with pytest.raises(AttributeError, match=r"QUANT_CONFIGS has no setting 'quant_infos'. Is quant_info meant\?"):
        linger.QUANT_CONFIGS.quant_infos = {}
    with pytest.raises(linger.UsageError, match=r"QUANT_CONFIGS.quant_info has no setting 'bits'"):
        linger.QUANT_CONFIGS.quant_info.bits  # noqa: B018 - reading it is what is tried
    with pytest.raises(linger.UsageError, match=r"quant_info.weight_bits is not one of 4, 8, 16"):
        linger.QUANT_CONFIGS.quant_info.weight_bits = 5
    with pytest.raises(linger.UsageError, match=r"QUANT_CONFIGS.clamp_info: a mapping is expected, not 8"):
        linger.QUANT_CONFIGS.clamp_info = 8
    assert linger.QUANT_CONFIGS.quant_info.weight_bits == 8
    assert "weight_bits" in dir(linger.QUANT_CONFIGS.quant_info)
    assert "seed" in dir(linger.QUANT_CONFIGS)


def test_the_file_of_a_context_and_of_a_model_can_be_read(tmp_path: Path) -> None:
    def inside() -> nn.Module:
        linger.QUANT_CONFIGS.platform = "arcs"
        linger.QUANT_CONFIGS.quant_info.weight_bits = 4
        linger.QUANT_CONFIGS.quant_info.a_calibrate_name = "top_10"
        linger.config_save_to_yaml(tmp_path / "context.yaml")
        return initialized()

    model = apart(inside)
    linger.save_config(model, tmp_path / "model.yaml")
    linger.config_save_to_yaml(tmp_path / "same.yaml", model)
    assert (tmp_path / "same.yaml").read_bytes() == (tmp_path / "model.yaml").read_bytes()
    for name in ("context.yaml", "model.yaml"):
        again = initialized(config_file=tmp_path / name)
        assert str(again) == str(model)
        assert runtime_of(again).target == "arcs"
        assert runtime_of(again).methods == {"inputs": "topk:10", "outputs": "topk:10"}


def test_ops_are_left_out_in_a_context() -> None:
    def inside() -> nn.Module:
        linger.disable_quant_ops([nn.Conv1d], [torch.add, "mul"])
        linger.disable_quant_ops(["LSTM"])
        return initialized()

    model = apart(inside)
    assert type(model.conv) is nn.Conv1d
    assert isinstance(model.head, linger.LinearInt)
    assert runtime_of(model).switches == Switches(add=False, mul=False)
    assert isinstance(initialized().conv, linger.Conv1dInt)


def test_names_of_ops_are_what_can_be_left_out() -> None:
    modules, functions = linger.get_quant_ops_name()
    assert modules == [kind.__name__ for kind in supported_types()]
    assert {"add", "cat", "bmm", "softmax"} <= set(functions)

    def inside() -> nn.Module:
        linger.disable_quant_ops(modules, functions)
        with pytest.warns(UserWarning, match="no layer of Net was replaced"):
            return initialized()

    assert type(apart(inside).head) is nn.Linear
    with pytest.raises(linger.UsageError) as caught:
        linger.disable_quant_ops([nn.ReLU, "Conv2e", 3], [torch.exp, {}])  # type: ignore[list-item]  # the wrong type is what is tried
    for said in (
        "qmodule_list: 'ReLU' is unknown",
        "(is Conv2d meant?)",
        "'3'",
        "qtensor_list: 'exp' is unknown",
        "'{}'",
    ):
        assert said in str(caught.value)
