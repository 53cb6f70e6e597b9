"""Names of C from names of files: identifiers that clash with nothing, text that stays where it is put."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linger.c.interface import network_name, parameter_names, plain
from linger.errors import UsageError

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
    "limits.onnx": "limits_net",
    "STDINT.onnx": "stdint_net",
    "arm_mve.onnx": "arm_mve_net",
    "linger_dots.onnx": "net_linger_dots_net",
}


@pytest.mark.parametrize(("path", "name"), DERIVED.items(), ids=range(len(DERIVED)))
def test_names_of_networks(path, name):
    assert network_name(path, None) == name
    assert network_name("other.onnx", name) == name


WORDS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype unistd fcntl "
    "pthread immintrin x86intrin arm_mve arm_acle arm_neon riscv_vector esp_log linger_dots linger_simd"
)
HEADERS = WORDS.split()


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_others_is_no_name(name):
    """The folder is given with -I, so that limits.h of a network would be what <limits.h> finds."""
    with pytest.raises(UsageError, match=f"name='{name}' has a meaning of its own"):
        network_name("x.onnx", name)
    assert network_name(f"{name}.onnx", None) in (f"{name}_net", f"net_{name}_net")


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
