"""The arithmetic of the package on torch tensors, for its own tests: gates, exact products, rounding, loops over time."""

from linger.numeric.torch import gates, kernel, quantize, timeline

__all__ = ["gates", "kernel", "quantize", "timeline"]
