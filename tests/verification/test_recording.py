"""Recordings are plain data."""

from linger.verification.recording import Recording


def test_recordings_do_not_share_content():
    first, second = Recording(), Recording()
    first.integers["x"] = None
    assert second.integers == {}
