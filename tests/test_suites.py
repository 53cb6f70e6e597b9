"""tools/suites.py: counts from closing lines, verdicts that cannot be had for nothing, one page for one tree."""

import re
import subprocess
import sys

import pytest

from linger.c.toolchains import toolchain
from tests.conftest import REPOSITORY
from tests.support.tools import load_tool

TOOL = load_tool("suites")
TREE = "0123456789ab"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param("4 passed in 0.12s\n", (4, 0, 0), id="quiet"),
        pytest.param(
            "====== 7 failed, 4224 passed, 22 skipped, 17 deselected, 3 warnings in 3660.12s (1:01:00) ======\n",
            (4224, 7, 22),
            id="every word",
        ),
        pytest.param(
            "= 2 passed in 1.00s =\nmake: next\n= 1 failed, 5 passed, 2 errors in 2.00s =\n", (7, 3, 0), id="runs"
        ),
        pytest.param("38092 inputs: {'repaired': 2, 'broken': 3}; 2 broken places\n", (38090, 2, 0), id="fuzzing"),
        pytest.param("51 of 60 bars kept; 1 scripts failed\n", (51, 1, 0), id="benchmarks"),
    ],
)
def test_counts_are_those_of_the_closing_lines(text, counts):
    found = TOOL.read_counts(f"collected 3 items\n{text}")
    assert ((found.passed, found.failed, found.skipped), found.is_known) == (counts, True)


@pytest.mark.parametrize("text", ["", "all 9 tests passed\n", "    assert '9 passed in 1.00s'\n", "error: 9 passed"])
def test_other_lines_count_nothing(text):
    assert TOOL.read_counts(text) == TOOL.Counts()


