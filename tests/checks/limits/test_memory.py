"""What fits into the memory of a chip, and what its packer must be told."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import linger
from linger.checks.limits.memory import (
    MEMORY,
    PRODUCT_MEMORY,
    MemoryLimits,
    memory,
    memory_findings,
    packer_line,
    packer_options,
)
from linger.checks.memory_use import memory_use
from linger.errors import UsageError
from linger.graph.conversion.convert import convert_dialect
from linger.graph.files.model_io import save
from linger.targets import TARGETS, read_target
from tests.support.chip import WIDTHS, WINDOW, model_of, node

DEPTHWISE = node("Conv2dInt", "q, w", **WIDTHS | WINDOW | {"group": 32}).replace("y =", "c =", 1)
FLOAT_ENDS = f"""[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [c] {DEPTHWISE}
    [d] y = thinker.Dequant<scale_o=16.0>(c)"""
INTEGER_ENDS = node("Conv2dInt", "x, w", **WIDTHS | WINDOW | {"group": 32})
UP = WIDTHS | WINDOW | {"strides": [2, 2], "output_padding": [1, 1]}
LIMITS = MemoryLimits("pack", {"ConvTranspose2dInt": "-m one", "BmmInt": "-m two"}, "--open {}=1:1", 1000, 500)


def with_room(tensors=None, products=None, name="chip"):
    """A chip with so much memory."""
    table = TARGETS["venus"].limits["memory"] | {"op_options": {}}
    table = {name: value for name, value in table.items() if not name.endswith("_bytes")}
    given = {"tensor_bytes": tensors, "product_bytes": products}
    table |= {name: value for name, value in given.items() if value is not None}
    return replace(TARGETS["venus"], name=name, limits={"memory": table})


def found(model, chip):
    return [(f.severity, f.rule, f.node, f.reason, f.remedy) for f in memory(model, chip).findings]


def linear(inputs, outputs):
    return model_of(node("LinearInt", "x, w", **WIDTHS), inputs=f"int8[1,{inputs}] x", w=(outputs, inputs))


def test_as_many_bytes_as_the_chip_has_are_too_many():
    (finding,) = found(model_of(FLOAT_ENDS, inputs="float[1,32,64,64] x", w=(32, 1, 3, 3)), "venus")
    assert finding == (
        "error",
        "LGR951",
        "q (Quant)",
        "655360 bytes of tensors are alive here (x 524288, q 131072); venus has 655360, and they must take less, "
        "as at d (Dequant)",
        "Make inputs and outputs integers: linger.onnx.export(…, is_input_quant=True).",
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
    assert remedy == "Use a smaller picture or fewer channels here."


def test_real_numbers_in_the_middle_are_no_ends():
    body = "[d] d = thinker.Dequant<scale_o=16.0>(x) [e] e = Exp(d) [q] y = thinker.Quant<data_bits=8, scale_x=16.0>(e)"
    ((_, _, where, _, remedy),) = found(model_of(body, inputs="int8[1,100] x"), with_room(100))
    assert (where, remedy) == ("e (Exp)", "Use a smaller picture or fewer channels here.")


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
    model = model_of("[z] z = Relu(k) [y] y = Add(x, z)", inputs="float[1,8,h] x, float[1,8,1] k", opset=13)
    ((severity, _, _, reason, _),) = found(model, with_room(10))
    assert severity == "error"
    assert reason.startswith("at least 64 bytes of tensors are alive here (k 32, z 32, x ?)")


def test_a_chip_whose_memory_is_not_known():
    use = memory(model_of("y = Relu(x)", inputs="int8[1,8] x"), with_room())
    assert (use.ok, use.findings, use.tensor_bytes) == (True, (), None)
    assert "How much memory chip has for them is not known." in use.summary()


def test_findings_of_a_use_that_is_there_already():
    use = memory_use(model_of("y = Relu(x)", inputs="int8[1,500] x"))
    (finding,) = memory_findings(use, TARGETS["venus"], LIMITS)
    assert (finding.rule, "venus has 1000" in finding.reason) == (MEMORY.id, True)


def test_the_rules():
    assert [(rule.id, rule.name, rule.severity) for rule in (MEMORY, PRODUCT_MEMORY)] == [
        ("LGR951", "target-memory", "error"),
        ("LGR952", "target-product-memory", "error"),
    ]


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


@pytest.mark.parametrize("chip", TARGETS)
def test_the_tables_of_the_chips_are_read(chip):
    assert memory(model_of("y = Relu(x)", inputs="int8[1,8] x"), TARGETS[chip]).ok


def test_a_wrong_table_is_named(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text("[memory]\ntensor_byte = 5\ncommand = 7\n")
    with pytest.raises(
        UsageError, match=r"odd: \[memory\]: there is no value 'tensor_byte' .*; command = 7, expected str"
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
