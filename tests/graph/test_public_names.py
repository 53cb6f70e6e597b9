"""What `linger.graph` offers."""

import importlib

import linger
import linger.graph


def test_every_name_is_a_function_also_after_its_module_was_imported():
    for name in linger.graph.__all__:
        made = getattr(linger.graph, name)
        importlib.import_module(made.__module__)
        assert callable(getattr(linger.graph, name))
        assert made.__doc__
