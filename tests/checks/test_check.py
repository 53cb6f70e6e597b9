"""linger.check: every rule fires on the smallest fault, and not on the same model without it."""

import subprocess
import sys
import time

import onnx
import onnx_ir as ir
import pytest

import linger
from linger.checks.check import RULES
from linger.errors import GraphError, UsageError
from linger.targets import TARGETS
from tests.support.check_cases import CHIPS, GENERAL, LINEAR, linear, text_model, with_weights
from tests.support.golden import case_names, model_path
from tests.support.onnx_text import content

CASES = [*GENERAL, *CHIPS]
IDS = [f"{case.rule}-{i}" for i, case in enumerate(CASES)]
NAMELESS = [("note", "LGR903")]
"""What venus says of every file that names no chip, as those for venus may."""


def rules_of(result):
    return {finding.rule for finding in result.findings}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_fault_is_found_and_gone_when_repaired(case):
    assert case.rule in rules_of(linger.check(case.bad, case.target))
    assert case.rule not in rules_of(linger.check(case.good, case.target))


@pytest.mark.parametrize("case", GENERAL, ids=[f"{case.rule}-{i}" for i, case in enumerate(GENERAL)])
def test_repaired_models_have_no_error(case):
    assert [str(f) for f in linger.check(case.good).errors] == []


def test_every_rule_is_tried():
    assert {case.rule for case in CASES} == set(RULES)


def test_findings_come_the_worst_first_and_then_in_the_order_of_the_nodes():
    body = """[z] z = Abs(x) [q] q = thinker.Quant<data_bits=8, scale_x=3.0>(x) [a] a = thinker.Dequant<scale_o=3.0>(q)
      [b] b = thinker.Dequant<scale_o=3.0>(q) [n] y = Add(a, b)"""
    result = linger.check(text_model(body, inputs="float[n,2] x", outputs="float[n,2] y"))
    assert [(f.severity, f.rule, f.node) for f in result.findings] == [
        ("error", "LGR402", "q (Quant)"),
        ("error", "LGR402", "a (Dequant)"),
        ("error", "LGR402", "b (Dequant)"),
        ("warning", "LGR205", "z (Abs)"),
        ("warning", "LGR602", "b (Dequant)"),
        ("note", "LGR211", ""),
    ]
    assert [len(part) for part in (result.errors, result.warnings, result.notes)] == [3, 2, 1]
    assert not result.ok


def test_any_form_of_a_model_gives_the_same(tmp_path):
    proto = text_model(linear(), **with_weights(extra="<int16[2,2] w = {1, 1, 1, 1}, int32[2] b = {1, 2}>"))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    forms = [path, str(path), path.read_bytes(), proto, ir.from_proto(proto)]
    results = [linger.check(form).findings for form in forms]
    assert results[0]
    assert all(found == results[0] for found in results)


def test_looking_changes_nothing():
    proto = text_model("[n] y = Neg(a) [m] a = thinker.iqAbs(x)")
    model = ir.from_proto(proto)
    before = proto.SerializeToString(deterministic=True), content(model)
    linger.check(proto, "venus")
    linger.check(model, "arcs")
    assert (proto.SerializeToString(deterministic=True), content(model)) == before


def test_rules_can_be_left_out_by_id_or_name():
    model = text_model("[n] y = Neg(x) [m] z = Abs(x)", domains="", inputs="float[n,2] x", outputs="float[n,2] y")
    assert rules_of(linger.check(model)) == {"LGR205", "LGR211"}
    assert rules_of(linger.check(model, ignore=["dead-node"])) == {"LGR211"}
    assert rules_of(linger.check(model, ignore="LGR211")) == {"LGR205"}
    with pytest.raises(UsageError, match="there is no rule LGR000, nothing"):
        linger.check(model, ignore=["LGR000", "LGR205", "nothing"])


def test_a_chip_is_asked_where_one_is_named():
    body, settings = linear(LINEAR.replace("scale_w=64.0", "scale_w=0.5")), with_weights()
    alone, asked = (linger.check(text_model(body, **settings), target) for target in (None, "venus"))
    assert {f.rule for f in alone.warnings} >= {"LGR404", "LGR405"}
    assert {f.rule for f in asked.errors} == {"LGR906"}  # the chip's word stands for those
    assert not rules_of(asked) & {"LGR404", "LGR405"}
    assert asked.target == "venus"
    assert linger.check(text_model(body, **settings), TARGETS["venus"]).findings == asked.findings
    with pytest.raises(UsageError, match="there is no chip 'pluto'"):
        linger.check(text_model(body, **settings), "pluto")


