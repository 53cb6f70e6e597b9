# SPDX-License-Identifier: Apache-2.0
"""Torch functions that are several integer ops, or one whose operands are not all quantised: pads, masks, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linger.quantization.attention import ATTENTION
from linger.quantization.masks import MASKS
from linger.quantization.matrix_forms import MATRIX_FORMS
from linger.quantization.padding import PADDING

Handler = Callable[..., Any]
"""(function, args, kwargs, call) → the result, a Refusal, or NotImplemented where another rule may know the call.

`call(function, *args, **kwargs)` runs a function inside: on quantised tensors as in the model's own forward.
"""

COMPOSITIONS: dict[Any, Handler] = {**PADDING, **MASKS, **ATTENTION, **MATRIX_FORMS}
