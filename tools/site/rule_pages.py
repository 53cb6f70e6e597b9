# SPDX-License-Identifier: Apache-2.0
"""The rules of `linger check` and of `linger repair`, and the keys of the configuration, as pages."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from linger.checks.check import RULES
from linger.checks.repair_rules import RULES as REPAIRS
from linger.checks.repair_rules import RepairRule
from linger.constraint.limits import Limits, Widths
from linger.graph.core.check_rules import CheckRule
from linger.quantization.setup.config_file import ChannelLimit, Config, Constraint, FunctionConfig, Fused, LayerConfig
from linger.settings import Switches
from tools.site.docstrings import read
from tools.site.markdown import code, page, plain, section, table

_GROUPS = {
    "1": "Schema: ops, attributes, operands",
    "2": "Structure: tensors, nodes, names, sizes",
    "3": "Types, widths and shapes",
    "4": "Scales",
    "5": "Sums and ranges",
    "6": "Dequants",
    "7": "Files of other tools",
    "9": "Chips",
}


def rule_files() -> Iterator[tuple[str, str]]:
    """Place and content of the pages."""
    yield "reference/check-rules.md", check_rules(RULES)
    yield "reference/repair-rules.md", repair_rules(REPAIRS)
    yield "reference/configuration.md", configuration()


def check_rules(rules: Mapping[str, CheckRule]) -> str:
    """Every rule of `check`: id, name, severity, meaning, remedy."""
    parts = []
    for digit, title in _GROUPS.items():
        own = [rule for rule in rules.values() if rule.id[3] == digit]
        parts.append(section(f"## {title}", *map(_check_rule, own)))
    return page(
        "# Rules of check",
        f"The {len(rules)} rules of [`linger check`](../check.md). Ids never change and are never used again; "
        "`--ignore` takes an id or a name. The severity is the usual one: a finding may have another, which it shows.",
        table(["rule", "name", "severity", "what it asks for"], map(_check_row, rules.values())),
        *parts,
    )


def _check_row(rule: CheckRule) -> list[str]:
    return [f"[{rule.id}](#{rule.id.lower()})", rule.name, rule.severity, plain(rule.summary)]


def _check_rule(rule: CheckRule) -> str:
    return f"### {rule.id} {rule.name} {{ #{rule.id.lower()} }}\n\n*{rule.severity}* · **{plain(rule.summary)}**\n\n{plain(rule.help)}"


def repair_rules(rules: Mapping[str, RepairRule]) -> str:
    """Every rule of `repair`, in the order in which they run."""
    rows = [
        [str(number), code(rule.name), "by default" if rule.is_default else "on request", plain(rule.description)]
        for number, rule in enumerate(rules.values(), start=1)
    ]
    parts = [section(f"## {rule.name}", f"**{plain(rule.description)}**", _pass(rule)) for rule in rules.values()]
    return page(
        "# Rules of repair",
        "The rules of [`linger repair`](../repair.md) (also called `linger fix`), in the order in which they run. "
        "`--rule` and `rules=` choose by name; without it those that are on by default run. What they leave alone, and why "
        "the numbers of a file stay what they are: [Repair rules](../repair-rules.md).",
        table(["", "rule", "runs", "what is true afterwards"], rows),
        *parts,
    )


def _pass(rule: RepairRule) -> str:
    """What the pass says of itself, without the technical sections."""
    said = "" if rule.apply.__name__.startswith("_") else read(inspect.getdoc(rule.apply) or "").text
    return plain(said)


_PARTS = (
    (Config, "The file", ""),
    (LayerConfig, "A layer", "An entry of `layers`, by the layer's path or a pattern."),
    (
        FunctionConfig,
        "A function",
        "An entry of `functions`, by the path of the module and the number of the call in it.",
    ),
    (Constraint, "Limits before training", "An entry of `constrain`, by path or pattern."),
    (Fused, "A fused pair", "An entry of the list `fused`."),
    (ChannelLimit, "Limits of channels", "An entry of `channel_limits`, by the module's path."),
    (Limits, "Limits", "An entry of `limits`, by the layer's path, or the value of `limits` of a layer."),
    (Widths, "Widths", "Written as one text, input/weights/output: `8/8/8`."),
    (Switches, "Switches", "Keys of `switches`."),
)


def configuration() -> str:
    """Every key of the YAML file."""
    parts = [
        section(f"## {title}", said or plain(_text(kind)), table(["key", "type", "default", "meaning"], _rows(kind)))
        for kind, title, said in _PARTS
    ]
    return page(
        "# Configuration",
        "The keys of the YAML file that `linger.save_config(model, path)` writes and `linger.init(model, config_file=path)` "
        "reads: everything that was decided about a quantized model, but its weights. A file by hand needs only what differs "
        "from the defaults. Scales are written `2^n`. Unknown keys, layers and types are errors that name the nearest one. "
        "How it is used, what files of linger 3.x mean, and the schema for editors: [One configuration](../configuration.md).",
        *parts,
    )


def _text(kind: type) -> str:
    return read(inspect.getdoc(kind) or "").text


def _rows(kind: Any) -> Iterator[list[str]]:
    said = read(inspect.getdoc(kind) or "").entries.get("Attributes", {})
    hints = get_type_hints(kind)
    for entry in dataclasses.fields(kind):
        meaning = said.get(entry.name) or _SAID.get((kind, entry.name), "")
        yield [code(entry.name), _type(hints[entry.name]), _default(entry), plain(meaning)]


_SAID = {
    (Limits, "weight"): "The largest magnitude of weights.",
    (Limits, "bias"): "The largest magnitude of biases.",
    (Limits, "output"): "The largest magnitude of outputs.",
    (Widths, "data"): "Bits of the input.",
    (Widths, "parameter"): "Bits of the weights.",
    (Widths, "output"): "Bits of the output.",
}
"""Fields whose class says nothing of them one by one."""


_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_OF_PARTS = {kind: f"[{title.lower()}](#{title.lower().replace(' ', '-')})" for kind, title, _ in _PARTS}


def _type(hint: Any) -> str:
    """A type in words of YAML."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if origin is types.UnionType:
        return " or ".join(map(_type, parts))
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"name: {_type(parts[1])}"
    return _OF_PARTS.get(hint) or _NAMES.get(hint) or code(getattr(hint, "__name__", hint))


def _default(entry: dataclasses.Field[Any]) -> str:
    if entry.default_factory is not dataclasses.MISSING:
        value = entry.default_factory()
        return code(value) if isinstance(value, Widths) else ""
    if entry.default is dataclasses.MISSING:
        return "required"
    if entry.default in (None, "", ()):
        return ""
    return code(str(entry.default).lower() if isinstance(entry.default, bool) else entry.default)
