"""What the chips' packers and engines were seen to refuse, to compute otherwise, and to compute exactly: entry by entry.

Each test is a minimal network. Where linger can write a network so that the chip is right, the file for the chip is proven
equal to the simulation; where it cannot, the finding names the layer, and a remedy that was itself seen to be exact, or says
that no exact form is known.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.checks import target_findings
from linger.errors import UnsupportedError
from linger.graph.core.check_rules import NO_EXACT_FORM
from linger.targets import TARGETS
from tests.support.chip import WIDTHS, WINDOW, findings, node
from tests.support.chip_networks import Joined, Said, attribute, conv, exported, judged, op_types, quantized, sample

pytestmark = pytest.mark.needs_torch

CHIPS = ["venus", "arcs", "venusA"]
PROVEN = ["venus", "arcs"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def refused(net, x, path, target, **options):
    """The message of an export that a chip cannot take; nothing is written."""
    with pytest.raises(UnsupportedError) as caught:
        exported(net, x, path, target, **options)
    assert not path.exists()
    return str(caught.value)


def nodes_of(file, op_type):
    return [n for n in file.graph.node if n.op_type == op_type]


def weights(file, op_type):
    """The shapes of the weights of nodes of a type."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in file.graph.initializer}
    return [shapes[n.input[1]] for n in nodes_of(file, op_type)]


class TestTransposedConvolutions:
    """A1."""

    def test_venus_takes_them_with_an_option_of_the_packer(self, path):
        file = exported(nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 4, 2, 2)), sample(1, 3, 8, 8), path, "venus")
        assert "ConvTranspose2dInt" in op_types(file)
        said = Said.of(path, "venus")
        assert said.errors == {}
        assert "takes ConvTranspose2dInt (1 in this file) with -m params:share-mem only" in said.warnings["LGR954"]
        assert "Pack it with: tpacker … -m params:share-mem" in said.warnings["LGR954"]

    @pytest.mark.parametrize("target", CHIPS)
    def test_without_a_bias_they_get_one_of_zeros(self, path, target):
        def net():
            return nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 4, 2, 2, bias=False))

        assert (
            "a transposed convolution without a bias"
            in judged(net(), sample(1, 3, 8, 8), path, target).errors["LGR919"]
        )
        file = exported(net(), sample(1, 3, 8, 8), path, target, form="bare")
        (transposed,) = nodes_of(file, "ConvTranspose2dInt")
        (bias,) = (t for t in file.graph.initializer if t.name == transposed.input[2])
        assert onnx.numpy_helper.to_array(bias).tolist() == [0] * 4

    @pytest.mark.parametrize("target", CHIPS)
    def test_groups_are_joined(self, path, target):
        def net():
            return nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 6, 2, 2, groups=2))

        found = judged(net(), sample(1, 3, 8, 8), path, target).errors["LGR918"]
        assert "1.ConvTranspose2dInt (ConvTranspose2dInt): a transposed convolution in 2 groups" in found
        file = exported(net(), sample(1, 3, 8, 8), path, target)
        assert attribute(nodes_of(file, "ConvTranspose2dInt")[0], "group") == 1
        assert weights(file, "ConvTranspose2dInt") == [(8, 6, 2, 2)]

    @pytest.mark.parametrize(
        ("net", "shape", "what"),
        [
            # 64 · 64 · 3 · 3 = 36 864; 8 · 96 · 96 = 73 728
            (nn.Sequential(conv(3, 64), nn.ConvTranspose2d(64, 64, 3)), (1, 3, 4, 4), "36864 bytes of weights"),
            (nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 4, 2, 2)), (1, 3, 96, 96), "73728 bytes of input"),
        ],
        ids=["weights", "input"],
    )
    def test_venus_has_little_room_for_them(self, path, net, shape, what):
        text = refused(net, sample(*shape), path, "venus", is_input_quant=True)
        assert f"1.ConvTranspose2dInt (ConvTranspose2dInt): {what}" in text
        assert NO_EXACT_FORM in text

    def test_arcs_has_the_room(self, path):
        exported(nn.Sequential(conv(3, 64), nn.ConvTranspose2d(64, 64, 3)), sample(1, 3, 4, 4), path, "arcs")


