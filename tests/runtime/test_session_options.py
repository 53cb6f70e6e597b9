"""Levels and options of ONNX Runtime by name."""

import onnxruntime as ort
import pytest

from linger.errors import UsageError
from linger.runtime.session import LEVELS, checked_levels, make_session_options


@pytest.mark.parametrize("level", LEVELS)
def test_level_is_set(level):
    names = {"disable": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED"}
    expected = getattr(ort.GraphOptimizationLevel, names.get(level, "ORT_ENABLE_ALL"))
    assert make_session_options(level).graph_optimization_level == expected


def test_attributes_and_entries_are_set():
    made = make_session_options("all", {"intra_op_num_threads": 3, "session.disable_quant_qdq": True, "a.b": "c"})
    assert made.intra_op_num_threads == 3
    assert made.get_session_config_entry("session.disable_quant_qdq") == "1"
    assert made.get_session_config_entry("a.b") == "c"


def test_everything_that_is_wrong_is_named_at_once():
    wrong = {"threads": 1, "intra_op_num_threads": "x", "graph_optimization_level": 1, "add_initializer": 1, "_x": 0}
    with pytest.raises(UsageError) as caught:
        make_session_options("all", wrong)
    message = str(caught.value)
    assert "no option threads" in message
    assert "intra_op_num_threads='x' is of a type" in message
    assert "what levels are for" in message
    assert "no option add_initializer" in message
    assert "no option _x" in message


def test_an_entry_that_is_too_long_is_refused_in_a_short_sentence():
    with pytest.raises(UsageError, match="is refused") as caught:
        make_session_options("all", {"a.b": "x" * 100_000})
    assert len(str(caught.value)) < 300


def test_an_object_of_onnxruntime_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match="Give a mapping"):
        make_session_options("all", ort.SessionOptions())


def test_levels_are_checked():
    assert checked_levels(["all", "basic", "all"]) == ("all", "basic")
    assert checked_levels("disable") == ("disable",)
    with pytest.raises(UsageError, match=r"unknown: most, 3\. Choose among disable, basic, extended, all"):
        checked_levels(["most", "all", 3])
    with pytest.raises(UsageError, match="none is given"):
        checked_levels([])
