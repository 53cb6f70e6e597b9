"""Errors of other libraries as ours."""

import pytest

from linger.errors import GraphError, UsageError, as_graph_error, in_one_line


def test_any_error_becomes_one_line_with_its_cause():
    with (
        pytest.raises(GraphError, match=r"^it cannot run: KeyError: 'a b'$") as caught,
        as_graph_error("it cannot run"),
    ):
        raise KeyError("a b")
    assert isinstance(caught.value.__cause__, KeyError)


def test_our_own_errors_stay_what_they_are():
    with pytest.raises(UsageError, match=r"^mine$"), as_graph_error("it cannot run"):
        raise UsageError("mine")


def test_the_end_of_a_process_is_no_error():
    with pytest.raises(KeyboardInterrupt), as_graph_error("it cannot run"):
        raise KeyboardInterrupt


def test_messages_are_one_line_and_not_endless():
    assert in_one_line(ValueError("a\n\tb")) == "a b"
    assert len(in_one_line(ValueError("a" * 10000))) == 500
