"""What a shell completes."""

from linger.cli import COMMANDS
from linger.cli.arguments.options import complete_commands, complete_machines


def test_names_that_begin_so_are_completed():
    assert complete_commands("qua") == ["quantize"]
    assert complete_commands("") == list(COMMANDS)
    assert complete_commands("nosuch") == []
    (first, *_) = complete_machines("")
    assert first in complete_machines(first[:3])
    assert complete_machines("nosuch") == []
