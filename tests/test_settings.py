"""Switches are frozen, and a choice belongs to its context."""

import contextvars
import threading
from dataclasses import asdict

import pytest

from linger import Switches
from linger.errors import UsageError
from linger.settings import choose, chosen_switches


def test_switches_are_on_and_statistics_learn_by_default():
    values = asdict(Switches())
    assert values.pop("freezes_batch_norm") is False
    assert all(values.values())


def test_every_wrong_switch_is_named():
    with pytest.raises(UsageError, match=r"add=1, var='no': a switch is True or False"):
        Switches(add=1, var="no")


def test_a_choice_changes_one_switch_and_stays_in_its_context():
    def inside():
        choose(add=False)
        choose(var=False)
        assert chosen_switches() == Switches(add=False, var=False)
        choose(add=True)
        return chosen_switches()

    assert contextvars.copy_context().run(inside) == Switches(var=False)
    assert chosen_switches() == Switches()


def test_another_thread_begins_with_the_defaults():
    seen = []

    def inside():
        choose(add=False)
        thread = threading.Thread(target=lambda: seen.append(chosen_switches()))
        thread.start()
        thread.join()

    contextvars.copy_context().run(inside)
    assert seen == [Switches()]
