"""Fingerprints."""

import hashlib

import numpy as np
import pytest

from linger.errors import UsageError
from linger.verification.proof.certificate import file_sha256
from linger.verification.proof.comparison import count, fingerprint
from linger.verification.proof.result import TensorRow


def test_a_fingerprint_is_of_type_shape_and_little_endian_content():
    expected = hashlib.sha256(b"int16[2, 1];\x01\x00\x00\x02").hexdigest()
    assert fingerprint(np.array([[1], [512]], np.int16)) == expected
    assert fingerprint(np.array([[1], [512]], ">i2")) == expected
    assert fingerprint(np.array([[1, 7], [512, 7]], np.int16)[:, :1]) == expected  # not contiguous


@pytest.mark.parametrize(
    "other",
    [
        np.array([1, 512], np.int16),
        np.array([[1, 512]], np.int16),
        np.array([[1], [512]], np.int32),
        np.array([[1], [513]], np.int16),
    ],
    ids=["shape", "order", "type", "value"],
)
def test_everything_counts(other):
    assert fingerprint(other) != fingerprint(np.array([[1], [512]], np.int16))


def test_arrays_one_after_the_other():
    one, two = TensorRow("one"), TensorRow("two")
    count(one, np.array([1, 2], np.int8))
    count(two, np.array([1], np.int8))
    count(two, np.array([2], np.int8))
    assert one.sha256 != two.sha256


def test_scalars_empty_arrays_truth_values_and_text():
    made = {fingerprint(np.array(v)) for v in (1.5, True, "a", "b", np.zeros((0, 3)), np.zeros((3, 0)))}
    assert len(made) == 6
    assert fingerprint(np.array(["a", "b"], object)) != fingerprint(np.array(["ab"], object))


def test_files(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    assert file_sha256(tmp_path / "f") == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    with pytest.raises(UsageError, match="cannot be read"):
        file_sha256(tmp_path / "none")
