"""The parts of quantized models, for their own tests: ranges, layers, passes, marks, calibration.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.constraint.conv_bn import ConvBN, NormalizeBatchNorm3d, fold, fold_by_batch
from linger.constraint.limits import QUANTIZATION, Limits, Normalized, QuantChoice, Widths, limits_of, limits_of_rows
from linger.constraint.normalize import NORMALIZED
from linger.dialect import find_op
from linger.numeric.fixed import is_power_of_two, limits, scale_for
from linger.numeric.torch.quantize import MOMENTUM, Grid, learn_grid, limited, round_weight, scale_for_range
from linger.quantization.core import calibrate, calibration_parts, packing
from linger.quantization.core.calibrate import collecting, real_copy
from linger.quantization.core.calibration_parts import Parts, _PartialLayer, _PartialRange, encode
from linger.quantization.core.distributed import exchange, fsdp, group
from linger.quantization.core.distributed.group import Group, GroupError, agree
from linger.quantization.core.methods import Choice, calibration_methods
from linger.quantization.core.observation import Calibration, Counter, Histogram, histograms_of, is_calibrating
from linger.quantization.core.qtensor import to_carrier, unwrap
from linger.quantization.core.quantized import (
    PARTS,
    QuantizedBase,
    Watchman,
    checksum,
    integer_bound,
    keep_widths,
    kept,
    limit_parameters,
    make_frozen,
    make_ready,
    ranges_of,
    round_bias,
    views_of,
)
from linger.quantization.core.runtime import (
    Frame,
    OpRecord,
    Pass,
    ProductPolicy,
    Runtime,
    Scope,
    full_precision,
    put_autocast_aside,
    runtime_of,
    take_autocast_up,
)
from linger.quantization.core.stored import EVERYTHING, Kind
from linger.quantization.core.supported import (
    SETTERS,
    SWITCHES,
    has_own_forward,
    holds_matrices,
    op_for,
    supported_types,
    why_off,
)
from linger.quantization.functions.dispatch import bindings, dispatch
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.float_tensors import EdgeMode, InputQuantizer
from linger.quantization.setup.initialize import init, quantized_layers
from linger.quantization.setup.marking import checked_types, checked_widths
from linger.tuning.remedy import OutputError, error_db

__all__ = [
    "EVERYTHING",
    "MOMENTUM",
    "NORMALIZED",
    "PARTS",
    "QUANTIZATION",
    "SETTERS",
    "SWITCHES",
    "Calibration",
    "Choice",
    "ConvBN",
    "Counter",
    "EdgeMode",
    "Frame",
    "FunctionalLayer",
    "Grid",
    "Group",
    "GroupError",
    "Histogram",
    "InputQuantizer",
    "Kind",
    "Limits",
    "NormalizeBatchNorm3d",
    "Normalized",
    "OpRecord",
    "OutputError",
    "Parts",
    "Pass",
    "ProductPolicy",
    "QuantChoice",
    "QuantLayer",
    "QuantRecurrent",
    "QuantizedBase",
    "Runtime",
    "Scope",
    "Watchman",
    "Widths",
    "_PartialLayer",
    "_PartialRange",
    "agree",
    "bindings",
    "calibrate",
    "calibration_methods",
    "calibration_parts",
    "checked_types",
    "checked_widths",
    "checksum",
    "collecting",
    "dispatch",
    "encode",
    "error_db",
    "exchange",
    "find_op",
    "fold",
    "fold_by_batch",
    "fsdp",
    "full_precision",
    "group",
    "has_own_forward",
    "histograms_of",
    "holds_matrices",
    "init",
    "integer_bound",
    "is_calibrating",
    "is_power_of_two",
    "keep_widths",
    "kept",
    "learn_grid",
    "limit_parameters",
    "limited",
    "limits",
    "limits_of",
    "limits_of_rows",
    "make_frozen",
    "make_ready",
    "op_for",
    "packing",
    "put_autocast_aside",
    "quantized_layers",
    "ranges_of",
    "real_copy",
    "round_bias",
    "round_weight",
    "runtime_of",
    "scale_for",
    "scale_for_range",
    "supported_types",
    "take_autocast_up",
    "to_carrier",
    "unwrap",
    "views_of",
    "why_off",
]
