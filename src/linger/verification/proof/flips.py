# SPDX-License-Identifier: Apache-2.0
"""Integers that differ because a float op before them differs in its last bits, told apart from integers that are wrong.

A value that lies between two integers, but for the last bits of a float, becomes one of them here and the other one there.
Everything that is computed from it differs then, too. Two things show that nothing else is wrong: with the expected integers
put in place behind every float op, the rest of the file computes what was expected; and what was expected there is what
Quant makes of a number within float rounding of the exact one (which is that of torch itself, where it was recorded).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import LingerError
from linger.graph.core.dialect_node import attributes_of, describe, is_dialect, op_of
from linger.graph.core.walking import inputs_within
from linger.graph.files.model_io import load_own
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime.reference import Reference
from linger.verification.differences import Arrays, unequal
from linger.verification.proof.comparison import Batch, Comparison
from linger.verification.proof.result import Flip, FloatRow, TensorRow
from linger.verification.recording import Recording

OTHER_ORDER = 8.0
"""How much further from the exact result another computation may be than those that were run.

All of them have the same bound, u·n·Σ|terms| for a sum of n terms and a few u for a function; in which order they add
decides how much of it each uses up. Three bits cover what orders of summation and libraries of functions differ by.
"""

_OWN = "linger.own."
_UNIT = 2.0**-24
"""The unit roundoff u of float32."""


def find_flips(comparison: Comparison, batch: Batch) -> list[Flip]:
    """The values that flip in a batch that differs; none where that does not explain every difference of it."""
    quants = [node for node in comparison.model.graph if _follows_floats(node)]
    expected = {_name(node): batch.expected(_name(node)) for node in quants}
    forced = {name: array for name, array in expected.items() if array is not None}
    quants = [node for node in quants if _name(node) in forced]
    if not quants:
        return []
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are within nothing
            return _flips(comparison, batch, quants, forced)
    except LingerError:  # what cannot be run in this form is not explained
        return []


def _flips(comparison: Comparison, batch: Batch, quants: list[ir.Node], forced: Arrays) -> list[Flip]:
    model = _with_forced(comparison.model, forced)
    again = Comparison(model, comparison.way)
    feeds = {**batch.feeds, **forced}
    given = batch.recording
    integers = {_OWN + name if name in forced else name: array for name, array in given.integers.items()}
    made = again.add(
        Recording(list(feeds.values()), given.outputs, integers, tuple(feeds), given.output_names, is_complete=False)
    )
    integer_rows = {name.removeprefix(_OWN): row for name, row in again.rows.items() if name.startswith(_OWN)}
    rows: list[TensorRow | FloatRow] = [*again.rows.values(), *again.output_rows.values()]
    wrong = [row.name for row in rows if row.differing and not row.name.startswith(_OWN)]
    if wrong or any(name not in comparison.missing for name in again.missing):
        return []
    exact = Reference(model, is_precise=True).intermediates(feeds)
    flips = [
        _flip(node, made, forced[_name(node)], exact, given.floats)
        for node in quants
        if integer_rows[_name(node)].differing
    ]
    return [] if None in flips else [flip for flip in flips if flip is not None]


def _flip(node: ir.Node, made: Batch, expected: NDArray[Any], exact: Arrays, recorded: Arrays) -> Flip | None:
    """How many values of a Quant flip; None where one differs by more than that, or its float by more than rounding."""
    source, own = node.inputs[0], _OWN + _name(node)
    assert source is not None  # _follows_floats has looked
    truth = exact[source.name or ""]
    op, count = op_of(node), 0
    attributes = attributes_of(node, op)
    for tensors in (made.reference, *made.watched.values()):
        found, real = tensors[own], tensors[source.name or ""]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return None
        bound = _bound(real, truth, np.iinfo(found.dtype), attributes["scale_x"])
        ends = [op.body(NumpyKernel(), (truth + end).astype(np.float32), **attributes) for end in (-bound, bound)]
        if not all(((ends[0] <= q) & (q <= ends[1])).all() for q in (expected, found)):
            return None
        floats = recorded.get(_name(node))
        if floats is not None and not (np.abs(floats - truth) <= bound)[np.isfinite(truth)].all():
            return None
        distance = np.abs(expected.astype(np.int64) - found)
        if distance.max(initial=0) > 1:
            return None
        count = max(count, int(np.count_nonzero(unequal(expected, found))))
    return Flip(_name(node), describe(node), tuple(describe(n) for n in float_ops_before(node)), count)


def _bound(real: NDArray[Any], truth: NDArray[Any], ends: np.iinfo[Any], scale: float) -> NDArray[np.float64]:
    """How far from the exact value each number may be: what the largest error among those within the range is, or u of it."""
    is_within = np.isfinite(truth) & (np.abs(truth) * scale <= ends.max + 1)
    error = float(np.abs(real - truth, where=is_within, out=np.zeros(truth.shape)).max(initial=0.0))
    return OTHER_ORDER * np.maximum(error, _UNIT * np.abs(np.where(np.isfinite(truth), truth, 0.0)))


def _follows_floats(node: ir.Node) -> bool:
    """Whether a node quantises what float ops have computed."""
    return is_dialect(node) and node.op_type == "Quant" and bool(float_ops_before(node))


def float_ops_before(node: ir.Node) -> list[ir.Node]:
    """The float ops between a Quant and the integers or inputs they start from, in the order of computation."""
    waiting, found = [v for v in node.inputs if v is not None], set()
    while waiting:
        maker = waiting.pop().producer()
        if maker is None or maker in found or maker.graph is not node.graph or is_dialect(maker):
            continue
        if maker.op_type != "Constant":
            found.add(maker)
            waiting += inputs_within(maker)
    return [n for n in node.graph or () if n in found]


def _with_forced(model: ir.Model, forced: Arrays) -> ir.Model:
    """The model with some tensors as further inputs; what made them makes tensors of another name."""
    copy = load_own(model)
    for node in list(copy.graph):
        if node.outputs and node.outputs[0].name in forced:
            made = node.outputs[0]
            name = made.name or ""
            made.name = _OWN + name
            kind = ir.TensorType(ir.DataType.from_numpy(forced[name].dtype))
            given = ir.Value(name=name, type=kind)
            made.replace_all_uses_with(given, replace_graph_outputs=True)
            copy.graph.inputs.append(given)
    return copy


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or ""
