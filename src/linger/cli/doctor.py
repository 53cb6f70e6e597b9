# SPDX-License-Identifier: Apache-2.0
"""linger doctor: whether linger can work here, and what is missing."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from linger.cli import console, say, say_result
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
    from linger.workflow.installation import cpu_features, cpu_name, packages, python_is_recent, self_test, tools

    found, chains, test = packages(), tools(), self_test()
    is_recent = python_is_recent()
    ok = test.ok and is_recent and not any(package.is_wrong for package in found)
    if as_json:
        content = {
            "ok": ok,
            "linger": __version__,
            "python": platform.python_version(),
            "python_is_recent": is_recent,
            "packages": found,
            "cpu": {"machine": cpu_name(), "features": cpu_features()},
            "tools": chains,
            "self_test": test,
        }
        say_result("doctor", content)
    else:
        _show(found, chains)
        features = ", ".join(cpu_features()) or "none of the features that matter is told"
        say(f"linger {__version__}, Python {platform.python_version()}, {cpu_name()}: {features}.")
        say(_verdict(test))
    if not ok:
        raise LingerError(_problem(found, test, is_recent=is_recent))


def _show(found: list[Package], chains: list[Tool]) -> None:
    from linger.records.rich_table import table

    rows = [
        (p.name, p.version, p.needed, f"extra {p.extra}" if p.extra else "always", p.status, p.remedy) for p in found
    ]
    console().print(table("packages", ("package", "installed", "at least", "needed", "status", "remedy"), rows))
    cells = [(t.target, t.compiler, t.emulator, "ready" if t.is_ready else "", t.remedy) for t in chains]
    console().print(table("C for", ("target", "compiler", "emulator", "status", "remedy (Debian)"), cells))


def _verdict(test: SelfTest) -> str:
    if test.reason:
        return f"Self-test: it cannot be run ({test.reason})."
    products = "saturate: files of linger avoid them" if test.u8s8_saturates else "are exact"
    return (
        f"Self-test: {test.differing} of {test.integers} integers differ between numpy and ONNX Runtime. "
        f"ONNX Runtime's products u8×s8 {products}."
    )


def _problem(found: list[Package], test: SelfTest, *, is_recent: bool) -> str:
    """Everything that is wrong, as the sentence of an error."""
    wrong = [f"{p.name} {p.version} is {p.status} ({p.remedy})".replace("  ", " ") for p in found if p.is_wrong]
    if not is_recent:
        wrong.append(f"Python {platform.python_version()} is too old")
    if not test.ok:
        wrong.append("the self-test fails")
    return f"doctor: {'; '.join(wrong)}."
