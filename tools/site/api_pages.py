# SPDX-License-Identifier: Apache-2.0
"""The Python reference: every public name with its signature and what its docstring says."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from tools.site.docstrings import Docstring, read
from tools.site.markdown import code, page, plain, section, table
from tools.site.pages import CHINESE, REPOSITORY, headings, places

FOLDER = "reference/api"
MODULES = ("linger", "linger.onnx", "linger.graph", "linger.c", "linger.checks")
_WIDTH = 96
_LONG = 40
_GUIDES = 3
_NO_GUIDES = ("changelog.md", "contributing", "conventions.md", "design.md", "index.md")


def api_files() -> Iterator[tuple[str, str]]:
    """Place and content of the index and of each module's page."""
    guides = guide_texts()
    yield f"{FOLDER}/index.md", index()
    for name in MODULES:
        yield f"{FOLDER}/{name}.md", module_page(name, guides)


def shown_names(module: ModuleType) -> list[str]:
    """The public names of a module, in the order in which it shows them."""
    return list(module.__dir__())


def index() -> str:
    """All public names with one line each."""
    parts = []
    for name in MODULES:
        module = importlib.import_module(name)
        found = ((each, getattr(module, each)) for each in shown_names(module))
        rows = [[f"[{code(each)}]({_place(name, each, value)})", plain(summary(value))] for each, value in found]
        parts.append(section(f"## {name}", table(["name", "what it is"], rows)))
    return page(
        "# Python",
        "The public names, module by module, in the order of the way from a float model to a device. They are loaded on "
        "first use, so `import linger` costs nothing; those of the deployment side work where torch is not installed.",
        *parts,
    )


def _place(module: str, name: str, value: object) -> str:
    return f"{module}.{name}.md" if _has_page(value) else f"{module}.md#{_anchor(module, name)}"


def _has_page(value: object) -> bool:
    return inspect.ismodule(value) and value.__name__ in MODULES


def _anchor(module: str, name: str) -> str:
    return f"{module}.{name}"


def summary(value: object) -> str:
    """The first line of what is said about a name."""
    return next(iter((inspect.getdoc(value) or "").splitlines()), "")


def module_page(name: str, guides: Mapping[str, tuple[str, str]]) -> str:
    """A module's page."""
    module = importlib.import_module(name)
    shown = shown_names(module)
    own = [each for each in shown if not _has_page(getattr(module, each))]
    parts = [entry(name, each, getattr(module, each), guides) for each in own]
    return page(f"# {name}", text(inspect.getdoc(module) or ""), *parts, _inherited(module, shown))


def _inherited(module: ModuleType, shown: list[str]) -> str:
    names = [name for name in module.__all__ if name not in shown and not name.startswith("_")]
    rows = [[code(name), plain(summary(getattr(module, name)))] for name in names]
    return section(
        "## Inherited names",
        "Names that older programs use. They work, and are not shown by `dir`." if rows else "",
        table(["name", "what it is"], rows),
    )


def entry(module: str, name: str, value: Any, guides: Mapping[str, tuple[str, str]]) -> str:
    """One name: signature, text, tables, guides."""
    said = read(inspect.getdoc(value) or "")
    heading = f"## {name} {{ #{_anchor(module, name)} }}"
    return section(
        heading,
        _signature_block(f"{module}.{name}", value),
        text(said.text),
        *_tables(said, value),
        *(_members(value) if inspect.isclass(value) else ()),
        _related(f"{module}.{name}", guides),
    )


def text(said: str) -> str:
    """The paragraphs of a docstring; indented lines are code, lists stay lists."""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\n+", said) if part.strip())


def _paragraph(part: str) -> str:
    lines = part.splitlines()
    if all(line.startswith("    ") for line in lines):
        return "\n".join(["```python", *(line[4:] for line in lines), "```"])
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *lines, "```"])
    return plain(part)


def _signature_block(name: str, value: Any) -> str:
    if inspect.isclass(value) and (issubclass(value, (enum.Enum, BaseException))):
        shown = f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    elif callable(value):
        shown = f"{'class ' if inspect.isclass(value) else ''}{signature(name, value)}"
    else:
        return ""
    return f"```python\n{shown}\n```"


