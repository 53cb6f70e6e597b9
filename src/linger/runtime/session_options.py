# SPDX-License-Identifier: Apache-2.0
"""Settings of ONNX Runtime as plain data: optimisation levels by name, options that a file can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnxruntime as ort

from linger.errors import UsageError, listing

LEVELS: Mapping[str, Any] = {
    "disable": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
"""How far ONNX Runtime may rewrite a graph before it runs it; its own default is "all"."""

Options = Mapping[str, str | int | bool]
"""Attributes of `onnxruntime.SessionOptions`, and config entries: those have a dot in their name."""

_ONLY_FATAL = 4
"""Errors are raised; ONNX Runtime need not print them as well."""

_QUIET: Options = {"session.intra_op.allow_spinning": "0"}
"""Threads that wait do nothing, instead of keeping a core busy."""


def checked_levels(levels: str | Iterable[str]) -> tuple[str, ...]:
    """Levels by name, each once, in the order given.

    >>> checked_levels(["basic", "all", "basic"]), checked_levels("all")
    (('basic', 'all'), ('all',))

    Raises:
        UsageError: Names that are no levels, or none at all.
    """
    given = [levels] if isinstance(levels, str) else list(levels)
    unknown = [str(level) for level in given if not isinstance(level, str) or level not in LEVELS]
    if unknown or not given:
        wrong = f"unknown: {listing(unknown)}" if unknown else "none is given"
        raise UsageError(f"levels: {wrong}. Choose among {listing(LEVELS)}.")
    return tuple(dict.fromkeys(given))


def make_session_options(level: str = "all", options: Options | None = None) -> ort.SessionOptions:
    """Options for one session.

    Raises:
        UsageError: Options that ONNX Runtime does not have or whose value it refuses; all of them are named.
    """
    made = ort.SessionOptions()
    made.graph_optimization_level = LEVELS[level]
    made.log_severity_level = _ONLY_FATAL
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(
            f"session_options: a {type(options).__name__} cannot be kept with a result. Give a mapping: attributes of "
            'onnxruntime.SessionOptions and config entries, as in {"intra_op_num_threads": 1, '
            '"session.disable_quant_qdq": "1"}.'
        )
    chosen = {**_QUIET, **(options or {})}
    wrong = [problem for name, value in chosen.items() if (problem := _set(made, name, value)) is not None]
    if wrong:
        raise UsageError(f"session_options: {listing(wrong)}.")
    return made


def _set(made: ort.SessionOptions, name: str, value: Any) -> str | None:
    """Set one option, or say why not."""
    if name == "graph_optimization_level":
        return f"{name} is what levels are for ({listing(LEVELS)})"
    try:
        if "." in name:
            made.add_session_config_entry(name, str(int(value) if isinstance(value, bool) else value))
        elif name.startswith("_") or not isinstance(getattr(type(made), name, None), property):
            return f"ONNX Runtime has no option {name}"
        else:
            setattr(made, name, value)
    except TypeError:
        return f"{name}={value!r:.40} is of a type that it does not take"
    except (ValueError, RuntimeError) as error:
        return f"{name}={value!r:.40} is refused ({str(error).splitlines()[0]})"
    return None
