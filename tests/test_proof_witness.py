"""linger.verify with a compiled C program as a witness: it agrees, and a fault in its text is found."""

import hashlib
import json
import shutil

import numpy as np
import onnx
import pytest

from linger import check_certificate, verify
from linger.c import build, export
from linger.errors import LingerError, UsageError
from tests.support.c_compiler import require_compiler

TEXT = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
net (float[n,4] x) => (float[n,2] y) <int8[2,4] w = {3, -5, 7, 1, 2, 2, -4, 6}, int32[2] b = {10, -20}> {
  q = thinker.Quant<data_bits = 8, scale_x = 16.0>(x)
  [fc] h = thinker.LinearInt<data_bits = 8, parameter_bits = 8, o_bits = 8,
                             scale_x = 16.0, scale_w = 4.0, scale_o = 8.0>(q, w, b)
  r = Relu(h)
  y = thinker.Dequant<scale_o = 8.0>(r)
}"""

ROUNDING = ("+ 4) >> 3", "+ 5) >> 3")
"""The scales make 16·4/8 = 8 = 2³ of the sum, whose half is 4; with 5, three eighths are rounded up."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a file, its C, and the same C with a fault."""
    require_compiler()
    folder = tmp_path_factory.mktemp("witness")
    onnx.save(onnx.parser.parse_model(TEXT), folder / "net.onnx")
    export(folder / "net.onnx", folder / "c")
    shutil.copytree(folder / "c", folder / "faulty")
    source = folder / "faulty" / "net.c"
    text = source.read_text()
    assert ROUNDING[0] in text
    source.write_text(text.replace(*ROUNDING))
    return folder


@pytest.fixture(scope="module")
def program(place):
    with build(place / "c", flags=["-O1"]) as made:
        yield made


@pytest.fixture(scope="module")
def faulty(place):
    with build(place / "faulty", check_files=False, flags=["-O1"]) as made:
        yield made


def test_the_program_agrees_also_for_a_batch_of_many(place, program):
    x = np.random.default_rng(5).normal(0, 3, (25, 4)).astype(np.float32)
    result = verify(None, place / "net.onnx", [x, x[:1]], witness=program)
    assert result.ok
    (row,) = result.witnesses
    assert (row.tensors, row.integers, row.missing) == (3, 26 * (4 + 2 + 2), ())
    assert row.description.startswith("C (")
    assert row.description.endswith(" -O1 on host)")


def test_it_agrees_with_what_was_recorded(place, program):
    x = np.array([[1.0, 0.5, -1.0, 2.0]], np.float32)
    h = np.array([[-8, 36]], np.int8)  # (3·16 − 5·8 − 7·16 + 32 + 10)/8 = −7¾, (2·16 + 2·8 + 4·16 + 6·32 − 20)/8 = 35½
    assert verify({"x": x, "h": h}, place / "net.onnx", witness=program).ok


def test_a_fault_in_the_text_is_named_with_tensor_and_witness(place, program, faulty):
    result = verify(None, place / "net.onnx", witness=[program, faulty])
    good, bad = result.witnesses
    assert (good.ok, bad.ok, result.ok) == (True, False, False)
    assert bad.differing == result.differing > 0
    assert (result.first.tensor, result.first.found_by) == ("h", bad.description)
    assert "made by fc (LinearInt), its inputs agree, so it is this node" in result.summary()
    assert result.first.found == result.first.expected + 1


def test_a_certificate_keeps_how_it_was_made(place, program, faulty):
    path = place / "net.json"
    verify(None, place / "net.onnx", witness=program, certificate=path)
    (entry,) = json.loads(path.read_text())["witnesses"]
    manifest = hashlib.sha256((place / "c" / "manifest.json").read_bytes()).hexdigest()
    assert entry["origin"]["manifest_sha256"] == manifest
    assert entry["origin"]["is_as_exported"] is True
    assert entry["origin"]["compiler"]
    assert (entry["origin"]["flags"], entry["origin"]["target"]) == ("-O1", "host")
    assert faulty.origin["is_as_exported"] is False
    assert check_certificate(path, witness=program).not_asked == ()
    assert check_certificate(path).not_asked == (program.description,)


def test_c_of_another_file_is_refused(place, tmp_path):
    shutil.copytree(place / "c", tmp_path / "other")
    manifest = tmp_path / "other" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["model"] = {"path": "net.onnx", "sha256": "0" * 64}
    manifest.write_text(json.dumps(content))
    with (
        build(tmp_path / "other", flags=["-O0"]) as other,
        pytest.raises(UsageError, match=r"\(SHA-256 000000000000…\) was made from another file"),
    ):
        verify(None, place / "net.onnx", witness=other)


def test_a_closed_program_is_no_witness(place):
    made = build(place / "c", flags=["-O0"])
    made.close()
    with pytest.raises(LingerError, match="the program is closed"):
        verify(None, place / "net.onnx", witness=made)
