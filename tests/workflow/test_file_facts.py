"""What a file tells of itself: hand-worked figures, files of other tools, names that lie, large files, a planted difference."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import linger
from linger import report
from linger.errors import GraphError, UsageError
from linger.graph import save
from tests.support.chip import WIDTHS, model_of, node
from tests.support.jobs import origin_of, read_run, verdict_of
from tests.support.onnx_text import parse

LINEAR = node("LinearInt", "q, w, b", **WIDTHS).replace("y =", "h =", 1)
BODY = f"""[quant] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [linear] {LINEAR}
    [end] y = thinker.Dequant<scale_o=16.0>(h)"""
WEIGHTS = np.array([[64, -128], [127, 0], [1, 1]], np.int8)
BIAS = np.array([0, 1024, -2048], np.int32)


def facts_of_file(path, *, inputs=None, **more):
    """What a report says of a file alone."""
    return report(path, None, data=inputs, **more).runs[0]


def net_model(bias=BIAS):
    """x → Quant (scale 16) → Linear (weights at 64, output at 16) → Dequant."""
    model = model_of(BODY, inputs="float[2,2] x", w=WEIGHTS, b=bias)
    next(node for node in model.graph if node.name == "linear").name = "fc.LinearInt"
    return model


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    save(net_model(), path)
    return path


@pytest.fixture(scope="module")
def run(net):
    return facts_of_file(net, inputs={"x": np.array([[1.0, 0.5], [-9.0, 0.0]], np.float32)})


def tensor(run, name):
    return next(t for t in run.tensors if t.name == name)


def test_layers_in_the_order_of_execution(run):
    assert [(layer.name, layer.op, layer.runs_as) for layer in run.layers] == [
        ("quant", "Quant", "integer"),
        ("fc.LinearInt", "LinearInt", "integer"),
        ("end", "Dequant", "integer"),
    ]
    linear = run.layers[1]
    assert (linear.path, linear.shape, linear.bits) == ("fc", "2×3", "8/8/8")
    assert (linear.x_format, linear.w_format, linear.o_format) == ("Q3.4", "Q1.6", "Q3.4")
    assert (linear.inputs, linear.outputs) == (("q", "w", "b"), ("h",))
    assert (linear.macs, linear.weight_bytes) == (12, 6 + 3 * 4)
    assert (run.macs, run.weight_bytes, run.float_weight_bytes, run.integer_share) == (12, 18, 36, 1.0)


def test_formats_and_widths_are_those_that_the_node_states(tmp_path):
    stated = WIDTHS | {"parameter_bits": 4, "scale_x": 32.0, "scale_w": 4.0, "scale_o": 8.0}
    linear = node("LinearInt", "q, w", **stated).replace("y =", "h =", 1)
    body = f"[quant] q = thinker.Quant<data_bits=8, scale_x=32.0>(x) [fc] {linear} [end] y = thinker.Dequant<scale_o=8.0>(h)"
    weights = np.array([[-8, 7], [6, 0], [1, 1]], np.int8)
    save(model_of(body, inputs="float[1,2] x", w=weights), tmp_path / "w4.onnx")
    made = facts_of_file(tmp_path / "w4.onnx")
    linear = made.layers[1]
    assert linear.bits == "8/4/8"
    assert (linear.x_format, linear.w_format, linear.o_format) == ("Q2.5", "Q1.2", "Q4.3")
    w = tensor(made, "w")
    assert (w.bits, w.scale, w.low, w.high, w.clipped) == (4, 4.0, -2.0, 1.75, pytest.approx(2 / 6))


def test_the_share_of_integer_multiplications(tmp_path):
    # the integer layer multiplies 2·2·3 times, the float one 2·3·2 times
    body = f"{BODY.replace('[end] y =', '[end] r =')} [mul] y = MatMul(r, m)"
    save(
        model_of(body, inputs="float[2,2] x", w=WEIGHTS, b=BIAS, m=np.ones((3, 2), np.float32)), tmp_path / "half.onnx"
    )
    made = facts_of_file(tmp_path / "half.onnx")
    assert (made.macs, made.integer_share) == (24, 0.5)


def test_what_the_tensors_hold(run):
    # 16·1 = 16, 16·0.5 = 8, 16·(−9) = −144, which is cut off at −128, and 0: one of four
    q = tensor(run, "q")
    assert (q.layer, q.role, q.dtype, q.bits, q.scale, q.q_format) == (0, "activation", "int8", 8, 16.0, "Q3.4")
    assert (q.low, q.high, q.distinct, q.clipped) == (-8.0, 1.0, 4, 0.25)
    assert sum(q.values.counts) == 4
    assert q.values.width == 2 / 16, "145 steps need bins of two"
    assert run.layers[0].clipped == 0.25


def test_the_output_of_the_layer_by_hand(run):
    # products at scale 16·64 = 1024, output at 16: (16·64 − 8·128 + 0)/64 = 0; (16·127 + 1024)/64 = 47.75 → 48;
    # (16 + 8 − 2048)/64 = −31.6 → −32; second row: −128·64/64 = −128; (−128·127 + 1024)/64 = −238 → −128; −34
    h = tensor(run, "h")
    assert (h.low, h.high, h.distinct) == (-8.0, 3.0, 5)
    assert h.clipped == pytest.approx(2 / 6)


def test_weights_and_biases_have_histograms_too(run):
    w, b = tensor(run, "w"), tensor(run, "b")
    assert (w.role, w.layer, w.shape, w.low, w.high, w.q_format) == ("weight", None, "3×2", -2.0, 127 / 64, "Q1.6")
    assert w.clipped == pytest.approx(2 / 6)
    assert (b.role, b.scale, b.low, b.high) == ("bias", 1024.0, -2.0, 1.0)
    assert sum(w.values.counts) == 6


def test_ends_of_the_network(run):
    assert [(t.name, t.role, t.bits) for t in run.tensors if t.role in ("input", "output")] == [
        ("x", "input", None),
        ("y", "output", None),
    ]


def test_the_proof_of_a_file_alone(run, net):
    assert (run.proof.is_exact, run.proof.differing, run.proof.batches) == (True, 0, 1)
    assert run.proof.compared == ("numpy", "ONNX Runtime")
    assert run.proof.digests["net.onnx"] == hashlib.sha256(net.read_bytes()).hexdigest()
    assert run.proof.versions["linger"] == linger.__version__
    assert (run.form, run.file, run.file_bytes) == ("bare", "net.onnx", net.stat().st_size)


def test_inputs_that_are_given_need_no_note(run):
    assert run.notes == ()


def test_random_inputs_are_said(net):
    made = facts_of_file(net, name="mine")
    assert made.name == "mine"
    assert any("random inputs" in note for note in made.notes)


def test_the_data_are_read_back_as_they_were(run):
    assert read_run(run.to_json(), "here") == run


def test_memory_over_time(run, net):
    assert run.memory.is_arena
    assert run.memory.arena_bytes == linger.c.memory(net).arena_bytes
    assert {block.kind for block in run.memory.blocks} == {"input", "output"}


def test_a_chip_has_a_limit_and_findings_at_their_layers(tmp_path):
    path = tmp_path / "odd.onnx"
    save(net_model(np.full(3, 2**30, np.int32)), path)
    made = facts_of_file(path, target="venus")
    assert (made.target, made.memory.is_arena) == ("venus", False)
    assert made.memory.limit_bytes == linger.memory(path, "venus").tensor_bytes
    checked = linger.check(path, "venus").findings
    assert [f.reason for f in made.findings] == [f.reason for f in checked]
    at_layers = {f.where: f.layer for f in made.findings if f.layer is not None}
    assert at_layers, "some finding is about a layer"
    assert all(made.layers[layer].name == where.rpartition(" (")[0] for where, layer in at_layers.items())


def test_a_certificate_instead_of_a_proof(net, tmp_path):
    certificate = tmp_path / "net.json"
    linger.verify(None, net, batches=1, certificate=certificate)
    made = facts_of_file(net, verification=certificate)
    assert (made.proof.is_exact, made.proof.batches, made.proof.certificate) == (True, 1, "net.json")
    assert made.proof.digests["net.json"] == hashlib.sha256(certificate.read_bytes()).hexdigest()
    other = tmp_path / "other.onnx"
    save(net_model(BIAS + 1), other)
    with pytest.raises(UsageError, match=r"it is about net\.onnx"):
        facts_of_file(other, verification=certificate)
    content = json.loads(certificate.read_text())
    certificate.write_text(json.dumps({**content, "verdict": "different"}))
    with pytest.raises(UsageError, match="its seal does not fit"):
        facts_of_file(net, verification=certificate)


def test_a_verification_brings_its_inputs(net):
    x = np.array([[2.0, 2.0], [2.0, 2.0]], np.float32)
    done = linger.verify(None, net, x)
    made = facts_of_file(net, verification=done)
    assert tensor(made, "q").distinct == 1
    assert made.proof.batches == 1


def test_a_planted_difference_is_the_verdict(net):
    done = linger.verify([{"x": np.ones((2, 2), np.float32), "q": np.full((2, 2), 17, np.int8)}], net)
    assert done.differing == 4
    made = facts_of_file(net, verification=done)
    assert not made.proof.is_exact
    assert "torch" not in made.proof.compared
    assert verdict_of(made).level == "not ready"
    assert "4 integers differ" in verdict_of(made).headline
    assert verdict_of(replace(made, proof=None, findings=())).level == "unknown"


def test_a_verification_of_something_else(net, tmp_path):
    other = tmp_path / "other.onnx"
    other.write_bytes(net.read_bytes())
    done = linger.verify(None, net, batches=1)
    with pytest.raises(UsageError, match="the verification is about"):
        facts_of_file(other, verification=done)
    in_memory = linger.verify(None, ir.load(net), batches=1)
    with pytest.raises(UsageError, match="a model in memory"):
        facts_of_file(net, verification=in_memory)
    moved = linger.verify(None, other, batches=1)
    save(net_model(BIAS + 1), other)
    with pytest.raises(UsageError, match="has changed since"):
        facts_of_file(other, verification=moved)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": np.zeros((2, 2), np.float32), "y": np.zeros(1)}, "lacks x"),
        (np.zeros((2, 5), np.float32), "expected float"),
        ("nosuch.npz", "no such file"),
        ([], "the list is empty"),
    ],
    ids=["names", "shape", "missing", "none"],
)
def test_inputs_that_do_not_fit(inputs, message, net):
    with pytest.raises(UsageError, match=message):
        facts_of_file(net, inputs=inputs)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(GraphError):
        facts_of_file(tmp_path / "text.onnx")
    with pytest.raises(UsageError):
        facts_of_file(tmp_path / "missing.onnx")


QDQ = """s = Constant<value = float {0.5}>() z = Constant<value = int8 {3}>()
    [q] a = QuantizeLinear(x, s, z) [dq] b = DequantizeLinear(a, s, z) [relu] c = Relu(b) [add] y = Add(c, c)"""


def test_a_file_of_another_tool(tmp_path):
    path = tmp_path / "qdq.onnx"
    save(parse(QDQ, inputs="float[4] x", outputs="float[4] y"), path)
    made = facts_of_file(path, inputs=np.array([1.0, -1.0, 100.0, 0.0], np.float32))
    assert made.form == "quantized ONNX of another tool"
    a = tensor(made, "a")  # q = x/0.5 + 3: 5, 1, 127 (203 is cut off), 3
    assert (a.scale, a.low, a.high, a.clipped, a.bits) == (2.0, -1.0, 62.0, 0.25, 8)
    assert [layer.runs_as for layer in made.layers] == ["integer", "integer", "float", "float"]
    assert a.zero == 3
    assert verdict_of(made).level in ("attention", "unknown")


def test_scales_of_our_qdq_files_are_those_of_their_dequantizing_nodes(tmp_path):
    """A node that quantizes may shift its numbers, such as those of a ReLU, which an explicit node then reads as they are."""
    body = """s = Constant<value = float {0.5}>() shifted = Constant<value = int8 {-128}>() z = Constant<value = int8 {0}>()
        a = QuantizeLinear(x, s, shifted) b = Abs(a) y = DequantizeLinear(b, s, z)"""
    model = parse(body, inputs="float[2] x", outputs="float[2] y")
    names = ("QuantizeLinear_0", "Abs_1", "DequantizeLinear_2")
    for made, name in zip([n for n in model.graph if n.op_type != "Constant"], names, strict=True):
        made.name = f"c.Conv2dInt/{name}"
    save(model, tmp_path / "qdq.onnx")
    made = facts_of_file(tmp_path / "qdq.onnx", inputs=np.array([1.0, 2.0], np.float32))
    assert made.form == "qdq"
    assert [(tensor(made, name).scale, tensor(made, name).zero) for name in "ab"] == [(None, 0), (2.0, 0)]


def test_a_name_that_is_no_utf8(net, tmp_path):
    path = tmp_path / "caf\udce9.onnx"
    path.write_bytes(net.read_bytes())
    made = report(path, None, command="linger \udce9")
    assert (made.runs[0].name, made.runs[0].command) == ("caf?", "linger ?")
    assert "caf?.onnx" in made.runs[0].proof.digests
    assert made.to_json().encode()
    assert made.to_html().encode()


def test_a_float_file_with_an_open_batch_proves_nothing(tmp_path):
    path = tmp_path / "float.onnx"
    save(parse("[relu] h = Relu(x) [flat] y = Flatten(h)", inputs="float[n,3] x", outputs="float[n,3] y"), path)
    made = facts_of_file(path)
    assert (made.form, made.proof, made.float_weight_bytes, made.integer_share) == ("float ONNX", None, None, 0.0)
    assert [layer.runs_as for layer in made.layers] == ["float", "moves"]
    assert tensor(made, "x").shape == "?×3"
    assert any("Nothing is proven" in note for note in made.notes)
    assert made.memory.note.startswith("There is no program in C")
    assert "float.onnx" in made.memory.note
    assert str(tmp_path) not in made.memory.note
    assert not made.is_lower_bound, "only the batch is open"


def test_work_that_cannot_be_counted_is_a_lower_bound(tmp_path):
    for name, body in (("product", "[m] y = MatMul(x, x)"), ("none", "[relu] y = Relu(x)")):
        save(parse(body, inputs="float[1,n,n] x", outputs="float[1,n,n] y"), tmp_path / f"{name}.onnx")
    assert facts_of_file(tmp_path / "product.onnx").is_lower_bound
    assert not facts_of_file(tmp_path / "none.onnx").is_lower_bound, "there is nothing to multiply"


def test_a_file_that_cannot_run_has_notes(tmp_path):
    path = tmp_path / "odd.onnx"
    model = parse("[odd] h = other.Strange(x) [relu] y = Relu(h)", inputs="float[3] x", outputs="float[3] y",
                  domains=', "other": 1')  # fmt: skip
    save(model, path)
    made = facts_of_file(path)
    assert [layer.op for layer in made.layers] == ["Strange", "Relu"]
    assert made.proof is None
    assert any(note.startswith("The file could not be verified") for note in made.notes)
    assert any(note.startswith("What the tensors hold is not known") for note in made.notes)


def test_the_newer_dialect_has_its_own_nodes(net, tmp_path):
    path = tmp_path / "newer.onnx"
    linger.convert_dialect(net, to="linger", path=path)
    made = facts_of_file(path)
    assert made.form == "newer dialect"
    assert len(made.layers) == 3
    assert made.macs == 12
    assert tensor(made, made.layers[1].outputs[0]).scale == 16.0
    assert made.proof.is_exact


HOSTILE = ["<script>alert(1)</script>", 'a"b', "\x1b[31mred", "\u202eabc", "n" * 5000, "卷积"]


@pytest.mark.parametrize("name", HOSTILE, ids=["markup", "quote", "control", "direction", "long", "letters"])
def test_names_may_be_anything(name, tmp_path):
    model = net_model()
    (linear,) = (n for n in model.graph if n.op_type == "LinearInt")
    linear.name, linear.outputs[0].name = name, name
    save(model, tmp_path / "odd.onnx")
    made = facts_of_file(tmp_path / "odd.onnx")
    shown = made.layers[1].name
    assert shown == name or (len(name) > 1000 and shown.startswith("n" * 200) and len(shown) < 220)
    assert made.layers[1].outputs[0] == made.layers[2].inputs[0] == tensor(made, shown).name
    assert len(made.to_json()) < 20_000
    assert read_run(made.to_json(), "here") == made


def test_five_hundred_layers_stay_small(tmp_path):
    count = 170
    nodes = [
        f"[mul{i}] a{i} = MatMul(t{i}, w{i % 9}) [add{i}] b{i} = Add(a{i}, t{i}) [tanh{i}] t{i + 1} = Tanh(b{i})"
        for i in range(count)
    ]
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(16, 16)).astype(np.float32) for i in range(9)}
    body = " ".join([*nodes, f"[end] y = Neg(t{count})"])
    save(model_of(body, inputs="float[8,16] t0", opset=17, **weights), tmp_path / "long.onnx")
    made = facts_of_file(tmp_path / "long.onnx")
    assert len(made.layers) == 3 * count + 1
    assert all(t.values is not None and sum(t.values.counts) for t in made.tensors)
    assert max(len(t.values.counts) for t in made.tensors) > 64, "the bound is not kept by leaving things out"
    assert len(made.to_json()) < 8_000_000


@pytest.mark.parametrize(
    ("name", "path", "op", "call"),
    [
        ("a.b.Conv2dInt", "a.b", "Conv2dInt", 0),
        ("a.b.Conv2dInt_12", "a.b", "Conv2dInt", 12),
        ("a.iqAdd_1/Add_2", "a", "iqAdd", 1),
        ("Quant", "", "Quant", 0),
    ],
    ids=["layer", "call", "standard", "model"],
)
def test_names_tell_the_module(name, path, op, call):
    found = origin_of(name)
    assert (found.path, found.op, found.call) == (path, op, call)


@pytest.mark.parametrize("name", ["", "/conv/Conv", "node_3", "conv.Conv", "_1"], ids=lambda n: n or "empty")
def test_other_names_tell_nothing(name):
    assert origin_of(name) is None
