"""Recordings are plain data."""

import numpy as np

from linger import Recording


def test_recordings_do_not_share_content():
    first, second = Recording(), Recording()
    first.integers["x"] = None
    assert second.integers == {}


def test_a_recording_is_shown_in_one_line():
    made = Recording([np.zeros(3)], [np.zeros(2)], {"q": np.zeros(3, np.int8), "r": np.zeros(3, np.int8)})
    assert repr(made) == str(made) == "Recording(1 input, 2 tensors, 1 output)"