class TestNamesOfChips:
    """A2 and A6."""

    @pytest.mark.parametrize("target", ["arcs", "venusA"])
    def test_standard_nodes_of_bare_files_name_none(self, path, target):
        net = nn.Sequential(conv(3, 8), nn.ReLU(), nn.MaxPool2d(2))
        file = exported(net, sample(1, 3, 8, 8), path, target, form="bare")
        standard = [n for n in file.graph.node if n.domain == ""]
        assert [n.op_type for n in standard] == ["Relu", "MaxPool"]
        assert all(attribute(n, name) is None for n in standard for name in ("platform", "quant_mode"))
        assert attribute(nodes_of(file, "Conv2dInt")[0], "platform") == target.encode()

    @pytest.mark.parametrize("target", ["arcs", "venusA"])
    def test_a_standard_node_that_names_one_is_refused(self, path, target):
        file = exported(nn.Sequential(conv(3, 8), nn.ReLU()), sample(1, 3, 8, 8), path, target, form="bare")
        (relu,) = nodes_of(file, "Relu")
        relu.attribute.append(onnx.helper.make_attribute("platform", target))
        found = target_findings(ir.from_proto(file), TARGETS[target])
        (finding,) = (f for f in found if f.severity == "error")
        assert (finding.rule, finding.node) == ("LGR910", "1.Relu (Relu)")
        assert "LGR910" in Said.of(file, target).errors
        assert f"target='{target}'), which writes none" in finding.remedy

    @pytest.mark.parametrize(("target", "form"), [("venus", "bare"), ("arcs", "dialect"), ("venusA", "dialect")])
    def test_the_form_is_the_one_that_the_packer_takes(self, path, target, form):
        file = exported(nn.Sequential(conv(3, 8), nn.ReLU()), sample(1, 3, 8, 8), path, target)
        assert bool(file.functions) == (form == "dialect")
        assert nodes_of(file, "Relu")[0].domain == ("thinker" if form == "dialect" else "")

    def test_a_file_without_a_name_is_for_venus(self, path):
        net, x = nn.Sequential(conv(3, 8), nn.ReLU()), sample(1, 3, 8, 8)
        linger.onnx.export(quantized(net, x), (x,), path)
        (note,) = (f for f in linger.check(path, "venus").findings if f.rule == "LGR903")
        assert (note.severity, note.reason) == ("note", "the file names no chip; the packer takes it for venus")
        for target in ("arcs", "venusA"):
            assert "the file names no chip" in Said.of(path, target).errors["LGR903"]

    def test_a_file_for_another_chip_is_refused_in_one_sentence(self, path):
        exported(nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4)), sample(1, 3, 8, 8), path, "arcs")
        (error,) = (f for f in linger.check(path, "venus").errors)
        assert error.rule == "LGR903"
        assert error.reason == "the file is for arcs, not for venus: 4 of 5 nodes say so"
        assert "linger.init(model, target='venus')" in error.remedy

    def test_newer_files_are_for_the_chip_that_they_name(self, path):
        exported(nn.Sequential(conv(3, 8), conv(8, 4)), sample(1, 3, 8, 8), path, "venus")
        linger.convert_dialect(path, to="linger", path=path)
        assert "not for arcs" in Said.of(path, "arcs").errors["LGR903"]
        assert "venus's packer refuses files of the domain 'linger'" in Said.of(path, "venus").errors["LGR908"]

    def test_newer_files_for_arcs_are_taken(self, path):
        exported(nn.Sequential(conv(3, 8), conv(8, 4)), sample(1, 3, 8, 8), path, "arcs")
        linger.convert_dialect(path, to="linger", path=path)
        assert Said.of(path, "arcs").errors == {}


SIGNALS = {
    "MaxPool1d": nn.MaxPool1d(2),
    "AvgPool1d": nn.AvgPool1d(2),
    "ConvTranspose1d": nn.ConvTranspose1d(8, 8, 2, 2),
}


@pytest.mark.parametrize("target", PROVEN)
@pytest.mark.parametrize("layer", SIGNALS)
def test_axes_are_counted_from_the_front(path, layer, target):
    """A3."""

    def net():
        return nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), SIGNALS[layer], nn.Conv1d(8, 4, 1))

    found = judged(net(), sample(1, 4, 16), path, target).errors["LGR943"]
    assert "its axis -2 is counted from the end" in found
    file = exported(net(), sample(1, 4, 16), path, target)
    axes = [attribute(n, "axes") for n in file.graph.node if n.op_type in ("Squeeze", "Unsqueeze")]
    assert axes
    assert all(axis >= 0 for each in axes for axis in each)


