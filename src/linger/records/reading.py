# SPDX-License-Identifier: Apache-2.0
"""Read a file format: plain data becomes a dataclass, strictly by its annotations, and every wrong entry is named at once.

pydantic does the work; it is imported when the first record is read, so a dataclass that nobody reads costs nothing.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from reprlib import Repr
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from linger.errors import LingerError, UsageError, listing, printable

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema, ErrorDetails

T = TypeVar("T")

_EXPECTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "frozen_set_type": "a list",
    "int_type": "an integer",
    "mapping_type": "an object",
    "string_type": "a text",
    "string_unicode": "a text",
    "too_long": "a list of {max_length}",
    "tuple_type": "a list",
}
"""What pydantic's kinds of errors ask for, in JSON's words."""

_UNKNOWN, _MISSING = "unexpected_keyword_argument", "missing"
_SHOWN = 60
_brief = Repr()
_brief.maxstring = _brief.maxlong = _brief.maxother = _SHOWN  # a file may hold anything, of any size
_REALS = ("inf", "-inf", "nan")


@dataclass(frozen=True)
class Is:
    """A condition on a field, as part of its annotation: `Annotated[str, Is(str.isidentifier, "an identifier")]`.

    Attributes:
        check: Whether a value of the annotated type is right.
        expected: What is expected, for the sentence "… is not …".
    """

    check: Callable[[Any], object]
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the annotated type with the condition."""
        from pydantic_core import core_schema  # loaded with the first record that is read

        return _named(core_schema.no_info_after_validator_function(self._checked, handler(source)), self.expected)

    def _checked(self, value: Any) -> Any:
        if not self.check(value):
            raise ValueError
        return value


@dataclass(frozen=True)
class As:
    """How a field is written otherwise than its type is, as part of its annotation.

    Attributes:
        convert: Makes the value of what is written; a ValueError refuses it.
        expected: What is expected, for the sentence "… is not …"; empty: the ValueError says it.
    """

    convert: Callable[[Any], Any]
    expected: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the conversion."""
        from pydantic_core import core_schema  # loaded with the first record that is read

        inner = core_schema.no_info_plain_validator_function(self._converted)
        return _named(inner, self.expected) if self.expected else inner

    def _converted(self, value: Any) -> Any:
        try:
            return self.convert(value)
        except (TypeError, LookupError, ArithmeticError) as error:
            raise ValueError(str(error)) from error


def _named(inner: CoreSchema, expected: str) -> CoreSchema:
    """A schema whose every error says what is expected."""
    from pydantic_core import core_schema  # loaded with the first record that is read

    return core_schema.custom_error_schema(
        inner, "expected", custom_error_message="{expected}", custom_error_context={"expected": expected}
    )


def one_of(names: Iterable[object]) -> Is:
    """The condition that a value is one of those known."""
    known = list(names)
    return Is(known.__contains__, f"one of {', '.join(map(repr, known))}")


def _real(value: object) -> float:
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in _REALS):
        raise ValueError
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError
    return float(value)


Real = Annotated[float, As(_real, "a number")]
"""A number; infinities and NaN are texts in JSON."""
Sha256 = Annotated[str, Is(re.compile(r"[0-9a-f]{64}").fullmatch, "a SHA-256")]
FileName = Annotated[
    str,
    Is(lambda name: name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}, "the name of a file beside it"),
]
Positive = Annotated[float, Is(lambda value: 0 < value < math.inf, "a positive number")]
Count = Annotated[int, Is(lambda value: value >= 0, "a number of things")]


class _FieldError(UsageError):
    """Fields of a record do not fit each other; every argument is a sentence that begins with a field's name."""


def refuse_fields(complaints: Mapping[str, bool]) -> None:
    """Refuse a record whose fields do not fit each other; called in its `__post_init__`.

    Complaints are sentences that begin with a field's name, each with whether it is so; `read` tells the path of the field.
    """
    wrong = [sentence for sentence, is_so in complaints.items() if is_so]
    if wrong:
        raise _FieldError(*wrong)


