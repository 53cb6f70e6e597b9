"""Files are read as records: strictly by the annotations, every wrong entry named at once with its path."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import pytest

from linger.errors import GraphError, UsageError
from linger.records.reading import (
    As,
    Count,
    FileName,
    Is,
    Positive,
    Real,
    Sha256,
    one_of,
    parse_json,
    read,
    read_with_problems,
    refuse_fields,
)


@dataclass(frozen=True)
class Wheel:
    size: Count
    kind: Literal["steel", "wood"] = "wood"
    ratio: Real = 1.0


@dataclass(frozen=True)
class Cart:
    name: Annotated[str, Is(str.isidentifier, "an identifier")]
    wheels: tuple[Wheel, ...]
    load: Positive | None = None
    is_new: bool = False
    spare: Wheel | None = None
    by_side: Mapping[Annotated[str, Is(str.islower, "a side")], Wheel] = field(default_factory=dict)
    digest: Sha256 | None = None
    file: FileName | None = None

    def __post_init__(self) -> None:
        refuse_fields(
            {
                "wheels are too many": len(self.wheels) > 4,
                "name is that of a horse": self.name == "horse",
            }
        )


GOOD = {
    "name": "cart",
    "wheels": [{"size": 1}, {"size": 2, "kind": "steel", "ratio": "inf"}],
    "load": 3,
    "by_side": {"left": {"size": 1, "ratio": 2}},
    "digest": "0" * 64,
    "file": "a.bin",
}


def test_a_record_is_what_was_written():
    made = read(Cart, GOOD, "cart.json", "Write it again.")
    assert made == Cart(
        name="cart",
        wheels=(Wheel(1), Wheel(2, "steel", math.inf)),
        load=3.0,
        by_side={"left": Wheel(1, ratio=2.0)},
        digest="0" * 64,
        file="a.bin",
    )
    assert isinstance(made.load, float)
    assert read(Cart, asdict(made), "cart.json", "") == made


WRONG = {
    "text as a number": ({"load": "3"}, "load is not a positive number ('3')"),
    "boolean as a number": ({"load": True}, "load is not a positive number (True)"),
    "negative": ({"load": -1.0}, "load is not a positive number (-1.0)"),
    "huge": ({"load": 10**400}, "load is not a positive number (1000"),
    "not a number": ({"load": math.nan}, "load is not a positive number (nan)"),
    "number as a boolean": ({"is_new": 1}, "is_new is not true or false (1)"),
    "fraction as a count": ({"wheels": [{"size": 1.0}]}, "wheels[0].size is not a number of things (1.0)"),
    "negative count": ({"wheels": [{"size": 1}, {"size": -1}]}, "wheels[1].size is not a number of things (-1)"),
    "no choice": ({"spare": {"size": 1, "kind": "gold"}}, "spare.kind is not 'steel' or 'wood' ('gold')"),
    "real": ({"spare": {"size": 1, "ratio": "Infinity"}}, "spare.ratio is not a number ('Infinity')"),
    "no object": ({"spare": [1]}, "spare is not an object ([1])"),
    "no list": ({"wheels": {}}, "wheels is not a list ({})"),
    "null": ({"wheels": None}, "wheels is not a list (None)"),
    "missing": ({"spare": {}}, "spare.size is missing"),
    "unknown": ({"color": "red"}, "color is not known"),
    "misspelt": ({"by_sides": {}}, "by_sides is not known (is by_side meant?)"),
    "misspelt inside a list": ({"wheels": [{"size": 1, "kinds": 1}]}, "wheels[0].kinds is not known (is kind meant?)"),
    "misspelt inside an object": (
        {"by_side": {"left": {"size": 1, "raito": 1}}},
        "by_side.left.raito is not known (is ratio meant?)",
    ),
    "name of an entry": ({"by_side": {"Left": {"size": 1}}}, "the name 'Left' in by_side is not a side ('Left')"),
    "digest": ({"digest": "0" * 63}, "digest is not a SHA-256"),
    "path": ({"file": "../x"}, "file is not the name of a file beside it ('../x')"),
    "path of another system": ({"file": "a\\b"}, "file is not the name of a file beside it"),
    "fields together": ({"wheels": [{"size": 1}] * 5}, "wheels are too many"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_entry_is_named_with_its_path(case):
    change, words = WRONG[case]
    problems, made = read_with_problems(Cart, GOOD | change)
    assert made is None
    assert len(problems) == 1
    assert words in problems[0]


def test_every_wrong_entry_is_named_at_once():
    content = {"name": "9", "wheels": [{"size": "1"}, 5], "load": 0, "color": 1, "digest": 3}
    with pytest.raises(UsageError) as caught:
        read(Cart, content, "cart.json", "Write it again.")
    assert str(caught.value) == (
        "cart.json: name is not an identifier ('9'), wheels[0].size is not a number of things ('1'), wheels[1] is not an object "
        "(5), load is not a positive number (0), digest is not a SHA-256 (3), color is not known (known: name, wheels, load, is_new, spare, by_side, digest, file). Write it again."
    )


def test_fields_that_do_not_fit_each_other_are_named_at_once_with_the_path():
    problems, _ = read_with_problems(Cart, GOOD | {"name": "horse", "wheels": [{"size": 1}] * 5}, place="run.carts")
    assert problems == ["run.carts.wheels are too many", "run.carts.name is that of a horse"]


@dataclass(frozen=True)
class Converted:
    whole: Annotated[int, As(int, "a whole number")] = 0
    part: Annotated[float, As(lambda value: 1 / value)] = 1.0
    name: Annotated[str, As({"a": "x"}.__getitem__, "known")] = ""
    side: Annotated[str, one_of(("left", "right"))] = "left"


def test_a_conversion_makes_the_value_of_what_is_written():
    assert read(Converted, {"whole": "5", "part": 2, "name": "a"}, "", "") == Converted(5, 0.5, "x")


def test_a_conversion_refuses_whatever_it_raises():
    problems, _ = read_with_problems(Converted, {"whole": [5], "part": 0, "name": "b", "side": "lft"})
    assert problems == [
        "whole is not a whole number ([5])",
        "part: division by zero",
        "name is not known ('b')",
        "side is not one of 'left', 'right' ('lft') (is left meant?)",
    ]


def test_unknown_entries_are_left_out_of_an_open_format():
    made = read(Cart, GOOD | {"color": 1, "spare": {"size": 1, "x": 2}}, "", "", is_open=True)
    assert made.spare == Wheel(1)


def test_the_error_is_of_the_type_asked_for():
    with pytest.raises(GraphError, match=r"^here: its content is not an object \(None\)\. Do this\.$"):
        read(Cart, None, "here", "Do this.", error=GraphError)


def test_half_a_character_and_deep_nesting_are_refused():
    assert read_with_problems(Cart, GOOD | {"name": "\ud800"})[0] == [
        "its content is no plain text and numbers (half a character)"
    ]
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    assert read_with_problems(Cart, {"spare": deep}, place="run")[0] == [
        "run is no plain text and numbers (it is nested too deeply)"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key c stands twice"),
        ("[NaN]", "NaN is no finite number"),
        ("[-Infinity]", "-Infinity is no finite number"),
        ("[1e999]", "1e999 is no finite number"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting"),
        (b"\xff", "codec can't decode"),
    ],
    ids=["twice", "nan", "infinity", "overflow", "nested", "cut off", "no text"],
)
def test_json_that_is_not_plain_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_json(text)


def test_json_is_plain_data():
    assert parse_json('{"a": [1, 2.5, null, true, "x"]}') == {"a": [1, 2.5, None, True, "x"]}


def test_pydantic_is_loaded_by_the_first_record_that_is_read():
    lines = (
        "import sys, dataclasses, linger.records.reading as r",
        "D = dataclasses.make_dataclass('D', [('a', r.Count)])",
        "assert 'pydantic' not in sys.modules",
        "assert r.read(D, {'a': 1}, '', '').a == 1",
        "assert 'pydantic' in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