class TestPools:
    """A4 and B5."""

    @pytest.mark.parametrize("target", CHIPS)
    @pytest.mark.parametrize("pool", [nn.MaxPool2d(2, 3), nn.AvgPool2d(2, 3)], ids=["largest", "average"])
    def test_steps_beyond_the_kernel_are_refused(self, path, pool, target):
        text = refused(nn.Sequential(conv(3, 8), pool), sample(1, 3, 11, 11), path, target)
        assert "a pool of 2×2 steps by 3×3, beyond itself" in text
        assert NO_EXACT_FORM in text

    @pytest.mark.parametrize(
        ("kernel", "is_taken"), [((8, 8), True), ((8, 1), True), ((1, 8), False), ((6, 6), False), ((5, 5), True)]
    )
    def test_large_kernels_on_venus_span_the_image(self, kernel, is_taken):
        window = {"kernel_shape": list(kernel), "strides": [1, 1], "pads": [0, 0, 0, 0]}
        found = findings(node("MaxPool", **window), inputs="int8[1,8,8,8] x")
        assert [severity for severity, _ in found] == ([] if is_taken else ["error"])
        assert is_taken or "×".join(map(str, kernel)) in found[0][1]

    @pytest.mark.parametrize("pool", [(6, 2), (6, 1), (8, 8), ((1, 8), 1), (6, 6), (9, 3), (18, 18)], ids=str)
    @pytest.mark.thin
    def test_they_become_chains_of_small_ones(self, path, pool):
        file = exported(
            nn.Sequential(conv(3, 4), nn.MaxPool2d(*pool), conv(4, 4, 1)), sample(1, 3, 18, 18), path, "venus"
        )
        kernels = [attribute(n, "kernel_shape") for n in nodes_of(file, "MaxPool")]
        assert len(kernels) > 1
        assert all(size <= 5 for kernel in kernels for size in kernel)

    def test_a_pool_that_is_no_chain_is_refused(self, path):
        text = refused(nn.Sequential(conv(3, 4), nn.MaxPool2d(7, 7)), sample(1, 3, 14, 14), path, "venus")
        assert "1.MaxPool (MaxPool): a kernel of 7×7; venus has 5, or all rows, or the whole image" in text

    @pytest.mark.parametrize("target", CHIPS)
    def test_windows_over_the_edge_are_refused(self, path, target):
        net = nn.Sequential(conv(3, 8), nn.MaxPool2d(2, 2, ceil_mode=True))
        text = refused(net, sample(1, 3, 9, 9), path, target)
        assert "1.MaxPool (MaxPool): ceil_mode, with which the engine gives another shape" in text

    @pytest.mark.parametrize("target", CHIPS)
    def test_ceil_mode_that_does_nothing_is_left_out(self, path, target):
        net = nn.Sequential(conv(3, 8), nn.MaxPool2d(2, 2, ceil_mode=True))
        file = exported(net, sample(1, 3, 8, 8), path, target)
        assert attribute(nodes_of(file, "MaxPool")[0], "ceil_mode") == 0


FLOAT_ENDS = {
    "Sigmoid": ("y = Sigmoid(x)", {}),
    "Tanh": ("y = Tanh(x)", {}),
    "Concat": ("y = Concat<axis=1>(x, x)", {}),
    "Add": ("y = Add(x, x)", {}),
    "Mul": ("y = Mul(x, x)", {}),
}


class TestOpsThatChipsLack:
    """A5 and the float ops of A8 and B5."""

    @pytest.mark.parametrize("op", FLOAT_ENDS)
    def test_float_ops_stop_venus(self, op):
        ((severity, text),) = findings(FLOAT_ENDS[op][0], inputs="float[1,8,4,4] x")
        assert severity == "error"
        assert f"venus's packer or engine stops at a float {op}. Let linger compute it on integers" in text

    def test_a_float_sigmoid_stops_arcs(self):
        ((severity, text),) = findings("y = Sigmoid(x)", "arcs", inputs="float[1,8,4,4] x")
        assert (severity, "arcs's packer or engine stops at a float Sigmoid" in text) == ("error", True)

    @pytest.mark.parametrize(("layer", "op"), [(nn.ChannelShuffle(2), "ShuffleChannel"), (nn.Tanh(), "iqTanh")])
    def test_arcs_lacks_ops_that_venus_has(self, path, layer, op):
        net = nn.Sequential(conv(3, 8), layer, conv(8, 4))
        text = refused(net, sample(1, 3, 8, 8), path, "arcs")
        assert f"1.{op} ({op}): arcs's packer or engine stops at {op}. {NO_EXACT_FORM}" in text
        exported(nn.Sequential(conv(3, 8), layer, conv(8, 4)), sample(1, 3, 8, 8), path, "venus")

    @pytest.mark.parametrize("target", PROVEN)
    @pytest.mark.parametrize(
        ("first", "reason"),
        [
            (nn.MaxPool2d(2), "packer or engine stops at a float MaxPool"),
            (nn.ZeroPad2d(1), "packer or engine stops at a float Pad"),
            (nn.ReLU(), "runs float Relu and was seen to compute something else"),
        ],
        ids=["MaxPool", "ZeroPad", "ReLU"],
    )
    def test_floats_in_front_of_the_first_layer_are_refused(self, path, first, reason, target):
        x = sample(1, 3, 8, 8)
        linger.onnx.export(quantized(nn.Sequential(conv(3, 8)), x), (x,), path, form="bare")  # the usual file
        path.unlink()
        model = linger.init(nn.Sequential(first, conv(3, 8)).eval(), disable_module=[type(first)], target=target).eval()
        with linger.calibration():
            model(x)
        with pytest.raises(UnsupportedError, match=reason):
            linger.onnx.export(model, (x,), path)

    @pytest.mark.parametrize("target", PROVEN)
    @pytest.mark.parametrize("first", [F.relu, lambda x: F.max_pool2d(x, 2)], ids=["ReLU", "MaxPool"])
    def test_they_are_taken_as_integers(self, path, first, target):
        net = Joined(lambda m, x: m.conv(first(linger.quant_tensor(m, x))), conv=conv(3, 8))
        assert exported(net, sample(1, 3, 8, 8), path, target)

    def test_a_transposed_float_input_is_exact_on_venus_unless_float_ends_are_kept(self, path):
        net = Joined(lambda m, x: m.conv(x.permute(0, 3, 1, 2)), conv=conv(3, 8))
        exported(net, sample(1, 8, 8, 3), path, "venus")
        said = Said.of(path, "venus").warnings["LGR907"]
        assert "something else for a float Transpose where the packer keeps the float ends" in said
        taken = Joined(lambda m, x: m.conv(linger.quant_tensor(m, x).permute(0, 3, 1, 2)), conv=conv(3, 8))
        assert exported(taken, sample(1, 8, 8, 3), path, "venus", is_input_quant=True)

    @pytest.mark.parametrize("target", PROVEN)
    def test_the_largest_place_is_computed_otherwise(self, path, target):
        net = Joined(lambda m, x: m.conv(x).argmax(1), conv=conv(3, 8))
        text = refused(net, sample(1, 3, 8, 8), path, target)
        assert f"{target} runs float ArgMax and was seen to compute something else. {NO_EXACT_FORM}" in text


