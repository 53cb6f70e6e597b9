# SPDX-License-Identifier: Apache-2.0
"""The content of constants and attributes, and keys that are equal if the contents are equal bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import onnx_ir as ir

_COMPARED_WHOLE = 256
"""Bytes up to which the key is the content itself; beyond it is a hash."""


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The content of a tensor that never changes: an initializer, or the result of a Constant node."""
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        return value.const_value
    content = producer.attributes.get("value") if producer.op_type == "Constant" and not producer.domain else None
    if content is None or content.type != ir.AttributeType.TENSOR or content.is_ref():
        return None
    return content.as_tensor()


def tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    """A key of type, shape and content. Reads the content."""
    shape = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return tensor.dtype, shape, tuple(tensor.numpy().reshape(-1).tolist())
    content = tensor.tobytes()
    is_small = len(content) <= _COMPARED_WHOLE
    return tensor.dtype, shape, content if is_small else hashlib.sha256(content).digest()


def attributes_key(node: ir.Node) -> Hashable | None:
    """A key of all attributes of a node; None where one cannot be compared: a graph, a type, weights in another file."""
    parts = []
    for name, attribute in sorted(node.attributes.items()):
        key = _attribute_key(attribute)
        if key is None:
            return None
        parts.append((name, attribute.type, key))
    return tuple(parts)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    if attribute.is_ref():
        return "ref", attribute.ref_attr_name
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return None if isinstance(tensor, ir.ExternalTensor) else tensor_key(tensor)
    return _plain_key(attribute.value)


def _plain_key(value: Any) -> Hashable | None:
    if isinstance(value, (list, tuple)):
        keys = tuple(_plain_key(item) for item in value)
        return None if None in keys else keys
    # repr distinguishes 0.0 from -0.0 and is the same for every NaN
    return repr(value) if isinstance(value, (int, float, str, bytes)) else None
