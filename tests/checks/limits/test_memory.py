"""What fits into the memory of a chip, and what its packer must be told."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import linger
from linger import convert_dialect, memory
from linger.checks.memory_use import (
    MEMORY,
    PRODUCT_MEMORY,
    SCRATCH,
    MemoryLimits,
    memory_findings,
    memory_use,
    packer_line,
    packer_options,
    scratch_shortage,
)
from linger.errors import UsageError
from linger.graph import save
from linger.targets import CHIPS, TARGETS, read_target
from tests.support.chip import WIDTHS, WINDOW, model_of, node
from tests.support.lowering import known_tensors

DEPTHWISE = node("Conv2dInt", "q, w", **WIDTHS | WINDOW | {"group": 32}).replace("y =", "c =", 1)
FLOAT_ENDS = f"""[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [c] {DEPTHWISE}
    [d] y = thinker.Dequant<scale_o=16.0>(c)"""
INTEGER_ENDS = node("Conv2dInt", "x, w", **WIDTHS | WINDOW | {"group": 32})
UP = WIDTHS | WINDOW | {"strides": [2, 2], "output_padding": [1, 1]}
LIMITS = MemoryLimits("pack", {"ConvTranspose2dInt": "-m one", "BmmInt": "-m two"}, "--open {}=1:1", 1000, 500)


def with_room(tensors=None, products=None, name="chip", **changes):
    """A chip with so much memory."""
    table = TARGETS["venus"].limits["memory"] | {"op_options": {}} | changes
    table = {name: value for name, value in table.items() if not name.endswith("_bytes")}
    given = {"tensor_bytes": tensors, "product_bytes": products}
    table |= {name: value for name, value in given.items() if value is not None}
    return replace(TARGETS["venus"], name=name, limits={"memory": table})


def found(model, chip):
    return [(f.severity, f.rule, f.node, f.reason, f.remedy) for f in memory(model, chip).findings]


def linear(inputs, outputs):
    return model_of(node("LinearInt", "x, w", **WIDTHS), inputs=f"int8[1,{inputs}] x", w=(outputs, inputs))


def test_float_ends_that_are_kept_may_be_too_much():
    use = memory(model_of(FLOAT_ENDS, inputs="float[1,32,64,64] x", w=(32, 1, 3, 3)), "venus")
    assert [(f.severity, f.rule, f.node, f.reason, f.remedy) for f in use.findings] == [
        (
            "warning",
            "LGR951",
            "q (Quant)",
            "where the packer keeps the float ends, 655360 bytes of tensors are alive here (x 524288, q 131072); venus has "
            "655360, and they must take less, as at d (Dequant)",
            "Pack without keeping the float ends, as the packer does by default; or make inputs and outputs integers: "
            "linger.onnx.export(…, is_input_quant=True).",
        )
    ]
    assert use.ok
    assert use.summary().endswith("It fits, if the packer does not keep the float ends.")


def test_as_many_bytes_as_the_chip_has_are_too_many():
    model = model_of(FLOAT_ENDS, inputs="float[1,32,64,64] x", w=(32, 1, 3, 3))
    ((severity, rule, where, reason, remedy),) = found(model, with_room(262144))
    assert (severity, rule, where) == ("error", "LGR951", "c (Conv2dInt)")
    assert reason == (
        "262144 bytes of tensors are alive here (q 131072, c 131072); chip has 262144, and they must take less"
    )
    assert remedy == "Use a smaller image or fewer channels here."
    assert [severity for severity, *_ in found(model, with_room(262145))] == ["warning"]
    assert found(model, with_room(655361)) == []


def test_layers_beside_the_peak_are_named_without_their_float_ends():
    body = "[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [a] a = Relu(q) [b] b = Relu(a) [d] y = thinker.Dequant<scale_o=16.0>(b)"
    ((severity, _, where, reason, _),) = found(model_of(body, inputs="float[1,100] x"), with_room(200))
    assert (severity, where) == ("error", "a (Relu)")
    assert reason == (
        "200 bytes of tensors are alive here (q 100, a 100); chip has 200, and they must take less, as at b (Relu)"
    )


def test_integer_ends_are_the_remedy():
    use = memory(model_of(INTEGER_ENDS, inputs="int8[1,32,64,64] x", w=(32, 1, 3, 3)), "venus")
    assert (use.ok, use.findings, use.peak_bytes) == (True, (), 262144)
    assert use.summary().endswith("On venus the tensors must take less than 655,360 bytes (640.0 KB). It fits.")


def test_one_byte_less_fits():
    model = model_of("[y] y = Relu(x)", inputs="int8[1,100] x")
    assert not memory(model, with_room(200)).ok
    assert memory(model, with_room(201)).ok


def test_without_real_numbers_at_the_ends_the_layer_must_become_smaller():
    ((_, _, _, reason, remedy),) = found(model_of("[y] y = Relu(x)", inputs="int8[1,100] x"), with_room(10))
    assert reason == "200 bytes of tensors are alive here (x 100, y 100); chip has 10, and they must take less"
    assert remedy == "Use a smaller image or fewer channels here."


def test_real_numbers_in_the_middle_are_no_ends():
    body = "[d] d = thinker.Dequant<scale_o=16.0>(x) [e] e = Exp(d) [q] y = thinker.Quant<data_bits=8, scale_x=16.0>(e)"
    ((_, _, where, _, remedy),) = found(model_of(body, inputs="int8[1,100] x"), with_room(100))
    assert (where, remedy) == ("e (Exp)", "Use a smaller image or fewer channels here.")


def test_many_tensors_of_the_peak_are_not_all_named():
    body = "[a] a = Relu(x) [b] b = Relu(x) [c] c = Relu(x) [y] y = Concat<axis=0>(x, a, b, c)"
    ((_, _, _, reason, _),) = found(model_of(body, inputs="int8[1,10] x", opset=13), with_room(10))
    assert "(y 40, x 10, a 10 and 2 more)" in reason


@pytest.mark.parametrize(
    ("inputs", "outputs", "fits"), [(2048, 256, False), (20000, 4, True)], ids=["2048-256", "20000-4"]
)
def test_fully_connected_layers_on_arcs(inputs, outputs, fits):
    use = memory(linear(inputs, outputs), "arcs")
    assert use.ok is fits
    if not fits:
        assert use.findings[0].rule == "LGR952"
        assert use.findings[0].reason == (
            "524288 bytes of weights, 2048 of input and 256 of output are 526592; arcs has 393216"
        )


def test_weights_input_and_output_count_together():
    size = 40 * 10 + 40 + 10
    assert memory(linear(40, 10), with_room(products=size)).findings == ()
    (finding,) = memory(linear(40, 10), with_room(products=size - 1)).findings
    assert (finding.severity, finding.rule, finding.node) == ("error", PRODUCT_MEMORY.id, "y (LinearInt)")


def test_other_layers_may_have_more_weights():
    model = model_of(INTEGER_ENDS, inputs="int8[1,32,4,4] x", w=(32, 1, 3, 3))
    assert memory(model, with_room(products=10)).findings == ()


def test_every_layer_is_named():
    body = f"""[a] {node("LinearInt", "x, w", **WIDTHS).replace("y =", "a =", 1)}
        [b] {node("LinearInt", "a, w", **WIDTHS)}"""
    use = memory(model_of(body, inputs="int8[1,8] x", w=(8, 8)), with_room(products=20))
    assert [f.node for f in use.findings] == ["a (LinearInt)", "b (LinearInt)"]


def test_open_sizes_are_a_note():
    model = model_of("[y] y = Relu(x)", inputs="int8[1,8,h] x")
    use = memory(model, "venus")
    assert [(f.severity, f.rule, f.reason) for f in use.findings] == [
        ("note", "LGR951", "a size is open, so the memory for tensors could not be checked (0 bytes are known)")
    ]
    assert use.ok
    assert use.summary().endswith("Whether it fits could not be decided.")


def test_what_is_known_may_be_too_much_already():
    model = model_of("[z] z = Relu(k) [y] y = Add(x, z)", inputs="int8[1,8,h] x, int8[1,8,1] k", opset=14)
    ((severity, _, _, reason, _),) = found(model, with_room(10))
    assert severity == "error"
    assert reason.startswith("at least 16 bytes of tensors are alive here (k 8, z 8, x ?)")


def layers(*sizes):
    """Fully connected layers with biases, one behind the other; `sizes`: of the input and of each output."""
    names = [*"abcdefgh"[: len(sizes) - 2], "y"]
    pairs = zip(names, ["x", *names], strict=False)
    body = " ".join(
        f"[{y}] {node('LinearInt', f'{x}, {y}_w, {y}_b', **WIDTHS)}".replace("y =", f"{y} =", 1) for y, x in pairs
    )
    steps = list(zip(names, sizes, sizes[1:], strict=False))
    weights = {f"{name}_w": (outputs, inputs) for name, inputs, outputs in steps}
    biases = {f"{name}_b": np.zeros(outputs, np.int32) for name, _, outputs in steps}
    return model_of(body, inputs=f"int8[1,{sizes[0]}] x", **weights, **biases)


def test_parameters_of_two_layers_lie_beside_the_tensors_on_arcs():
    # 512·512 + 4·512 = 264 192 and 256·512 + 4·256 = 132 096 bytes; tensors 512 + 512; scratch 4·512
    assert found(layers(512, 512, 256), "arcs") == [
        (
            "error",
            "LGR951",
            "a (LinearInt)",
            "399360 bytes (parameters of a (LinearInt) 264192, parameters of y (LinearInt) 132096, tensors 1024, scratch 2048); "
            "arcs has 393216 for tensors and the parameters of two layers in turn",
            "Use fewer inputs or outputs, or let several layers compute the outputs and join them.",
        )
    ]
    assert not memory(layers(512, 512, 256), "arcs").ok
    for alone in (layers(512, 512), layers(512, 256)):
        assert memory(alone, "arcs").ok
    assert not memory(layers(512, 512, 256), "venusA").ok  # nobody has seen it fit
    assert found(layers(512, 512, 256), "venus") == []


def test_two_layers_fit_where_one_byte_is_left():
    # 10·8 + 4·8 = 112 and 8·6 + 4·6 = 72 bytes; tensors 10 + 8; scratch 4·8
    size = 112 + 72 + 18 + 32
    assert not memory(layers(10, 8, 6), with_room(size, has_two_layers=True)).ok
    assert memory(layers(10, 8, 6), with_room(size + 1, has_two_layers=True)).findings == ()
    assert memory(layers(10, 8, 6), with_room(size)).findings == ()


def test_layers_take_two_places_in_turn():
    # 112, 72, 6·9 + 4·9 = 90: the first and the third layer take the larger of both, the second one 72
    model = layers(10, 8, 6, 9)
    assert memory(model, with_room(112 + 72 + 18 + 36 + 1, has_two_layers=True)).findings == ()
    ((_, _, where, reason, _),) = found(model, with_room(112 + 72 + 18 + 36, has_two_layers=True))
    assert where == "a (LinearInt)"
    assert reason.startswith(
        "238 bytes (parameters of a (LinearInt) 112, parameters of b (LinearInt) 72, tensors 18, scratch 36)"
    )


def test_float_ends_do_not_lie_beside_parameters():
    linear = node("LinearInt", "q, w, b", **WIDTHS).replace("y =", "l =", 1)
    body = f"[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [l] {linear} [d] y = thinker.Dequant<scale_o=16.0>(l)"
    model = model_of(body, inputs="float[1,10] x", w=(8, 10), b=np.zeros(8, np.int32))
    size = 112 + 18 + 32
    assert found(model, with_room(size + 1, has_two_layers=True)) == []
    assert [where for _, _, where, *_ in found(model, with_room(size, has_two_layers=True))] == ["l (LinearInt)"]


def test_what_does_not_fit_without_parameters_is_said_once():
    ((_, _, where, reason, _),) = found(layers(10, 8, 6), with_room(18, has_two_layers=True))
    assert (where, reason.partition(";")[0]) == ("a (LinearInt)", "18 bytes of tensors are alive here (x 10, a 8)")


def norm(count):
    """A layer norm over so many numbers."""
    body = node("LayerNormInt", "x, w", **WIDTHS | {"parameter_bits": 16})
    return model_of(body, inputs=f"int8[1,2,{count}] x", w=(count,))


def test_scratch_of_each_layer():
    assert [each.scratch_bytes for each in memory(layers(10, 8, 6), "venus").layers] == [32, 24]
    assert [each.scratch_bytes for each in memory(layers(10, 8, 6), "arcs").layers] == [32, 24]
    assert [each.scratch_bytes for each in memory(layers(10, 8, 6)).layers] == [0, 0]
    assert [each.scratch_bytes for each in memory(norm(16), "venus").layers] == [64]
    assert [each.scratch_bytes for each in memory(linear(10, 8), "venus").layers] == [0]  # without a bias
    assert memory(layers(10, 8), "venus").layers[0].scratch_kb == 32 / 1024


def test_scratch_of_every_row():
    body = node("LinearInt", "x, w, b", **WIDTHS)
    given = {"w": (8, 10), "b": np.zeros(8, np.int32)}
    (layer,) = memory(model_of(body, inputs="int8[1,5,10] x", **given), "venus").layers
    assert layer.scratch_bytes == 4 * 5 * 8
    (layer,) = memory(model_of(body, inputs="int8[1,n,10] x", **given), "venus").layers
    assert layer.scratch_bytes == 0  # a size is open


def test_scratch_of_an_lstm():
    gates = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_i": 16.0, "scale_h": 64.0, "scale_iw": 64.0}
    gates |= {"scale_hw": 64.0, "scale_o": 64.0, "hidden_size": 4, "input_size": 6, "batch_first": 1, "go_forward": 1}
    body = node("LSTMInt", "x, a, c, d, e", **gates).replace("y =", "y, last, cell =", 1)
    biases = {name: np.zeros(16, np.int32) for name in "de"}
    model = model_of(body, inputs="int8[1,6,6] x", a=(16, 6), c=(16, 4), **biases)
    assert [each.scratch_bytes for each in memory(model, "venus").layers] == [32 * 4]


def test_the_column_of_scratch_needs_a_chip():
    model = layers(10, 8, 6)
    assert "scratch KB" in str(memory(model, "venus")).splitlines()[0]
    assert "scratch KB" not in str(memory(model))


def test_a_chip_whose_memory_is_not_known():
    use = memory(model_of("y = Relu(x)", inputs="int8[1,8] x"), with_room())
    assert (use.ok, use.findings, use.tensor_bytes) == (True, (), None)
    assert "How much memory chip has for them is not known." in use.summary()


def test_findings_of_a_use_that_is_there_already():
    use = memory_use(model_of("y = Relu(x)", inputs="int8[1,500] x"))
    (finding,) = memory_findings(use, TARGETS["venus"], LIMITS)
    assert (finding.rule, "venus has 1000" in finding.reason) == (MEMORY.id, True)


def test_the_rules():
    assert [(rule.id, rule.name, rule.severity) for rule in (MEMORY, PRODUCT_MEMORY, SCRATCH)] == [
        ("LGR951", "target-memory", "error"),
        ("LGR952", "target-product-memory", "error"),
        ("LGR928", "target-scratch", "error"),
    ]


def shortage(model, chip="venus"):
    limits = TARGETS[chip].table("memory", MemoryLimits)
    found = scratch_shortage(model, known_tensors(model).shapes, limits)
    return {node.outputs[0].name: size for node, size in found.items()}


def test_nodes_for_which_too_little_scratch_is_reserved():
    assert shortage(norm(16)) == {"y": 128}
    assert shortage(norm(16), "arcs") == shortage(layers(10, 8, 6)) == {}


def test_options_for_ops_each_once():
    body = f"""[a] {node("ConvTranspose2dInt", "x, w", **UP).replace("y =", "a =", 1)}
        [b] {node("ConvTranspose2dInt", "a, w", **UP)}"""
    model = model_of(body, w=(8, 8, 3, 3))
    assert packer_options(model, LIMITS) == ("-m one",)
    assert packer_options(convert_dialect(model, "linger").model, LIMITS) == ("-m one",)
    assert packer_options(model_of("y = Relu(x)"), LIMITS) == ()


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("int8[n,8] x", ("--open n=1:1",)),
        ("int8[?,8] x", ("--open batch=1:1",)),
        ("int8[n,8] x, int8[n,8] z", ("--open n=1:1",)),
        ("int8[n,8] x, int8[m,8] z", ("--open n=1:1", "--open m=1:1")),
        ("int8[1,n] x", ()),
    ],
    ids=["named", "unnamed", "same", "two", "other-axis"],
)
def test_options_for_open_batch_axes(inputs, options):
    assert packer_options(model_of("y = Relu(x)", inputs=inputs), LIMITS) == options


def test_a_name_from_the_file_cannot_leave_its_option():
    model = model_of("y = Relu(x)", inputs="int8[n,8] x")
    model.graph.inputs[0].shape = ir.Shape(["n; rm -rf '{0}'\n", 8])
    assert packer_options(model, LIMITS) == ("""--open 'n; rm -rf '"'"'{0}'"'"'\\n'=1:1""",)


def test_a_line_to_copy():
    limits = MemoryLimits("tpacker", {}, "--dynamic_shape {}=1:1")
    options = ("-m params:share-mem", "--dynamic_shape batch=1:1")
    assert packer_line(options, limits) == "tpacker … -m params:share-mem --dynamic_shape batch=1:1"
    assert packer_line((), limits) == ""


def test_the_line_for_venus():
    model = model_of(node("ConvTranspose2dInt", "x, w", **UP), inputs="int8[batch,8,4,4] x", w=(8, 8, 3, 3))
    assert memory(model, "venus").packer_line == "tpacker … -m params:share-mem --dynamic_shape batch=1:1"
    assert memory(model, "arcs").packer_line == "tpacker … --dynamic_shape batch=1:1"
    assert memory(model).packer_line == ""


def twice(first, second, **constants):
    """A fully connected layer behind another, each with these parameters."""
    body = f"""[a] {node("LinearInt", f"x, {first}", **WIDTHS).replace("y =", "a =", 1)}
        [b] {node("LinearInt", f"a, {second}", **WIDTHS)}"""
    return model_of(body, inputs="int8[1,8] x", **constants)


WEIGHTS = {"w": (8, 8), "v": (8, 8), "b": np.zeros(8, np.int32), "c": np.zeros(8, np.int32)}


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        pytest.param("w, b", "w, c", "tpacker … --dma_prefetch False", id="weight"),
        pytest.param("w, b", "v, b", "tpacker … --dma_prefetch False", id="bias"),
        pytest.param("w, b", "w, b", "", id="both"),
        pytest.param("w, b", "v, c", "", id="none"),
        pytest.param("w", "w", "", id="without biases"),
    ],
)
@pytest.mark.parametrize("chip", CHIPS)
def test_the_option_for_parameters_that_are_shared_in_part(first, second, line, chip):
    assert memory(twice(first, second, **WEIGHTS), chip).packer_line == line


def test_all_options_stand_in_one_line():
    up = node("ConvTranspose2dInt", "x, w, {}", **UP)
    body = f"[a] {up.format('b').replace('y =', 'a =', 1)} [n] {up.replace('(x,', '(a,').format('c')}"
    biases = {name: np.zeros(8, np.int32) for name in "bc"}
    model = model_of(body, inputs="int8[batch,8,4,4] x", w=(8, 8, 3, 3), **biases)
    assert memory(model, "venus").packer_line == (
        "tpacker … -m params:share-mem --dma_prefetch False --dynamic_shape batch=1:1"
    )


@pytest.mark.parametrize("chip", CHIPS)
def test_the_tables_of_the_chips_are_read(chip):
    assert memory(model_of("y = Relu(x)", inputs="int8[1,8] x"), TARGETS[chip]).ok


def test_a_wrong_table_is_named(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text("[memory]\ntensor_byte = 5\ncommand = 7\n")
    with pytest.raises(
        UsageError,
        match=r"odd: \[memory\]\.command is not a text \(7\), \[memory\]\.tensor_byte is not known \(is tensor_bytes",
    ):
        memory(model_of("y = Relu(x)"), read_target(path))


def test_a_model_in_any_form(tmp_path):
    model = model_of("y = Relu(x)", inputs="int8[1,8] x", k=np.zeros(1, np.int8))
    save(model, tmp_path / "m.onnx")
    proto = ir.to_proto(model)
    for source in (model, proto, proto.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        assert linger.memory(source).peak_bytes == 16
    assert linger.memory(tmp_path / "m.onnx").path == tmp_path / "m.onnx"
    assert linger.memory is memory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("none.onnx",), "there is no such file"), (("none.onnx", "pluto"), "there is no chip 'pluto'")],
    ids=["file", "chip"],
)
def test_wrong_use(arguments, message):
    with pytest.raises(UsageError, match=message):
        memory(*arguments)


@pytest.mark.parametrize("name", ["c", "onnxruntime"])
def test_what_is_no_chip_asks_for_no_room(name):
    model = twice("w, b", "v, b", **WEIGHTS)
    assert memory(model, name) == memory(model)
