# SPDX-License-Identifier: Apache-2.0
"""linger doctor: whether linger can work here, and what is missing."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from linger.cli import say, say_result, say_table
from linger.cli.arguments.options import Json
from linger.errors import LingerError
from linger.version import __version__

if TYPE_CHECKING:
    from linger.workflow.installation import Package, SelfTest, Tool


def doctor(*, as_json: Json = False) -> None:
    """Show versions, what the CPU does to integers, compilers and emulators, and what is missing; run a small self-test.

    Exit code 1: something required is missing, too old or broken, or integers differ

    Examples:
        linger doctor
        linger doctor --json
    """
    from linger.workflow.installation import cpu_features, packages, python_is_recent, self_test, tools

    installed, chains, test = packages(), tools(), self_test()
    is_recent, version = python_is_recent(), platform.python_version()
    cpu, features = platform.machine(), cpu_features()
    wrong = [f"{p.name} {p.version} is {p.status} ({p.remedy})".replace("  ", " ") for p in installed if p.is_wrong]
    wrong += [] if is_recent else [f"Python {version} is too old"]
    wrong += [] if test.ok else ["the self-test fails"]
    if as_json:
        content = {
            "ok": not wrong,
            "linger": __version__,
            "python": version,
            "python_is_recent": is_recent,
            "packages": installed,
            "cpu": {"machine": cpu, "features": features},
            "tools": chains,
            "self_test": test,
        }
        say_result("doctor", content)
    else:
        _show(installed, chains)
        known = ", ".join(features) or "none of the features that matter is told"
        say(f"linger {__version__}, Python {version}, {cpu}: {known}.")
        say(_verdict(test))
    if wrong:
        raise LingerError(f"doctor: {'; '.join(wrong)}.")


def _show(installed: list[Package], chains: list[Tool]) -> None:
    extras = [f"extra {p.extra}" if p.extra else "always" for p in installed]
    rows = [(p.name, p.version, p.needed, e, p.status, p.remedy) for p, e in zip(installed, extras, strict=True)]
    say_table("packages", ("package", "installed", "at least", "needed", "status", "remedy"), rows)
    cells = [(t.target, t.compiler, t.emulator, "ready" if t.is_ready else "", t.remedy) for t in chains]
    say_table("C for", ("target", "compiler", "emulator", "status", "remedy (Debian)"), cells)


def _verdict(test: SelfTest) -> str:
    if test.reason:
        return f"Self-test: it cannot be run ({test.reason})."
    products = "saturate: files of linger avoid them" if test.u8s8_saturates else "are exact"
    return (
        f"Self-test: {test.differing} of {test.integers} integers differ between numpy and ONNX Runtime. "
        f"ONNX Runtime's products u8×s8 {products}."
    )
