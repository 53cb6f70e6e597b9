# SPDX-License-Identifier: Apache-2.0
"""Standard ops that move, repeat, choose or limit numbers: what they do to floats they do to quantised integers."""

from __future__ import annotations

import onnx_ir as ir

MOVE = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Identity"),
    *("Gather", "GatherElements", "GatherND", "Expand", "Tile"),
)
MOVE_BYTES = ("DepthToSpace", "SpaceToDepth", "Pad")
COMPARE = ("Relu", "Clip", "MaxPool", "ReduceMax", "ReduceMin")

DATA_INPUTS = {**dict.fromkeys((*MOVE, *MOVE_BYTES, *COMPARE), 1), "Concat": None, "Where": (1, 2)}
"""Which inputs hold the numbers: the first, all (None), or those listed. Bounds and indices are no such inputs."""


def is_moving(node: ir.Node) -> bool:
    """Whether a node is of one of these ops."""
    return node.op_type in DATA_INPUTS and not node.domain


def data_inputs(node: ir.Node) -> list[int]:
    """The indices of the inputs that hold the numbers."""
    wanted = DATA_INPUTS[node.op_type]
    if isinstance(wanted, tuple):
        return list(wanted)
    return list(range(len(node.inputs) if wanted is None else wanted))


def data_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that hold the numbers; the indices that MaxPool may give do not."""
    return list(node.outputs[:1] if node.op_type == "MaxPool" else node.outputs)