def parse_json(text: str | bytes) -> Any:
    """Plain data from JSON; a ValueError where a key stands twice, a number is not finite, or it is nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the key {listing(map(printable, twice), limit=5)} stands twice")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def read(
    kind: type[T],
    content: object,
    where: str,
    remedy: str,
    *,
    error: type[LingerError] = UsageError,
    is_open: bool = False,
    place: str = "",
) -> T:
    """A dataclass from plain data, as JSON, YAML or TOML give it.

    Args:
        kind: The dataclass; its annotations say what each entry must be, `Is` what else holds.
        content: The data.
        where: The file, for the message.
        remedy: What to do about wrong entries, as a sentence.
        error: The error to raise.
        is_open: Whether entries that the dataclass does not have are left out instead of refused.
        place: The path of the content in its file.

    Raises:
        LingerError: Of the type asked for; every wrong entry is named with its path.
    """
    problems, record = read_with_problems(kind, content, is_open=is_open, place=place)
    if problems or record is None:
        raise error(f"{where}: {listing(problems, limit=10)}. {remedy}")
    return record


def read_with_problems(
    kind: type[T], content: object, *, is_open: bool = False, place: str = ""
) -> tuple[list[str], T | None]:
    """A sentence for every wrong entry, and the record where there is none."""
    from pydantic import ValidationError  # loaded with the first record that is read
    from pydantic_core import PydanticSerializationError, to_json

    try:
        text = to_json([content], inf_nan_mode="constants", fallback=repr)
    except PydanticSerializationError as error:
        return [f"{place or 'its content'} is no plain text and numbers ({_reason(error)})"], None
    try:
        return [], _adapter(cast("Any", kind), is_open).validate_json(text)[0]
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    return list(dict.fromkeys(sentence for entry in wrong for sentence in _sentences(kind, entry, place))), None


def _reason(error: ValueError) -> str:
    return "half a character" if "surrogates" in str(error) else "it is nested too deeply"


@cache
def _adapter(kind: Any, is_open: bool) -> TypeAdapter[Any]:  # noqa: FBT001 - a key of the cache
    from pydantic import TypeAdapter  # loaded with the first record that is read

    # a tuple, because pydantic takes a configuration from outside for what is no dataclass itself
    return TypeAdapter(
        tuple[kind], config={"strict": True, "extra": "ignore" if is_open else "forbid", "allow_inf_nan": False}
    )


def _sentences(kind: Any, entry: ErrorDetails, place: str) -> Iterator[str]:
    keys, fault = entry["loc"][1:], entry["type"]
    path, context = _path(place, keys) or "its content", entry.get("ctx", {})
    if fault == _UNKNOWN:
        known = _names(kind, keys[:-1])
        yield f"{path} is not known{_nearest(keys[-1], known) or f' (known: {listing(known, limit=12)})'}"
    elif fault == "json_invalid":
        yield f"{path} cannot be read ({context['error']})"
    elif fault == _MISSING:
        yield f"{path} is missing"
    elif fault == "value_error":
        said = context["error"]
        inside = isinstance(said, _FieldError)
        yield from (_path(_path(place, keys), [text]) if inside else f"{path}: {text}" for text in map(str, said.args))
    else:
        expected = context.get("expected") or _EXPECTED.get(fault, entry["msg"]).format(**context)
        near = _nearest(entry["input"], re.findall(r"'([^']*)'", expected))
        yield f"{path} is not {expected} ({printable(_brief.repr(entry['input'])[:_SHOWN])}){near}"


def _nearest(name: object, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1) if isinstance(name, str) and len(name) <= _SHOWN else []
    return f" (is {near[0]} meant?)" if near else ""


def _names(kind: Any, keys: Sequence[int | str]) -> list[str]:
    """The entries of the dataclass at a path."""
    for key in keys:
        kind = get_type_hints(kind).get(str(key)) if is_dataclass(kind) else _item(kind)
        kind = _item(kind) if get_origin(kind) is UnionType else kind
    return [entry.name for entry in fields(kind)] if is_dataclass(kind) else []


def _item(kind: Any) -> Any:
    """What an optional type is, or what the items of a list or an object are."""
    parts = [part for part in get_args(kind) if part not in (NoneType, Ellipsis)]
    return parts[-1] if parts else kind


def _path(place: str, keys: Sequence[int | str]) -> str:
    if keys[-1:] == ("[key]",):
        return f"the name {keys[-2]!r} in {_path(place, keys[:-2]) or 'its content'}"
    for key in keys:
        place += f"[{key}]" if isinstance(key, int) else f".{printable(key)}" if place else printable(key)
    return place
