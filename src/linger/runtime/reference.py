# SPDX-License-Identifier: Apache-2.0
"""The numpy reference: every dialect node by NumpyKernel, every standard node by onnx's own reference ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from linger.dialect import DOMAIN, Op, ops
from linger.errors import as_graph_error
from linger.graph.core.dialects import with_carried
from linger.graph.core.nodes import (
    all_nodes,
    attributes_of,
    callees_first,
    describe,
    graphs_in,
    is_dialect,
    is_dialect_domain,
    op_of,
)
from linger.graph.files.model_io import copied, exchange, in_memory
from linger.graph.files.soundness import require_bounded
from linger.graph.network import Network, NetworkLike
from linger.numeric.kernel import Kernel
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime.reference_ops import STANDARD_OPS

Feeds = Mapping[str, NDArray[Any]]

_SINGLE, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


class Reference:
    """Interprets a dialect file with integers in numpy and keeps every tensor.

    Args:
        model: The file, a model in memory or a `Network`, which stays as it is.
        kernel: The kernel that computes the dialect's ops; None: numpy.
        is_precise: Float ops compute in double precision, except where the file names another type itself.
        is_checked: The model is an `ir.Model` that `load` has returned: it is not checked again.
    """

    def __init__(
        self,
        model: NetworkLike,
        *,
        kernel: Kernel[Any] | None = None,
        is_precise: bool = False,
        is_checked: bool = False,
    ) -> None:
        network = Network.of(model, is_checked=is_checked)
        require_bounded(_without_bodies(network.model))
        copy = copied(_without_bodies(network.normal))
        exchange(copy, in_memory(copy))  # the evaluator reads no data files
        _use_plain_domain(copy)
        self._is_precise = is_precise
        if is_precise:
            widen_floats(copy)
        functions = {
            key: copy.functions[key] for key in callees_first(copy.functions)
        }  # the evaluator wants callees before callers
        copy.functions.clear()
        copy.functions.update(functions)
        self._makers = {o.name: describe(node) for node in copy.graph for o in node.outputs}
        run_ops = [_operator(op, kernel or NumpyKernel(), is_precise=is_precise) for op in ops().values()]
        with as_graph_error("the numpy reference cannot take the model"):
            self._evaluator = _Evaluator(ir.to_proto(copy), new_ops=[*run_ops, *STANDARD_OPS])
        self._outputs = [o.name for o in copy.graph.outputs]

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """The model's outputs by name."""
        everything = self.intermediates(feeds)
        return {name: everything[name] for name in self._outputs if name is not None}

    def intermediates(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Every tensor of the main graph by name; what it carries as unsigned bytes also as what it stands for."""
        self._evaluator.last = ()
        given = {name: self._read(array) for name, array in feeds.items()}
        # infinities and NaN are results here, as they are in a runtime: no warnings of numpy about them
        with as_graph_error(self._where), np.errstate(all="ignore"):
            found = self._evaluator.run(None, given, intermediate=True)
        assert isinstance(found, dict)  # intermediate=True returns all results
        return with_carried({name: value for name, value in found.items() if name and isinstance(value, np.ndarray)})

    def _read(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.astype(np.float64) if self._is_precise and array.dtype == np.float32 else array

    def _where(self) -> str:
        makers = (self._makers[name] for name in self._evaluator.last if name in self._makers)
        return f"the numpy reference cannot run {next(makers, 'the model')}"


class _Evaluator(ReferenceEvaluator):
    """Remembers the outputs of the node at work, so that an error can name it."""

    last: tuple[str, ...] = ()

    def _log(self, level: int, _pattern: str, *args: Any) -> None:
        if level == 1:  # onnx logs every node before it runs: its type, its inputs, its outputs
            self.last = tuple(args[-1])


def _without_bodies(model: ir.Model) -> ir.Model:
    """The same graph without the functions of dialect ops; other functions are the user's and run as they are."""
    functions = [function for key, function in model.functions.items() if not is_dialect_domain(key[0])]
    return ir.Model(model.graph, ir_version=model.ir_version, functions=functions)


def _use_plain_domain(model: ir.Model) -> None:
    """Put the dialect nodes of every function variant into the dialect's own domain."""
    for node in all_nodes(model):
        if is_dialect(node):
            node.domain = DOMAIN
    used = model.graph.opset_imports
    for domain in [d for d in used if d.startswith(f"{DOMAIN}.")]:
        del used[domain]
    used.setdefault(DOMAIN, 1)


def _operator(op: Op, kernel: Kernel[Any], *, is_precise: bool) -> type[OpRun]:
    """An onnx reference op whose work is the op's body on the numpy kernel."""

    class _DialectOperator(OpRun):
        op_domain = DOMAIN

        def _run(self, *inputs: Any, **_: Any) -> tuple[Any, ...]:
            node = _as_node(self.onnx_node)
            chosen = op_of(node)
            arrays = [None if x is None else np.asarray(x) for x in inputs]
            if is_precise:
                arrays = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in arrays]
            results = chosen.body(kernel, *chosen.arrange(arrays), **attributes_of(node, chosen))
            if is_precise and not chosen.has_integer_output:
                return (results.astype(np.float64),)
            return results if len(chosen.outputs) > 1 else (results,)

    _DialectOperator.__name__ = op.name
    return _DialectOperator


def _as_node(proto: onnx.NodeProto) -> ir.Node:
    """A NodeProto as an onnx_ir node, so that its attributes are read as everywhere else."""
    attributes = [ir.from_proto(a) for a in proto.attribute]
    return ir.Node(
        proto.domain, proto.op_type, [], attributes=attributes, num_outputs=len(proto.output), name=proto.name
    )


def widen_floats(model: ir.Model) -> None:
    """Make every float32 constant and cast one of double precision, in place; the numbers stay the same."""
    for place in graphs_in(model.graph):
        for value in (*place.graph.inputs, *place.graph.initializers.values()):
            if value.const_value is not None and value.const_value.dtype == _SINGLE:
                value.const_value = _widened(value.const_value)
            if value.dtype == _SINGLE:
                value.dtype = _DOUBLE
    for node in all_nodes(model):
        for attribute in list(node.attributes.values()):
            changed = _widened_attribute(node, attribute)
            if changed is not None:
                node.attributes.pop(attribute.name)
                node.attributes[changed.name] = changed


def _widened_attribute(node: ir.Node, attribute: ir.Attr) -> ir.Attr | None:
    """An attribute in double precision; None where it holds no float32."""
    if attribute.is_ref():
        return None
    if node.op_type == "Cast" and attribute.name == "to" and attribute.as_int() == _SINGLE:
        return ir.AttrInt64("to", int(_DOUBLE))
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _SINGLE:
        return ir.AttrTensor(attribute.name, _widened(attribute.as_tensor()))
    if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        return ir.AttrTensor("value", ir.tensor(np.asarray(attribute.value, np.float32).astype(np.float64)))
    return None


def _widened(tensor: ir.TensorProtocol) -> ir.Tensor[Any]:
    return ir.Tensor(tensor.numpy().astype(np.float64), name=tensor.name)
