"""Files written all or nothing."""

import os
import stat
from pathlib import Path

import pytest

from linger.atomic import write_atomically, write_folder, write_together
from linger.errors import UsageError


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def writer(content):
    return lambda file: file.write(content)


def full_disk(file):
    file.write(b"half")
    raise OSError(28, "No space left on device")


def test_a_file_is_replaced_and_readable_by_others(tmp_path):
    target = tmp_path / "m"
    target.write_bytes(b"old")
    write_atomically(target, b"new")
    assert files(tmp_path) == {"m": b"new"}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("first_fails", [True, False], ids=["data", "model"])
@pytest.mark.parametrize("present", [{}, {"a": b"old a", "b": b"old b"}], ids=["new", "over old ones"])
def test_a_full_disk_leaves_what_was_there(tmp_path, present, first_fails):
    for name, content in present.items():
        (tmp_path / name).write_bytes(content)
    first, second = (full_disk, writer(b"b")) if first_fails else (writer(b"a"), full_disk)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\)"):
        write_together({tmp_path / "a": first, tmp_path / "b": second})
    assert files(tmp_path) == present


@pytest.mark.parametrize("present", [{}, {"a": b"old a", "b": b"old b"}], ids=["new", "over old ones"])
def test_a_move_that_fails_takes_back_the_one_before(tmp_path, monkeypatch, present):
    for name, content in present.items():
        (tmp_path / name).write_bytes(content)
    move = Path.replace

    def refuse(self, target):
        if Path(target).name == "b":
            raise PermissionError(1, "Operation not permitted")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UsageError, match="b: the file cannot be written"):
        write_together({tmp_path / "a": writer(b"a"), tmp_path / "b": writer(b"b")})
    assert files(tmp_path) == present


def test_both_are_replaced_and_nothing_else_is_left(tmp_path):
    for content in (b"1", b"2"):
        write_together({tmp_path / "a": writer(content), tmp_path / "b": writer(content)})
        assert files(tmp_path) == {"a": content, "b": content}


def test_an_error_of_the_writer_itself_goes_through(tmp_path):
    def fails(file):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        write_together({tmp_path / "a": fails})
    assert files(tmp_path) == {}


def test_folders_are_no_files(tmp_path):
    with pytest.raises(UsageError, match=r"does not exist\. Create it first"):
        write_atomically(tmp_path / "no" / "m", b"")
    (tmp_path / "m").mkdir()
    with pytest.raises(UsageError, match="this is a folder"):
        write_atomically(tmp_path / "m", b"")


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written to"):
        write_atomically(tmp_path / "m", b"")


# -- folders --------------------------------------------------------------------------------------------------


def filler(**content):
    def fill(folder):
        for name, text in content.items():
            (folder / name).write_text(text)

    return fill


def test_a_folder_appears_whole_and_readable_by_others(tmp_path):
    write_folder(tmp_path / "f", filler(a="1", b="2"))
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert {p.name: p.read_text() for p in (tmp_path / "f").iterdir()} == {"a": "1", "b": "2"}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o777 & ~umask


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    def fill(folder):
        (folder / "a").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"f: the folder cannot be written \(No space left on device\)"):
        write_folder(tmp_path / "f", fill)
    assert list(tmp_path.iterdir()) == []


def test_any_error_leaves_nothing(tmp_path):
    def fill(folder):
        (folder / "a").write_text("half")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        write_folder(tmp_path / "f", fill)
    assert list(tmp_path.iterdir()) == []


def test_only_an_own_folder_is_replaced(tmp_path):
    write_folder(tmp_path / "f", filler(a="old"))
    for is_own in (None, lambda folder: False):
        with pytest.raises(UsageError, match="not ours to replace"):
            write_folder(tmp_path / "f", filler(b="new"), is_own=is_own)
    write_folder(tmp_path / "f", filler(b="new"), is_own=lambda folder: (folder / "a").exists())
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["b"]


def test_an_old_folder_comes_back_when_the_move_fails(tmp_path, monkeypatch):
    write_folder(tmp_path / "f", filler(a="old"))
    move = Path.replace

    def refuse(self, target):
        if self.name.endswith(".part"):
            raise PermissionError(1, "Operation not permitted")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UsageError, match="Operation not permitted"):
        write_folder(tmp_path / "f", filler(b="new"), is_own=lambda folder: True)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f" / "a").read_text() == "old"


def test_a_folder_that_is_a_file_or_nowhere(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="this is a file"):
        write_folder(tmp_path / "file", filler())
    with pytest.raises(UsageError, match="does not exist"):
        write_folder(tmp_path / "no" / "f", filler())
