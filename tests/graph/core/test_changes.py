"""What a pass did."""

from linger.graph.core.nodes import Changes


def test_changes_keep_their_order():
    changes = Changes()
    assert len(changes) == 0
    changes.note("a", "first")
    changes.note("b", "second")
    assert changes.rows() == [("a", "first"), ("b", "second")]
    assert [c.where for c in changes] == ["a", "b"]
