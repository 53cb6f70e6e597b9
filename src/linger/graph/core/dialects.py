# SPDX-License-Identifier: Apache-2.0
"""The newer dialect (domain `linger`, Q names) as data: its ops, what a node says of its tensors, its older names.

The older dialect (domain `thinker`) is `linger.dialect.ops()`; what it computes, linger computes. A newer op is read as
the older one of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx_ir as ir

from linger.dialect import DOMAIN

OLDER = DOMAIN
NEWER = "linger"
NEWER_VERSION = 1
DIALECTS = (OLDER, NEWER)

QUANT_MODE = "floor_add"
"""The one rounding that both dialects have: ⌊v + ½⌋. The newer one also knows floor, round and ceil."""

OTHER_QUANT_MODES = ("floor", "round", "ceil")
DEFAULT_PLATFORM = "venus"
"""The chip of a node that names none; nodes of the older dialect name only others."""

CELL_BITS = 32
CELL_SCALE = 32768.0
"""Width and usual scale of a cell state that comes in as integers."""


@dataclass(frozen=True)
class Claim:
    """What a node says of one of its tensors.

    Attributes:
        scales: Attributes whose product is the tensor's scale; none where the node does not say it.
        bits: The attribute that holds its width, the width itself, or None where the node does not say it.
    """

    scales: tuple[str, ...] = ()
    bits: str | int | None = None


_INPUTS: Mapping[str, Claim] = MappingProxyType(
    {
        "x": Claim(("scale_x",), "x_bits"),
        "y": Claim(("scale_y",), "y_bits"),
        "w": Claim(("scale_w",), "w_bits"),
        "b": Claim(("scale_x", "scale_w"), 32),
        "b_normal": Claim(("scale_y_normal", "scale_w"), 32),
        "h": Claim(("scale_h",), "o_bits"),
        "c": Claim(("scale_c",), CELL_BITS),
        "w_ih": Claim(("scale_iw",), "w_bits"),
        "w_hh": Claim(("scale_hw",), "w_bits"),
        "b_ih": Claim(("scale_x", "scale_iw"), 32),
        "b_hh": Claim(("scale_h", "scale_hw"), 32),
    }
)
"""What an input of this name claims, in every op but Quant, Dequant and those that only move numbers."""

_RESULT = Claim(("scale_o",), "o_bits")
_WIDTHS = {"x_bits": "data_bits", "w_bits": "parameter_bits"}
_STEPS = {**_WIDTHS, "stride": "strides"}
_GATES = {**_WIDTHS, "scale_x": "scale_i"}
_WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")


@dataclass(frozen=True)
class NewerOp:
    """One op of the newer dialect.

    Attributes:
        name: Its type in the file.
        older: The op of the older dialect, or of standard ONNX, that computes the same; None: there is none.
        inputs: Names of its inputs, in order. `("xs",)`: any number of them.
        renamed: Attributes that the older op calls otherwise.
        own: Attributes that the older op has no name for.
        result: What it claims of its first output; None: it has the scale and the width of its first input.
        real_outputs: How many real outputs follow the first.
        is_packed: Whether the packer knows this name (it takes it for the older op).
        why_not: Why there is no older op, or no short one.
    """

    name: str
    older: str | None
    inputs: tuple[str, ...] = ("x",)
    renamed: Mapping[str, str] = field(default_factory=lambda: _WIDTHS)
    own: frozenset[str] = frozenset()
    result: Claim | None = _RESULT
    real_outputs: int = 0
    is_packed: bool = True
    why_not: str = ""

    @property
    def older_names(self) -> dict[str, str]:
        """Attributes of the newer op by their name in the older one; where there are two, the customary."""
        return {older: newer for newer, older in self.renamed.items() if newer != "stride"}


_WINDOW = ("x", "w", "b")
_NORM = ("x", "w", "b_normal")
_PAIR = ("x", "y")
_POOL_OWN = frozenset({"count_include_pad", "divisor_override"})
_TWO_WIDTHS = frozenset({"x_bits", "y_bits"})
_STATE_OWN = frozenset({"scale_c", "has_hidden", "has_cell"})
_Q15 = "it normalises to Q15 in 32 bits, LayerNormInt to Q10 in 16 bits, so their numbers differ"

NEWER_OPS: Mapping[str, NewerOp] = MappingProxyType(
    {
        op.name: op
        for op in (
            NewerOp(
                "Quant", "Quant", renamed={}, own=frozenset({"zero_point"}), result=Claim(("scale_x",), "data_bits")
            ),
            NewerOp("Dequant", "Dequant", renamed={}, result=None),
            NewerOp("QConv1d", "Conv1dInt", _WINDOW, _STEPS),
            NewerOp("QConv2d", "Conv2dInt", _WINDOW, _STEPS),
            NewerOp("QConvBN2d", "Conv2dInt", _WINDOW, _STEPS),
            NewerOp("QConvTranspose1d", "ConvTranspose2dInt", _WINDOW, _STEPS, is_packed=False),
            NewerOp("QConvTranspose2d", "ConvTranspose2dInt", _WINDOW, _STEPS),
            NewerOp("QLinear", "LinearInt", _WINDOW),
            NewerOp("QBatchNorm1d", "BatchNorm2dInt", _WINDOW, is_packed=False),
            NewerOp("QBatchNorm2d", "BatchNorm2dInt", _WINDOW),
            NewerOp("QLayerNorm", None, _NORM, own=frozenset({"scale_y_normal"}), is_packed=False, why_not=_Q15),
            NewerOp("QLayerNorm2d", None, _NORM, own=frozenset({"scale_y_normal"}), why_not=_Q15),
            NewerOp("QAdd", "iqAdd", _PAIR, {}, _TWO_WIDTHS),
            NewerOp("QMul", "iqMul", _PAIR, {}, _TWO_WIDTHS),
            NewerOp("QBmm", "BmmInt", _PAIR, {"x_bits": "data_bits"}, frozenset({"y_bits"})),
            NewerOp("QMatmul", "BmmInt", _PAIR, {"x_bits": "data_bits"}, frozenset({"y_bits"}), is_packed=False),
            NewerOp("QCat", "iqCat", ("xs",), {"axis": "dim"}),
            NewerOp("QSigmoid", "iqSigmoid", renamed={}, own=frozenset({"x_bits"})),
            NewerOp("QTanh", "iqTanh", renamed={}, own=frozenset({"x_bits"})),
            NewerOp("QGelu", "iqGelu", renamed={}, own=frozenset({"x_bits"}), is_packed=False),
            NewerOp("QSwish", "iqSwish", renamed={}, own=frozenset({"x_bits"}), is_packed=False),
            NewerOp("QSoftmax", "SoftmaxInt", renamed={**_WIDTHS, "axis": "dim"}),
            NewerOp(
                "QGLU",
                None,
                own=frozenset({"dim"}),
                is_packed=False,
                why_not="the scale between its gate and its product is not in the file",
            ),
            NewerOp("QAvgPool1d", "AvgPool2dInt", renamed=_STEPS, own=_POOL_OWN, is_packed=False),
            NewerOp("QAvgPool2d", "AvgPool2dInt", renamed=_STEPS, own=_POOL_OWN),
            NewerOp("QGlobalAveragePool2d", "AvgPool2dInt", own=_POOL_OWN, is_packed=False),
            NewerOp("QMaxPool2d", "MaxPool", renamed={"stride": "strides"}, result=None),
            NewerOp("QLSTM", "LSTMInt", ("x", "h", "c", *_WEIGHTS), _GATES, _STATE_OWN, real_outputs=2),
            NewerOp("QGRU", "GRUInt", ("x", "h", *_WEIGHTS), _GATES, _STATE_OWN, real_outputs=1),
            NewerOp("Gather", "Gather", ("w", "indices"), result=Claim(("scale_w",), "w_bits")),
            NewerOp("Squeeze", "Squeeze", renamed={}, result=None),
        )
    }
)
"""Every op of the newer dialect by its type."""


@dataclass(frozen=True)
class Claims:
    """What a node says of its tensors, by index; tensors of which it says nothing are left out."""

    inputs: Mapping[int, Claim]
    outputs: Mapping[int, Claim]


def is_newer(node: ir.Node) -> bool:
    """Whether a node belongs to the newer dialect."""
    return node.domain == NEWER


def claims(node: ir.Node) -> Claims:
    """What a node of the newer dialect says of its tensors; nothing for a type that is not one of its ops.

    An output that is missing here and whose op has `result=None` has the scale and width of the first input, except that
    Dequant's is real; so are all outputs of recurrent ops but the first.
    """
    op = NEWER_OPS.get(node.op_type)
    if op is None:
        return Claims({}, {})
    if op.name == "Quant":
        return Claims({}, {0: Claim(("scale_x",), "data_bits")})
    if op.name == "Dequant":
        return Claims({0: Claim(("scale_o",))}, {})
    if op.result is None:
        return Claims({}, {})
    names = input_names(node, op)
    found = {index: _claim(name, index) for index, name in enumerate(names) if name != "indices"}
    return Claims(found, {0: op.result})


def _claim(name: str, index: int) -> Claim:
    return Claim((f"scale_x_{index}",), f"x_{index}_bits") if name == "xs" else _INPUTS[name]


def input_names(node: ir.Node, op: NewerOp) -> tuple[str, ...]:
    """What each input of a node is: weights of a recurrent op come last, states only where it has them."""
    count = len(node.inputs)
    if op.inputs == ("xs",):
        return ("xs",) * count
    if op.real_outputs:
        states = op.inputs[1 : -len(_WEIGHTS)]
        return ("x", *states[: max(0, count - 1 - len(_WEIGHTS))], *_WEIGHTS)[:count]
    return op.inputs[:count]
