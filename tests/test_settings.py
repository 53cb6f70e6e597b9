"""The environment is read in one place."""

from pathlib import Path

from linger.settings import Settings


def test_shared_folder_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("LINGER_SHARED", "/somewhere")
    assert Settings.from_environment().shared == Path("/somewhere")
    monkeypatch.delenv("LINGER_SHARED")
    assert Settings.from_environment().shared is None
