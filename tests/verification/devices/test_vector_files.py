"""The files of test vectors."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from linger.verification.devices.vectors import _CHeader, _Vector, is_vector_folder, write_vector_files


def vector(array, *, name="t", scale=None, bits=None, batch=0, order=1):
    return _Vector(name, "node", "Op", "intermediate", order, batch, scale, bits, np.asarray(array))


@pytest.mark.parametrize(
    ("dtype", "scale", "bits", "expected"),
    [
        (np.int8, 16.0, None, "Q3.4"),
        (np.int8, 16.0, 4, "Q-1.4"),
        (np.int8, 128.0, 8, "Q0.7"),
        (np.int16, 2048.0, 16, "Q4.11"),
        (np.int8, 0.5, 8, "Q8.-1"),
        (np.uint8, 16.0, None, "UQ4.4"),
        (np.uint8, 256.0, 8, "UQ0.8"),
        (np.int8, 3.0, 8, None),
        (np.int8, None, 8, None),
        (np.float32, 16.0, None, None),
    ],
)
def test_q_format(dtype, scale, bits, expected):
    assert vector(np.zeros(1, dtype), scale=scale, bits=bits).q_format == expected


def test_raw_bytes_are_little_endian():
    assert vector(np.array([1, -2], ">i2")).raw == b"\x01\x00\xfe\xff"
    assert vector(np.asfortranarray(np.int8([[1, 2], [3, 4]]))).raw == bytes([1, 2, 3, 4])


def test_text():
    assert vector(np.int8([[1, -2]])).text == b"# 1x2\n1\n-2\n"
    assert vector(np.float32([0.1])).text == b"# 1\n0.1\n"
    assert vector(np.array([True, False])).text == b"# 2\n1\n0\n"


def header(*vectors, limit=100):
    made = _CHeader(limit)
    made.add(vectors)
    return made.text()


def test_c_arrays():
    text = header(vector(np.int8([-128, 127]), name="a/b", scale=16.0))
    assert "/* a/b (Op), int8 2, scale 16 */\nstatic const int8_t b0_001_a_b[2] = {\n  -128, 127,\n};" in text


def test_large_arrays_are_left_out_and_named():
    text = header(vector(np.zeros(101, np.int8), name="big"), vector(np.zeros(100, np.int8), name="small"))
    assert "/* left out: big (Op), int8 101, batch 0 */" in text
    assert "b0_001_small[100]" in text
    assert "b0_001_big" not in text


def test_names_stay_different():
    text = header(*(vector(np.int8([1]), name=name) for name in ("a.b", "a_b", "x" * 80 + "1", "x" * 80 + "2")))
    names = re.findall(r"static const int8_t (\w+)\[", text)
    assert len(set(names)) == 4


def test_a_name_cannot_end_the_comment():
    assert "*/ int evil" not in header(vector(np.int8([1]), name="*/ int evil; /*\n"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_the_header_compiles_and_holds_the_numbers(tmp_path):
    ends = [np.array([np.iinfo(t).min, np.iinfo(t).max], t) for t in (np.int8, np.uint8, np.int16, np.int32, np.int64)]
    floats = [np.float32([0.1, -1e30, 3.0]), np.array([0.1, np.inf, -np.inf]), np.array([True, False])]
    vectors = [vector(a, order=i) for i, a in enumerate([*ends, *floats])]
    (tmp_path / "vectors.h").write_text(header(*vectors))
    checks = "".join(f"  p(b0_{v.order:03d}_t, sizeof b0_{v.order:03d}_t);\n" for v in vectors)
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "vectors.h"\n'
        "static void p(const void *d, unsigned n) { fwrite(d, 1, n, stdout); }\n"
        f"int main(void) {{\n{checks}  return 0;\n}}\n"
    )
    subprocess.run(["cc", "-Wall", "-Werror", "-o", "main", "main.c"], cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "main"], check=True, capture_output=True).stdout
    assert printed == b"".join(v.raw for v in vectors)


def test_a_folder_of_vectors_is_known(tmp_path):
    assert not is_vector_folder(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    assert not is_vector_folder(tmp_path)
    made = tmp_path / "made"
    made.mkdir()
    about = {"model": "m.onnx", "linger": "1", "left_out": []}
    write_vector_files(made, [[vector(np.int8([1]))]], formats=("npz",), header_limit=None, about=lambda: about)
    assert is_vector_folder(made)
    page = (made / "README.txt").read_text()
    assert "m.onnx" in page
    assert "batch_000.npz" in page
    assert "bin/" not in page
    assert not (made / "vectors.h").exists()
