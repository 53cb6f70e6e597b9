"""What linger finds on this machine."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from linger.errors import DISTRIBUTION
from linger.workflow import installation
from linger.workflow.installation import Package

OWN = ["onnx-ir>=0.1.16"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a distribution: a name, a version and what it requires. Nothing else is installed any more."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(name, version, *required, python=">=3.11"):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
        text = "\n".join([*lines, *(f"Requires-Dist: {line}" for line in required)])
        (folder / "METADATA").write_text(text)

    return install


def others():
    return [package for package in installation.packages() if package.name != "onnx-ir"]


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("json>=1.2", "1.2", Package("json", "1.2", "1.2", "", "ok")),
        ("json>=1.2.0", "1.2+cpu", Package("json", "1.2+cpu", "1.2.0", "", "ok")),
        ("json>=1.10", "1.9", Package("json", "1.9", "1.10", "", "too old", "pip install 'json>=1.10'")),
        (
            'json>=1.10; extra == "view"',
            "1.9",
            Package("json", "1.9", "1.10", "view", "too old", "pip install 'json>=1.10'"),
        ),
        ("json>=1.2", None, Package("json", "", "1.2", "", "missing", "pip install 'json>=1.2'")),
        (
            'netron>=9.0; extra == "view"',
            None,
            Package("netron", "", "9.0", "view", "missing", "pip install 'linger-nn[view]'"),
        ),
        ('no_such_thing; extra == "view"', "1.0", Package("no_such_thing", "1.0", "", "view", "ok")),
        (
            "no_such_thing",
            "1.0",
            Package(
                "no_such_thing",
                "1.0",
                "",
                "",
                "broken",
                "pip install --force-reinstall 'no_such_thing==1.0'",
                "No module named 'no_such_thing'",
            ),
        ),
    ],
    ids=["ok", "local", "old", "old extra", "missing", "extra", "extra-not-imported", "broken"],
)
def test_packages_are_judged(installed, text, version, expected):
    installed(DISTRIBUTION, "0.1", *OWN, text)
    if version is not None:
        installed(expected.name, version)
    assert others() == [expected]


def test_developers_tools_are_left_out(installed):
    installed(DISTRIBUTION, "0.1", *OWN, 'ruff; extra == "dev"', 'linger-nn[torch]; extra == "demo"')
    assert others() == []


def test_linger_installed_under_its_former_name_is_judged_as_before(installed):
    installed("linger", "0.1.0", *OWN, "json>=1.2", 'linger[torch]; extra == "demo"', python=">=99")
    assert [package.name for package in others()] == ["json"]
    assert not installation.python_is_recent()


def test_the_new_name_goes_first(installed):
    installed("linger", "0.1.0", *OWN, "json>=1.2")
    installed(DISTRIBUTION, "0.2", *OWN, "tomllib")
    assert [package.name for package in others()] == ["tomllib"]


def test_somebody_elses_linger_is_not_ours(installed):
    installed("linger", "1.0.1", "pyzmq>=1.0", python=">=99")
    remedy = f"pip install {DISTRIBUTION}"
    assert installation.packages() == [Package(DISTRIBUTION, "", "", "", "missing", remedy)]
    assert installation.python_is_recent()


def test_pip_and_the_messages_know_one_name():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    inner = [line for lines in project["optional-dependencies"].values() for line in lines if line.startswith("linger")]
    assert {line.partition("[")[0] for line in inner} == {DISTRIBUTION}


def test_this_python_is_recent(monkeypatch):
    assert installation.python_is_recent()
    monkeypatch.setattr(sys, "version_info", (3, 10, 9))
    assert not installation.python_is_recent()


def test_machines_without_tools_name_the_packages(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if "qemu" in name else f"/bin/{name}")
    found = {tool.target: tool for tool in installation.tools()}
    assert found["host"].is_ready
    assert (found["cortex-m4"].compiler, found["cortex-m4"].is_ready) == ("arm-none-eabi-gcc", False)
    assert "qemu-system-arm" in found["cortex-m4"].remedy


def test_the_self_test_compares_integers():
    found = installation.self_test()
    assert (found.ok, found.differing, found.reason) == (True, 0, "")
    assert found.integers > 1000


def test_a_self_test_that_cannot_be_run_says_why(monkeypatch):
    monkeypatch.setattr(installation, "_SELF_TEST", "no model")
    found = installation.self_test()
    assert not found.ok
    assert found.reason
