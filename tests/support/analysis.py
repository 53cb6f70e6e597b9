"""The parts of the analysis of tensors and models, for their own tests.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.analysis import checkpoint, magnitudes, weights
from linger.analysis.advice import Subject, decibel, limit_line, make_item, measure_loss, width_line
from linger.analysis.batches import (
    as_batches,
    can_be_labels,
    class_axis,
    evaluating,
    float_tensors,
    fresh,
    kept_attributes,
    run_batch,
    tensors_of,
)
from linger.analysis.checkpoint import (
    TensorValues,
    dtype_text,
    load_state_dict,
    natural_order,
    read_index,
    shape_text,
    stored_tensors,
)
from linger.analysis.layer_outputs import (
    Calls,
    Hook,
    LayerOutputs,
    _Accumulated,
    compiled_pattern,
    is_without_values,
    joined,
    leaf_layers,
    main_output,
    matching_layers,
    measured_tensors,
    root_name,
)
from linger.analysis.magnitudes import (
    BLOCK,
    Magnitudes,
    exact_sum,
    histogram,
    is_floating,
    measure,
    nearest,
    rank_from_above,
    single_if_certain,
)
from linger.analysis.multiplications import products_of
from linger.analysis.result import ALARM, LONG_HEADER, SHORT_HEADER, Row, cell, table_text
from linger.analysis.trace import computes_like, wiring_of
from linger.analysis.weights import in_threads, is_running_statistic
from linger.tuning.mixed_precision.goals import read_goal

__all__ = [
    "ALARM",
    "BLOCK",
    "LONG_HEADER",
    "SHORT_HEADER",
    "Calls",
    "Hook",
    "LayerOutputs",
    "Magnitudes",
    "Row",
    "Subject",
    "TensorValues",
    "_Accumulated",
    "as_batches",
    "can_be_labels",
    "cell",
    "checkpoint",
    "class_axis",
    "compiled_pattern",
    "computes_like",
    "decibel",
    "dtype_text",
    "evaluating",
    "exact_sum",
    "float_tensors",
    "fresh",
    "histogram",
    "in_threads",
    "is_floating",
    "is_running_statistic",
    "is_without_values",
    "joined",
    "kept_attributes",
    "leaf_layers",
    "limit_line",
    "load_state_dict",
    "magnitudes",
    "main_output",
    "make_item",
    "matching_layers",
    "measure",
    "measure_loss",
    "measured_tensors",
    "natural_order",
    "nearest",
    "products_of",
    "rank_from_above",
    "read_goal",
    "read_index",
    "root_name",
    "run_batch",
    "shape_text",
    "single_if_certain",
    "stored_tensors",
    "table_text",
    "tensors_of",
    "weights",
    "width_line",
    "wiring_of",
]
