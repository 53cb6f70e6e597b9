"""Raw bytes, worked out by hand."""

import numpy as np
import pytest

from linger.errors import UsageError
from linger.verification.devices.dump_manifest import _RawLayout


def test_little_and_big_endian():
    assert _RawLayout("int16").decode(b"\x01\x02\xff\xff").tolist() == [0x0201, -1]
    assert _RawLayout("int16", byte_order="big").decode(b"\x01\x02\xff\xfe").tolist() == [0x0102, -2]


def test_native_byte_order_comes_out():
    assert _RawLayout("int32", byte_order="big").decode(b"\0\0\0\7").dtype == np.dtype(np.int32)


@pytest.mark.parametrize(
    ("dtype", "low_first", "expected"),
    [
        ("int4", True, [1, -8, -1, 7]),
        ("int4", False, [-8, 1, 7, -1]),
        ("uint4", True, [1, 8, 15, 7]),
    ],
    ids=["low first", "high first", "unsigned"],
)
def test_nibbles(dtype, low_first, expected):
    layout = _RawLayout(dtype, (4,), low_nibble_first=low_first)
    assert layout.byte_count == 2
    assert layout.decode(b"\x81\x7f").tolist() == expected


def test_an_odd_number_of_nibbles_leaves_half_a_byte():
    assert _RawLayout("int4", (3,)).decode(b"\x21\xf3").tolist() == [1, 2, 3]


def test_channels_last():
    x = np.arange(24, dtype=np.int8).reshape(1, 2, 3, 4)
    stored = np.ascontiguousarray(np.transpose(x, (0, 2, 3, 1)))
    assert np.array_equal(_RawLayout("int8", x.shape, layout="NHWC").decode(stored.tobytes()), x)


def test_channels_last_of_three_axes():
    x = np.arange(6, dtype=np.int8).reshape(1, 2, 3)
    assert np.array_equal(_RawLayout("i8", x.shape, layout="NHWC").decode(bytes([0, 3, 1, 4, 2, 5])), x)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_padded_channels_are_cut_off(layout):
    x = np.arange(1, 13, dtype=np.int8).reshape(1, 3, 2, 2)
    padded = np.full((1, 8, 2, 2), 99, np.int8)
    padded[:, :3] = x
    stored = padded if layout == "NCHW" else np.transpose(padded, (0, 2, 3, 1))
    made = _RawLayout("int8", x.shape, layout=layout, channel_align=8)
    assert made.byte_count == 32
    assert np.array_equal(made.decode(np.ascontiguousarray(stored).tobytes()), x)


def test_blocks_of_channels():
    x = np.arange(1, 6, dtype=np.int8).reshape(1, 5, 1, 1)
    made = _RawLayout("int8", x.shape, layout="NC4HW4")
    assert made.stored_shape == (1, 2, 1, 1, 4)
    assert np.array_equal(made.decode(bytes([1, 2, 3, 4, 5, 0, 0, 0])), x)
    wide = np.arange(16, dtype=np.int8).reshape(1, 8, 1, 2)
    blocks = np.array(
        [[c * 2 + w for c in range(4)] for w in range(2)] + [[c * 2 + w for c in range(4, 8)] for w in range(2)]
    )
    assert np.array_equal(
        _RawLayout("int8", wide.shape, layout="NC4HW4").decode(blocks.astype(np.int8).tobytes()), wide
    )


def test_padding_to_the_wider_of_block_and_alignment():
    assert _RawLayout("int8", (1, 5, 1, 1), layout="NC4HW4", channel_align=16).stored_shape == (1, 4, 1, 1, 4)


@pytest.mark.parametrize(("count", "much"), [(5, "short"), (7, "long")])
def test_too_short_and_too_long(count, much):
    with pytest.raises(UsageError, match=f"it is too {much}: {count} bytes, expected 6 for int16 3"):
        _RawLayout("int16", (3,)).decode(bytes(count))


def test_half_a_number_without_a_shape():
    with pytest.raises(UsageError, match="3 bytes are no whole number of int16"):
        _RawLayout("int16").decode(bytes(3))


def test_a_scalar():
    assert _RawLayout("float32", ()).decode(np.float32(0.5).tobytes()).tolist() == 0.5


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(UsageError) as error:
        _RawLayout("int3", (2, -1), byte_order="middle", layout="CHWN", channel_align=0)
    for word in ("int3", "middle", "CHWN", "channel_align 0", "negative"):
        assert word in str(error.value)


def test_a_layout_needs_channels():
    with pytest.raises(UsageError, match="needs a shape with channels"):
        _RawLayout("int8", (5,), layout="NHWC")


def test_absurd_sizes_are_only_counted():
    with pytest.raises(UsageError, match="too short"):
        _RawLayout("int8", (10**12, 10**12)).decode(b"")
