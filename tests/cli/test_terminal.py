"""Output on terminals of any encoding."""

import ast
import io
import json
from pathlib import Path

import onnx
import pytest

import linger
from linger.cli import ASCII, use_readable_signs
from tests.runtime.test_session import TEXT
from tests.support.command import run

ENCODINGS = ("gbk", "cp1252", "ascii")
NAME = "卷积é·😀"


@pytest.fixture
def named(folder):
    """A model whose file, and one tensor of it, has a name that no old encoding holds."""
    model = onnx.parser.parse_model(TEXT)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = NAME
    onnx.save(model, folder / f"{NAME}.onnx")
    return folder


def written(text, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    use_readable_signs(stream)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def test_signs_are_spelled_out_and_letters_shown_by_their_codes():
    assert written("Y = ⌊x·½⌋ ≤ −3 …", "ascii") == "Y = |_x*1/2_| <= -3 ..."
    assert written("Y = ⌊x·½⌋ ≤ −3 …", "cp1252") == "Y = |_x·½_| <= -3 …"
    assert written("Y = ⌊x·½⌋ ≤ −3 …", "gbk") == "Y = |_x·1/2_| ≤ -3 …"
    assert written("卷é😀", "ascii") == r"\u5377\u00e9\ud83d\ude00"
    assert written("卷积 · ½", "utf-8") == "卷积 · ½"


def test_a_stream_that_holds_text_takes_every_sign_as_it_is():
    stream = io.StringIO()
    use_readable_signs(stream)
    stream.write(NAME)
    assert stream.getvalue() == NAME


def test_every_sign_of_ours_can_be_spelled_out():
    found = set()
    for file in Path(linger.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        shown = file.parent.name in ("ops", "cli")  # docstrings that are formulas or help pages
        docstrings = {id(n.value) for n in nodes if isinstance(n, ast.Expr) and not shown}
        texts = (n.value for n in nodes if isinstance(n, ast.Constant) and id(n) not in docstrings)
        found |= {sign for text in texts if isinstance(text, str) for sign in text if ord(sign) > 127}
    assert found - ASCII.keys() <= set("卷积\u2028\u2029")  # an example of a name; what a page must escape
    assert all(text.isascii() for text in ASCII.values())


COMMANDS = {
    "--help": (),
    "--version": (),
    "ops": (),
    "check": ("{m}",),
    "memory": ("{m}",),
    "compare": ("{m}", "{m}", "--all"),
    "convert": ("{m}", "--to", "linger"),
    "repair": ("{m}",),
    "inspect": ("{m}",),
    "run": ("{m}", "--all"),
    "vectors": ("{m}",),
    "verify": ("{m}", "--batches", "1"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_writes_what_the_terminal_can_show(named, encoding):
    for command, arguments in COMMANDS.items():
        done = run(command, *(a.format(m=f"{NAME}.onnx") for a in arguments), cwd=named, encoding=encoding)
        assert (done.returncode, done.stderr) == (0, ""), command
        page = run(command, "--help", cwd=named, encoding=encoding)
        assert (page.returncode, page.stderr) == (0, ""), command


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_errors_and_wrong_usage_too(named, encoding):
    done = run("run", f"no {NAME}.onnx", cwd=named, encoding=encoding)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    done = run(f"no {NAME}", cwd=named, encoding=encoding)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--format", "json"),
        ("memory", "--format", "json"),
        ("check", "--format", "sarif"),
        ("inspect", "--json"),
        ("repair", "--json"),
        ("verify", "--json", "--batches", "1"),
    ],
    ids=" ".join,
)
def test_json_says_the_same_in_every_encoding(named, arguments):
    found = [json.loads(run(*arguments, f"{NAME}.onnx", cwd=named, encoding=e).stdout) for e in ("utf-8", *ENCODINGS)]
    assert all(other == found[0] for other in found[1:])
    assert NAME in json.dumps(found[0], ensure_ascii=False)


def test_rows_are_whole_lines_where_there_is_no_terminal(named):
    done = run("run", "m.onnx", cwd=named, columns=20)
    assert any("float32" in line and "y" in line for line in done.stdout.splitlines())
