"""The shared arithmetic of the package, for its own tests: blocks, curves, facts about fixed-point numbers and tables.

Tests know these by the name of their subject; where the package keeps a subject is known here alone.
"""

from linger.numeric import blocks, curves, fixed, tables
from linger.numeric.numpy_kernel import NumpyKernel, integer_dtype

__all__ = ["NumpyKernel", "blocks", "curves", "fixed", "integer_dtype", "tables"]
