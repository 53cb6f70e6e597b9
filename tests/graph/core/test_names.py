"""Names that are still free."""

from linger.graph.core.nodes import Names


def test_a_wish_is_granted_or_numbered():
    names = Names(["a", "a_1"])
    assert [names.choose("a"), names.choose("a"), names.choose("b")] == ["a_2", "a_3", "b"]
    assert "b" in names
    assert "c" not in names


def test_a_claimed_name_is_taken():
    names = Names()
    names.claim("x")
    assert names.choose("x") == "x_1"
