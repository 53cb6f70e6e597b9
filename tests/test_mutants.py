"""tools/mutants: the mistakes that it plants, the tests that it chooses, and its verdict on a small tree."""

import ast
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tools.mutants import running, without_effect
from tools.mutants.mutations import draw, mutations_of
from tools.mutants.tracing import Trace, counted

SOURCE = REPOSITORY / "src" / "linger"


def changes(source):
    return {(m.before, m.after) for m in mutations_of("a.py", source)}


MISTAKES = {
    "comparison": ("x = a < b", {("a < b", "a <= b"), ("a < b", "a >= b")}),
    "identity": ("x = a is None", {("a is None", "a is not None")}),
    "membership": ("x = a not in b", {("a not in b", "a in b")}),
    "name": ("x = a == 'mse'", {("a == 'mse'", "a != 'mse'"), ("a == 'mse'", "a == 'mse_'")}),
    "and": ("x = a and b", {("a and b", "a or b"), ("a and b", "a"), ("a and b", "b")}),
    "not": ("x = not a", {("not a", "a")}),
    "sign": ("x = -a", {("-a", "a")}),
    "arithmetic": ("x = a - b", {("a - b", "a + b")}),
    "in place": ("x += b", {("x += b", "x -= b")}),
    "constant": ("x = 2", {("2", "3"), ("2", "1")}),
    "zero": ("x = 0", {("0", "1")}),
    "truth": ("x = True", {("True", "False")}),
    "arguments": ("x = f(a, b)", {("f(a, b)", "f(b, a)")}),
    "keyword": ("x = f(a, b=c)", {("f(a, b=c)", "f(a)")}),
    "opposite": ("x = np.floor(a)", {("np.floor(a)", "np.ceil(a)")}),
    "symmetric": ("x = max(a, b)", {("max(a, b)", "min(a, b)")}),
    "slice": ("x = a[b:c]", {("b:c", ":c"), ("b:c", "b:")}),
    "condition": ("x = a if b else c", {("b", "True"), ("b", "False")}),
    "call": ("f(a)", {("f(a)", "pass")}),
    "break": ("while a:\n    break", {("a", "False"), ("break", "continue")}),
    "return": ("def f():\n    return a", {("return a", "return None")}),
    "returned truth": ("def f() -> bool:\n    return a", {("return a", "return not a")}),
    "returned number": ("def f() -> int:\n    return a", {("return a", "return -a")}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_kind_of_mistake_is_offered(name):
    source, expected = MISTAKES[name]
    assert changes(source) == expected


UNTOUCHED = {
    "docstring": '"""1 < 2"""',
    "attribute's docstring": 'x = a\n"""1 < 2"""',
    "annotation": "def f(a: Literal[1], *, b: x | y) -> int | None: ...",
    "annotated name": "a: Literal[1]",
    "name of a type": "Array = NDArray[Literal[1]]",
    "message": "raise UsageError(f(1, 2))",
    "error that is made": "x = UsageError(1, 2)",
    "warning": "warnings.warn(f(1, 2), stacklevel=2)",
    "formatted": 'x = f"{1 + 2}"',
    "log": "logger.debug(a, 1)",
    "names": "__all__ = [1]",
    "type checkers": "if TYPE_CHECKING:\n    x = 1",
    "assertion": "assert a < 1",
    "samples": "iq_abs.samples = (1, 2)",
    "function for samples": "def _sample(a):\n    return 1",
    "protocol": "class Kernel(Protocol):\n    x = 1",
    "dataclass": "@dataclass(frozen=True)\nclass A:\n    pass",
    "strict": "x = zip(a, strict=True)",
    "type asked for": "x = isinstance(a, B | C)",
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_has_no_behavior_is_left_alone(name):
    assert changes(UNTOUCHED[name]) == set()


def test_a_keyword_is_dropped_where_its_function_has_a_default():
    source = "x = f(a=b, c=d)"
    found = mutations_of("a.py", source, {"f": {"c"}})
    assert [m.after for m in found] == ["f(a=b)"]


def test_a_mistake_changes_its_place_only():
    source = "y = '½·'; x = (g(a) -  # why\n    b) * c\n"
    (found,) = [m for m in mutations_of("a.py", source) if m.before == "g(a) - b"]
    assert found.apply(source) == "y = '½·'; x = (g(a) + b) * c\n"
    assert (found.line, found.text) == (1, "y = '½·'; x = (g(a) -  # why")
    (found,) = [m for m in mutations_of("a.py", "x = a * (not b)") if m.kind == "sign or not dropped"]
    assert found.apply("x = a * (not b)") == "x = a * (b)"


def test_a_mistake_knows_the_outermost_function_around_it():
    source = "class A:\n    x = 1\n    def f(self):\n        def g():\n            return 2\n"
    assert {(m.before, m.function) for m in mutations_of("a.py", source) if m.kind == "constant"} == {
        ("1", "A"),
        ("2", "A.f"),
    }


def test_draws_are_repeatable_and_by_lines(tmp_path):
    (tmp_path / "long.py").write_text("".join(f"x{i} = {i}\n" for i in range(90)))
    (tmp_path / "short.py").write_text("".join(f"y{i} = {i}\n" for i in range(10)))
    first = draw(tmp_path, 40, 1)
    assert draw(tmp_path, 40, 1) == first
    assert draw(tmp_path, 40, 2) != first
    assert len({m.key for m in first}) == 40
    assert 30 <= sum(m.path == "long.py" for m in first) < 40
    assert {m.path for m in draw(tmp_path, 5, 1, ("short",))} == {"short.py"}
    assert len(draw(tmp_path, 30, 1, ("short",))) == 19  # there are no more


def test_functions_that_run_are_counted_by_the_outermost_name():
    hits = []
    source = "class A:\n    def f(self):\n        'Doc.'\n        return (lambda: 1)()\ndef g():\n    def h():\n        return 2\n    return h()\n"
    names = {"__mutants_hit__": hits.append}
    exec(compile(counted(ast.parse(source), "a.py"), "a.py", "exec"), names)
    assert names["A"]().f() == 1
    assert names["g"]() == 2
    assert hits == ["a.py:A.f", "a.py:g"]
    assert names["A"].f.__doc__ == "Doc."


def test_the_nearest_tests_come_first(tmp_path):
    (mutation,) = mutations_of("x/y.py", "def f():\n    return a")
    texts = {
        "x/test_y.py": "",
        "x/test_other.py": "",
        "z/test_far.py": "",
        "z/test_named.py": "from linger.x.y import f",
    }
    for name, text in {**texts, "z/test_none.py": ""}.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    traces = {
        "tests/z/test_far.py": Trace("", {"tests/z/test_far.py::a": 1.0}, {"tests/z/test_far.py::a": ["x/y.py:f"]}),
        "tests/x/test_other.py": Trace(
            "",
            {f"tests/x/test_other.py::{n}": 1.0 for n in "abcd"},
            {
                "tests/x/test_other.py::a": ["x/y.py:f", "x/y.py:g"],
                "tests/x/test_other.py::b": ["x/y.py:f"],
                "tests/x/test_other.py::c": ["x/y.py:ff"],
                "tests/x/test_other.py::d": ["x/y.py:f"],
            },
            ["tests/x/test_other.py::d"],  # it fails without a mistake
        ),
    }
    near = running.near_files(mutation, tmp_path, traces)
    assert near == ["tests/x/test_y.py", "tests/z/test_named.py", "tests/x/test_other.py", "tests/z/test_far.py"]
    assert running.traced_tests(mutation, near, traces, 10.0) == [
        "tests/x/test_other.py::b",
        "tests/x/test_other.py::a",
        "tests/z/test_far.py::a",
    ]
    assert running.traced_tests(mutation, near, traces, 0.5) == ["tests/x/test_other.py::b"]


CODE = '''"""Sums."""


def add(a, b):
    """The sum."""
    return a + b


def clip(a, most):
    """At most so much."""
    if a > most:
        a = most
    return a


def turned(a):
    """Of the other sign; no test reads it."""
    return -a
'''
TESTS = """import subprocess, sys
from linger.sums import add, clip

def test_add():
    assert add(1, 2) == 3

def test_clip():
    assert clip(5, 3) == 3

def test_another_process():
    code = "import linger.sums; print(linger.sums.clip(1, 3))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\\n"

def test_that_fails_without_a_mistake():
    assert add(1, 1) == 3
"""
OPTION = """def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true")
"""
LISTED = """# why each changes nothing

sums.py
    if a > most:
    - a > most
    + a >= most
    Both give the same where they are equal.
"""


@pytest.fixture
def tree(tmp_path):
    for name, text in {
        "src/linger/__init__.py": "",
        "src/linger/sums.py": CODE,
        "tests/test_sums.py": TESTS,
        "tests/conftest.py": OPTION,
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["slow", "devices"]\n',
        "tests/mutants_without_effect.txt": LISTED,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def mutants(folder, *words):
    command = [sys.executable, "-m", "tools.mutants", "--repository", str(folder), *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_from_a_tree_to_the_share(tree):
    done = mutants(tree, "--at", "sums.py:6", "sums.py:11", "sums.py:18")
    # a + b, return None; a > most: two, forced: two; return None, the sign
    last = "seed 20260101: 8 drawn, 1 without effect, 5 of 7 caught (71.4%)"
    assert done.stdout.splitlines()[-1] == last, done.stdout
    assert done.returncode == 1
    assert "caught   src/linger/sums.py:11 condition forced: by tests/test_sums.py::test_another_process" in done.stdout
    assert "SURVIVED src/linger/sums.py:18 sign or not dropped" in done.stdout
    assert "    - -a\n    + a\n" in done.stdout
    assert "test_that_fails_without_a_mistake" not in done.stdout
    assert (tree / "src/linger/sums.py").read_text() == CODE
    again = mutants(tree, "--at", "sums.py:6", "sums.py:11", "sums.py:18")
    assert again.stdout.splitlines()[-1] == last
    assert " s caught" not in again.stdout, "what is known is not run again"


def test_a_line_that_has_changed_is_not_excused_any_more(tree):
    reasons = without_effect.read(tree / "tests/mutants_without_effect.txt")
    assert without_effect.stale(reasons, tree / "src/linger") == []
    (tree / "src/linger/sums.py").write_text(CODE.replace("if a > most:", "if most < a:"))
    assert without_effect.stale(reasons, tree / "src/linger") == list(reasons)
    assert "mutants_without_effect.txt is out of date: sums.py | if a > most:" in mutants(tree).stderr


def test_the_list_of_mistakes_without_effect_is_up_to_date():
    reasons = without_effect.read(REPOSITORY / "tests" / "mutants_without_effect.txt")
    assert without_effect.stale(reasons, SOURCE) == []
    assert all(reason.endswith(".") for reason in reasons.values())


def test_a_listed_mistake_can_be_read_back(tmp_path):
    (mutation,) = mutations_of("a.py", "x = f(a, b)")
    (tmp_path / "list.txt").write_text(without_effect.entry(mutation, "Nobody sees it.") + "\n")
    assert without_effect.read(tmp_path / "list.txt") == {mutation.key: "Nobody sees it."}
    (tmp_path / "list.txt").write_text("a.py\n    x = 1\n")
    with pytest.raises(SystemExit, match="an entry is a path"):
        without_effect.read(tmp_path / "list.txt")
