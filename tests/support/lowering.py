"""Lowering as the tests of several folders use it: the one place that knows where its functions live."""

from linger.graph.lowering.bodies import attach_functions, expand_dialect, known_tensors
from linger.graph.lowering.byte_layers import write_byte_layers
from linger.graph.lowering.to_qdq import to_qdq
from linger.runtime.reference import Reference
from linger.runtime.session import LEVELS, has_saturating_products

__all__ = [
    "LEVELS",
    "Reference",
    "attach_functions",
    "expand_dialect",
    "has_saturating_products",
    "known_tensors",
    "to_qdq",
    "write_byte_layers",
]
