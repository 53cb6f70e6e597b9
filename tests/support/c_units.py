"""C of single ops, for its own tests: what a function takes, the file that holds it, and the graph that it is written from."""

from linger.numeric.c import kernel, nodes, products, rules
from linger.numeric.c.scope import Scope
from linger.numeric.c.unit import CFunction, Input, Unit, elementwise_inputs

__all__ = ["CFunction", "Input", "Scope", "Unit", "elementwise_inputs", "kernel", "nodes", "products", "rules"]
