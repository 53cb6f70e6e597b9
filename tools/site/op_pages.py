# SPDX-License-Identifier: Apache-2.0
"""One page for each op of the dialect, and their index, from what the op's file declares."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping

import numpy as np

from linger.checks.check import RULES
from linger.dialect import DOMAIN, Attribute, Op, ops
from linger.graph.core.dialects import NEWER
from linger.targets import CHIPS
from tools.site.markdown import bullets, code, formula, page, plain, section, table
from tools.site.op_errors import Errors, image, measure
from tools.site.op_floats import EXACT
from tools.site.op_limits import op_limit_rows
from tools.site.op_words import ATTRIBUTES, INPUTS

FOLDER = "reference/ops"


def op_files() -> Iterator[tuple[str, str]]:
    """Place and content of the index, and of every op's page and image."""
    yield f"{FOLDER}/index.md", index(ops())
    for op in ops().values():
        errors = measure(op)
        yield f"{FOLDER}/{op.name}.md", op_page(op, errors)
        if errors is not None:
            yield f"{FOLDER}/{op.name}.svg", image(op, errors)


def index(known: Mapping[str, Op]) -> str:
    """A table of all ops."""
    rows = [
        [f"[{code(op.name)}]({op.name}.md)", plain(_formula(op)), ", ".join(code(name) for name in _short_names(op))]
        for op in known.values()
    ]
    chips = [
        [f"[{code(op.name)}]({op.name}.md)", *(target.status_of(op.name) for target in CHIPS.values())]
        for op in known.values()
    ]
    return page(
        "# Operators",
        f"The {len(known)} ops of the dialect: the domain `{DOMAIN}` of files. Each page is made from the op's one source "
        "file: what it computes, what its node looks like, the layers and functions of torch that it stands for, what is "
        "known of it on chips, and its error against the float function. The signs of the formulas, ⌊v + ½⌋ for rounding "
        "half up and sat for saturation, are explained under [Numbers](../../numeric.md#words).",
        table(["op", "computes", "stands for"], rows),
        section(
            "## On chips",
            "*exact*: the chip's engine gave linger's integers. *differs*: it gave others. *refused*: its packer or engine "
            "stopped. *not tried*: the packer lists the op, and nobody has compared its numbers.",
            table(["op", *CHIPS], chips),
        ),
    )


def op_page(op: Op, errors: Errors | None) -> str:
    """Everything that is known about an op."""
    first, *rest = _described(op)
    return page(
        f"# {op.name}",
        first,
        formula(_formula(op)),
        plain(_below_formula(op)),
        *rest,
        section("## Inputs", table(["input", "needed", "holds"], _input_rows(op)), _forms(op)),
        section(
            "## Attributes", table(["attribute", "type", "default", "meaning"], map(_attribute_row, op.attributes))
        ),
        section("## Output", *_output(op)),
        section("## In torch", bullets(_torch_names(op))),
        section("## In files", bullets(_names(op))),
        section("## On chips", *_chips(op)),
        section("## What is refused", _refused(op)),
        section("## Error against float", *_error(op, errors)),
        section(
            "## Source",
            f"`src/{op.module.replace('.', '/')}.py` holds the arithmetic, once, for numpy, torch, ONNX and C.",
        ),
    )


def _formula(op: Op) -> str:
    return (inspect.getdoc(op.body) or "").splitlines()[0].replace("`", "").removesuffix(".")


def _below_formula(op: Op) -> str:
    return "\n".join((inspect.getdoc(op.body) or "").splitlines()[1:]).strip()


def _described(op: Op) -> list[str]:
    """The paragraphs of the module's docstring, without the name that it begins with."""
    text = inspect.getdoc(importlib.import_module(op.module)) or ""
    paragraphs = [plain(" ".join(part.split())) for part in text.split("\n\n")]
    name, _, said = paragraphs[0].partition(": ")
    first = said[:1].upper() + said[1:] if name == op.name else paragraphs[0]
    return [first, *paragraphs[1:]]


def _short_names(op: Op) -> list[str]:
    return sorted({path.rpartition(".")[2].strip("_") for path in (*op.layers, *op.functions)})


def _input_rows(op: Op) -> Iterator[list[str]]:
    for name in op.inputs:
        needed = "any number" if op.is_variadic else "optional" if name in op.optional_inputs else "yes"
        holds = "real numbers" if name in op.real_inputs and name == "x" else INPUTS[name]
        yield [code(name), needed, holds]


def _forms(op: Op) -> str:
    if not op.forms:
        return ""
    return "A node has one of these lists of inputs:\n\n" + bullets(", ".join(map(code, form)) for form in op.forms)


