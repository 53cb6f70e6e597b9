"""What `linger.graph` offers."""

import importlib

import pytest

import linger
import linger.graph


def test_every_name_is_a_function_also_after_its_module_was_imported():
    for name in linger.graph.__all__:
        made = getattr(linger.graph, name)
        importlib.import_module(made.__module__)
        assert callable(getattr(linger.graph, name))
        assert made.__doc__


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match=r"'linger\.graph' has no attribute 'nothing'"):
        linger.graph.nothing  # noqa: B018