class TestMemory:
    """A7."""

    def test_a_large_depthwise_layer_fits_venus_unless_float_ends_are_kept(self, path):
        net = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32))
        exported(net, sample(1, 32, 64, 64), path, "venus")
        text = Said.of(path, "venus").warnings["LGR951"]
        # 32 · 64 · 64 numbers: 524 288 bytes as floats and 131 072 as integers
        assert "where the packer keeps the float ends, 655360 bytes" in text
        assert "is_input_quant=True" in text
        assert linger.memory(path, "venus").summary().endswith("It fits, if the packer does not keep the float ends.")

    def test_with_integer_ends_it_does(self, path):
        net = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32))
        exported(net, sample(1, 32, 64, 64), path, "venus", is_input_quant=True)

    def test_a_large_linear_layer_does_not_fit_arcs(self, path):
        text = refused(nn.Sequential(nn.Linear(2048, 256)), sample(1, 2048), path, "arcs")
        assert "0.LinearInt (LinearInt)" in text
        exported(nn.Sequential(nn.Linear(2048, 256)), sample(1, 2048), path, "venus")


class TestShapesOfOperands:
    """A8 and B6."""

    @pytest.mark.parametrize("target", CHIPS)
    def test_a_border_on_three_axes_stops_the_engine(self, path, target):
        net = Joined(lambda m, x: m.b(F.pad(m.a(x), (1, 1, 1, 1, 1, 1))), a=conv(3, 8), b=conv(10, 4))
        assert "iqPad (iqPad): pads 3 axes; the engine takes 2" in refused(net, sample(1, 3, 8, 8), path, target)

    def test_a_border_on_two_axes_is_exact_on_venus_and_not_on_arcs(self, path):
        def net():
            return Joined(lambda m, x: m.b(F.pad(m.a(x), (1, 1, 1, 1))), a=conv(3, 8), b=conv(8, 4))

        exported(net(), sample(1, 3, 8, 8), path, "venus")
        path.unlink()
        text = refused(net(), sample(1, 3, 8, 8), path, "arcs")
        assert (
            "arcs runs iqPad and was seen to compute something else. Leave padding to the convolution behind it (padding=)"
            in text
        )

    @pytest.mark.parametrize("target", PROVEN)
    def test_operands_are_not_repeated(self, path, target):
        def net(join):
            return Joined(join, a=conv(3, 8), b=nn.Conv2d(3, 8, (1, 5)), c=conv(8, 4))

        x = sample(1, 3, 5, 5)
        text = refused(net(lambda m, x: m.c(m.a(x) + m.b(x))), x, path, target)
        assert f"iqAdd (iqAdd): one operand is repeated along 1 axis; {target} takes 0" in text
        text = refused(net(lambda m, x: m.c(m.a(x) * m.b(x))), x, path, target)
        assert "iqMul (iqMul): operands of the shapes [1, 8, 5, 5] and [1, 8, 5, 1]" in text
        # the remedy
        exported(net(lambda m, x: m.c(m.a(x) + torch.cat([m.b(x)] * 5, 3))), x, path, target)
        exported(net(lambda m, x: m.c(m.a(x) * torch.cat([m.b(x)] * 5, 3))), x, path, target)

    @pytest.mark.parametrize("target", PROVEN)
    def test_one_factor_per_channel_is_exact(self, path, target):
        def net():
            return Joined(lambda m, x: m.c(m.a(x) * m.b(x)), a=conv(3, 8), b=nn.Conv2d(3, 8, 5), c=conv(8, 4))

        exported(net(), sample(1, 3, 5, 5), path, target)
        path.unlink()
        assert "the chip multiplies equal shapes." in refused(net(), sample(1, 3, 5, 5), path, "venusA")

    @pytest.mark.parametrize("target", PROVEN)
    def test_six_axes_are_not_exchanged(self, path, target):
        net = nn.Sequential(conv(3, 8), nn.PixelShuffle(2), conv(2, 4))
        text = refused(net, sample(1, 3, 4, 4), path, target)
        assert f"exchanges axes of a tensor of 6 axes; {target} has that for at most 4" in text


