# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.export, step by step; here the forms and opsets of a file, and which of them exist together.

No torch: a wrong form is refused before torch is imported.
"""

from __future__ import annotations

from linger.errors import UsageError, refuse_if
from linger.targets import find_target

FORMS = ("dialect", "bare", "standard", "qdq")
PACKED_FORMS = ("dialect", "bare")
OPSET = 12
"""The usual one."""

_FLOAT_OPSETS, _INTEGER_OPSETS, _DYNAMO_OPSETS = range(9, 21), range(11, 21), range(18, 21)


def chosen_form(form: str | None, target: str | None) -> str:
    """The form asked for; else the one that the chip's packer takes, or the one with functions."""
    if form is not None:
        return form
    return "dialect" if target is None else find_target(target).form


def check_form(form: str) -> None:
    """Refuse a form that does not exist."""
    refuse_if(form not in FORMS, f"export: there is no form {form!r}. Choose one of {', '.join(FORMS)}.")


def check_opset(opset: int, *, is_quantized: bool = True, is_dynamo: bool = False) -> None:
    """Refuse an opset that a file cannot have."""
    allowed = _DYNAMO_OPSETS if is_dynamo else _INTEGER_OPSETS if is_quantized else _FLOAT_OPSETS
    if opset not in allowed:
        kind, how = "quantized" if is_quantized else "float", " with dynamo=True" if is_dynamo else ""
        hint = f" Opset {opset} exists with dynamo=False." if is_dynamo and opset in _FLOAT_OPSETS else ""
        raise UsageError(
            f"export: opset {opset} is not available for a {kind} model{how}. "
            f"Use {allowed.start} to {allowed.stop - 1}.{hint}"
        )


def check_packed(form: str | None, target: str) -> None:
    """Refuse a target that does not exist, and a form that no packer reads; None: the form that its own packer reads."""
    refuse_if(
        find_target(target).is_chip and form in FORMS and form not in PACKED_FORMS,
        f"export: target={target!r} needs the form {' or '.join(PACKED_FORMS)}, which packers read, not {form!r}.",
    )
