"""linger schema, and what every command really writes with --json."""

import json

import jsonschema
import pytest

from linger import Report
from linger.cli import COMMANDS
from linger.cli.schemas import FILES, described_commands
from linger.graph import save
from linger.reporting.facts import Block, MemoryFacts, Proof, Quality, Run, TensorFacts
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import image_network
from tests.support.command import run
from tests.support.tools import load_tool


def strict(schema):
    """The schema, refusing keys that it does not know."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {**{key: strict(value) for key, value in schema.items()}, **closed}


def schema_of(command, folder):
    done = run("schema", command, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def written(command, *arguments, folder, code=0):
    """The JSON of a command, after it was compared with the command's schema."""
    done = run(command, *arguments, "--json", cwd=folder)
    assert done.returncode == code, done.stderr
    content = json.loads(done.stdout, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(strict(schema_of(command, folder))).validate(content)
    assert (content["format"], content["version"]) == (f"linger-{command}", 1)
    return content


def test_every_command_has_a_schema(tmp_path):
    assert set(described_commands()) == set(COMMANDS)
    listed = run("schema", cwd=tmp_path)
    assert listed.stdout.split() == [*described_commands(), *FILES]


@pytest.mark.parametrize("command", [*described_commands(), *FILES])
def test_schemas_are_sound_and_describe_every_key(command, tmp_path):
    schema = schema_of(command, tmp_path)
    jsonschema.Draft202012Validator.check_schema(schema)
    objects = [schema]
    while objects:
        found = objects.pop()
        for key, value in found.get("properties", {}).items():
            assert value["description"].endswith((".", "…")), key
        objects += [v for value in found.values() for v in (value if isinstance(value, list) else [value])
                    if isinstance(v, dict)]  # fmt: skip


@pytest.mark.needs_torch
def test_the_files_are_those_that_the_tool_writes():
    tool = load_tool("json_schemas")
    for name, schema in tool.schemas().items():
        text = (tool.FOLDER / f"{name}.json").read_text(encoding="utf-8")
        assert text == tool.text_of(schema), "run python tools/json_schemas.py"


CASES = {
    "check": ("check", ("m.onnx", "--target", "venus"), 1),
    "check whole": ("check", ("m.onnx",), 0),
    "compare": ("compare", ("m.onnx", "m.onnx"), 0),
    "convert": ("convert", ("m.onnx", "--to", "linger"), 0),
    "inspect": ("inspect", ("m.onnx",), 0),
    "memory": ("memory", ("m.onnx",), 0),
    "memory of a chip": ("memory", ("m.onnx", "--target", "venus"), 0),
    "ops": ("ops", (), 0),
    "repair": ("repair", ("m.onnx",), 0),
    "run": ("run", ("m.onnx", "--all"), 0),
    "schema": ("schema", (), 0),
    "targets": ("targets", (), 0),
    "target": ("targets", ("venus",), 0),
    "vectors": ("vectors", ("m.onnx",), 0),
    "verify": ("verify", ("m.onnx", "--batches", "1"), 0),
}


@pytest.mark.parametrize(("command", "arguments", "code"), CASES.values(), ids=CASES)
def test_commands_write_what_their_schema_says(folder, command, arguments, code):
    written(command, *arguments, folder=folder, code=code)


def test_a_program_in_c_and_its_memory(folder):
    require_compiler()
    save(image_network(), folder / "net.onnx")
    assert written("c", "net.onnx", "out", "--prove", "--batches", "1", folder=folder)["proof"]["ok"]
    assert written("memory", "net.onnx", folder=folder)["c"] is not None
    assert written("verify", "net.onnx", "--c", "out", "--batches", "1", folder=folder)["witnesses"]


@pytest.mark.needs_torch
def test_analyses(folder):
    import torch

    torch.save({"a.weight": torch.linspace(-1, 1, 64).reshape(8, 8), "b": torch.zeros(0)}, folder / "w.pt")
    found = json.loads(run("analyse", "weights", "w.pt", "--json", cwd=folder).stdout, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(strict(schema_of("analyse", folder))).validate(found)


def test_the_data_of_a_report_is_what_its_schema_says(tmp_path):
    run_of = Run(
        name="net",
        tensors=(TensorFacts("x", sqnr_db=float("inf")),),
        quality=(Quality("accuracy", 98.5),),
        proof=Proof(is_exact=True, summary="0 of 3 integers differ.", digests={"net.onnx": "0"}),
        memory=MemoryFacts(blocks=(Block("x", 4, 0, 1),)),
    )
    validator = jsonschema.Draft202012Validator(strict(schema_of("report", tmp_path)))
    content = json.loads(Report((run_of,)).to_json())
    validator.validate(content)
    assert content["decision"]["parts"][0]["answer"] == "yes"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(content | {"unknown": 1})


def test_format_json_is_the_same(folder):
    for command in ("check", "memory"):
        assert run(command, "m.onnx", "--json", cwd=folder).stdout == (
            run(command, "m.onnx", "--format", "json", cwd=folder).stdout
        )
