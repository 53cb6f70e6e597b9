"""Scripts of tools/ as modules."""

import importlib.util
import sys

from tests.conftest import REPOSITORY


def load_tool(name):
    """The script tools/<name>.py."""
    specification = importlib.util.spec_from_file_location(name, REPOSITORY / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where dataclasses look their module up
    specification.loader.exec_module(module)
    return module