GROUPED = {
    # inputs, outputs, groups, and the groups that the file for venus has
    "8 to 8 in 4": (8, 8, 4, 2),
    "6 to 6 in 3": (6, 6, 3, 1),
    "4 to 4 in 2": (4, 4, 2, 1),
    "8 to 16 in 8": (8, 16, 8, 2),
    "8 to 24 in 8": (8, 24, 8, 2),
    "more than 8": (36, 36, 12, 6),
    "8 to 4 in 4": (8, 4, 4, 2),
}


class TestGroups:
    """B3, and the groups of A8."""

    @pytest.mark.parametrize("case", GROUPED)
    def test_those_that_venus_computes_wrongly_are_joined(self, path, case):
        inputs, outputs, groups, joined = GROUPED[case]

        def net():
            return nn.Sequential(conv(3, inputs), conv(inputs, outputs, groups=groups))

        assert "1.Conv2dInt (Conv2dInt)" in judged(net(), sample(1, 3, 6, 6), path, "venus").errors["LGR918"]
        file = exported(net(), sample(1, 3, 6, 6), path, "venus")
        assert attribute(nodes_of(file, "Conv2dInt")[1], "group") == joined
        assert weights(file, "Conv2dInt")[1] == (outputs, inputs // joined, 3, 3)
        assert Said.of(path, "venus").errors == {}

    @pytest.mark.parametrize(
        "layer",
        [conv(12, 8, groups=4), conv(8, 8, groups=4, padding=0), conv(8, 8, 1, groups=4), conv(8, 8, groups=8)],
        ids=["3 inputs", "no padding", "kernel 1", "depthwise"],
    )
    def test_others_stay_as_they_are(self, path, layer):
        net = nn.Sequential(conv(3, layer.in_channels), layer)
        file = exported(net, sample(1, 3, 6, 6), path, "venus")
        assert attribute(nodes_of(file, "Conv2dInt")[1], "group") == layer.groups

    @pytest.mark.parametrize("case", ["more than 8", "8 to 4 in 4"])
    def test_arcs_refuses_some_too(self, path, case):
        inputs, outputs, groups, _ = GROUPED[case]

        def net():
            return nn.Sequential(conv(3, inputs), conv(inputs, outputs, groups=groups))

        assert "LGR918" in judged(net(), sample(1, 3, 6, 6), path, "arcs").errors
        exported(net(), sample(1, 3, 6, 6), path, "arcs")


@pytest.mark.parametrize("bits", [16, 32])
def test_wide_integers_are_no_real_numbers_at_the_end(path, bits):
    """A9."""

    def net():
        layer = nn.Linear(16, 8)
        if bits == 16:
            linger.quant_module(layer, out_bits=bits)
        return nn.Sequential(layer)

    if bits == 16:
        exported(net(), sample(1, 16), path, "venus")
        text = Said.of(path, "venus").warnings["LGR950"]
        assert "turns 16-bit integers into real numbers; venus's packer takes them for 8 bits where it keeps" in text
        exported(net(), sample(1, 16), path, "venus", is_input_quant=True)
    else:
        ((severity, text),) = findings("y = thinker.Dequant<scale_o=16.0>(x)", inputs="int32[1,8] x")
        assert (severity, "is_input_quant=True" in text) == ("warning", True)


class TestBatch:
    """A10."""

    @pytest.mark.parametrize("target", CHIPS)
    def test_an_open_batch_needs_an_option(self, path, target):
        net, x = nn.Sequential(conv(3, 8)), sample(1, 3, 8, 8)
        names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
        found = judged(net, x, path, target, **names).errors["LGR909"]
        assert found.startswith("x: the batch is open; the packer takes it with --dynamic_shape batch=1:1 only")

    @pytest.mark.parametrize("target", CHIPS)
    def test_an_export_for_a_chip_fixes_it(self, path, target, caplog):
        names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
        file = exported(nn.Sequential(conv(3, 8)), sample(1, 3, 8, 8), path, target, **names)
        for value in (*file.graph.input, *file.graph.output):
            assert value.type.tensor_type.shape.dim[0].dim_value == 1
        assert f"export for {target}: the batch of x, y is fixed to 1" in caplog.text

    @pytest.mark.parametrize("target", CHIPS)
    def test_several_samples_are_refused_in_one_sentence(self, path, target):
        model = quantized(nn.Sequential(conv(3, 8)), sample(4, 3, 8, 8), target)
        with pytest.raises(linger.UsageError) as caught:
            linger.onnx.export(model, (sample(4, 3, 8, 8),), path, input_names=["x"])
        assert str(caught.value) == (
            f"export: {target} computes one sample at a time, and the example has 'x' of the shape [4, 3, 8, 8]. Give one "
            "sample, for example x[:1]."
        )
        assert not path.exists()

    def test_rows_of_a_matrix_are_no_batch(self, path):
        exported(nn.Sequential(nn.Linear(16, 8)), sample(7, 16), path, "venus")

    def test_a_file_with_several_samples_is_refused(self, path):
        x = sample(4, 3, 8, 8)
        linger.onnx.export(quantized(nn.Sequential(conv(3, 8)), x), (x,), path, input_names=["x"])
        found = Said.of(path, "venus").errors["LGR909"]
        assert found.startswith("0.Conv2dInt (Conv2dInt): a batch of 4; venus computes one sample at a time")

    def test_an_open_batch_of_rows_is_fixed_too(self, path):
        names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
        model = quantized(nn.Sequential(nn.Linear(16, 8)), sample(7, 16), "venus")
        with pytest.raises(
            linger.UsageError, match=r"one sample at a time, and the example has 'x' of the shape \[7, 16\]"
        ):
            linger.onnx.export(model, (sample(7, 16),), path, **names)
        linger.onnx.export(model, (sample(1, 16),), path, **names)
        assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


class TestSubtraction:
    """B1."""

    @pytest.mark.parametrize("target", PROVEN)
    def test_it_is_a_sum_with_the_opposite(self, path, target):
        def net():
            return Joined(lambda m, x: m.c(m.a(x) - m.b(x)), a=conv(3, 8), b=conv(3, 8, 1), c=conv(8, 4))

        found = judged(net(), sample(1, 3, 8, 8), path, target).errors["LGR907"]
        assert f"{target} runs iqSub and was seen to compute something else" in found
        assert f"linger.init(model, target='{target}'): it then computes x + y·(−1), which is exact" in found
        file = exported(net(), sample(1, 3, 8, 8), path, target)
        assert [kind for kind in op_types(file) if kind.startswith("iq")] == ["iqMul", "iqAdd"]


class TestSteps:
    """B2."""

    @pytest.mark.parametrize("target", CHIPS)
    def test_a_slice_does_not_step(self, path, target):
        net = Joined(lambda m, x: m.b(m.a(x)[:, :, ::2]), a=conv(3, 8), b=conv(8, 4))
        text = refused(net, sample(1, 3, 8, 8), path, target)
        assert f"Slice (Slice): steps by 2; the engine takes every number. {NO_EXACT_FORM}" in text

    @pytest.mark.parametrize("target", PROVEN)
    @pytest.mark.parametrize(
        ("layer", "size", "kernel"),
        [
            (nn.Conv2d(8, 6, 1, 2), 8, [2, 2]),
            (nn.Conv2d(8, 6, 1, 2), 9, [3, 3]),
            (nn.Conv2d(8, 6, 1, 4), 16, [4, 4]),
            (nn.Conv2d(8, 6, (1, 3), 2, padding=(0, 1)), 8, [2, 3]),
            (nn.Conv2d(8, 8, 1, 2, groups=8), 8, [2, 2]),
        ],
        ids=["even", "odd", "four", "one axis", "depthwise"],
    )
    @pytest.mark.thin
    def test_a_small_kernel_with_a_stride_gets_zeros(self, path, layer, size, kernel, target):
        def net():
            return nn.Sequential(conv(3, 8), layer)

        found = judged(net(), sample(1, 3, size, size), path, target).errors["LGR911"]
        assert "beyond itself; the packer refuses that. Use a kernel as large as the stride, with zeros" in found
        file = exported(net(), sample(1, 3, size, size), path, target)
        assert attribute(nodes_of(file, "Conv2dInt")[1], "kernel_shape") == kernel
        assert Said.of(path, target).errors == {}

    def test_grown_weights_count(self, path):
        # 1024 · 2048 = 2 MB of weights become 8 MB, and with those of the first layer more than the chip has
        net = nn.Sequential(nn.Conv2d(3, 1024, 1), nn.Conv2d(1024, 2048, 1, 2))
        assert "the parameters have" in refused(net, sample(1, 3, 4, 4), path, "venus")


class TestRecurrentLayers:
    """B4."""

    @pytest.mark.parametrize(
        ("size", "hidden"), [(16, 12), (16, 16), (20, 24), (16, 28), (16, 32), (16, 40), (8, 8)], ids=str
    )
    @pytest.mark.thin(every=2)
    def test_venus_is_exact_where_enough_scratch_is_reserved(self, path, size, hidden):
        layers = {"lstm": nn.LSTM(size, hidden, batch_first=True), "out": nn.Linear(hidden, 4)}
        net = Joined(lambda m, x: m.out(m.lstm(x)[0]), **layers)
        assert "LGR928" in judged(net, sample(1, size, size), path, "venus").errors
        exported(Joined(lambda m, x: m.out(m.lstm(x)[0]), **layers), sample(1, size, size), path, "venus")
        assert Said.of(path, "venus").errors == {}

    def test_several_sequences_and_time_first_are_refused(self, path):
        def found(x, **settings):
            net = Joined(lambda m, x: m.out(m.lstm(x)[0]), lstm=nn.LSTM(16, 16, **settings), out=nn.Linear(16, 4))
            return judged(net, x, path, "venus").errors["LGR927"]

        assert "2 sequences at once, which the chip computes otherwise" in found(sample(2, 16, 16), batch_first=True)
        text = found(sample(16, 1, 16))
        assert "batch_first=False, with which the packer gives another shape" in text
        assert "batch_first=True" in text
        assert "12 steps of 16 numbers; the packer takes the one for the other" in found(
            sample(1, 12, 16), batch_first=True
        )

    def test_gated_units_differ_on_venus(self, path):
        net = Joined(lambda m, x: m.out(m.gru(x)[0]), gru=nn.GRU(16, 16, batch_first=True), out=nn.Linear(16, 4))
        text = refused(net, sample(1, 16, 16), path, "venus")
        assert f"gru.GRUInt (GRUInt): venus runs GRUInt and was seen to compute something else. {NO_EXACT_FORM}" in text


class TestNorms:
    """B5 and B6."""

    @pytest.mark.parametrize(("shape", "axes"), [((1, 6, 8), (6, 8)), ((1, 3, 6, 8), (6, 8)), ((1, 8), (8,))], ids=str)
    def test_two_axes_are_flattened_on_venus(self, path, shape, axes):
        def net():
            return Joined(lambda m, x: m.norm(m.line(x)), line=nn.Linear(8, 8), norm=nn.LayerNorm(axes))

        found = judged(net(), sample(*shape), path, "venus").errors["LGR925"]
        assert found.startswith("norm.LayerNormInt (LayerNormInt): ")
        assert "linger.onnx.export(…, target='venus') writes it so" in found
        file = exported(net(), sample(*shape), path, "venus")
        kinds = op_types(file)
        place = kinds.index("LayerNormInt")
        assert kinds[place - 1 : place + 2] == ["Reshape", "LayerNormInt", "Reshape"]
        assert Said.of(path, "venus").errors == {}

    def test_the_remedy_by_hand_is_taken(self, path):
        flat = Joined(lambda m, x: m.norm(m.line(x).flatten(-2)[None]), line=nn.Linear(8, 8), norm=nn.LayerNorm(48))
        exported(flat, sample(1, 6, 8), path, "venus")

    def test_arcs_computes_them_otherwise(self, path):
        net = Joined(lambda m, x: m.norm(m.line(x)), line=nn.Linear(8, 8), norm=nn.LayerNorm(8))
        assert "arcs runs LayerNormInt and was seen to compute something else" in refused(
            net, sample(1, 6, 8), path, "arcs"
        )

    def test_variances_differ_on_arcs(self):
        widths = {"data_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_o": 16.0, "dim": 2}
        found = findings(node("iqVar", **widths), "arcs", inputs="int8[1,4,8] x")
        assert "arcs runs iqVar and was seen to compute something else" in found[0][1]


class TestWidthsOfArcs:
    """B6."""

    def test_narrow_weights_and_wide_results(self):
        four = {**WIDTHS, "parameter_bits": 4}
        ((_, text),) = findings(node("Conv2dInt", "x, w", **four, **WINDOW), "arcs", w=(8, 8, 3, 3))
        assert "4-bit weights; arcs has 8" in text
        wide = {**WIDTHS, "o_bits": 32}
        ((_, text),) = findings(node("Conv2dInt", "x, w", **wide, **WINDOW), "arcs", w=(8, 8, 3, 3))
        assert "an output of 32 bits; arcs gives 8" in text

    def test_spread_taps_of_signals(self, path):
        net = nn.Sequential(nn.Conv1d(4, 8, 3, padding=2, dilation=2))
        assert "a dilation of 2; arcs has 1 here" in refused(net, sample(1, 4, 16), path, "arcs")


class TestExactThoughRefusedBefore:
    """C."""

    @pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (0, 3, 2, 1)], ids=str)
    def test_four_axes_with_the_batch_first_on_venus(self, path, order):
        net = Joined(lambda m, x: m.conv(x).permute(*order), conv=conv(3, 8))
        assert "Transpose" in op_types(exported(net, sample(1, 3, 6, 6), path, "venus"))

    @pytest.mark.parametrize(("side", "is_taken"), [(64, True), (66, False)])
    def test_they_have_room_for_64_kilobytes(self, side, is_taken):
        found = findings("y = Transpose<perm=[0,2,3,1]>(x)", inputs=f"int8[1,16,{side},{side}] x")
        assert [severity for severity, _ in found] == ([] if is_taken else ["error"])

    @pytest.mark.parametrize(
        "move",
        [
            lambda m, x: m.line(m.conv(x).flatten(2)),
            lambda m, x: m.part(m.conv(x).chunk(2, 1)[0]),
            lambda m, x: m.next(F.interpolate(m.conv(x), scale_factor=2)),
            lambda m, x: m.part(m.conv(x).split([4, 4], 1)[1]),
        ],
        ids=["flatten", "chunk", "nearest", "split"],
    )
    def test_shapes_of_fixed_sizes_are_constants(self, path, move):
        net = Joined(move, conv=conv(3, 8), next=conv(8, 4), part=conv(4, 4), line=nn.Conv1d(8, 4, 1))
        file = exported(net, sample(1, 3, 6, 6), path, "venus")
        assert not {"Shape", "Gather", "Div", "Split"} & set(op_types(file))

    def test_large_inputs_and_large_weights_of_a_convolution(self, path):
        # 16 · 72 · 72 = 82 944 bytes of input, 16 · 256 · 9 = 36 864 bytes of weights
        net = nn.Sequential(conv(3, 16, stride=2), conv(16, 256, stride=4))
        exported(net, sample(1, 3, 144, 144), path, "venus")

    def test_narrow_weights_of_a_linear_layer_on_venus(self, path):
        layer = nn.Linear(16, 8)
        linger.quant_module(layer, parameter_bits=4)
        exported(nn.Sequential(layer), sample(1, 16), path, "venus")

    def test_wide_linear_layers_on_arcs(self, path):
        exported(nn.Sequential(nn.Linear(20000, 4)), sample(1, 20000), path, "arcs")

    def test_log_softmax_on_arcs_does_not_advise_what_was_done(self, path):
        net = nn.Sequential(nn.Linear(16, 8), nn.LogSoftmax(-1))
        text = refused(net, sample(1, 16), path, "arcs")
        assert (
            f"(LogSoftmaxInt): arcs reads the axis of softmax from the attribute 'axis', which is missing. {NO_EXACT_FORM}"
            in text
        )
        assert "linger.init" not in text

    @pytest.mark.parametrize("layer", ["norm", "lstm"])
    def test_no_size_is_open_behind_a_norm_or_a_recurrent_layer(self, path, layer):
        nets = {
            "norm": Joined(
                lambda m, x: m.out(m.norm(m.line(x))),
                line=nn.Linear(16, 16),
                norm=nn.LayerNorm(16),
                out=nn.Linear(16, 4),
            ),
            "lstm": Joined(
                lambda m, x: m.out(m.lstm(x)[0]), lstm=nn.LSTM(16, 16, batch_first=True), out=nn.Linear(16, 4)
            ),
        }
        exported(nets[layer], sample(1, 16, 16), path, "venus")
        assert not [f for f in linger.check(path, "venus").findings if "a size is open" in f.reason]

    @pytest.mark.parametrize("target", CHIPS)
    def test_networks_with_relu6_are_taken(self, path, target):
        net = nn.Sequential(conv(3, 8), nn.ReLU6(), conv(8, 8, groups=8), nn.ReLU6(), conv(8, 4, 1))
        with pytest.warns(
            UserWarning, match=f"{target} has no Clip, so Relu stands for ReLU6 and saturates at 7.94 instead of 6"
        ):
            file = exported(net, 8 * sample(1, 3, 8, 8), path, target)
        assert op_types(file).count("Relu") == 2
        assert "Clip" not in op_types(file)


def test_numbers_of_a_grown_kernel_by_hand():
    """One tap of 3 at stride 2 picks every second pixel, also as a kernel of 2×2 with zeros."""
    x = np.arange(16, dtype=np.int8).reshape(1, 1, 4, 4)
    taps = np.zeros((1, 1, 2, 2), np.int8)
    taps[0, 0, 0, 0] = 3
    steps = {"strides": [2, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 1}
    widths = {**WIDTHS, "scale_x": 1.0, "scale_w": 1.0, "scale_o": 1.0}
    from linger.runtime.reference import Reference
    from tests.support.chip import model_of

    small = model_of(
        node("Conv2dInt", "x, w", **widths, **steps, kernel_shape=[1, 1]), inputs="int8[1,1,4,4] x", w=taps[..., :1, :1]
    )
    grown = model_of(
        node("Conv2dInt", "x, w", **widths, **steps, kernel_shape=[2, 2]), inputs="int8[1,1,4,4] x", w=taps
    )
    for model in (small, grown):
        assert Reference(model).run({"x": x})["y"].tolist() == [[[[0, 6], [24, 30]]]]
