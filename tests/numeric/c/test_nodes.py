"""What is known of the numbers of a node where those of another are known."""

from linger.numeric.c.nodes import Bounds, Node
from linger.numeric.c.rules import Arithmetic, Stored


class Counted(Arithmetic):
    """A sum that counts how often its interval is worked out."""

    count = 0

    def bounds(self, node, known):
        Counted.count += 1
        return super().bounds(node, known)


def test_a_node_that_is_read_twice_is_looked_at_once(monkeypatch):
    x = node = Node(Stored(), (), (4,), interval=(-1, 1))
    for _ in range(8):
        node = Node(Counted("+"), (node, node), (4,))
    monkeypatch.setattr(Counted, "count", 0)
    assert Bounds({id(x): (1, 1)}).of(node) == (256, 256)
    assert Counted.count == 8  # not each time that it is read: 2^8 − 1
