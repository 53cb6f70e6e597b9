"""The parts of the constraint stage, for their own tests.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.constraint.advising import tensors_of
from linger.constraint.conv_bn import (
    NormalizeBatchNorm1d,
    batch_statistics,
    convolve,
    joined_limits,
    learning_factor,
    normalize_folded,
    per_weight,
)
from linger.constraint.limits import (
    AHEAD_RELU,
    FUSED,
    LIMITS,
    QUANTIZED,
    Fusion,
    checked_limits,
    checked_types,
    clamp,
    exceeds,
    refuse_quantized,
)
from linger.constraint.normalize import DEFAULT_TYPES
from linger.constraint.tracing import replace_everywhere

__all__ = [
    "AHEAD_RELU",
    "DEFAULT_TYPES",
    "FUSED",
    "LIMITS",
    "QUANTIZED",
    "Fusion",
    "NormalizeBatchNorm1d",
    "batch_statistics",
    "checked_limits",
    "checked_types",
    "clamp",
    "convolve",
    "exceeds",
    "joined_limits",
    "learning_factor",
    "normalize_folded",
    "per_weight",
    "refuse_quantized",
    "replace_everywhere",
    "tensors_of",
]
