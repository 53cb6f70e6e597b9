# SPDX-License-Identifier: Apache-2.0
"""Write the JSON Schemas of what the commands print with --json: `src/linger/cli/schemas/<command>.json`.

Most objects are dataclasses: types come from their annotations, descriptions from the `Attributes` of their docstrings.
What has no dataclass is described here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linger.analysis.advice import Item
from linger.analysis.result import Row
from linger.c.exported_folder import Cut
from linger.c.proof import TensorProof
from linger.c.steps import PlacedBlock, StepMemory
from linger.checks.memory_use import LayerMemory
from linger.cli import __name__ as package
from linger.cli.c import _Measured
from linger.graph.core.nodes import Finding
from linger.graph.files import summary
from linger.graph.network import Lifetime
from linger.reporting.facts import Quality, Run
from linger.reporting.verdict import Part, Verdict
from linger.verification.proof.result import Flip
from linger.workflow.installation import Package, SelfTest, Tool

FOLDER = Path(__file__).resolve().parent.parent / "src" / package.replace(".", "/") / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
TRUTH: Schema = {"type": "boolean"}
REAL: Schema = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
"""A number. JSON has no infinity, and no NaN: they are texts."""

SIMPLE: Mapping[Any, Schema] = {str: TEXT, int: WHOLE, bool: TRUTH, float: REAL, Path: TEXT}


def described(schema: Schema, text: str) -> Schema:
    """A schema with a description."""
    return {"description": text, **schema}


def maybe(schema: Schema) -> Schema:
    """A schema, or null."""
    return {"anyOf": [*(schema.get("anyOf") or [schema]), {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """A list of what a schema describes."""
    return {"type": "array", "items": schema}


def mapped(schema: Schema) -> Schema:
    """An object whose keys are data, such as names of tensors."""
    return {"type": "object", "additionalProperties": schema}


def keyed(**keys: tuple[Schema, str]) -> Schema:
    """An object with these keys, all of them there."""
    return {
        "type": "object",
        "properties": {key: described(schema, text) for key, (schema, text) in keys.items()},
        "required": list(keys),
    }


def attributes(kind: type) -> dict[str, str]:
    """What the docstring of a dataclass says of its fields; one line may be about several."""
    found: dict[str, str] = {}
    text = inspect.getdoc(kind) or ""
    names: list[str] = []
    for line in text.partition("Attributes:\n")[2].splitlines():
        match = re.match(r" {4}([a-z]\w*(?:, \w+)*): (.*)", line)
        if match:
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def of(kind: Any, more: Mapping[str, str] | None = None, *, reals: Schema = REAL) -> Schema:
    """The schema of an annotated type; `more` describes fields that their docstring does not."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is float:
        return reals
    if kind is summary.GraphSummary:  # an attribute of a node in it may be another one
        return {"$ref": "#/$defs/graph"}
    if kind in SIMPLE:
        return dict(SIMPLE[kind])
    if origin in (types.UnionType, typing.Union):
        kinds = [of(part, more, reals=reals) for part in parts if part is not types.NoneType]
        whole = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        return maybe(whole) if types.NoneType in parts else whole
    if origin is tuple:
        return listed(of(parts[0], more, reals=reals))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints, texts = typing.get_type_hints(kind), {**attributes(kind), **(more or {})}
        names = [field.name for field in dataclasses.fields(kind)]
        return keyed(**{name: (of(hints[name], more, reals=reals), texts[name]) for name in names})
    if origin is not None and issubclass(origin, Mapping):
        return mapped(of(parts[1], more, reals=reals))
    raise TypeError(f"{kind}: no schema is known for it")


def graph() -> Schema:
    """The schema of a graph in `linger inspect`."""
    hints = typing.get_type_hints(summary.GraphSummary)
    names = [field.name for field in dataclasses.fields(summary.GraphSummary)]
    return keyed(**{name: (of(hints[name], INSPECTED), INSPECTED[name]) for name in names})


def command(name: str, title: str, /, **keys: tuple[Schema, str]) -> Schema:
    """The schema of a command's result."""
    head = {
        "format": ({"const": f"linger-{name}"}, "Which command wrote this."),
        "version": ({"const": 1}, "The version of this format. Keys may be added; else it is raised."),
    }
    return {"$schema": DIALECT, "title": f"linger {name} --json", "description": title, **keyed(**head, **keys)}


