"""Lowering as the tests of several folders use it: the one place that knows where its functions live."""

from linger.graph.lowering.bodies import attach_functions, expand_dialect, known_tensors

__all__ = ["attach_functions", "expand_dialect", "known_tensors"]
