# SPDX-License-Identifier: Apache-2.0
"""The schema of the settings file agrees with what reads the file: on what is written, and on what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import yaml
from torch import nn

import linger
from linger.quantization.setup.config_file import as_text, read_config
from tests.conftest import REPOSITORY
from tests.quantization.setup.test_config_file import EVERYTHING
from tests.support.tools import load_tool

pytestmark = pytest.mark.needs_torch

SCHEMA = json.loads((REPOSITORY / "src/linger/cli/schemas/config.json").read_text(encoding="utf-8"))


def complaints(text: str) -> list[Any]:
    return list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(text)))


def test_the_file_is_the_one_that_the_tool_writes() -> None:
    load_tool("json_schemas")
    tool = load_tool("config_schema")
    assert tool.FILE.read_text(encoding="utf-8") == tool.text_of(tool.schema()), "run python tools/config_schema.py"


def test_it_accepts_what_is_written(tmp_path: Path) -> None:
    assert complaints(as_text(EVERYTHING, "Net")) == []
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(2, 1, 8, 8)
    model = linger.init(
        linger.constrain(linger.trace_layers(net, x)), target="venus", switches=linger.Switches(add=False)
    )
    linger.restore()
    with linger.calibration():
        model(x)
    linger.save_config(model, tmp_path / "c.yaml")
    assert complaints((tmp_path / "c.yaml").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "layrs: {}",
        "version: 2",
        "target: mars",
        "parameter_bits: 5",
        "types: [Conv2e]",
        "scales: learned",
        "calibration: {input: max}",
        "switches: {ad: true}",
        "switches: {add: 1}",
        "stays_float: head",
        "fused: [{conv: a}]",
        "fused: [{conv: a, bn: b, fold: true}]",
        "channel_limits: {a: {largest: 3}}",
        "constrain: {'*': {factor: 7}}",
        "limits: {a: {output: -8}}",
        "parts: {a: 8/8}",
        "layers: [a]",
        "layers: {'*': {bit: 8/8/8}}",
        "layers: {'*': {bits: 8/7/8}}",
        "layers: {a: {scales: {o: 32}}}",
        "layers: {a: {relu_ahead: 1}}",
        "functions: {a: {bits: {o: 12}}}",
    ],
)
def test_it_refuses_what_the_reader_refuses(tmp_path: Path, text: str) -> None:
    assert complaints(text)
    (tmp_path / "c.yaml").write_text(text)
    if not text.startswith("types"):  # the reader leaves types to the model
        with pytest.raises(linger.UsageError):
            read_config(tmp_path / "c.yaml")
