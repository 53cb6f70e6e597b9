"""What linger finds on this machine."""

import shutil
import sys
from importlib import metadata

import pytest

from linger.workflow import installation


@pytest.fixture
def required(monkeypatch):
    """Makes linger require one package, of which one version is installed."""

    def require(text, version):
        monkeypatch.setattr(metadata, "requires", lambda _: [text])

        def installed(name):
            if version is None:
                raise metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(metadata, "version", installed)
        (found,) = installation.packages()
        return found.status, found.extra, found.remedy

    return require


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("json>=1.2", "1.2", ("ok", "", "")),
        ("json>=1.2.0", "1.2+cpu", ("ok", "", "")),
        ("json>=1.10", "1.9", ("too old", "", "pip install 'json>=1.10'")),
        ("json>=1.2", None, ("missing", "", "pip install 'json>=1.2'")),
        ('netron>=9.0; extra == "view"', None, ("missing", "view", "pip install 'linger[view]'")),
        ('no_such_thing; extra == "view"', "1.0", ("ok", "view", "")),
        ("no_such_thing", "1.0", ("broken", "", "pip install --force-reinstall 'no_such_thing==1.0'")),
    ],
    ids=["ok", "local", "old", "missing", "extra", "extra-not-imported", "broken"],
)
def test_packages_are_judged(required, text, version, expected):
    assert required(text, version) == expected


def test_developers_tools_are_left_out(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: ['ruff; extra == "dev"', 'linger[torch]; extra == "demo"'])
    assert installation.packages() == []


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
