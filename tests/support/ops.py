"""Ops for their own tests: by their names in files, on single kernels, and what their bindings refuse.

The files in `tests/ops` know an op as a file does, by its name; this is the one place that knows where the package keeps it.
"""

import math
from fractions import Fraction
from typing import Any

from linger.dialect import Op, Refusal, find_op, ops
from linger.numeric.numpy_kernel import NumpyKernel

__all__ = [
    "Op",
    "Refusal",
    "find_op",
    "limits",
    "ops",
    "reference_kernel",
    "round_half_up",
    "run_body",
    "run_in_training",
]


def limits(bits: int) -> tuple[int, int]:
    """The smallest and the largest integer of a width."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def round_half_up(value: Fraction | int) -> int:
    """⌊value + ½⌋ in exact arithmetic."""
    return math.floor(value + Fraction(1, 2))


def reference_kernel() -> NumpyKernel:
    """The vocabulary of op bodies on numpy arrays, one method for each primitive."""
    return NumpyKernel()


def run_body(op: Op, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """All outputs of an op's body on numpy arrays; attributes that have a default may be left out."""
    return op.body(NumpyKernel(), *op.arrange(inputs), **op.complete(attributes))


def run_in_training(op: Op, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """The body on torch tensors, rounding straight through, so that gradients pass."""
    from linger.numeric.torch.kernel import TorchKernel  # the others run without torch

    return op.body(TorchKernel(is_exact=False), *inputs, **op.complete(attributes))