def test_what_cannot_be_loaded_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        linger.check(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="this is a folder"):
        linger.check(tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08garbage")
    with pytest.raises(GraphError, match="not a complete ONNX model"):
        linger.check(tmp_path / "broken.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(GraphError, match="no ONNX model"):
        linger.check(tmp_path / "empty.onnx")


def test_a_model_in_memory_that_no_file_can_hold():
    model = ir.from_proto(text_model("[n] y = Neg(x)"))
    model.graph[0].attributes["odd"] = ir.Attr("odd", ir.AttributeType.UNDEFINED, None)
    with pytest.raises(GraphError, match="cannot be written as a file"):
        linger.check(model)


def test_a_broken_constant_keeps_the_chip_from_being_asked():
    broken = text_model(linear(), **with_weights(extra="<int8[2,2] w = {64, 1, 1}, int32[2] b = {1, 2}>"))
    result = linger.check(broken, "venus")
    assert "LGR308" in rules_of(result)
    (note,) = [f for f in result.notes if f.rule == "LGR112"]
    assert note.reason == (
        "because of the errors it was not checked whether linger could run every node nor the limits of venus"
    )


def test_nodes_that_cannot_be_read_are_not_put_to_the_chip():
    body = "[n] y = thinker.AvgPool2dInt<kernel_shape=3, strides=[1.5]>(x) [m] z = Softplus(x)"
    result = linger.check(text_model(body, inputs="float[1,1,4,4] x", outputs="float[1,1,4,4] z"), "venus")
    # real numbers into an op of integers is what propagation says; no limit of the chip is among them
    assert {f.rule for f in result.errors if f.node == "n (AvgPool2dInt)"} == {"LGR104", "LGR105", "LGR304"}
    assert {f.rule for f in result.errors if f.node == "m (Softplus)"} == {"LGR902"}


def test_the_original_toolkits_network_is_clean(shared):
    path = shared / "golden" / "resnet18-12-regular.onnx"
    assert linger.check(path).findings == ()
    assert [(f.severity, f.rule) for f in linger.check(path, "venus").findings] == NAMELESS


@pytest.mark.parametrize("case", case_names())
def test_what_the_engine_ran_has_no_error_and_no_warning(case):
    result = linger.check(model_path(case))
    # two of them have a softmax at scale 1, whose input goes beyond ±64
    expected = ["LGR507"] if case in ("net_attention", "softmax_3") else []
    assert [f.rule for f in (*result.errors, *result.warnings)] == expected


def test_neither_the_weights_as_a_whole_nor_torch_are_in_memory(tmp_path):
    """32 MB of weights beside the model: the check may use a third of that."""
    size, count = 4096, 2
    nodes = " ".join(f"[l{i}] t{i + 1} = thinker.LinearInt<{LINEAR}>(t{i}, w{i})" for i in range(count))
    body = (
        f"[q] t0 = thinker.Quant<data_bits=8, scale_x=16.0>(x) {nodes} [d] y = thinker.Dequant<scale_o=16.0>(t{count})"
    )
    proto = text_model(body, inputs=f"float[2,{size}] x", outputs=f"float[2,{size}] y")
    for i in range(count):
        tensor = proto.graph.initializer.add(name=f"w{i}", data_type=onnx.TensorProto.INT8, dims=[size, size])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": "w.bin", "offset": str(i * size * size), "length": str(size * size)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(count * size * size)  # a hole, which takes no room on the disk
    code = """
import resource, sys
import linger, linger.cli.check
linger.check(sys.argv[1], "venus")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert not linger.check(sys.argv[2]).errors
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, "torch" in sys.modules)
"""
    small = model_path("net_cnn")
    done = subprocess.run(
        [sys.executable, "-c", code, small, tmp_path / "m.onnx"], capture_output=True, text=True, check=True
    )
    kilobytes, has_torch = done.stdout.split()
    assert int(kilobytes) < 10 * 1024
    assert has_torch == "False"


@pytest.mark.slow
def test_ten_thousand_nodes_take_seconds():
    count = 10_000
    step = f"[l{{i}}] t{{j}} = thinker.LinearInt<{LINEAR}>(t{{i}}, w, b)"
    nodes = " ".join(step.format(i=i, j=i + 1) for i in range(count))
    body = (
        f"[q] t0 = thinker.Quant<data_bits=8, scale_x=16.0>(x) {nodes} [d] y = thinker.Dequant<scale_o=16.0>(t{count})"
    )
    content = text_model(body, **with_weights()).SerializeToString()
    start = time.process_time()
    assert [(f.severity, f.rule) for f in linger.check(content, "venus").findings] == NAMELESS
    assert time.process_time() - start < 30  # 9 s where it was written; quadratic time would be minutes


def test_readers_of_a_broken_constant_are_left_out():
    body = "[s] s = Constant<value = float[2] {0.5, 0.5}>() [q] q = QuantizeLinear<axis=1>(x, s) [d] y = DequantizeLinear<axis=1>(q, s)"
    proto = text_model(body, opset=13, domains="")
    proto.graph.node[0].attribute[0].t.float_data.pop()
    assert {f.rule for f in linger.check(proto).errors} == {"LGR308"}