FINDING = keyed(
    severity=({"enum": ["error", "warning", "note"]}, "How grave it is."),
    **{name: (TEXT, text) for name, text in attributes(Finding).items() if name != "severity"},
)
COUNTS = keyed(
    error=(WHOLE, "Number of errors."), warning=(WHOLE, "Number of warnings."), note=(WHOLE, "Number of notes.")
)
OK = (TRUTH, "Whether all is well; else the exit code is 1.")
LINGER = (TEXT, "The version of linger.")
TENSOR_ROW = {
    "name": (TEXT, "The tensor's name."),
    "dtype": (TEXT, "Its element type."),
    "values": (WHOLE, "How many values were compared, in all batches."),
    "differing": (WHOLE, "How many of them differ."),
    "sha256": (maybe(TEXT), "Digest of the values; null where their last bits may differ between machines."),
}
INSPECTED = {
    "name": "The name.",
    "element": "Element type.",
    "shape": "Sizes: a number, the name of an open size, or null for one without a name; null where the rank is open.",
    "bytes": "Size in bytes; null where there is no content.",
    "location": "The file that holds the content; null where the model itself does.",
    "kind": "The attribute's type.",
    "text": "Its value, shortened.",
    "graphs": "The graphs that it holds.",
    "op_type": "The node's type.",
    "domain": "Its domain; empty for standard ONNX.",
    "inputs": "Inputs, in order; an input that is left out is an empty name.",
    "outputs": "Outputs, in order.",
    "attributes": "Attributes; those of a function by name alone.",
    "counts": "How many inputs, outputs, initializers, nodes and value infos there are, also where the lists are cut short.",
    "op_counts": "How many nodes of each type there are.",
    "initializer_bytes": "Bytes of all initializers.",
    "initializers": "Weights and constants.",
    "nodes": "The nodes, in order.",
    "value_infos": "Tensors in between whose types are noted.",
    "opsets": "Versions of the opsets, by domain.",
    "body": "What the function computes.",
    "path": "The file.",
    "ir_version": "Version of ONNX's file format.",
    "producer": "The program that wrote the file.",
    "model_version": "The model's own version.",
    "metadata": "Entries of the file about itself.",
    "data_files": "Files that hold weights, with their sizes; null where one is missing.",
    "graph": "The main graph.",
    "functions": "Model-local functions.",
}
MEASURED = {
    "target": "The machine.",
    "description": "Compiler and machine in words.",
    "code": "Bytes of instructions.",
    "constants": "Bytes of constants, weights among them.",
    "flash": "Bytes of flash.",
    "ram": "Bytes of variables.",
    "instructions": "Instructions of one run; null where they were not counted.",
    "stack": "Bytes of stack of one run; null where they were not measured.",
}
PLACED = {
    "name": "The tensor, or what it is for.",
    "size": "Bytes.",
    "bytes": "Bytes.",
    "first": "The first step that needs it.",
    "last": "The last step that needs it.",
    "offset": "Where it begins in the arena.",
    "kind": "What it holds.",
    "step": "The step that it belongs to.",
}
SCALED_ROW = keyed(
    name=(TEXT, "The tensor's name in the first file."),
    other=(TEXT, "Its name in the second file, or the dump's."),
    matched=(TEXT, "How the two were found to belong together."),
    op_type=(TEXT, "Type of the node that makes it."),
    dtype_a=(TEXT, "Element type in the first file."),
    dtype_b=(TEXT, "Element type in the second."),
    shape=(listed(WHOLE), "Sizes."),
    scale=(maybe(REAL), "An integer q stands for q/scale; null where there is no scale."),
    unit=(TEXT, "The unit of the differences, LSB or a real number."),
    values=(WHOLE, "How many values were compared."),
    differing=(WHOLE, "How many of them differ."),
    largest=(maybe(REAL), "The largest difference, in the unit."),
    mean=(maybe(REAL), "The mean difference, in the unit."),
    largest_real=(maybe(REAL), "The largest difference as a real number; null where that is not known."),
    first=(
        maybe(
            keyed(
                batch=(WHOLE, "The batch."),
                index=(listed(WHOLE), "The place in the tensor."),
                a=(maybe(REAL), "The value in the first file."),
                b=(maybe(REAL), "The value in the second."),
            )
        ),
        "The first difference; null where there is none.",
    ),
    saturated_a=(maybe(WHOLE), "Values at the ends of the range in the first file."),
    saturated_b=(maybe(WHOLE), "Values at the ends of the range in the second."),
    notes=(listed(TEXT), "What there is to say."),
)
NUMBER_OR_NULL = maybe({"type": "number"})


