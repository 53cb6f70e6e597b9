# SPDX-License-Identifier: Apache-2.0
"""Write the JSON Schema of the settings file, for editors: `src/linger/cli/schemas/config.json`.

Keys and their meaning come from the dataclasses of the file and their docstrings; how a value is written is said here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from json_schemas import DIALECT, FOLDER, TEXT, TRUTH, WHOLE, Schema, attributes, described, listed, mapped, text_of

from linger.constraint.limits import Limits, Widths
from linger.quantization.core.supported import supported_types
from linger.quantization.setup.config_file import (
    CALIBRATED,
    SCALES,
    VERSION,
    ChannelLimit,
    Config,
    Constraint,
    FunctionConfig,
    Fused,
    LayerConfig,
)
from linger.settings import Switches
from linger.targets import TARGETS

FILE = FOLDER / "config.json"
LIMIT: Schema = {"type": "number", "exclusiveMinimum": 0}
WIDTHS: Schema = {"type": "string", "pattern": "^(4|8|16)/(4|8|16)/(4|8|16|32)$"}
SCALE: Schema = {"type": "string", "pattern": "^2\\^-?[0-9]{1,3}$"}
METHOD: Schema = {**TEXT, "examples": ["max", "percentile:99.9", "mse", "kl", "topk:3"]}

WRITTEN: Mapping[tuple[type, str], Schema] = {
    (Config, "version"): {"const": VERSION},
    (Config, "target"): {"enum": list(TARGETS)},
    (Config, "parameter_bits"): {"enum": [4, 8, 16]},
    (Config, "types"): listed({"enum": [kind.__name__ for kind in supported_types()]}),
    (Config, "scales"): {"enum": list(SCALES)},
    (Config, "calibration"): {
        "type": "object",
        "properties": {kind: described(METHOD, f"The method of {kind}.") for kind in CALIBRATED},
        "additionalProperties": False,
    },
    (Config, "run"): {"type": "object"},
    (ChannelLimit, "largest"): LIMIT,
    (LayerConfig, "bits"): WIDTHS,
    (FunctionConfig, "bits"): mapped({"enum": [4, 8, 16, 32]}),
    **{(kind, "scales"): mapped(SCALE) for kind in (LayerConfig, FunctionConfig)},
    **{(kind, "methods"): mapped(METHOD) for kind in (LayerConfig, FunctionConfig)},
    **{(kind, entry.name): LIMIT for kind in (Limits, Constraint) for entry in dataclasses.fields(kind)},
}
"""Values that are written otherwise than their types say."""

REQUIRED = {Fused: ["conv", "bn"], ChannelLimit: ["largest", "shape"]}
LIMITS_SAID = {part: f"The largest magnitude of {part}s." for part in ("weight", "bias", "output")} | {
    "bias": "The largest magnitude of biases."
}


def keys_of(kind: Any) -> Schema:
    """An object with the keys of a dataclass and no others."""
    hints, texts = typing.get_type_hints(kind), {**LIMITS_SAID, **attributes(kind)}
    found = {
        entry.name: described(WRITTEN.get((kind, entry.name)) or of(hints[entry.name]), texts[entry.name])
        for entry in dataclasses.fields(kind)
    }
    made: Schema = {"type": "object", "properties": found, "additionalProperties": False}
    return made | ({"required": REQUIRED[kind]} if kind in REQUIRED else {})


def of(kind: Any) -> Schema:
    """How a value of an annotated type is written."""
    if kind is Widths:
        return WIDTHS
    if dataclasses.is_dataclass(kind):
        return keys_of(kind)
    if kind in (bool, int, str):
        return dict({bool: TRUTH, int: WHOLE, str: TEXT}[kind])
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # None: where nothing is said
        return of(next(part for part in parts if part is not type(None)))
    return listed(of(parts[0])) if origin is tuple else mapped(of(parts[1]))


def schema() -> Schema:
    """The whole schema."""
    whole = keys_of(Config)
    whole["properties"]["switches"] |= keys_of(Switches)
    return {
        "$schema": DIALECT,
        "title": "linger configuration",
        "description": "How a model is quantized: read by linger.init(model, config_file=…), written by linger.save_config.",
        **whole,
    }


if __name__ == "__main__":
    FILE.write_text(text_of(schema()), encoding="utf-8")
    print(f"wrote {FILE.name}")
