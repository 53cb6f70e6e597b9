"""Files written all or nothing; names of tensors as names of files that stay in their folder."""

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linger.errors import UsageError
from linger.files import (
    file_stem,
    made_folder,
    places_beside,
    write_atomically,
    write_folder,
    write_folders,
    write_together,
)
from tests.support.odd_targets import Pipe, null_device


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


# -- links, pipes and devices ---------------------------------------------------------------------------------


def test_the_permissions_of_a_file_are_kept(tmp_path):
    (tmp_path / "m").write_bytes(b"old")
    (tmp_path / "m").chmod(0o640)
    write_atomically(tmp_path / "m", b"new")
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may give files away")
def test_the_owner_of_a_file_is_kept(tmp_path):
    (tmp_path / "m").write_bytes(b"old")
    os.chown(tmp_path / "m", 1234, 2345)
    write_atomically(tmp_path / "m", b"new")
    assert ((tmp_path / "m").stat().st_uid, (tmp_path / "m").stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize("old", [b"old", None], ids=["to a file", "dangling"])
@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "relative"])
def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path, old, is_absolute):
    (tmp_path / "far").mkdir()
    place = tmp_path / "far" / "m"
    if old is not None:
        place.write_bytes(old)
        place.chmod(0o604)
    (tmp_path / "far" / "second").symlink_to(place if is_absolute else "m")
    (tmp_path / "first").symlink_to("far/second")
    write_atomically(tmp_path / "first", b"new")
    assert (tmp_path / "first").readlink() == Path("far/second")
    assert (tmp_path / "far" / "second").is_symlink()
    assert (place.read_bytes(), place.is_symlink()) == (b"new", False)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["far", "first", "m", "second"]
    if old is not None:
        assert stat.S_IMODE(place.stat().st_mode) == 0o604


def test_links_that_lead_nowhere_or_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match=r"a: the file cannot be written \(Too many levels of symbolic links\)"):
        write_atomically(tmp_path / "a", b"")
    (tmp_path / "gone").symlink_to("no/file")
    with pytest.raises(UsageError, match=r"gone: the folder '.*no' does not exist"):
        write_atomically(tmp_path / "gone", b"")
    (tmp_path / "here").symlink_to(".")
    with pytest.raises(UsageError, match="here: this is a folder"):
        write_atomically(tmp_path / "here", b"")
    assert all((tmp_path / name).is_symlink() for name in ("a", "b", "gone", "here"))


def test_a_pipe_is_written_to(tmp_path):
    with Pipe(tmp_path / "p") as pipe:
        write_together({tmp_path / "a": writer(b"data"), tmp_path / "p": writer(b"model")})
        assert pipe.content() == b"model"
        assert stat.S_ISFIFO((tmp_path / "p").stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "p"]


def test_a_pipe_gets_nothing_when_something_else_fails(tmp_path):
    with Pipe(tmp_path / "p") as pipe:
        with pytest.raises(UsageError, match="No space left"):
            write_together({tmp_path / "p": writer(b"data"), tmp_path / "m": full_disk})
        assert pipe.content() == b""


def test_a_device_stays_a_device(tmp_path):
    node = null_device(tmp_path / "null")
    (tmp_path / "link").symlink_to("null")
    before = node.stat()
    for name in ("null", "link"):
        write_atomically(tmp_path / name, b"new")
    after = node.stat()
    assert (after.st_mode, after.st_rdev, after.st_ino) == (before.st_mode, before.st_rdev, before.st_ino)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "null"]


def test_a_socket_is_refused_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("s")
        with pytest.raises(UsageError, match="s: the file cannot be written"):
            write_atomically(Path("s"), b"")
        assert stat.S_ISSOCK(Path("s").stat().st_mode)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_an_open_file_is_continued_not_replaced(tmp_path, folder):
    place = tmp_path / "out"
    with place.open("wb") as opened:
        opened.write(b"before ")
        opened.flush()
        write_atomically(Path(folder) / str(opened.fileno()), b"new")
        assert os.fstat(opened.fileno()).st_ino == place.stat().st_ino
    assert place.read_bytes() == b"before new"


def test_standard_output_by_its_name(tmp_path, capfd):
    (tmp_path / "link").symlink_to("/dev/stdout")
    write_atomically(Path("/dev/stdout"), b"a")
    write_atomically(tmp_path / "link", b"b")
    assert capfd.readouterr().out == "ab"
    with pytest.raises(UsageError, match=r"987: the file cannot be written \(Bad file descriptor\)"):
        write_atomically(Path("/dev/fd/987"), b"")


