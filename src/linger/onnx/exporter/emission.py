# SPDX-License-Identifier: Apache-2.0
"""Dialect nodes in torch's tracing exporter: one torch op that computes the integers and becomes the node.

The op is registered with torch on the first export, not on import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.onnx import symbolic_helper

from linger.dialect import DOMAIN, DOMAIN_VERSION, Op, find_op
from linger.numeric.torch.kernel import TorchKernel, carrier, integer_type

NAME_ATTRIBUTE = "linger_name"
"""Carries the node's name through the exporter, which would make up its own."""

PARAMETERS_ATTRIBUTE = "linger_parameters"
"""Carries the names of a node's initializers by input, where they do not follow from the node's."""

_SUFFIX = {"float": "f", "int": "i", "ints": "i", "str": "s"}
_STORED_BITS = {torch.int8: 8, torch.int16: 16, torch.int32: 32}


class TraceEmitter:
    """Emits dialect nodes into a torch trace."""

    def __init__(self, *, is_dynamic: bool) -> None:
        self._is_dynamic = is_dynamic
        register()

    def call(self, op: Op, tensors: Sequence[Any], attributes: Mapping[str, Any], name: str) -> Tensor:
        """One node; trailing optional inputs that are None are left out."""
        given = [_as_tensor(t) for t in tensors]
        while given and given[-1] is None:
            given.pop()
        result: Tensor = torch.ops.linger.call(given, self._describe(op, attributes, name))
        return result

    def call_many(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        attributes: Mapping[str, Any],
        name: str,
        parameters: Mapping[str, str],
    ) -> tuple[Tensor, ...]:
        """One node of an op with several outputs; `parameters` are the names of its initializers."""
        description = self._describe(op, attributes, name, parameters=dict(parameters))
        call = torch.ops.linger.call2 if len(op.outputs) == 2 else torch.ops.linger.call3
        result: tuple[Tensor, ...] = call(list(tensors), description)
        return result

    def _describe(self, op: Op, attributes: Mapping[str, Any], name: str, **more: Any) -> str:
        return json.dumps({**_described(op, attributes), "name": name, "is_dynamic": self._is_dynamic, **more})


class SymbolicEmitter:
    """Emits dialect nodes into torch's newer exporter, which has an op for nodes of any domain."""

    def call(self, op: Op, tensors: Sequence[Any], attributes: Mapping[str, Any], name: str) -> Tensor:
        """One node; its shape comes from the body, run on the exporter's shape-only tensors."""
        given = [t for t in tensors if t is not None]
        description = json.dumps(_described(op, attributes))
        with disable_proxy_modes_tracing():  # the shape is asked for, not recorded
            shape = _shape_only(given, description)
        written = {**_fixed_attributes(op), **attributes, NAME_ATTRIBUTE: name}
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{op.name}",
            [_as_tensor(t) for t in given],
            {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()},
            dtype=shape.dtype,
            shape=shape.shape,
            version=DOMAIN_VERSION,
        )

    def call_many(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        attributes: Mapping[str, Any],
        name: str,
        parameters: Mapping[str, str],
    ) -> tuple[Tensor, ...]:
        """One node of an op with several outputs; `parameters` are the names of its initializers."""
        description = json.dumps(_described(op, attributes))
        with disable_proxy_modes_tracing():
            shapes = _shapes_only(tensors, description)
        names = {NAME_ATTRIBUTE: name, PARAMETERS_ATTRIBUTE: json.dumps(dict(parameters))}
        made = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{op.name}",
            list(tensors),
            {**_fixed_attributes(op), **attributes, **names},
            dtypes=[s.dtype for s in shapes],
            shapes=[s.shape for s in shapes],
            version=DOMAIN_VERSION,
        )
        return tuple(made)


@cache
def register() -> torch.library.Library:
    """Define torch.ops.linger.call and how the tracing exporter writes it; once per process."""
    library = torch.library.Library("linger", "DEF")
    library.define("call(Tensor[] tensors, str description) -> Tensor")
    library.impl("call", _compute, "CompositeExplicitAutograd")
    torch.library.register_fake("linger::call", _shape_only, lib=library)
    torch.onnx.utils.register_custom_op_symbolic("linger::call", _write_node, 9)
    for name, count in (("call2", 2), ("call3", 3)):
        library.define(f"{name}(Tensor[] tensors, str description) -> ({', '.join(['Tensor'] * count)})")
        library.impl(name, _compute_many, "CompositeExplicitAutograd")
        torch.library.register_fake(f"linger::{name}", _shapes_only, lib=library)
        torch.onnx.utils.register_custom_op_symbolic(f"linger::{name}", _write_node, 9)
    return library