def signature(name: str, value: Any) -> str:
    """A name with its parameters, on one line or one line for each."""
    try:
        found = inspect.signature(value)
    except ValueError:  # built in
        return f"{name}(…)"
    parts = [str(each) for each in _parameters(found)]
    result = (
        ""
        if found.return_annotation is found.empty or inspect.isclass(value)
        else f" -> {_annotation(found.return_annotation)}"
    )
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= _WIDTH else "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){result}"])


def _parameters(found: inspect.Signature) -> Iterator[str]:
    is_keyword_only = False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        is_keyword_only = is_keyword_only or parameter.kind is parameter.VAR_POSITIONAL
        yield _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f"{' = ' if kind else '='}{_default(parameter.default)}"
    return f"{stars}{parameter.name}{kind}{default}"


def _annotation(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: object) -> str:
    """A default as a reader writes it; one that is no plain value, or made anew each time, by a sign."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    shown = repr(value)
    return "…" if shown.startswith("<") or " at 0x" in shown or len(shown) > _LONG else shown


def _tables(said: Docstring, value: Any) -> Iterator[str]:
    kinds = _kinds(value)
    for name, title in (("Args", "argument"), ("Attributes", "attribute")):
        rows = [[code(each), kinds.get(each, ""), plain(words)] for each, words in said.entries.get(name, {}).items()]
        yield table([title, "type", "meaning"], rows)
    for name in ("Returns", "Yields"):
        if name in said.said:
            yield f"**{name}** {plain(said.said[name])}"
    yield table(
        ["raises", "when"], [[code(each), plain(when)] for each, when in said.entries.get("Raises", {}).items()]
    )


def _kinds(value: Any) -> dict[str, str]:
    """The types of a function's parameters, or of a class's fields."""
    given = dict(inspect.get_annotations(value)) if inspect.isclass(value) else {}
    try:
        for name, parameter in inspect.signature(value).parameters.items():
            if parameter.annotation is not parameter.empty:
                given.setdefault(name, parameter.annotation)
    except (TypeError, ValueError):
        pass
    return {name: code(_annotation(kind)) for name, kind in given.items()}


def _members(kind: type) -> Iterator[str]:
    """The values of an enumeration, else methods and properties."""
    if issubclass(kind, enum.Enum):
        yield table(["member", "value"], [[code(each.name), code(each.value)] for each in kind])
        return
    methods = [(name, each) for name, each in vars(kind).items() if not name.startswith("_") and _is_said(each)]
    yield table(
        ["method or property", "what it does"],
        [[code(_call(name, each)), plain(summary(_plain_function(each)))] for name, each in methods],
    )


def _is_said(member: object) -> bool:
    return bool(inspect.getdoc(_plain_function(member))) and (
        callable(_plain_function(member)) or isinstance(member, property)
    )


def _plain_function(member: Any) -> Any:
    return member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


def _call(name: str, member: Any) -> str:
    if isinstance(member, property) or not callable(_plain_function(member)):
        return name
    names = [part for part in inspect.signature(_plain_function(member)).parameters if part not in ("self", "cls")]
    return f"{name}({', '.join(names)})"


def guide_texts() -> dict[str, tuple[str, str]]:
    """The hand-written English pages: title and text of each, by place."""
    found = {}
    for file, place in places().items():
        if file.endswith(".md") and not place.endswith(CHINESE) and not place.startswith(_NO_GUIDES):
            content = (REPOSITORY / file).read_text(encoding="utf-8")
            found[place] = (headings(content)[0][1], content)
    return found


def _related(name: str, guides: Mapping[str, tuple[str, str]]) -> str:
    """The pages that speak most of a name."""
    word = re.compile(rf"\b{re.escape(name)}\b(?!\.)")
    counts = {place: len(word.findall(content)) for place, (_, content) in guides.items()}
    best = sorted((place for place, count in counts.items() if count), key=lambda place: (-counts[place], place))
    links = [f"[{guides[place][0]}](../../{place})" for place in best[:_GUIDES]]
    return f"Guides: {', '.join(links)}" if links else ""
