# SPDX-License-Identifier: Apache-2.0
"""The numbers of chips that concern an op: those that the checks of its limits read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from types import CodeType, FunctionType
from typing import Any

from linger.checks.limits.target_findings import LIMITS, TABLES
from linger.dialect import Op
from tools.targets_table import limit_rows


def op_limit_rows(op: Op) -> list[list[str]]:
    """The rows of the table of limits that concern an op: value, meaning, and its value on each chip."""
    wanted = {f"`{name}`" for limit in LIMITS if _is_named(op, limit.rule.name) for name in read_values(limit.check)}
    return [row for row in limit_rows() if row[0] in wanted]


def _is_named(op: Op, rule: str) -> bool:
    return rule.removeprefix("target-") in op.chip_limits


def read_values(check: Callable[..., Any]) -> set[str]:
    """The values of a chip's file that a check reads, itself or through functions of its module, as `table.value`."""
    names = {name for function in _called(check, set()) for name in _names(function.__code__)}
    return {
        f"{table}.{entry.name}"
        for table, kind in TABLES.items()
        if kind.__name__ in names
        for entry in fields(kind)
        if entry.name in names
    }


def _called(function: Any, seen: set[object]) -> Iterator[FunctionType]:
    """A function, and those of its module that it uses, however far."""
    if not isinstance(function, FunctionType) or function in seen:
        return
    seen.add(function)
    yield function
    for name in _names(function.__code__):
        used = function.__globals__.get(name)
        if getattr(used, "__module__", None) == function.__module__:
            yield from _called(used, seen)


def _names(code: CodeType) -> Iterator[str]:
    """The names in a function's code, comprehensions and inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