def schemas() -> dict[str, Schema]:
    """Every schema by the name of its command."""
    summary_keys = of(summary.ModelSummary, INSPECTED)
    lists = ("ops", "exact_ops", "differing_ops", "refused_ops", "unpacked_ops")
    run = of(Run)
    made = [
        command(
            "analyse",
            "Statistics of tensors, and advice.",
            rows=(listed(of(Row, {"is_abnormal": "Whether it needs a look."}, reals=NUMBER_OR_NULL)), "The tensors."),
            advice=(
                keyed(
                    lines=(listed(TEXT), "Lines to paste."),
                    rows=(
                        listed(
                            of(
                                Item,
                                {
                                    "max": "Largest magnitude.",
                                    "dynamic": "The magnitude that 99 % of the values do not exceed.",
                                    "versu": "max/dynamic.",
                                    "type_name": "Type of the module.",
                                },
                                reals=maybe(REAL),
                            )
                        ),
                        "A row for each tensor.",
                    ),
                ),
                "What to do about them, the most worrying first.",
            ),
        ),
        command(
            "c",
            "A network that was written as C.",
            folder=(TEXT, "The folder."),
            name=(TEXT, "What every symbol begins with."),
            functions=(listed(TEXT), "The functions to call."),
            files=(listed(TEXT), "The files of the folder."),
            arena_bytes=(WHOLE, "Bytes of the arena."),
            arena_least=(WHOLE, "What no arena can be below."),
            weight_bytes=(WHOLE, "Bytes of the weights."),
            state_bytes=(WHOLE, "Bytes of the state of a stream."),
            cut=(maybe(of(Cut)), "Which part of the file it is; null for all of it."),
            measured=(maybe(of(_Measured, MEASURED)), "What a build has shown; null without one."),
            proof=(
                maybe(
                    keyed(
                        ok=OK,
                        summary=(TEXT, "The verdict in a sentence."),
                        witness=(TEXT, "What computed the numbers."),
                        samples=(WHOLE, "How many random inputs."),
                        tensors=(WHOLE, "How many tensors."),
                        elements=(WHOLE, "How many numbers were compared."),
                        differing=(WHOLE, "How many differ."),
                        missing=(listed(TEXT), "Tensors that the program does not show."),
                        rows=(
                            listed(
                                of(
                                    TensorProof,
                                    {
                                        "name": "The tensor.",
                                        "elements": "How many numbers were compared.",
                                        "differing": "How many differ.",
                                        "first": "Where the first difference is; empty without one.",
                                    },
                                )
                            ),
                            "A row for each tensor.",
                        ),
                    )
                ),
                "What was compared; null without --prove.",
            ),
        ),
        command(
            "check",
            "Everything that is wrong with files.",
            linger=LINGER,
            ok=OK,
            files=(
                listed(
                    keyed(
                        path=(maybe(TEXT), "The file."),
                        target=(maybe(TEXT), "The chip that was asked; null for none."),
                        ok=(TRUTH, "Whether it has no error."),
                        counts=(COUNTS, "How many findings there are."),
                        findings=(
                            listed(
                                {
                                    **FINDING,
                                    "properties": {
                                        **FINDING["properties"],
                                        "name": described(TEXT, "Name of the rule."),
                                    },
                                    "required": [*FINDING["required"], "name"],
                                }
                            ),
                            "What was found, the worst first.",
                        ),
                    )
                ),
                "A result for each file.",
            ),
        ),
        command(
            "compare",
            "Two files, or a file and dumps of a device, tensor by tensor.",
            a=(TEXT, "The first file."),
            b=(TEXT, "The second file, or the dumps."),
            ok=OK,
            batches=(WHOLE, "How many batches were run."),
            values=(WHOLE, "How many values were compared."),
            differing=(WHOLE, "How many differ."),
            first=(maybe(TEXT), "The first tensor that differs; null where none does."),
            rows=(listed(SCALED_ROW), "The tensors, in the order of execution."),
            only_a=(listed(TEXT), "Tensors of the first file alone."),
            only_b=(listed(TEXT), "Tensors, or dumps, of the second alone."),
            missing_outputs=(listed(TEXT), "Outputs that were not found."),
            notes=(listed(TEXT), "What there is to say."),
        ),
        command(
            "convert",
            "A file of one dialect as a file of the other.",
            path=(TEXT, "The file that was written."),
            ok=(TRUTH, "Whether every node was converted."),
            changes=(
                listed(keyed(where=(TEXT, "The node."), what=(TEXT, "What was done."))),
                "Every node that was rewritten.",
            ),
            findings=(listed(FINDING), "What could not be converted, and remarks."),
        ),
        command(
            "demo",
            "The digits network, from training to proof.",
            ok=OK,
            folder=(TEXT, "The folder that was written."),
            files=(listed(TEXT), "Its files."),
            float_accuracy=(REAL, "The accuracy of the float network on test images, in percent."),
            integer_accuracy=(REAL, "The accuracy of the file in ONNX Runtime on test images, in percent."),
            integers=(WHOLE, "How many integers were compared."),
            differing=(WHOLE, "How many differ."),
            findings=(COUNTS, "What linger check found, by severity."),
        ),
        command(
            "quantize",
            "What a run has made and found.",
            name=(TEXT, "How the run is called."),
            ok=OK,
            verdict=(TEXT, "The verdict in a sentence."),
            reasons=(listed(TEXT), "The sentences behind it."),
            decision=(decision(), "The verdict and its parts."),
            is_repeated=(TRUTH, "Whether this is a former run again, whose file is the same bit for bit."),
            folder=(TEXT, "The folder that was written."),
            files=(listed(TEXT), "Its files."),
            sha256=(TEXT, "The SHA-256 of the ONNX file."),
            quality=(listed(of(Quality)), "How good the network is, the most telling figure first."),
            integers=(WHOLE, "How many integers were compared."),
            differing=(WHOLE, "How many differ."),
            findings=(COUNTS, "What linger check found, by severity."),
            target=(maybe(TEXT), "The chip that was asked; null for none."),
            weight_bytes=(WHOLE, "Bytes of the weights."),
            float_weight_bytes=(WHOLE, "What the weights take in float."),
            macs=(WHOLE, "Multiply-accumulates of one sample."),
            has_all_macs=(TRUTH, "Whether all of them were counted; else there are at least so many."),
            arena_bytes=(maybe(WHOLE), "Memory of the program in C; null where there is none."),
            stayed_float=(listed(TEXT), "What does not run as integers, with the reason."),
            c=(
                maybe(
                    keyed(elements=(WHOLE, "How many numbers were compared."), differing=(WHOLE, "How many differ."))
                ),
                "The program in C against the file; null where none was asked for.",
            ),
            c_cut=(maybe(of(Cut)), "Which part of the file that program is; null for all of it."),
            c_missing=(TEXT, "Why the program in C is missing or not proven, and what to do; empty where it is there."),
            notes=(listed(TEXT), "What a reader should know."),
            offer=(
                TEXT,
                "What a few tensors at 16 bits would give and cost; empty where 8 bits are enough, or no search was made.",
            ),
        ),
        command(
            "doctor",
            "Whether linger can work here.",
            ok=OK,
            linger=LINGER,
            python=(TEXT, "The version of Python."),
            python_is_recent=(TRUTH, "Whether linger runs on it."),
            packages=(listed(of(Package)), "Packages that linger needs, or can use."),
            cpu=(
                keyed(
                    machine=(TEXT, "The architecture."),
                    features=(listed(TEXT), "What matters for integer kernels, as Linux names it."),
                ),
                "This machine's CPU.",
            ),
            tools=(listed(of(Tool)), "Machines that C can be built for, and what is there to do it."),
            self_test=(of(SelfTest), "A small network, computed twice."),
        ),
        {
            **command(
                "inspect",
                "What is in a file.",
                **{key: (value, INSPECTED[key]) for key, value in summary_keys["properties"].items()},
            ),
            "$defs": {"graph": graph()},
        },
        command(
            "memory",
            "What a network needs.",
            linger=LINGER,
            path=(maybe(TEXT), "The file."),
            target=(maybe(TEXT), "The chip that was asked; null for none."),
            ok=OK,
            peak_bytes=(WHOLE, "The most bytes of tensors that are alive at one time."),
            peak_node=(maybe(TEXT), "The layer at which that is."),
            tensor_bytes=(maybe(WHOLE), "What they must stay below on the chip; null where that is not known."),
            weight_bytes=(WHOLE, "Bytes of all weights, each once."),
            macs=(WHOLE, "Multiply-accumulates."),
            has_all_macs=(TRUTH, "Whether all of them were counted; else there are at least so many."),
            is_lower_bound=(TRUTH, "Whether something could not be counted."),
            batch_axes=(listed(TEXT), "Open batch axes, counted as 1."),
            packer_line=(TEXT, "Options that the chip's packer needs; empty for none."),
            findings=(listed(FINDING), "What does not fit there."),
            lifetimes=(listed(of(Lifetime)), "The memory of the tensors."),
            rows=(
                listed(
                    of(
                        LayerMemory,
                        {"shapes": "Shapes of its outputs; null stands for a size, or a shape, that is not known."},
                    )
                ),
                "The layers, in the order of execution.",
            ),
            c=(
                maybe(
                    keyed(
                        arena_bytes=(WHOLE, "Bytes of the arena."),
                        least_bytes=(WHOLE, "What no arena can be below."),
                        scratch_bytes=(WHOLE, "The most scratch that one step needs."),
                        weight_bytes=(WHOLE, "Bytes of constant arrays."),
                        table_bytes=(WHOLE, "Bytes of tables."),
                        macs=(WHOLE, "Multiply-accumulates."),
                        peak_step=(WHOLE, "The step with the most bytes alive."),
                        blocks=(listed(of(PlacedBlock, PLACED)), "The pieces of the arena."),
                        steps=(listed(of(StepMemory)), "The steps, in order."),
                    )
                ),
                "The program in C; null where there is none.",
            ),
            c_refusal=(maybe(TEXT), "Why there is no program in C; null where there is one."),
        ),
        command(
            "ops",
            "The ops of the dialect.",
            ops=(
                listed(
                    keyed(
                        name=(TEXT, "The op's type."),
                        formula=(TEXT, "What it computes."),
                        stands_for=(listed(TEXT), "Torch layers and functions that become it."),
                    )
                ),
                "All ops.",
            ),
        ),
        command(
            "repair",
            "What was repaired.",
            path=(TEXT, "The file that was written."),
            ok=OK,
            changes=(
                listed(
                    keyed(
                        rule=(TEXT, "The rule that was applied."),
                        where=(TEXT, "The node or tensor."),
                        what=(TEXT, "What was done."),
                    )
                ),
                "Every change, in order.",
            ),
            findings=(
                listed(
                    keyed(
                        severity=({"enum": ["error", "warning", "note"]}, "How grave it is."),
                        where=(TEXT, "The node; empty for the model as a whole."),
                        reason=(TEXT, "What is wrong."),
                        remedy=(TEXT, "What to do about it."),
                    )
                ),
                "What was left as it is.",
            ),
        ),
        command(
            "report",
            "Everything that a report says of one network.",
            **split(run, Run),
            decision=(decision(), "The verdict and its parts."),
        ),
        command(
            "run",
            "What a model computed.",
            model=(TEXT, "The file."),
            out=(maybe(TEXT), "Where the numbers were written; null for nowhere."),
            tensors=(
                listed(
                    keyed(
                        name=(TEXT, "The tensor."),
                        dtype=(TEXT, "Its element type."),
                        shape=(listed(WHOLE), "Its sizes."),
                        min=(NUMBER_OR_NULL, "Its smallest value; null where it is empty or not finite."),
                        max=(NUMBER_OR_NULL, "Its largest value; null where it is empty or not finite."),
                    )
                ),
                "The outputs; with --all every tensor.",
            ),
        ),
        command(
            "schema",
            "What has a schema.",
            commands=(listed(TEXT), "The commands whose JSON has one."),
            files=(listed(TEXT), "The files of users that have one."),
        ),
        command(
            "targets",
            "Targets: chips and their limits, and what is no chip.",
            targets=(
                listed(
                    keyed(
                        name=(TEXT, "The target, as --target takes it."),
                        is_chip=(TRUTH, "Whether it is a chip, with a packer and limits."),
                        is_default=(TRUTH, "Whether nodes that name no chip are for this one."),
                        form=(TEXT, "The form of export that its packer takes."),
                        reads_newer=(TRUTH, "Whether its packer takes the dialect linger."),
                        per_channel=(TRUTH, "Whether weights may have one scale for each output channel."),
                        unsigned=(TRUTH, "Whether 8-bit activations may be 0 … 255."),
                        **{
                            name: (listed(TEXT), text)
                            for name, text in zip(
                                lists,
                                (
                                    "Op types that the packer lists.",
                                    "Op types that ran with linger's integers; float Relu is Relu on real numbers.",
                                    "Op types that ran and gave other numbers.",
                                    "Op types at which the packer or the engine stopped.",
                                    "Op types that the chip runs and the packer does not list.",
                                ),
                                strict=True,
                            )
                        },
                        limits=(mapped({"type": "object"}), "The limits by group and name."),
                    )
                ),
                "The targets.",
            ),
        ),
        command(
            "vectors",
            "Test vectors that were written.",
            folder=(TEXT, "The folder."),
            batches=(WHOLE, "How many batches."),
            tensors=(WHOLE, "How many tensors each of them has."),
            left_out=(listed(TEXT), "Tensors that hold no quantized integers."),
        ),
        command(
            "verify",
            "What was compared, integer by integer.",
            ok=OK,
            summary=(TEXT, "The verdict in a sentence."),
            levels=(listed(TEXT), "Optimization levels of ONNX Runtime."),
            batches=(WHOLE, "How many batches."),
            integers=(WHOLE, "How many integers were compared."),
            differing=(WHOLE, "How many differ."),
            output_differences=(WHOLE, "How many values of outputs differ that must be equal."),
            float_error=(maybe(REAL), "The largest difference of outputs that may differ in their last bits."),
            missing=(listed(TEXT), "Tensors that one side lacks."),
            sizes=(listed(TEXT), "Other input sizes that were tried."),
            impossible_sizes=(listed(TEXT), "Sizes that the model cannot take."),
            flips=(listed(of(Flip)), "Integers that differ by 1 because of float ops before them."),
            narrow=(listed(TEXT), "Tensors that took so few values that they prove little."),
            tensors=(
                listed(
                    keyed(
                        **TENSOR_ROW,
                        distinct=(WHOLE, "How many different values it took."),
                        saturated=(WHOLE, "How many values lie at the ends of the range."),
                    )
                ),
                "The integers.",
            ),
            outputs=(listed(keyed(**TENSOR_ROW)), "Outputs, and recorded tensors of real numbers."),
            witnesses=(
                listed(
                    keyed(
                        description=(TEXT, "What the witness is."),
                        origin=(mapped({}), "What it was made from."),
                        tensors=(WHOLE, "How many tensors it showed."),
                        integers=(WHOLE, "How many integers were compared."),
                        differing=(WHOLE, "How many differ."),
                        others=(WHOLE, "How many real numbers were compared."),
                        other_differences=(WHOLE, "How many of those differ."),
                        missing=(listed(TEXT), "Tensors that it did not show."),
                    )
                ),
                "Further computations, such as compiled C.",
            ),
            not_asked=(listed(TEXT), "Witnesses that a certificate names and that were not asked again."),
        ),
        command(
            "view",
            "Where a file is shown.",
            model=(TEXT, "The file."),
            address=(TEXT, "The address for a browser on this machine."),
        ),
    ]
    return {schema["properties"]["format"]["const"].removeprefix("linger-"): schema for schema in made}


def decision() -> Schema:
    """The schema of a verdict."""
    part = keyed(**split(of(Part), Part), answer=(TEXT, "The level as an answer, `yes`, `doubtful` or `no`."))
    whole = {**split(of(Verdict), Verdict), "parts": (listed(part), attributes(Verdict)["parts"])}
    return keyed(**whole, word=(TEXT, "The level as it is shown."))


def split(schema: Schema, kind: type) -> dict[str, tuple[Schema, str]]:
    """The keys of an object, for the top of a command's result."""
    return {key: (value, attributes(kind)[key]) for key, value in schema["properties"].items()}


def text_of(schema: Schema) -> str:
    """A schema as its file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_text(text_of(schema), encoding="utf-8")
    print(f"{len(schemas())} schemas in {FOLDER.name}")
