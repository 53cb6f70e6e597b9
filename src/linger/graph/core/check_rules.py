# SPDX-License-Identifier: Apache-2.0
"""The rules of `linger check`: each has an id that never changes, a name, a severity, a summary and help.

Those for the limits of chips are made by `limit_rule` in `linger.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from linger.graph.core.nodes import ERROR, NOTE, WARNING


@dataclass(frozen=True)
class CheckRule:
    """One rule.

    Attributes:
        id: `LGR` and three digits; an id is never reused.
        name: A few words with hyphens, for people.
        severity: The severity of its findings, unless a finding says otherwise.
        summary: What the rule asks for, in one line.
        help: Why, and what helps.
    """

    id: str
    name: str
    severity: str
    summary: str
    help: str


# fmt: off
UNKNOWN_OP = CheckRule("LGR101", "unknown-op", ERROR, "Every op exists in its domain and opset.",
    "ONNX or linger has no op of this name. Correct the name, raise the opset, or keep the layer in float.")
FOREIGN_OP = CheckRule("LGR102", "foreign-op", WARNING, "Ops of other domains come with a function.",
    "Neither ONNX nor linger knows this domain, so nothing behind the node can be checked, and no packer takes it.")
UNKNOWN_ATTRIBUTE = CheckRule(
    "LGR103", "unknown-attribute", ERROR, "A node has no attributes that its op does not know.",
    "Often a spelling mistake. Standard ops are refused with it; for ops of the dialect it is a warning: they ignore it.")
ATTRIBUTE_TYPE = CheckRule("LGR104", "attribute-type", ERROR, "Attributes have the type that the schema gives them.",
    "A scale is a float (16.0, not 16), a width an int, a window a list of ints.")
MISSING_ATTRIBUTE = CheckRule("LGR105", "missing-attribute", ERROR, "Required attributes are there.",
    "There is no default for it, and linger never guesses scales or widths.")
OPERAND_COUNT = CheckRule("LGR106", "operand-count", ERROR, "A node has as many inputs and outputs as its op takes.",
    "Compare with the op's schema: `linger ops` lists those of the dialect.")
ONNX_CHECKER = CheckRule("LGR107", "onnx-checker", ERROR, "The checker of the onnx package accepts the file.",
    "The checker stops at its first complaint; others may follow when it is repaired.")
OPSET_IMPORT = CheckRule("LGR108", "opset-import", ERROR, "Every domain that is used is imported.",
    "A node's meaning depends on the version of its domain. Add the opset_import.")
UNSUPPORTED_SETTING = CheckRule("LGR109", "unsupported-setting", ERROR, "linger can compute every node of the dialect.",
    "The setting has no agreed meaning, or its sums would not be exact, so linger refuses to run the file.")
EMPTY_LIST = CheckRule("LGR110", "empty-list", WARNING, "No attribute is an empty list.",
    "Packers stop at an attribute with an empty list. Remove the attribute.")
INFERENCE = CheckRule(
    "LGR111", "type-inference", WARNING, "Types and shapes of a standard file follow from each other.",
    "ONNX's own inference contradicts the file. Export it again, or remove the stale value_info.")
NOT_CHECKED = CheckRule("LGR112", "not-checked", NOTE, "Everything could be checked.",
    "Some checks need a file without the errors named before. Repair those and check again.")

UNDEFINED_TENSOR = CheckRule("LGR201", "undefined-tensor", ERROR, "Every tensor that is read is made somewhere before.",
    "A producer was removed or renamed, or the tensor belongs to a branch that cannot be seen from here.")
SHADOWED_TENSOR = CheckRule("LGR202", "shadowed-tensor", ERROR, "No tensor of a branch is called like one around it.",
    "ONNX wants one maker for each name, branches included. Rename the inner tensor.")
UNSORTED = CheckRule("LGR203", "unsorted", ERROR, "Nodes come after those whose results they use.",
    "linger sorts when it loads; other tools refuse the file. linger.repair writes it sorted.")
CYCLE = CheckRule("LGR204", "cycle", ERROR, "No node depends on its own result.",
    "Such a graph cannot be computed. Only a loop's body may carry a value round.")
DEAD_NODE = CheckRule("LGR205", "dead-node", WARNING, "Every node leads to an output.",
    "It costs time and memory on the device and changes nothing. Remove it.")
UNUSED_INITIALIZER = CheckRule("LGR206", "unused-initializer", WARNING, "Every initializer is used.",
    "It makes the file larger and changes nothing. Remove it.")
UNUSED_INPUT = CheckRule("LGR207", "unused-input", WARNING, "Every input of the graph is used.",
    "A caller must feed it for nothing; often a sign that the export lost a branch.")
DUPLICATE_NAME = CheckRule("LGR208", "duplicate-name", WARNING, "Node names are unique.",
    "Packers and reports take the name for the node: of two equal ones, one is renamed or overlooked.")
EMPTY_NAME = CheckRule("LGR209", "empty-name", NOTE, "Nodes have names.",
    "Packers name the node after its op and first output.")
REWRITTEN_NAME = CheckRule("LGR210", "rewritten-name", WARNING, "No tensor name begins with 'Scale'.",
    "The packer turns 'Scale…' into 'scale…', so the name in its listings differs, and may meet another tensor.")
DYNAMIC_SIZE = CheckRule("LGR211", "dynamic-size", NOTE, "Inputs have fixed sizes.",
    "Limits that depend on an open size cannot be checked, and a device needs fixed ones.")
UNNAMED_SIZE = CheckRule("LGR212", "unnamed-size", WARNING, "Open sizes of inputs have names.",
    "The packer stops at a size that is neither a number nor a name. Export with dynamic_axes, or with fixed sizes.")
REPEATED_OUTPUT = CheckRule("LGR213", "repeated-output", WARNING, "No tensor is an output twice.",
    "Runtimes return it once or refuse it; put an Identity between, or list it once.")
ONE_SIZE = CheckRule(
    "LGR214", "one-size", WARNING, "Where an image's size is open, nothing behind it is right at one size only.",
    "A window or weights of the size at which the file was written: at another size the file fails, or its numbers are wrong.")

PARAMETER_TYPE = CheckRule("LGR301", "parameter-type", ERROR, "Weights are stored as their bits say, biases as int32.",
    "Up to 8 bits are int8, up to 16 int16, more int32. A float here means that the export did not quantize it.")
PARAMETER_RANGE = CheckRule("LGR302", "parameter-range", ERROR, "Weights lie in the range of their bits.",
    "4 bits hold −8 … 7. The packer cuts off what does not fit, and the numbers change.")
DECLARED_TYPE = CheckRule("LGR303", "declared-type", ERROR, "Declared element types are those that the nodes compute.",
    "Whoever feeds or reads the tensor by its declaration is misled. Export again, or use linger.repair.")
OPERAND_TYPE = CheckRule(
    "LGR304", "operand-type", ERROR, "A node gets the element type and width that it is written for.",
    "A Quant is missing before it, or the width of the producer and the attribute of the consumer disagree.")
BIT_WIDTH = CheckRule("LGR305", "bit-width", ERROR, "Widths are whole numbers from 2 to 32.",
    "No integer type holds another width.")
PARAMETER_SHAPE = CheckRule(
    "LGR306", "parameter-shape", ERROR, "Weights and biases have the shape that the attributes and each other ask for.",
    "The window is in kernel_shape and in the weight, the number of channels in the weight and in the bias.")
CONTRADICTION = CheckRule("LGR307", "contradiction", ERROR, "Types, scales and widths of tensors fit together.",
    "Two parts of the file say different things of the same tensor.")
BROKEN_TENSOR = CheckRule("LGR308", "broken-tensor", ERROR, "Constants hold as many numbers as their shape says.",
    "The file was cut off or badly edited. Export it again, or copy it again whole.")

INVALID_SCALE = CheckRule("LGR401", "invalid-scale", ERROR, "Scales are positive numbers.",
    "Zero, negative and infinite scales and NaN have no meaning; often the layer was never calibrated.")
ODD_SCALE = CheckRule("LGR402", "odd-scale", ERROR, "Scales are powers of two.",
    "Devices only shift. Calibrate or train with linger, which chooses powers of two.")
SCALE_MISMATCH = CheckRule("LGR403", "scale-mismatch", ERROR, "A consumer's scale is its producer's.",
    "The same integers mean different numbers on the two sides of the edge. Packers refuse it.")
LEFT_SHIFT = CheckRule(
    "LGR404", "left-shift", WARNING, "Results are shifted to the right: scale_o ≤ scale_x·scale_w, and ≤ each summand's.",
    "Devices shift right only. linger computes it, but no device does; with a target it is an error.")
SMALL_SCALE = CheckRule("LGR405", "small-scale", WARNING, "Scales are 1 or more.",
    "Devices have no negative number of fractional bits. Keep the layer's range smaller.")
FIXED_SCALE = CheckRule("LGR406", "fixed-scale", WARNING, "Ops with one output scale on the device have that scale.",
    "The device's table gives this scale whatever the attribute says.")

ACCUMULATOR_OVERFLOW = CheckRule(
    "LGR501", "accumulator-overflow", WARNING, "max Σ|w|·2^(bits−1) + |b| of a channel fits into int32.",
    "Devices accumulate in 32 bits and wrap. Use narrower data or weights, smaller weights, or split the layer.")
INEXACT_FLOAT = CheckRule("LGR502", "inexact-in-float32", NOTE, "The same bound is below 2^24.",
    "Above it, tools that compute the integers in float32 may round. linger and the devices do not.")
BIAS_RANGE = CheckRule("LGR503", "bias-range", ERROR, "Biases fit into int32.",
    "scale_x·scale_w is too fine for this bias. Lower one of the scales.")
CLIPPED_BIAS = CheckRule("LGR504", "clipped-bias", WARNING, "No bias stands at the end of int32.",
    "It was probably cut off there when it was quantized. Lower scale_x or scale_w.")
ALWAYS_SATURATED = CheckRule("LGR505", "always-saturated", WARNING, "Every channel can take more than one end value.",
    "Whatever the input, this channel is at the same end of its range: its bias is too large for the output's scale.")
UNUSED_RANGE = CheckRule("LGR506", "unused-range", NOTE, "A layer can reach at least half of its output's range.",
    "Even the worst input leaves the upper bit unused: a larger scale_o would lose nothing.")
INPUT_RANGE = CheckRule(
    "LGR507", "input-range", WARNING, "The input of softmax stays within ±64, that of GELU and SiLU within ±16.",
    "The device reads it in a format that ends there, and decisions are lost beyond. linger's calibration subtracts the "
    "largest number of each row first. A note for tensors of more than 8 bits, whose scale need not be that of their range.")

MISSING_DEQUANT = CheckRule(
    "LGR601", "missing-dequant", ERROR, "Quantized tensors reach float ops and float outputs through a Dequant.",
    "Integers would be taken for real numbers. linger.repair puts the Dequant in.")
DUPLICATE_DEQUANT = CheckRule("LGR602", "duplicate-dequant", WARNING, "A tensor has one Dequant.",
    "The same conversion is computed twice. linger.repair leaves one for all consumers.")
DEQUANT_SCALE = CheckRule("LGR603", "dequant-scale", ERROR, "A Dequant has the scale of its tensor.",
    "All results behind it are wrong by the ratio of the scales. linger.repair sets it right.")
DEQUANT_OF_FLOAT = CheckRule("LGR604", "dequant-of-float", ERROR, "A Dequant gets integers.",
    "Real numbers would be divided by a scale that they do not have. linger.repair removes it.")
MISPLACED_DEQUANT = CheckRule(
    "LGR605", "misplaced-dequant", ERROR, "No Dequant stands before an op that takes integers.",
    "The op gets real numbers where it reads integers. linger.repair connects it to the integers.")

ZERO_POINT = CheckRule("LGR701", "zero-point", NOTE, "Zero points are 0.",
    "Fixed-point devices are symmetric. Such a file runs in ONNX Runtime, but has no form in the dialect.")
ODD_QDQ_SCALE = CheckRule(
    "LGR702", "odd-qdq-scale", NOTE, "Scales of QuantizeLinear and DequantizeLinear are powers of two.",
    "Fixed-point devices only shift. Such a file runs in ONNX Runtime, but has no form in the dialect.")
SATURATING_PRODUCT = CheckRule(
    "LGR703", "saturating-product", WARNING, "ONNX Runtime computes the same numbers on every CPU.",
    "Its kernels for unsigned data and signed weights add two products in 16 bits on x64 CPUs without VNNI: beyond ±64, weights "
    "make such sums saturate, silently.")
# fmt: on

GENERAL_RULES: tuple[CheckRule, ...] = tuple(v for v in list(globals().values()) if isinstance(v, CheckRule))
"""All of the above, in the order of their ids."""

NO_EXACT_FORM = "No exact form is known."
"""The remedy where nothing that was tried gave the right integers."""

OPEN_SIZE = "Export with fixed sizes, or make sure of it by hand."


def limit_rule(number: int, name: str, summary: str, severity: str = ERROR) -> CheckRule:
    """The rule of a limit of chips."""
    help_text = "The limit is the chip's or its packer's. Only with a target."
    return CheckRule(f"LGR{number}", f"target-{name}", severity, summary, help_text)
