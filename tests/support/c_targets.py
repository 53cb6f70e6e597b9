"""Emulated targets of C code: present, or the test is skipped with a reason."""

import os
import shutil

import pytest

from linger.c.toolchains import Toolchain, toolchain


def require_target(name: str) -> Toolchain:
    """The toolchain of a target; without its tools the test is skipped, or fails where nothing may be skipped."""
    chain = toolchain(name)
    tools = [*chain.compilers[:1], *chain.emulator[:1]]
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        reason = f"target {name}: {', '.join(missing)} cannot be found (Debian: {chain.packages})"
        if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return chain
