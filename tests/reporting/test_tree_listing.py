"""A listing without the weights."""

import onnx

from linger.reporting.printed import print_listing


def test_weights_are_named_not_printed(capsys):
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 12]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"""
    )
    print_listing(proto)
    text = capsys.readouterr().out
    assert "y = Add (x, w)" in text
    assert "w: float[2]" in text
    assert "{1" not in text
    assert len(proto.graph.initializer) == 1
