"""Names of tensors as names of files that stay in their folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linger.file_names import file_stem


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("root.layer1.0.conv1", "root.layer1.0.conv1"),
        ("root.a_b-c", "root.a_b-c"),
        ("root.名", "root.名"),
        ("root.a/../../b", "root.a%2F..%2F..%2Fb"),
        ("root.a\\b:c", "root.a%5Cb%3Ac"),
        ("root.a\0b\n", "root.a%00b%0A"),
        ("root.50%", "root.50%25"),
        ("root.a@1", "root.a%401"),
    ],
    ids=ascii,
)
def test_odd_characters_are_written_as_numbers(name, stem):
    assert file_stem(name) == stem


@given(st.text(max_size=300))
def test_any_name_is_one_file_of_the_folder(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"root.{file_stem(name)}.q_outputs"
    assert path.parent == folder
    assert len(path.name.encode()) < 230


def test_long_names_stay_different():
    names = ["root." + "a" * 500 + ending for ending in "bc"]
    assert len({file_stem(name) for name in names}) == 2
    assert len({file_stem("root." + "名" * 500 + ending) for ending in "bc"}) == 2
