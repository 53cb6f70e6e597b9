"""A listing without the weights."""

import onnx

from linger.reporting.tree import listing


def test_weights_are_named_not_printed():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 12]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"""
    )
    text = listing(proto)
    assert "y = Add (x, w)" in text
    assert "w: float[2]" in text
    assert "{1" not in text
    assert len(proto.graph.initializer) == 1
