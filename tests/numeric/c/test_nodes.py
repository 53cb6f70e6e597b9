"""What is known of the numbers of a node where those of another are known, and what one of them costs."""

from tests.support.c_units import nodes, rules


class Counted(rules.Arithmetic):
    """A sum that counts how often its interval is worked out."""

    count = 0

    def bounds(self, node, known):
        Counted.count += 1
        return super().bounds(node, known)


def test_a_node_that_is_read_twice_is_looked_at_once(monkeypatch):
    x = node = nodes.Node(rules.Stored(), (), (4,), interval=(-1, 1))
    for _ in range(8):
        node = nodes.Node(Counted("+"), (node, node), (4,))
    monkeypatch.setattr(Counted, "count", 0)
    assert nodes.Bounds({id(x): (1, 1)}).of(node) == (256, 256)
    assert Counted.count == 8  # not each time that it is read: 2^8 − 1


def test_to_read_to_add_and_to_shift_are_three_operations():
    x, half = nodes.Node(rules.Stored(), (), (4,), interval=(-128, 127)), nodes.Node(rules.Constant(1), (), ())
    assert nodes.Node(rules.Shift(1), (nodes.Node(rules.Arithmetic("+"), (x, half), (4,)),), (4,)).cost == 3
