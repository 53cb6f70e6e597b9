# SPDX-License-Identifier: Apache-2.0
"""The lower bounds of the package's own requirements, and of an extra's, as exact versions for pip."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def lowest_versions(text: str, *extras: str) -> list[str]:
    r"""Every requirement of a pyproject.toml with its lower bound as the only version.

    >>> lowest_versions('[project]\\ndependencies = ["a>=1.2.0"]')
    ['a==1.2.0']
    """
    project = tomllib.loads(text)["project"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    unbounded = [line for line in wanted if ">=" not in line]
    if unbounded:
        raise SystemExit(f"without a lower bound: {', '.join(unbounded)}")
    return [line.replace(">=", "==") for line in wanted]


if __name__ == "__main__":
    file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    print("\n".join(lowest_versions(file.read_text(), *sys.argv[1:])))
