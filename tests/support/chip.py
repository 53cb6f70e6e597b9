"""What a chip says of a small model in ONNX text."""

import numpy as np
import onnx_ir as ir

from linger import targets
from linger.checks import target_findings
from linger.targets import TARGETS, read_target
from tests.support.onnx_text import parse

WIDTHS = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_w": 64.0, "scale_o": 16.0}
WINDOW = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
SIGNAL = {"kernel_shape": [3], "strides": [1], "pads": [1, 1], "dilations": [1], "group": 1}


def add_wide_chip(monkeypatch, folder):
    """A chip that takes weights of 4 to 32 bits, for one test, known by the name that is returned."""
    widths = "weight_bits = [4, 8, 16, 32]\noutput_bits = [8, 16, 32]\n"
    (folder / "wide.toml").write_text(f"[windows]\n{widths}[products]\n{widths}")
    monkeypatch.setattr(targets, "TARGETS", {**TARGETS, "wide": read_target(folder / "wide.toml")})
    return "wide"


def node(op, operands="x", **attributes):
    """`y = thinker.op<…>(operands)` in ONNX text."""
    listed = ", ".join(f"{name}={_written(value)}" for name, value in attributes.items())
    return f"y = thinker.{op}<{listed}>({operands})" if listed else f"y = thinker.{op}({operands})"


def _written(value):
    return f'"{value}"' if isinstance(value, str) else str(value)


def model_of(body, *, inputs="int8[1,8,16,16] x", opset=12, **constants):
    """A model with the output y; `constants` are initializers, given as arrays or as the shapes of int8 zeros."""
    arrays = {n: np.zeros(c, np.int8) if isinstance(c, tuple) else np.asarray(c) for n, c in constants.items()}
    typed = [f"{array.dtype.name.replace('32', '') if array.dtype.kind == 'f' else array.dtype.name}{list(array.shape)} {n}"
             for n, array in arrays.items()]  # fmt: skip
    model = parse(body, inputs=", ".join([inputs, *typed]), outputs="y", domains=', "thinker": 1', opset=opset)
    for value in [v for v in model.graph.inputs if v.name in arrays]:
        value.const_value = ir.tensor(arrays[value.name], name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return model


def findings(body, target="venus", **model):
    """(severity, text) of everything found, without what is said of so small a graph, of its memory or of an op as a whole."""
    found = target_findings(model_of(body, **model), TARGETS[target])
    everywhere = (
        "the graph holds no constants",
        "nobody has compared",
        "the file names no chip",
        "a size is open, so the memory for tensors",
        f"{target}'s packer asks for quant_mode",
    )
    return [(f.severity, str(f)) for f in found if not f.reason.startswith(everywhere)]


def only_finding(body, **model):
    """The one thing that is found."""
    (found,) = findings(body, **model)
    return found
