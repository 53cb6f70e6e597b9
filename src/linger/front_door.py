# SPDX-License-Identifier: Apache-2.0
"""Packages whose public names are loaded on first use.

A package's stub (`__init__.pyi`) is what type checkers read: one line per name, `from home import name as name`. The same
lines say here where each name lives, so that no name has to be listed twice.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from typing import Any

from linger.errors import missing_extra

_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def front_door(package: str, shown: Iterable[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package with a stub.

    Args:
        package: Its full name.
        shown: The names for `__dir__`, in order. Others of the stub can be imported all the same, also by `import *`.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None  # it is installed beside the package
    homes = {name: home for home, name in _LINE.findall(stub.decode())}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if home == package:
                return importlib.import_module(f"{package}.{name}")
            return getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as error:
            raise missing_extra(f"{package}.{name}", error) from error

    return load, lambda: list(shown), list(homes)
