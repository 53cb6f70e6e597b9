"""The parts of quantized layers, for their own tests.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.dialect import Refusal
from linger.numeric.torch.gates import Weights
from linger.quantization.layers.norm_layers import TransposedSignalLayer
from linger.quantization.layers.recurrent_operands import (
    ROLES,
    Sequences,
    at_end,
    each,
    full_lengths,
    joining,
    ordered,
    range_suffix,
    round_parameters,
    within,
)

__all__ = [
    "ROLES",
    "Refusal",
    "Sequences",
    "TransposedSignalLayer",
    "Weights",
    "at_end",
    "each",
    "full_lengths",
    "joining",
    "ordered",
    "range_suffix",
    "round_parameters",
    "within",
]
