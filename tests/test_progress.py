"""Progress is for terminals."""

from linger.progress import progress


def test_silent_without_a_terminal(capsys):
    assert list(progress(iter([1, 2, 3]), "work")) == [1, 2, 3]
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress([1, 2, 3], "work")) == [1, 2, 3]
    assert "work" in capsys.readouterr().err
