"""Standard ONNX only."""

import onnx
import onnx_ir as ir
import pytest

from tests.graph.lowering.test_attach_functions import TEXT
from tests.support.lowering import expand_dialect
from tests.support.samples import arrays, single_node_model

from linger.dialect import find_op  # isort: skip


def test_nothing_of_the_dialect_remains():
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    changes = expand_dialect(model)
    assert {n.domain for n in model.graph} == {""}
    assert not model.functions
    assert set(model.graph.opset_imports) == {""}
    assert len(changes) >= 7
    names = {o.name for n in model.graph for o in n.outputs}
    assert {"q", "w", "r", "s", "b", "c", "y"} <= names
    assert len(expand_dialect(model)) == 0


@pytest.mark.parametrize("sample", find_op("Conv2dInt").samples, ids=lambda s: s.name)
def test_known_weights_leave_no_if(sample):
    op = find_op("Conv2dInt")
    model = single_node_model(op, arrays(sample), sample.attributes, opset=12)
    expand_dialect(model)
    kinds = [n.op_type for n in model.graph]
    assert "If" not in kinds
    assert ("Conv" in kinds) != ("ConvInteger" in kinds)
