"""Manifests in both forms, and what is said of bad ones."""

import json

import pytest

from linger.errors import UsageError
from linger.verification.devices.dump_manifest import parse_shape, read_manifest


@pytest.fixture
def manifest(tmp_path):
    def write(content, name="manifest.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


FULL = {
    "name": "conv",
    "file": "c.bin",
    "dtype": "int4",
    "shape": [1, 3, 2, 2],
    "byte_order": "big",
    "layout": "nhwc",
    "channel_align": 8,
    "nibbles": "high",
    "scale": 16,
    "batch": 2,
}


def test_everything_in_json(manifest):
    (entry,), problems = read_manifest(manifest({"tensors": [FULL]}))
    assert problems == []
    assert (entry.name, entry.files, entry.scale, entry.batch, entry.shape) == (
        "conv",
        ("c.bin",),
        16.0,
        2,
        (1, 3, 2, 2),
    )
    layout = entry.layout
    assert (layout.element, layout.byte_order, layout.layout) == ("int4", "big", "NHWC")
    assert (layout.channel_align, layout.low_nibble_first) == (8, False)


def test_everything_in_csv(manifest):
    text = "name, file, dtype, shape, byte_order, layout, channel_align, nibbles, scale, batch\n"
    text += "conv, c.bin, int4, 1x3x2x2, big, NHWC, 8, high, 16, 2\nfc, f.txt,,,,,,,,\n"
    (conv, fc), problems = read_manifest(manifest(text, "manifest.csv"))
    assert problems == []
    assert conv == read_manifest(manifest({"tensors": [FULL]}))[0][0]
    assert (fc.name, fc.files, fc.layout, fc.scale, fc.batch) == ("fc", ("f.txt",), None, None, 0)


def test_a_mapping_from_names_to_files(manifest):
    entries, _ = read_manifest(manifest({"a": "a.npy", "b": {"file": "b.bin", "dtype": "u8"}}))
    assert [(e.name, e.files) for e in entries] == [("a", ("a.npy",)), ("b", ("b.bin",))]


def test_defaults_for_all_tensors(manifest):
    entries, _ = read_manifest(manifest({"byte_order": "big", "tensors": {"a": {"file": "a.bin", "dtype": "i16"}}}))
    assert entries[0].layout.byte_order == "big"


def test_several_files_for_one_tensor(manifest):
    (entry,), _ = read_manifest(manifest({"tensors": [{"name": "a", "files": {"bin": "a.bin", "text": "a.txt"}}]}))
    assert entry.files == ("a.bin", "a.txt")


def test_all_bad_entries_are_named(manifest):
    tensors = [
        {"file": "x.bin"},
        {"name": "b"},
        {"name": "c", "file": "c.bin", "dtype": "int7"},
        {"name": "d", "file": "../d.bin"},
        {"name": "e", "file": "/etc/passwd"},
        {"name": "f", "file": "f.bin", "shape": "wide"},
        {"name": "g", "file": "g.bin", "scale": -1},
        {"name": "h", "file": "h.bin", "batch": "one"},
        {"name": "i", "file": "i.bin", "dtype": "int4", "nibbles": "both"},
        {"name": "j", "file": "j.bin", "batch": 1.5},
        {"name": 7, "file": "k.bin"},
        {"name": "l", "files": {"bin": ["l.bin"]}},
        {"name": "ok", "file": "ok.bin"},
    ]
    entries, problems = read_manifest(manifest({"tensors": tensors}))
    assert [e.name for e in entries] == ["ok"]
    expected = [
        "number 1: name is missing",
        "'b': file is missing",
        "'int7'",
        "'d'",
        "'e'",
        "'wide'",
        "-1",
        "'one'",
        "'both'",
        "batch is not a whole number (1.5)",
        "name is not a text (7)",
        "is no name of a file",
    ]
    assert len(problems) == len(expected)
    for problem, word in zip(problems, expected, strict=True):
        assert word in problem
    assert sum("lies outside the folder" in p for p in problems) == 2


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("{", "manifest.json", "this is no JSON"),
        ("[]", "manifest.json", "a manifest is an object"),
        ('{"tensors": 3}', "manifest.json", "must be a list"),
        ("[" * 100000, "manifest.json", "this is no JSON"),
        ('{"tensors": []}', "manifest.json", "names no tensor"),
        ("tensor,path\n", "manifest.csv", "the first line must name the columns"),
        ("", "manifest.csv", "the first line must name the columns"),
        ("name,file\n", "manifest.csv", "names no tensor"),
    ],
)
def test_no_manifest_at_all(manifest, content, name, message):
    with pytest.raises(UsageError, match=message):
        read_manifest(manifest(content, name))


def test_shapes():
    assert parse_shape("1x8x4") == parse_shape("[1, 8, 4]") == parse_shape([1, 8, 4]) == (1, 8, 4)
    assert parse_shape([]) == ()
    assert parse_shape(None) is None
    with pytest.raises(UsageError, match="sizes look like 1x8x4x4"):
        parse_shape(3)
