"""Names of C from names of files: identifiers that clash with nothing, text that stays where it is put."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linger.c.folder.safe_names import network_name, parameter_names, plain

DERIVED = {
    "digits.onnx": "digits",
    "a/b/My Net-v2.onnx": "my_net_v2",
    "9.onnx": "n_9",
    "卷积.onnx": "network",
    "int.onnx": "int_net",
    "test.onnx": "test_net",
    "linger.onnx": "net_linger_net",
    "x" * 200 + ".onnx": "x" * 32,
    "int8_t.onnx": "int8_t_net",
}


@pytest.mark.parametrize(("path", "name"), DERIVED.items(), ids=range(len(DERIVED)))
def test_names_of_networks(path, name):
    assert network_name(path, None) == name
    assert network_name("other.onnx", name) == name


def test_parameters_hide_nothing():
    names = ["x", "x", "while", "arena", "net_core", "step_0", "int8_t", "X", "strlen", "0", "卷积", "a__b", "class"]
    assert list(parameter_names("net", dict.fromkeys(names)).values()) == [
        *("x", "x_while", "x_arena", "x_net_core", "x_step_0", "x_int8_t", "x_2", "x_strlen", "x_0", "x_3", "a_b"),
        "x_class",
    ]


@given(st.lists(st.text(), unique=True, max_size=6))
def test_parameters_are_different_identifiers(names):
    made = parameter_names("net", names)
    assert list(made) == names
    assert len(set(made.values())) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) and "__" not in name for name in made.values())


@given(st.text())
def test_plain_text_is_plain(text):
    assert re.fullmatch(r"[A-Za-z0-9 ().,:+_-]*", plain(text))
    assert len(plain(text)) <= 83
    assert "--" not in plain(text)
