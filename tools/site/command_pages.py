# SPDX-License-Identifier: Apache-2.0
"""The reference of the command line: a page for each command, from the command itself and the schema of its JSON."""

from __future__ import annotations

import enum
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer

import linger.cli
from tools.site.markdown import code, page, plain, section, table

FOLDER = "reference/commands"
SCHEMAS = Path(linger.cli.__file__).parent / "schemas"
_EXAMPLES = re.compile(r"^Examples?:\n((?:(?: +.*)?\n?)*)", re.MULTILINE)
_EXIT = re.compile(r"^Exit code 1: (.*(?:\n.+)*)", re.MULTILINE)
_CODES = {
    "0": "Done; what was asked for holds.",
    "1": "An error, or what was asked for does not hold.",
    "2": "Wrong usage: an unknown option, a file that is not there, a setting that means nothing.",
    "130": "Interrupted by Ctrl-C.",
}


def command_files() -> Iterator[tuple[str, str]]:
    """Place and content of the index and of each command's page."""
    known = commands()
    yield f"{FOLDER}/index.md", index(known)
    for name, command in known.items():
        yield f"{FOLDER}/{name.replace(' ', '-')}.md", command_page(name, command)


def commands() -> dict[str, Any]:
    """Every command that the help lists, by its name; those of a group by the group's name and theirs."""
    program = typer.main.get_command(linger.cli.load_commands())
    found: dict[str, Any] = {}
    for name, command in sorted(program.commands.items()):  # type: ignore[attr-defined]  # a group
        if not command.hidden:
            inside = getattr(command, "commands", None)
            found |= {f"{name} {each}": inside[each] for each in inside} if inside else {name: command}
    return found


def index(known: dict[str, Any]) -> str:
    """All commands with one line each, and what their exit codes mean."""
    rows = [
        [f"[{code(f'linger {name}')}]({name.replace(' ', '-')}.md)", plain(_summary(known[name]))] for name in known
    ]
    return page(
        "# Commands",
        table(["command", "what it does"], rows),
        section(
            "## Exit codes", _exit_codes(_CODES["1"]), "What 1 means is said more exactly on the page of a command."
        ),
    )


def _exit_codes(failed: str) -> str:
    said = f"{failed[:1].upper()}{failed[1:].rstrip('.')}."
    return table(["code", "meaning"], [[number, plain(words)] for number, words in (_CODES | {"1": said}).items()])


def _docstring(command: Any) -> str:
    return inspect.getdoc(command.callback) or command.help or ""


def _summary(command: Any) -> str:
    return next(iter(_docstring(command).splitlines()), "")


def command_page(name: str, command: Any) -> str:
    """One command."""
    said = _docstring(command)
    examples = _EXAMPLES.search(said)
    exits = _EXIT.search(said)
    text = _EXIT.sub("", _EXAMPLES.sub("", said)).strip()
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    return page(
        f"# linger {name}",
        plain(text),
        f"```sh\n{_usage(name, arguments)}\n```",
        section("## Examples", _example_block(examples[1]) if examples else ""),
        section("## Arguments", table(["argument", "type", "meaning"], map(_argument_row, arguments))),
        section("## Options", table(["option", "type", "default", "meaning"], map(_option_row, options))),
        section("## Exit codes", _exit_codes(exits[1] if exits else _CODES["1"])),
        section("## JSON", *_schema(name)),
    )


def _usage(name: str, arguments: list[Any]) -> str:
    words = [each.name.upper() + ("…" if each.nargs == -1 else "") for each in arguments]
    shown = [word if each.required else f"[{word}]" for word, each in zip(words, arguments, strict=True)]
    return " ".join(["linger", name, *shown, "[OPTIONS]"])


def _example_block(lines: str) -> str:
    return "\n".join(["```sh", *(line.strip() for line in lines.splitlines() if line.strip()), "```"])


def _argument_row(argument: Any) -> list[str]:
    return [code(argument.name.upper()), _kind(argument), plain(argument.help or "")]


def _option_row(option: Any) -> list[str]:
    names = ", ".join(map(code, (*option.opts, *option.secondary_opts)))
    return [names, "switch" if option.is_flag else _kind(option), _default(option), plain(option.help or "")]


def _kind(parameter: Any) -> str:
    """What a value must be, in words of the shell."""
    kind = parameter.type_descriptor.annotation
    kinds = [] if get_origin(kind) is Literal else [each for each in get_args(kind) if each is not NoneType]
    many = "several: " if parameter.multiple or parameter.nargs == -1 else ""
    kind = kinds[0] if kinds else kind
    if get_origin(kind) is Literal:
        return many + ", ".join(map(code, get_args(kind)))
    return many + {Path: "path", str: "text", int: "whole number", float: "number"}.get(
        kind, getattr(kind, "__name__", "")
    )


def _default(option: Any) -> str:
    value = option.default
    if option.required:
        return "required"
    if value in (None, False, "", ()):
        return ""
    return code(value.value if isinstance(value, enum.Enum) else value)


def _schema(name: str) -> Iterator[str]:
    """The keys of a command's JSON, by its schema."""
    path = SCHEMAS / f"{name.split()[0]}.json"  # a group has one
    if path.exists():
        schema = json.loads(path.read_text(encoding="utf-8"))
        yield plain(schema.get("description", ""))
        yield table(["key", "type", "meaning"], _keys(schema, schema, ""))
        yield f"The schema itself, JSON Schema 2020-12: {code(f'linger schema {path.stem}')}."


def _keys(schema: dict[str, Any], root: dict[str, Any], prefix: str, depth: int = 0) -> Iterator[list[str]]:
    """A row for each key, those of objects inside after their own."""
    for key, value in schema.get("properties", {}).items():
        given = _resolved(value, root)
        yield [
            code(f"{prefix}{key}"),
            _type(given, root),
            plain(given.get("description", value.get("description", ""))),
        ]
        inside = _resolved(given.get("items", given), root) if isinstance(given.get("items", {}), dict) else {}
        if depth < 3:  # schemas may contain themselves
            yield from _keys(inside, root, f"{prefix}{key}{'[]' if 'items' in given else ''}.", depth + 1)


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    if not reference.startswith("#/"):
        return schema
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}


def _type(schema: dict[str, Any], root: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(_resolved(each, root), root) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    kind = schema.get("type", "")
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_type(_resolved(schema['items'], root), root) or 'anything'}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
