"""The parts of the diagnoses of a model, for their own tests.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.analysis.result import LONG_HEADER
from linger.quantization.core.quantized import Frozen
from linger.quantization.diagnosis.call_watch import (
    CallWatch,
    Coverage,
    SignalNoise,
    as_real,
    decibels,
    inner_product,
    mismatch,
    sharing_copy,
    squared_error,
    working_copy,
)
from linger.quantization.diagnosis.dumper import as_array, op_settings, op_tensors, write_tensors
from linger.quantization.diagnosis.layer_comparison import LayerRow
from linger.quantization.diagnosis.noise_bench import (
    LayerFacts,
    Measurements,
    NoiseBench,
    Trial,
    fingerprint,
    open_measurements,
)
from linger.quantization.diagnosis.sensitivity import SensitivityRow
from linger.runtime.reference import Reference

__all__ = [
    "LONG_HEADER",
    "CallWatch",
    "Coverage",
    "Frozen",
    "LayerFacts",
    "LayerRow",
    "Measurements",
    "NoiseBench",
    "Reference",
    "SensitivityRow",
    "SignalNoise",
    "Trial",
    "as_array",
    "as_real",
    "decibels",
    "fingerprint",
    "inner_product",
    "mismatch",
    "op_settings",
    "op_tensors",
    "open_measurements",
    "sharing_copy",
    "squared_error",
    "working_copy",
    "write_tensors",
]