def test_closing_lines_of_pytest_itself(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip\ndef test_c(): pass\ndef test_d(missing): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-n", "0", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = TOOL.read_counts(done.stdout)
    assert (found.passed, found.failed, found.skipped) == (1, 2, 1)
    assert TOOL._NAMED.findall(done.stdout) == ["test_it.py::test_b", "test_it.py::test_d"]


@pytest.mark.parametrize(
    ("text", "exit_code", "is_counted", "verdict"),
    [
        ("3 passed in 1.00s", 0, True, "passed"),
        ("1 failed, 3 passed in 1.00s", 0, True, "FAILED"),
        ("1 failed, 3 passed in 1.00s", 2, True, "FAILED"),
        ("3 passed in 1.00s", 2, True, "FAILED: exit code 2"),
        ("", 0, True, "FAILED: no test was counted"),
        ("5 skipped in 1.00s", 0, True, "FAILED: no test was counted"),
        ("", 0, False, "passed"),
        ("", 1, False, "FAILED: exit code 1"),
    ],
)
def test_a_suite_passes_by_its_exit_code_and_by_its_counts(text, exit_code, is_counted, verdict):
    suite = TOOL.Suite([], is_counted=is_counted)
    assert TOOL.verdict_of(suite, TOOL.read_counts(text), exit_code) == verdict


def printing(text, exit_code=0):
    return TOOL.Suite([sys.executable, "-c", f"print({text!r}); raise SystemExit({exit_code})"])


SUITES = {
    "good": printing("3 passed, 1 skipped in 0.10s"),
    "bad": printing("FAILED tests/test_x.py::test_y[a] - assert\n= 1 failed, 2 passed in 0.10s =", 1),
    "later": printing("9 passed in 0.10s"),
}


def rows(path):
    """The page's table: the name of a suite, its counts and its verdict."""
    table = [line.strip("| ").split("|") for line in path.read_text().splitlines() if line.startswith("| ")][1:]
    return {name.strip(): ([cell.strip() for cell in cells[:3]], cells[-1].strip()) for name, *cells in table}


def test_a_failing_suite_stops_nothing_and_is_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(TOOL, "tree_of", lambda repository: TREE)
    page = tmp_path / "suites.md"
    assert TOOL.run_all(["good", "bad", "later"], SUITES, tmp_path / "logs", page) == 1
    assert rows(page) == {
        "good": (["3", "0", "1"], "passed"),
        "bad": (["2", "1", "0"], "FAILED"),
        "later": (["9", "0", "0"], "passed"),
    }
    text = page.read_text()
    assert f"Commit `{TREE}`, nothing else in the tree. **2 of 3 suites passed; failed: bad.**" in text
    assert "- `tests/test_x.py::test_y[a]`" in text
    assert "3 passed" in (tmp_path / "logs" / "good.log").read_text()


def test_a_part_is_joined_with_what_was_run_on_the_same_tree(tmp_path, monkeypatch):
    page, trees = tmp_path / "suites.md", [TREE]
    monkeypatch.setattr(TOOL, "tree_of", lambda repository: trees[-1])
    assert TOOL.run_all(["good"], SUITES, tmp_path / "logs", page) == 0
    assert rows(page)["bad"] == (["", "", ""], "not run")
    assert "1 of 3 suites passed; not run on this tree: bad, later." in page.read_text()
    assert TOOL.run_all(["later"], SUITES, tmp_path / "logs", page) == 0
    assert [verdict for _, verdict in rows(page).values()] == ["passed", "not run", "passed"]
    trees.append(f"{TREE}+89abcdef")
    assert TOOL.run_all(["bad"], SUITES, tmp_path / "logs", page) == 1
    assert [verdict for _, verdict in rows(page).values()] == ["not run", "FAILED", "not run"]
    assert "with changes that are not committed (digest 89abcdef)" in page.read_text()
    trees.pop()
    assert TOOL.run_all(["good"], SUITES, tmp_path / "logs", page) == 0


def test_a_suite_under_which_the_tree_changes_has_not_passed(tmp_path, monkeypatch):
    seen = iter([TREE, "ba9876543210"])
    monkeypatch.setattr(TOOL, "tree_of", lambda repository: next(seen))
    assert TOOL.run_all(["good"], SUITES, tmp_path / "logs", tmp_path / "suites.md") == 1
    assert rows(tmp_path / "suites.md")["good"][1] == "FAILED: the tree changed under it, to ba9876543210"


def test_a_tree_is_its_commit_and_what_is_not_committed(tmp_path):
    def git(*arguments):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a.txt").write_text("1")
    git("add", "a.txt")
    git("commit", "-m", "first")
    clean = TOOL.tree_of(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "suites.md").write_text("the page itself")
    assert TOOL.tree_of(tmp_path) == clean
    seen = {clean}
    for name, text in (("a.txt", "2"), ("a.txt", "3"), ("b.txt", "new"), ("b.txt", "newer")):
        (tmp_path / name).write_text(text)
        seen.add(TOOL.tree_of(tmp_path))
    assert len(seen) == 5
    assert all(tree.startswith(clean) for tree in seen)


def test_every_suite_is_a_target_of_make():
    targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert [name for name, suite in TOOL.SUITES.items() if suite.command[1] not in targets] == []
    assert {t for t in targets if t.startswith("test-")} - {s.command[1] for s in TOOL.SUITES.values()} == {
        "test-fast",
        "test-all",
    }


def test_slow_and_device_suites_install_what_their_tests_need():
    """Three tests of the slow suite failed for want of clang, which another target installs."""
    text = (REPOSITORY / "Makefile").read_text()
    needed = {
        name: re.search(rf"^{name}: (.*)$", text, re.MULTILINE)[1].split() for name in ("test-slow", "test-devices")
    }
    assert all("devices" in prerequisites for prerequisites in needed.values())
    tools = re.search(r"^DEVICE_TOOLS := (.*)$", text, re.MULTILINE)[1].split()
    used = {toolchain(name).compilers[0] for name in ("cortex-m4", "rv32imac")} | {
        "clang",
        "tcc",
        "valgrind",
        "cppcheck",
    }
    assert used <= set(tools)


def test_an_unknown_suite_is_refused():
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "suites.py", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no such suite: nonsense (there are test, slow, devices" in done.stderr
