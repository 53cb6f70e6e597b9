"""Networks with a scale for each channel and with unsigned activations: the same integers from the reference, the functions,
the files for every CPU, what a session runs, and the form with quantize and dequantize nodes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from tests.support.comparison import assert_same
from tests.support.kernels import kernels, mixed_products, optimized
from tests.support.lowering import (
    LEVELS,
    Reference,
    attach_functions,
    expand_dialect,
    has_saturating_products,
    known_tensors,
    to_qdq,
    write_byte_layers,
)

BITS = "data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8"
SCALES = "scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0"
GEOMETRY = "dilations: ints = [1, 1], group: int = {group}, kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1], strides: ints = [1, 1]"
EXPONENTS, UNSIGNED = "exponents_w: ints = [0, 3, 1, 2]", "o_unsigned: int = 1"
PAIR = "scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 16.0"
POOL = "kernel_shape: ints = [3, 3], strides: ints = [1, 1], pads: ints = [1, 1, 1, 1]"
AVERAGE = f"data_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 16.0, {POOL}"
DEQUANT = "y = thinker.Dequant<scale_o: float = 16.0>"


def conv(*more, op="Conv2dInt", group=1):
    padding = ", output_padding: ints = [0, 0]" if op == "ConvTranspose2dInt" else ""
    return f"thinker.{op}<{', '.join([BITS, SCALES, GEOMETRY.format(group=group), *more])}{padding}>"


C, U = conv(EXPONENTS), conv(EXPONENTS, UNSIGNED)
LINEAR = f"thinker.LinearInt<{BITS}, {SCALES}, exponents_w: ints = [4, 0, 2]"

NETWORKS = {
    "a scale for each channel": f"a = {C}(q, w, b)  r = thinker.Relu(a)  d = {C}(r, w, b)  {DEQUANT}(d)",
    "unsigned": f"a = {U}(q, w, b)  r = thinker.Relu(a)  d = {C}(r, w, b)  {DEQUANT}(d)",
    "unsigned, one scale": f"a = {conv(UNSIGNED)}(q, w, b)  d = {conv(UNSIGNED)}(a, w, b)  {DEQUANT}(d)",
    "unsigned, small weights": f"a = {U}(q, s, b)  d = {U}(a, s, b)  {DEQUANT}(d)",
    "an unsigned input": f"v = thinker.Quant<data_bits: int = 8, scale_x: float = 16.0, {UNSIGNED}>(x)  a = {C}(v, w, b)  {DEQUANT}(a)",
    "groups": f"a = {conv(EXPONENTS, UNSIGNED, group=2)}(q, g, b)  d = {conv(EXPONENTS, group=4)}(a, h, b)  {DEQUANT}(d)",
    "transposed": f"a = {conv(EXPONENTS, UNSIGNED, op='ConvTranspose2dInt')}(q, w, b)  "
    f"d = {conv(EXPONENTS, op='ConvTranspose2dInt', group=2)}(a, g, b)  {DEQUANT}(d)",
    "residual": f"a = {U}(q, w, b)  d = {C}(a, w, b)  e = thinker.iqAdd<{PAIR}, {UNSIGNED}>(d, a)  "
    f"f = thinker.iqAdd<{PAIR}>(e, d)  z = {C}(f, w, b)  {DEQUANT}(z)",
    "a limit": f"a = {U}(q, w, b)  r = thinker.Clip(a, zero, six)  d = {U}(r, w, b)  {DEQUANT}(d)",
    "pools": f"a = {U}(q, w, b)  p = thinker.MaxPool<{POOL}>(a)  v = thinker.AvgPool2dInt<{AVERAGE}, {UNSIGNED}>(p)  "
    f"s2 = thinker.AvgPool2dInt<{AVERAGE}>(v)  d = {C}(s2, w, b)  {DEQUANT}(d)",
    "joined": f"a = {U}(q, w, b)  d = {C}(a, w, b)  r = thinker.Relu(d)  "
    f"j = thinker.iqCat<scale_x_0: float = 16.0, scale_x_1: float = 16.0, scale_o: float = 16.0, dim: int = 2, {UNSIGNED}>(a, r)  "
    f"k = thinker.iqCat<scale_x_0: float = 16.0, scale_x_1: float = 16.0, scale_o: float = 16.0, dim: int = 2>(r, a)  "
    f"l = thinker.iqCat<scale_x_0: float = 16.0, scale_x_1: float = 16.0, scale_o: float = 16.0, dim: int = 2, {UNSIGNED}>(j, d)  "
    f"m2 = thinker.iqCat<scale_x_0: float = 16.0, scale_x_1: float = 16.0, scale_o: float = 16.0, dim: int = 2>(l, k)  {DEQUANT}(m2)",
    "curves": f"a = {U}(q, w, b)  n = thinker.Requant<data_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 8.0>(a)  "
    f"c2 = thinker.iqSigmoid<scale_x: float = 8.0, scale_o: float = 256.0, {UNSIGNED}>(n)  "
    f"t = thinker.iqHardsigmoid<scale_x: float = 16.0, scale_o: float = 128.0, {UNSIGNED}>(a)  "
    f"p = thinker.iqMul<scale_x: float = 256.0, scale_y: float = 128.0, scale_o: float = 16.0, {UNSIGNED}>(c2, t)  {DEQUANT}(p)",
    "moves": f"a = {U}(q, w, b)  t = Transpose<perm: ints = [0, 1, 3, 2]>(a)  i = Identity(t)  d = {C}(i, w, b)  {DEQUANT}(d)",
    "linear": f"a = {U}(q, w, b)  f = Flatten<axis: int = 1>(a)  d = {LINEAR}, {UNSIGNED}>(f, m, c)  e = {LINEAR}>(f, m, c)  "
    f"z = thinker.iqAdd<{PAIR}>(d, e)  {DEQUANT}(z)",
    "an output of integers": f"y = {U}(q, w, b)",
}
OUTPUTS = {"linear": "float[n,3] y", "joined": "float[n,4,30,6] y", "an output of integers": "uint8[n,4,6,6] y"}


def numbers(*shape, seed=0, largest=128):
    drawn = np.random.default_rng(seed).integers(-largest, largest, np.prod(shape))
    return ", ".join(map(str, drawn))


def network(name, opset=13):
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "thinker": 1]>
    g (float[n,4,6,6] x) => ({OUTPUTS.get(name, "float[n,4,6,6] y")})
    <int8[4,4,3,3] w = {{{numbers(4, 4, 3, 3)}}}, int8[4,4,3,3] s = {{{numbers(4, 4, 3, 3, largest=65)}}}, int32[4] b = {{500, -70, 3, 900}},
     int8[4,2,3,3] g = {{{numbers(4, 2, 3, 3)}}}, int8[4,1,3,3] h = {{{numbers(4, 1, 3, 3)}}}, int8[3,144] m = {{{numbers(3, 144, seed=1)}}},
     int32[3] c = {{5, 6, -7}}, uint8 zero = {{0}}, uint8 six = {{192}}> {{
      q = thinker.Quant<data_bits: int = 8, scale_x: float = 16.0>(x)
      {NETWORKS[name]}
    }}""")