def _attribute_row(attribute: Attribute) -> list[str]:
    default = "required" if attribute.is_required else code(_shown(attribute.default))
    return [code(attribute.name), attribute.kind, default, ATTRIBUTES[attribute.name]]


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _output(op: Op) -> Iterator[str]:
    if not op.has_integer_output:
        yield "Real numbers, float32."
        return
    if len(op.outputs) > 1:
        yield f"{', '.join(map(code, op.outputs))}: the first holds integers, the others real numbers."
    width = "the width of its first input" if op.output_bits is None else f"the width that {code(op.output_bits)} says"
    yield f"Integers of {width}."
    if op.output_scale is not None:
        yield f"The scale is always {op.output_scale:g}."
    elif op.limit is None:
        yield "linger writes the scale of the first input."
    else:
        yield "The device shifts results to the right only, so linger limits the output's scale by those of the inputs."
    if op.input_bits is not None:
        yield f"The device wants {op.input_bits}-bit input: where the input has another width a `Requant` stands before it."
    if op.input_end is not None:
        yield f"Numbers beyond ±{op.input_end:g} are lost in the device's format of the input."
    tried = sorted({getattr(sample.inputs[0], "bits", 0) for sample in op.samples} - {0})
    if tried:
        yield f"Widths of the input that the tests try: {', '.join(map(str, tried))} bits."


def _torch_names(op: Op) -> Iterator[str]:
    by_binding: dict[object, list[str]] = {}
    for name, binding in (*op.layers.items(), *op.functions.items()):
        by_binding.setdefault(binding, []).append(name)
    for binding, names in by_binding.items():
        yield f"{', '.join(map(code, names))}: {plain(' '.join((inspect.getdoc(binding) or '').split()))}"


def _names(op: Op) -> Iterator[str]:
    yield f"Type {code(op.name)} of the domain {code(DOMAIN)}."
    if op.aliases or op.form_names:
        yield f"Also read as {', '.join(map(code, dict.fromkeys((*op.aliases, *op.form_names))))}."
    if op.standard_name:
        yield f"`bare` files have it as {code(op.standard_name)} of the standard domain."
    if op.float_op:
        yield f"Between DequantizeLinear and QuantizeLinear it is {code(op.float_op)}."
    for newer in op.newer:
        but = f" It {newer.unlike}: neither is converted into the other." if newer.unlike else ""
        yield f"In the newer dialect (domain {code(NEWER)}): {code(newer.name)}.{but}"
    if not op.newer:
        yield f"The newer dialect has no name for it: {op.why_not_newer}."


def _chips(op: Op) -> Iterator[str]:
    yield table(["chip", "what came of it"], [[name, target.status_of(op.name)] for name, target in CHIPS.items()])
    by_name = {rule.name: rule for rule in RULES.values()}
    limits = [by_name[f"target-{name}"] for name in op.chip_limits]
    yield table(
        ["limit", "asks for"],
        [[f"[{rule.id}](../check-rules.md#{rule.id.lower()}) {rule.name}", plain(rule.summary)] for rule in limits],
    )
    yield table(["value", "meaning", *CHIPS], op_limit_rows(op))
    yield "Where the numbers come from, and those of the chip as a whole: [Targets](../../targets.md)."
    for platform, variant in op.variants.items():
        yield f"On {platform} it is computed in another way:"
        yield formula(_formula(variant))
    if op.if_missing:
        yield f"Where a chip lacks it: {plain(op.if_missing)}"
    if op.if_differs:
        yield f"Where a chip computes it otherwise: {plain(op.if_differs.replace('{target!r}', '…'))}"


def _refused(op: Op) -> str:
    if op.refusal is None:
        return ""
    said = plain(" ".join((inspect.getdoc(op.refusal) or "").split()))
    return f"{said.replace('Refuse ', 'linger refuses ', 1)} [`linger check`](../../check.md) names such nodes, and the remedy."


def _error(op: Op, errors: Errors | None) -> Iterator[str]:
    if errors is None:
        yield f"Nothing is rounded: the op {EXACT[op.name]}. So there is no error to draw."
        return
    size = np.abs(errors.steps)
    yield (
        f"The integer minus the float result at the output's scale, {errors.how}: at most {size.max():.2f} steps, "
        f"{np.sqrt((size**2).mean()):.2f} in the root mean square. One step is one unit of the output's last bit (LSB); "
        "rounding alone gives up to 0.5. Results beyond the output's range, which saturate, are left out."
    )
    yield f"![Error of {op.name} against the float function, in steps of its output]({op.name}.svg)"