def test_names_that_no_file_can_have(tmp_path):
    for name, message in (("n" * 5000, "n…: the file cannot be written"), ("a\0b", "zero byte")):
        with pytest.raises(UsageError, match=message) as caught:
            write_atomically(tmp_path / name, b"")
        assert len(str(caught.value)) < 400
        for call in (lambda path: write_folder(path, filler()), lambda path: made_folder("here", path)):
            with pytest.raises(UsageError) as caught:
                call(tmp_path / name)
            assert len(str(caught.value)) < 500
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_is_a_name(tmp_path):
    write_atomically(tmp_path / ("n" * 255), b"new")
    write_folder(tmp_path / ("f" * 255), filler(a="1"))
    assert sorted(len(p.name) for p in tmp_path.iterdir()) == [255, 255]


def test_two_names_of_one_file_do_not_overwrite_each_other(tmp_path):
    (tmp_path / "m").write_bytes(b"old")
    (tmp_path / "data").symlink_to("m")
    with pytest.raises(UsageError, match="m: two files that belong together lead to"):
        write_together({tmp_path / "data": writer(b"data"), tmp_path / "m": writer(b"model")})
    assert files(tmp_path) == {"m": b"old", "data": b"old"}


def test_files_that_name_each_other_lie_in_one_folder(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("real")
    places = tmp_path / "real", tmp_path / "real.data"
    assert places_beside(tmp_path / "real", lambda p: f"{p.name}.data") == places
    assert places_beside(tmp_path / "near", lambda p: f"{p.name}.data") == places
    (tmp_path / "out").symlink_to("far/real")
    with pytest.raises(UsageError, match="out: this leads out of its folder"):
        places_beside(tmp_path / "out", lambda p: f"{p.name}.data")
    (tmp_path / "real.data").symlink_to("far/data")
    with pytest.raises(UsageError, match=r"real\.data: this leads out of its folder"):
        places_beside(tmp_path / "real", lambda p: f"{p.name}.data")
    with Pipe(tmp_path / "p"), pytest.raises(UsageError, match="p: a second file must lie beside it"):
        places_beside(tmp_path / "p", lambda p: f"{p.name}.data")


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


@pytest.mark.parametrize("present", [(), ("a", "b")], ids=["new", "over old ones"])
def test_a_folder_that_fails_takes_back_the_one_before(tmp_path, monkeypatch, present):
    for name in present:
        write_folder(tmp_path / name, filler(kept=f"old {name}"))
    move = Path.replace

    def refuse(self, target):
        if self.name.endswith(".part") and Path(target).name == "b":
            raise PermissionError(1, "Operation not permitted")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UsageError, match="b: the folder cannot be written"):
        write_folders({tmp_path / name: (filler(new="x"), lambda folder: True) for name in "ab"})
    found = {file.relative_to(tmp_path).as_posix(): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert found == {f"{name}/kept": f"old {name}" for name in present}
    assert sorted(folder.name for folder in tmp_path.iterdir()) == list(present)


def test_a_folder_that_is_a_file_or_nowhere(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="this is a file"):
        write_folder(tmp_path / "file", filler())
    with pytest.raises(UsageError, match="does not exist"):
        write_folder(tmp_path / "no" / "f", filler())


def test_a_link_to_a_folder_stays(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", filler(a="old"))  # dangling until now
    (tmp_path / "real").chmod(0o750)
    write_folder(tmp_path / "link", filler(b="new"), is_own=lambda folder: True)
    assert (tmp_path / "link").readlink() == Path("real")
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["b"]
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o750
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_folders_are_made_and_a_file_in_their_place_is_refused(tmp_path):
    assert made_folder("here", str(tmp_path / "a" / "b")).is_dir()
    made_folder("here", tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"here: the folder '.*file' cannot be made \(.*\)\. Give another path"):
        made_folder("here", tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("root.layer1.0.conv1", "root.layer1.0.conv1"),
        ("root.a_b-c", "root.a_b-c"),
        ("root.名", "root.名"),
        ("root.a/../../b", "root.a%2F..%2F..%2Fb"),
        ("root.a\\b:c", "root.a%5Cb%3Ac"),
        ("root.a\0b\n", "root.a%00b%0A"),
        ("root.50%", "root.50%25"),
        ("root.a@1", "root.a%401"),
    ],
    ids=ascii,
)
def test_odd_characters_are_written_as_numbers(name, stem):
    assert file_stem(name) == stem


@given(st.text(max_size=300))
def test_any_name_is_one_file_of_the_folder(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"root.{file_stem(name)}.q_outputs"
    assert path.parent == folder
    assert len(path.name.encode()) < 230


def test_long_names_stay_different():
    names = ["root." + "a" * 500 + ending for ending in "bc"]
    assert len({file_stem(name) for name in names}) == 2
    assert len({file_stem("root." + "名" * 500 + ending) for ending in "bc"}) == 2
