"""The parts of functions on quantized tensors, for their own tests.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.dialect import Refusal
from linger.numeric.curves import linear_weights, nearest_places
from linger.quantization.functions.attention import ATTENTION, causal, refusal_of
from linger.quantization.functions.constants import as_constant, is_fixed, is_parameter, is_state, note_derived
from linger.quantization.functions.dispatch import COMPOSITIONS, bindings_by_path, with_sizes_read
from linger.quantization.functions.functional import as_operand
from linger.quantization.functions.functional_layer import KEY_PREFIX, Beyond
from linger.quantization.functions.masks import COMPARISONS, MASKS, fill, masks_scores
from linger.quantization.functions.products import MATRIX_PRODUCTS, Product, _as_layer, count_macs
from linger.quantization.functions.resizing import MOST_POOLS, _linear, _nearest, pool_adaptively
from linger.quantization.functions.rewrites import COPYING_MODES, FORMS, REWRITES, can_copy, pad_by_copying, rewritten

__all__ = [
    "ATTENTION",
    "COMPARISONS",
    "COMPOSITIONS",
    "COPYING_MODES",
    "FORMS",
    "KEY_PREFIX",
    "MASKS",
    "MATRIX_PRODUCTS",
    "MOST_POOLS",
    "REWRITES",
    "Beyond",
    "Product",
    "Refusal",
    "_as_layer",
    "_linear",
    "_nearest",
    "as_constant",
    "as_operand",
    "bindings_by_path",
    "can_copy",
    "causal",
    "count_macs",
    "fill",
    "is_fixed",
    "is_parameter",
    "is_state",
    "linear_weights",
    "masks_scores",
    "nearest_places",
    "note_derived",
    "pad_by_copying",
    "pool_adaptively",
    "refusal_of",
    "rewritten",
    "with_sizes_read",
]
