"""tools/house.py and tools/walks.py: every fault that is planted in a small tree is counted, once and at its place."""

import importlib
import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.support.tools import load_tool

SOURCE = REPOSITORY / "src" / "linger"


@pytest.fixture(scope="module")
def house():
    return load_tool("house")


@pytest.fixture
def write(tmp_path):
    """Write a tree from texts by path, and return its root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / "linger" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "linger"

    return write


def test_files_count_in_their_folder_and_ops_may_hold_many(house, write):
    many = {f"{folder}/f{i}.py": "x = 1\n" for folder in ("graph", "graph/core", "ops") for i in range(21)}
    found = house.measure_files(write({"__init__.py": "", "graph/core/one_more.py": "x = 1\n\n", **many}))
    assert (found.measures["files"], found.measures["lines"]) == (65, 65)
    assert found.measures["files in (top)"] == 1
    assert found.measures["files in graph/core"] == 22
    assert found.places["folders"] == ["graph", "graph/core"]
    assert found.missed() == ["files in graph", "files in graph/core"]


def test_the_head_ends_before_the_first_code(house, write):
    text = '# license\n"""What it is."""\n\nimport os\n\n\n@os.cache\ndef f():\n    import sys\n\n'
    assert house.measure_files(write({"a.py": text})).measures["headers and imports, %"] == 40.0


LAZY = "import importlib\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from linger.top import f\n{getter}"


@pytest.mark.parametrize(
    ("files", "cycles"),
    [
        ({"a.py": "import linger.b", "b.py": "from linger.c import f"}, []),
        ({"a.py": "def f():\n    from linger import b", "b.py": "import linger.a"}, ["linger.a, linger.b"]),
        ({"a.py": "if TYPE_CHECKING:\n    import linger.b", "b.py": "import linger.a"}, ["linger.a, linger.b"]),
        ({"a.py": "i.import_module('linger.b')", "b.py": "from linger.a import f"}, ["linger.a, linger.b"]),
        ({"a.py": "i.import_module(f'linger.{name}')", "b.py": "from linger.a import f"}, []),
        ({"top.py": "import linger", "__init__.py": LAZY.format(getter="def __getattr__(name): ...")}, []),
        ({"top.py": "import linger", "__init__.py": LAZY.format(getter="")}, ["linger, linger.top"]),
    ],
    ids=["one way", "in a function", "for types", "hidden", "by pattern", "table of names", "no table of names"],
)
def test_import_cycles(files, cycles, house, write):
    found = house.measure_files(write({"__init__.py": "", "c.py": "", **files}))
    assert found.places["cycles"] == cycles
    assert found.measures["modules in import cycles"] == 2 * len(cycles)


def test_literal_dynamic_imports_are_listed_as_hidden(house, write):
    text = 'import_module("linger.a")\ni.import_module(f"linger.{x}")\ni.import_module("onnx")\ni.import_module(x)\n'
    found = house.measure_files(write({"__init__.py": "", "a.py": text}))
    assert found.places["hidden imports"] == ["a.py:1 -> linger.a", "a.py:2 -> linger.*"]
    assert found.measures["hidden imports"] == 1


def test_complexity_counts_methods_and_comprehensions_and_hides_nothing_in_inner_functions(house, write):
    eleven = "[x for x in y if " + " and ".join("abcdefghi") + "]"  # 1 + for + if + 8 times and = 11
    ten = eleven.replace(" and i", "")
    text = f"class C:\n    def over(self):\n        return {eleven}\n    def under(self):\n        return {ten}\n"
    inner = f"def outer():\n    def inner():\n        return {eleven}\n    return inner\n"
    found = house.measure_files(write({"graph/a.py": text, "ops/b.py": inner, "ops/c.py": "def f(): ...\n"}))
    assert [place.split()[:2] for place in found.places["complexity"]] == [["11", "ops/b.py:2"], ["11", "graph/a.py:2"]]
    assert found.measures["complexity over 10, %"] == 50.0, "2 of over, under, outer and f"
    assert found.measures["complexity over 10 in graph, %"] == 50.0


def test_only_a_bare_any_counts(house, write):
    text = "def f(a: Any, *b: typing.Any, c: Mapping[str, Any], d) -> Any | None:\n    e: Any = 1\n"
    found = house.measure_files(write({"graph/a.py": text, "b.py": 'async def g(x: int) -> "Any": ...\n'}))
    assert found.places["bare Any"] == ["2 graph/a.py", "1 b.py"]
    assert found.measures["bare Any, %"] == 50.0
    assert found.measures["bare Any in (top), %"] == 50.0


def test_six_equal_lines_are_one_pair_and_five_are_none(house, write):
    run = [f"call({i})" for i in range(8)]
    files = {
        "a.py": "import os\n" + "\n".join(run),
        "b.py": "def f():\n" + "\n\n".join(f"    {line}  " for line in run),
        "c.py": "\n".join(run[:5]),
        "d.py": "same()\n" * 11,
    }
    found = house.measure_files(write(files))
    assert found.places["duplicates"] == ["a.py:2 ~ b.py:2"]
    again = house.measure_files(
        write({"d.py": "same()\n" * 12, "ops/e.py": "\n".join(run[2:]), "ops/f.py": "\n".join(run[2:])})
    )
    assert again.places["duplicates"][0] == "a.py:2 ~ b.py:2"
    assert "d.py:1 ~ d.py:7" in again.places["duplicates"]
    assert again.measures["duplicates, pairs of places"] - again.measures["duplicates not within ops"] == 1


def test_a_trace_names_the_files_and_counts_calls_between_them(write, monkeypatch):
    root = write(
        {
            "first.py": "from linger_traced import second, third\ndef go():\n    return here() + sum(map(second.f, [1, 2]))\n"
            "def here():\n    return 0\n",
            "second.py": "from linger_traced import third\ndef f(x):\n    return third.g(x)\n",
            "third.py": "def g(x):\n    return x\n",
            "idle.py": "def h(): ...\n",
        }
    )
    root = root.rename(root.with_name("linger_traced"))
    monkeypatch.syspath_prepend(root.parent)
    first = importlib.import_module("linger_traced.first")
    assert load_tool("walks").trace(root, first.go) == (["first.py", "second.py", "third.py"], 4)


def test_the_command_compares_with_an_earlier_tree(house, write, tmp_path):
    root = write({"a.py": "x: int = 1\n"})
    command = [sys.executable, str(REPOSITORY / "tools" / "house.py"), str(root), "--static"]
    before = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(before)["measures"]["files"] == 1
    (tmp_path / "before.json").write_text(before)
    write({"b.py": "import linger.a\n", "a.py": "import linger.b\n", "new/c.py": "def f(x: Any): ...\n"})
    given = [*command, "--compare", str(tmp_path / "before.json"), "--offenders"]
    lines = subprocess.run(given, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split() for line in lines if line.startswith(("files  ", "files in new"))] == [
        ["files", "1", "3", "at", "most", str(house.TARGETS["files"])],
        ["files", "in", "new", "-", "1", "at", "most", "20"],
    ]
    assert [line.split()[0] for line in lines[:5]] == ["files", "files", "files", "lines", "headers"]
    assert "import cycles                                    0         1   at most 0, missed" in lines
    assert lines[lines.index("cycles (1)") + 1] == "  linger.a, linger.b"


def test_the_source_keeps_the_targets(house):
    assert house.measure_files(SOURCE).missed() == []


@pytest.mark.needs_torch
def test_the_walks_run_and_are_short(house):
    found = house.House()
    house.measure_walks(found, SOURCE)
    assert found.missed() == []
    assert found.places["walk wb_analyse"]
    assert "quantization/layers/layer.py" in found.places["walk forward"]
    assert set(found.places["walk repair"]) < set(found.places["walk repair and check"])
    assert all(found.measures[f"walk {name}, hops"] > 0 for name in ("forward", "export", "verify", "repair"))
    loads = [found.measures[f"walk {name}, loads"] for name in ("forward", "verify", "linger c", "linger quantize")]
    assert loads == [0, 1, 1, 1]
    assert found.measures["names in linger.__all__"] == len(importlib.import_module("linger").__all__)


def test_public_classes_count_also_inside_others(house, write):
    text = "class A:\n    class B: ...\nclass _C:\n    class D: ...\n"
    counted = house.measure_files(write({"a.py": text}))
    assert counted.measures["public classes"] == 3
    assert counted.places["public classes"] == ["a.py:1 A", "a.py:2 B", "a.py:4 D"]


def test_test_files_that_reach_behind_the_public_names_are_counted(house, tmp_path):
    files = {
        "src/linger/__init__.pyi": "",
        "src/linger/a/__init__.pyi": "",
        "src/linger/a/b.py": "x = 1",
        "tests/test_public.py": "import linger\nimport linger.a\nfrom linger.a import x\nfrom linger.errors import E",
        "tests/a/test_inside.py": "from linger.a.b import x",
        "tests/a/test_late.py": "def test():\n    import linger.a.b",
        "tests/support.py": "from linger.a.b import x",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    counted = house.measure_files(tmp_path / "src" / "linger")
    assert counted.measures["tests that import internals, %"] == 66.7
    assert counted.places["tests that import internals"] == ["tests/a/test_inside.py", "tests/a/test_late.py"]