def _compute(tensors: Sequence[Tensor], description: str) -> Tensor:
    """The op's exact integers."""
    return _run(tensors, description, is_exact=True)[0]


def _shape_only(tensors: Sequence[Tensor], description: str) -> Tensor:
    """The result's shape and type, without looking at values."""
    return _run(tensors, description, is_exact=False)[0]


def _compute_many(tensors: Sequence[Tensor], description: str) -> tuple[Tensor, ...]:
    """The exact results of an op with several outputs."""
    return _run(tensors, description, is_exact=True)


def _shapes_only(tensors: Sequence[Tensor], description: str) -> tuple[Tensor, ...]:
    """Their shapes and types, without looking at values."""
    return _run(tensors, description, is_exact=False)


def _run(tensors: Sequence[Tensor], description: str, *, is_exact: bool) -> tuple[Tensor, ...]:
    call = json.loads(description)
    op = find_op(call["op"], call["platform"])
    attributes = op.complete(_tuples(call["attributes"]))
    # what is no stored integer is an index, and stays what it is
    exact = [t.to(carrier(_STORED_BITS[t.dtype])) if _is_stored(t) else t for t in tensors]
    carriers = exact if is_exact else [t.float() if isinstance(t, Tensor) else t for t in exact]
    with torch.no_grad():
        found = op.body(TorchKernel(is_exact=is_exact, device=tensors[0].device), *op.arrange(carriers), **attributes)
    first, *others = found if len(op.outputs) > 1 else (found,)
    if not op.has_integer_output:
        return (first,)
    bits = attributes[op.output_bits] if op.output_bits else _STORED_BITS[tensors[0].dtype]
    return (first.to(integer_type(bits)), *(t.clone() for t in others))  # results of a torch op share no memory


def _is_stored(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _STORED_BITS


def _as_tensor(value: Any) -> Any:
    """Places and counts as the int64 constant that a file holds."""
    return torch.tensor(value) if isinstance(value, tuple) else value


def _tuples(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}


def _write_node(g: Any, tensors: Any, description: Any) -> Any:
    """Symbolic function of linger::call."""
    call = json.loads(symbolic_helper._maybe_get_const(description, "s"))  # noqa: SLF001 - torch offers no public reader
    op = find_op(call["op"], call["platform"])
    kinds = {a.name: a.kind for a in op.attributes}
    written = _fixed_attributes(op) | call["attributes"]
    attributes = {f"{name}_{_SUFFIX[kinds.get(name, 'float')]}": value for name, value in written.items()}
    attributes[f"{NAME_ATTRIBUTE}_s"] = call["name"]
    if "parameters" in call:
        attributes[f"{PARAMETERS_ATTRIBUTE}_s"] = json.dumps(call["parameters"])
    given = symbolic_helper._unpack_list(tensors)  # noqa: SLF001 - nor for lists
    made = g.op(f"{DOMAIN}::{op.name}", *given, outputs=len(op.outputs), **attributes)
    for value, original in zip(made if len(op.outputs) > 1 else [made], g.original_node.outputs(), strict=True):
        kind = original.type()
        # a size fixed here would be baked into every Reshape that asks for it
        value.setType(kind.with_sizes([None] * len(kind.sizes())) if call["is_dynamic"] else kind)
    return tuple(made) if len(op.outputs) > 1 else made


def _described(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a torch op that takes text must be told to run an op."""
    return {"op": op.name, "platform": op.platform, "attributes": dict(attributes)}


def _fixed_attributes(op: Op) -> dict[str, Any]:
    """Attributes with one value that the format wants on every node (platform_quant, castor_mode, mode).

    A node for another chip carries all that it has defaults for.
    """
    return {
        a.name: a.default for a in op.attributes if not a.is_required and (a.kind == "str" or op.platform is not None)
    }
