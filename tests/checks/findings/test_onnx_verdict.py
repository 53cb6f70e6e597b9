"""What the onnx package says."""

import numpy as np
import onnx
import pytest

from linger.graph import save
from tests.graph.files.test_external_data import with_weights
from tests.support.check_cases import text_model
from tests.support.findings import findings_of, without_weights


def verdict(proto, explained=()):
    return [(f.rule, f.node, f.reason) for f in findings_of("onnx", proto, explained=explained)]


@pytest.fixture
def unknown_attribute():
    return text_model("[n] y = Relu<alpha=1.0>(x)", domains="")


def test_a_complaint_names_its_node(unknown_attribute):
    assert verdict(unknown_attribute) == [
        ("LGR107", "n (Relu)", "the onnx package says: Unrecognized attribute: alpha for operator Relu")
    ]


def test_nodes_with_errors_of_their_own_are_not_complained_of_again(unknown_attribute):
    assert verdict(unknown_attribute, {"n (Relu)"}) == []
    assert len(verdict(unknown_attribute, {"other (Relu)"})) == 1


def test_a_name_that_two_nodes_have_is_nobodys():
    proto = text_model("[n] a = Relu<alpha=1.0>(x) [n] y = Relu(a)", domains="")
    assert [node for _, node, _ in verdict(proto)] == [""]
    assert verdict(proto, {"n (Relu)"}) == []


def test_types_are_inferred_in_standard_files_only():
    add = {"inputs": "float[2,2] x, int8[2,2] z"}
    assert [rule for rule, *_ in verdict(text_model("[n] y = Add(x, z)", domains="", **add))] == ["LGR111"]
    dialect = "[q] q = thinker.Quant<data_bits=8, scale_x=1.0>(x)"
    assert verdict(text_model(f"[n] y = Add(x, z) {dialect}", **add)) == []


def test_large_weights_become_inputs_and_small_ones_stay(tmp_path):
    path = tmp_path / "m.onnx"
    save(with_weights(np.ones(5000, np.float32), np.ones(3, np.float32)), path, external_data=True)
    (tmp_path / "m.onnx.data").unlink()
    light = without_weights(onnx.load(path, load_external_data=False))
    assert [t.name for t in light.graph.initializer] == ["w1"]
    assert [d.dim_value for d in light.graph.input[-1].type.tensor_type.shape.dim] == [5000]
    onnx.checker.check_model(light)  # asks for no other file
    assert light.ByteSize() < 5000


def test_the_given_model_is_left_alone():
    proto = text_model("[n] y = Relu(x)", extra="<float[2] w = {1, 2}>")
    before = proto.SerializeToString(deterministic=True)
    light = without_weights(proto)
    assert proto.SerializeToString(deterministic=True) == before
    assert light.SerializeToString(deterministic=True) == before  # there is nothing large in it