IMAGES = (np.random.default_rng(3).standard_normal((3, 4, 6, 6)) * 3).astype(np.float32)


def expected(name):
    """Every tensor, of the numpy reference."""
    return Reference(network(name)).intermediates({"x": IMAGES})


def made(name):
    """The tensors that dialect nodes of the network make."""
    return {o for node in network(name).graph.node if node.domain == "thinker" for o in node.output}


def session(model, level):
    """As it is written, at a level of optimization."""
    options = linger.runtime.session.make_session_options(level)
    return linger.Session(model, options, as_written=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.thin(every=2)
def test_functions_give_the_integers_of_the_reference(name, level):
    reference = expected(name)
    for opset in (11, 13):
        found = session(network(name, opset), level).intermediates({"x": IMAGES})
        for tensor in made(name):
            assert_same(found[tensor], reference[tensor])


@pytest.mark.parametrize("is_saturating", [True, False], ids=["any CPU", "this CPU"])
@pytest.mark.parametrize("name", NETWORKS)
def test_files_for_every_cpu_give_the_integers_of_the_reference(name, is_saturating):
    if not is_saturating and has_saturating_products():
        pytest.skip("on this CPU only a file for every CPU is exact")
    reference = expected(name)
    model = ir.from_proto(network(name))
    assert bool(write_byte_layers(model, is_saturating=is_saturating)) is (
        name != "transposed"
    )  # which have no such kernel
    expand_dialect(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    for level in LEVELS:
        found = session(proto, level).intermediates({"x": IMAGES})
        shared = made(name) & found.keys()
        assert "y" in shared
        for tensor in shared:
            assert_same(found[tensor], reference[tensor])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_of_a_session_gives_the_integers_of_the_reference(name):
    runner = linger.Session(network(name))
    reference, found = (
        expected(name),
        runner.fastest_intermediates({"x": IMAGES}) or runner.intermediates({"x": IMAGES}),
    )
    assert_same(runner.run(None, {"x": IMAGES})[0], reference["y"])
    for tensor in made(name) & found.keys():
        assert_same(found[tensor], reference[tensor])


@pytest.mark.parametrize("name", ["a scale for each channel", "unsigned", "residual", "an unsigned input", "linear"])
def test_layers_are_integer_kernels(name):
    model = ir.from_proto(network(name))
    write_byte_layers(model)
    expand_dialect(model)
    assert [mixed_products(model, level.upper()) for level in ("DISABLE_ALL", "ENABLE_ALL")] == [[], []]
    counts = kernels(model, "ENABLE_ALL")
    layers = NETWORKS[name].count("Conv2dInt") + NETWORKS[name].count("LinearInt")
    assert sum(n for kind, n in counts.items() if kind.startswith(("QLinearConv", "MatMulInteger"))) == layers
    assert not {"Conv", "MatMul", "Gemm"} & counts.keys()


def test_an_unsigned_tensor_keeps_its_name_and_needs_no_limit():
    model = ir.from_proto(network("unsigned"))
    write_byte_layers(model)
    expand_dialect(model)
    names = {value.name: value.dtype for node in model.graph for value in node.outputs}
    assert names["a"] == names["r"] == ir.DataType.UINT8
    assert "Clip" not in {node.op_type for node in model.graph if node.outputs[0].name.startswith(("a", "r"))}
    assert "w" not in model.graph.initializers  # what a kernel has in its own order is not there twice


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_and_types_are_inferred(name):
    """Of every tensor, through the bodies, as the reference has them; the batch is open."""
    found, reference = known_tensors(ir.from_proto(network(name))), expected(name)
    for tensor in made(name):
        assert found.shapes[tensor] == (None, *reference[tensor].shape[1:])
        assert found.types[tensor].numpy() == reference[tensor].dtype


def test_functions_run_float32_kernels():
    """A convolution is Cast, Conv and QuantizeLinear, as it is with one scale: no factor behind it, no float64."""
    found = []
    for name in ("a scale for each channel", "groups", "transposed"):
        model = ir.from_proto(network(name))
        attach_functions(model)
        kinds = [node.op_type for node in optimized(model, "ENABLE_EXTENDED").graph.all_nodes()]
        found.append([kind for kind in kinds if kind != "Constant"])
    quantizing, ending = ["Mul", "Add", "Floor", "Clip", "Cast"], ["Cast", "Mul"]
    layer, transposed = ["Cast", "Conv", "QuantizeLinear"], ["Cast", "ConvTranspose", "QuantizeLinear"]
    assert found == [
        [*quantizing, *layer, "Clip", *layer, *ending],
        [*quantizing, *layer, *layer, *ending],
        [*quantizing, *transposed, *transposed, *ending],
    ]


def test_the_proof_holds():
    for name in ("residual", "groups", "linear"):
        result = linger.verify(None, network(name), batches=2, levels=["disable", "all"])
        assert result.ok, result.summary()


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_and_dequantize_nodes_give_the_integers_of_the_reference(name):
    reference = expected(name)
    model = ir.from_proto(network(name))
    report = to_qdq(model)
    expand_dialect(model)
    assert {(node.error, node.error_fused) for node in report.nodes} == {(0, 0)}
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    for level in LEVELS:
        assert_same(session(proto, level).run(None, {"x": IMAGES})[0], reference["y"])
    for level in ("DISABLE_ALL", "ENABLE_ALL"):
        assert mixed_products(model, level) == []
