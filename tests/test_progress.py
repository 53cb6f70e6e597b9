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


def test_bar_counts_up_to_the_total_that_a_generator_cannot_tell(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress((n for n in range(4)), "work", total=4)) == [0, 1, 2, 3]
    assert "100%" in capsys.readouterr().err


def test_bar_without_a_total_shows_no_share(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress((n for n in range(4)), "work")) == [0, 1, 2, 3]
    assert "100%" not in capsys.readouterr().err


def test_total_changes_nothing_without_a_terminal(capsys):
    assert list(progress(iter("ab"), "work", total=2)) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
