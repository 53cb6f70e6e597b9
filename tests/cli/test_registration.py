"""Help pages of all commands: examples, exit codes, and one name for one thing."""

import inspect
import re
import shlex

import pytest
import typer

from linger.cli import ALIASES, COMMANDS, examples, load_commands
from tests.support.command import run

ROOT = typer.main.get_command(load_commands())


def leaves(command, path):
    """Every command that does something, with its words."""
    inner = getattr(command, "commands", None)
    if not inner:
        return {path: command}
    return {name: leaf for key, c in inner.items() for name, leaf in leaves(c, (*path, key)).items()}


LEAVES = {" ".join(path): command for path, command in leaves(ROOT, ()).items()}


def test_every_command_is_loaded():
    assert {name.split()[0] for name in LEAVES} == {*COMMANDS, *ALIASES}


@pytest.mark.parametrize("name", LEAVES)
def test_the_help_has_examples_that_parse_and_exit_codes(name):
    command = LEAVES[name]
    lines = examples(inspect.getdoc(command.callback))
    assert lines
    assert all(line in command.epilog for line in lines)
    assert re.search(r"Exit codes: 0 done, 1 .+, 2 wrong usage, 130 interrupted\.$", command.epilog)
    assert "Examples:" not in command.help
    for line in lines:
        words = shlex.split(line)
        begin = ["linger", *ALIASES.get(name, name).split()]
        assert words[: len(begin)] == begin
        command.make_context(name, words[len(begin) :])  # raises where the line does not parse


def test_an_example_is_shown_on_a_line_of_its_own(tmp_path):
    lines = [line.strip() for line in run("check", "--help", cwd=tmp_path).stdout.splitlines()]
    assert "Example: linger check digits.onnx --target venus" in lines


def options():
    """(name of the option, command, the option) of all commands, hidden ones left out."""
    for name, command in LEAVES.items():
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden and name not in ALIASES:
                for spelling in option.opts:
                    yield spelling, name, option


def test_the_same_name_has_the_same_meaning_everywhere():
    stems = {}
    for spelling, command, option in options():
        stems.setdefault(spelling, {}).setdefault(re.split(r"[:;,.]", option.help or "")[0], []).append(command)
    assert {name: found for name, found in stems.items() if len(found) > 1} == {}


def test_the_same_meaning_has_the_same_name_everywhere():
    names = {}
    for spelling, _, option in options():
        if spelling != "--help":
            names.setdefault((option.help or "").lower(), set()).add(spelling)
    assert {text: found for text, found in names.items() if len(found) > 1} == {}
    synonyms = {"--output", "--force", "--samples", "--chip", "--device", "--random-seed", "--image", "--file"}
    assert not synonyms & {spelling for spelling, _, _ in options()}


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_takes_json(name):
    assert any("--json" in option.opts for option in LEAVES[name].params)


def test_older_spellings_still_work(folder):
    assert run("run", "m.onnx", "--output", "y.npz", cwd=folder).returncode == 0
    assert run("vectors", "m.onnx", "--out", "v", cwd=folder).returncode == 0
    assert run("vectors", "m.onnx", "--out", "v", "--force", cwd=folder).returncode == 0
    assert run("vectors", "m.onnx", "--out", "v", "--overwrite", cwd=folder).returncode == 0
    assert "--output" not in run("run", "--help", cwd=folder).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("check --target v", {"venus", "venusA"}),
        ("c m.onnx out --target cortex-m5", {"cortex-m55"}),
        ("targets a", {"arcs"}),
        ("schema veri", {"verify"}),
        ("check --format s", {"sarif"}),
        ("demo --ov", {"--overwrite"}),
        ("comp", {"compare"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shells_complete_names(tmp_path, monkeypatch, words, expected):
    monkeypatch.setenv("_LINGER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"linger {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert set(run(cwd=tmp_path).stdout.split()) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(tmp_path, monkeypatch, shell):
    monkeypatch.setenv("_LINGER_COMPLETE", f"source_{shell}")
    assert "linger" in run(cwd=tmp_path).stdout
