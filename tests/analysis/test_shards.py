"""The index of a checkpoint in several files: read, and held to its folder."""

import json

import pytest

from linger.errors import UsageError
from tests.support.analysis import read_index


def index(folder, weight_map, *, present=True):
    if present:
        for name in weight_map.values():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map}), encoding="utf-8")
    return path


def test_tensors_keep_the_order_of_the_index(tmp_path):
    path = index(tmp_path, {"z": "b.safetensors", "a": "a.bin", "größe": "b.safetensors", "m": "sub/c.bin"})
    assert list(read_index(path).items()) == [
        ("z", tmp_path / "b.safetensors"),
        ("a", tmp_path / "a.bin"),
        ("größe", tmp_path / "b.safetensors"),
        ("m", tmp_path / "sub" / "c.bin"),
    ]


def test_index_is_found_from_the_current_folder(tmp_path, monkeypatch):
    path = index(tmp_path, {"a": "a.bin"})
    monkeypatch.chdir(tmp_path)
    assert read_index(path.relative_to(tmp_path))["a"].is_file()


def test_link_beside_the_index_is_followed(tmp_path):
    """A hub's cache keeps the files elsewhere and links to them."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b").touch()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "a.safetensors").symlink_to("../blobs/0a1b")
    path = index(tmp_path / "snapshot", {"w": "a.safetensors"}, present=False)
    assert read_index(path) == {"w": tmp_path / "snapshot" / "a.safetensors"}


def test_missing_files_are_all_named(tmp_path):
    (tmp_path / "there.bin").touch()
    path = index(tmp_path, {"a": "gone.bin", "b": "there.bin", "c": "lost.bin", "d": "gone.bin"}, present=False)
    with pytest.raises(UsageError, match=r"index\.json: gone\.bin, lost\.bin is missing beside it\. Copy the whole"):
        read_index(path)


@pytest.mark.parametrize(
    "make", [lambda p: f"../{p.name}", str, lambda p: f"sub/../../{p.name}"], ids=["up", "absolute", "in and up"]
)
def test_file_outside_the_folder_is_refused_even_where_it_exists(tmp_path, make):
    outside = tmp_path / "x.safetensors"
    outside.touch()
    folder = tmp_path / "model"
    folder.mkdir()
    name = make(outside)
    path = index(folder, {"a": name, "b": "in.bin"}, present=False)
    with pytest.raises(UsageError, match=r"refused: .*x\.safetensors lies outside its folder") as caught:
        read_index(path)
    assert name in str(caught.value)


def test_index_of_indexes_is_refused(tmp_path):
    path = index(tmp_path, {"a": "model.safetensors.index.json"}, present=False)
    with pytest.raises(UsageError, match=r"model\.safetensors\.index\.json cannot hold tensors"):
        read_index(path)


@pytest.mark.parametrize(
    "content",
    [{}, [], 3, None, {"weight_map": None}, {"weight_map": ["a"]}, {"weight_map": {"a": 3}}, {"hidden_size": 768}],
    ids=json.dumps,
)
def test_json_that_is_no_index_is_refused(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"config\.json: this JSON is no index of a checkpoint: .*weight_map"):
        read_index(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"weight_map": {"a": "b', b"\xff\xfe\x00", b"[" * 200_000],
    ids=["empty", "open", "cut", "bytes", "deep"],
)
def test_broken_json_is_refused(tmp_path, content):
    path = tmp_path / "model.index.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"model\.index\.json: this is not JSON \(.+\)\. Copy the file again\.$"):
        read_index(path)
