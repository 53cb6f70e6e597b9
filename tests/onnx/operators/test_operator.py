"""Custom operators: the routes torch documents, and declarations with a body."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnxscript import FLOAT, script
from onnxscript import opset15 as op
from onnxscript.values import Opset
from torch import nn
from torch.onnx.symbolic_helper import parse_args

import linger
from linger.errors import GraphError, UnsupportedError, UsageError
from linger.onnx import attach_bodies
from tests.support import deform_conv2d
from tests.support.custom_ops import (
    SCALE_BODY,
    UNSHIFTED_BODY,
    Doubling,
    Scaled,
    linger_export,
    register_scale,
    registry,
    run_elsewhere,
    run_stock,
    torch_export,
    whole,
)
from tests.support.models import quantized
from tests.support.symbolics import registered

both_exporters = pytest.mark.parametrize("export", [torch_export, linger_export], ids=["torch", "linger"])
NAMES = {"input_names": ["x"], "output_names": ["y"]}


@pytest.fixture(autouse=True)
def _registry_as_before():
    before = registry()
    yield
    assert registry() == before


@pytest.fixture
def scale_op():
    library = register_scale()
    yield
    library._destroy()


@pytest.fixture
def deform_op():
    library = deform_conv2d.register()
    yield
    library._destroy()


class Asinh(nn.Module):
    def forward(self, x):
        return torch.asinh(x)


def assert_like_torch(model, path, *inputs):
    """Within what rounding explains, at every input given."""
    found = linger.onnx.compare(model, path, list(inputs))
    assert found.ok, str(found)


def nodes(path):
    return [(n.domain, n.op_type) for n in onnx.load(path).graph.node]


def functions(path):
    return [(f.domain, f.name) for f in onnx.load(path).functions]


class TestRoutesOfTorch:
    """What works with torch alone works the same with linger."""

    @both_exporters
    def test_symbolic_function_for_an_op_that_onnx_has(self, tmp_path, export):
        def symbolic(g, x, *, out=None):
            return g.op("Asinh", x)

        with registered("aten::asinh", symbolic, 12):
            export(Asinh(), (torch.rand(1, 5),), tmp_path / "asinh.onnx", opset_version=12, **NAMES)
        assert nodes(tmp_path / "asinh.onnx") == [("", "Asinh")]
        assert_like_torch(Asinh(), tmp_path / "asinh.onnx", torch.rand(1, 5))

    @both_exporters
    def test_autograd_function_with_a_scale_factor_chosen_when_the_file_runs(self, tmp_path, export):
        class Enlarge(torch.autograd.Function):
            @staticmethod
            def symbolic(g, x, scales):
                empty = g.op("Constant", value_t=torch.tensor([], dtype=torch.float32))
                settings = {"coordinate_transformation_mode_s": "pytorch_half_pixel", "mode_s": "cubic"}
                return g.op("Resize", x, empty, scales, cubic_coeff_a_f=-0.75, nearest_mode_s="floor", **settings)

            @staticmethod
            def forward(ctx, x, scales):
                factors = scales.tolist()[-2:]
                return nn.functional.interpolate(x, scale_factor=factors, mode="bicubic", align_corners=False)

        class Enlarging(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3, padding=1)

            def forward(self, x, factor):
                return torch.relu(self.conv(Enlarge.apply(x, factor)))

        model, x = Enlarging(), torch.rand(1, 3, 8, 8)
        at3, at5 = (torch.tensor([1.0, 1.0, f, f]) for f in (3.0, 5.0))
        path = tmp_path / "enlarge.onnx"
        export(model, (x, at3), path, opset_version=11, input_names=["x", "factor"], output_names=["y"])
        assert run_stock(path, x=x, factor=at5).shape == (1, 4, 40, 40)
        assert_like_torch(model, path, (x, at3), (x, at5))

    @both_exporters
    def test_library_op_as_an_onnx_op_of_ones_own(self, tmp_path, export, scale_op):
        def symbolic(g, x, shift, factor, *_):
            factor = torch.onnx.symbolic_helper._parse_arg(factor, "f")
            return g.op("custom::scale", x, factor_f=factor).setType(x.type())

        with registered("mylib::scale", symbolic, 12):
            export(Scaled(factor=3.0), (whole(1, 1, 4, 4),), tmp_path / "scale.onnx", opset_version=12, **NAMES)
        assert ("custom", "scale") in nodes(tmp_path / "scale.onnx")
        with pytest.raises(Exception, match="custom:scale"):
            ort.InferenceSession(str(tmp_path / "scale.onnx"), providers=["CPUExecutionProvider"])

    @both_exporters
    def test_deform_conv2d_as_a_node_for_a_plugin(self, tmp_path, export, deform_op):
        @parse_args("v", "v", "v", "v", "v", "i", "i", "i", "i", "i", "i", "i", "i", "none")
        def symbolic(g, x, weight, offset, mask, bias, sh, sw, ph, pw, dh, dw, groups, offset_groups, use_mask):
            return g.op("custom::deform_conv2d", x, offset)

        with registered("torchvision::deform_conv2d", symbolic, 12):
            export(Deforming(), (torch.rand(1, 2, 5, 5),), tmp_path / "deform.onnx", opset_version=12, **NAMES)
        assert ("custom", "deform_conv2d") in nodes(tmp_path / "deform.onnx")


class TestStandardOp:
    """A torch op that ONNX has under another name."""

    @both_exporters
    @pytest.mark.parametrize("opset", [9, 12, 17, 20])
    def test_declaration_is_one_line(self, tmp_path, export, opset):
        with linger.onnx.operator("aten::asinh", to="Asinh"):
            export(Asinh(), (torch.rand(1, 5),), tmp_path / "asinh.onnx", opset_version=opset, **NAMES)
        assert nodes(tmp_path / "asinh.onnx") == [("", "Asinh")]
        assert not functions(tmp_path / "asinh.onnx")
        assert_like_torch(Asinh(), tmp_path / "asinh.onnx", torch.linspace(-3, 3, 5).view(1, 5))

    def test_after_the_declaration_the_op_is_unsupported_again(self, tmp_path):
        linger.onnx.operator("aten::asinh", to="Asinh").unregister()
        with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="asinh"):
            torch_export(Asinh(), (torch.rand(1, 5),), tmp_path / "asinh.onnx", opset_version=12)

    def test_declaration_stands_before_torchs_own_translation(self, tmp_path):
        class Gelu(nn.Module):
            def forward(self, x):
                return nn.functional.gelu(x)

        with linger.onnx.operator("aten::gelu", to="custom::gelu"):
            torch_export(Gelu(), (torch.rand(3),), tmp_path / "gelu.onnx", opset_version=20)
        assert nodes(tmp_path / "gelu.onnx") == [("custom", "gelu")]
        torch_export(Gelu(), (torch.rand(3),), tmp_path / "gelu.onnx", opset_version=20)
        assert nodes(tmp_path / "gelu.onnx") == [("", "Gelu")]

    def test_input_left_out_in_the_middle_is_left_out_in_the_file(self, tmp_path):
        class Clamp(nn.Module):
            def forward(self, x):
                return torch.clamp(x, None, torch.tensor(0.5))

        with linger.onnx.operator("aten::clamp.Tensor", to="Clip"):
            torch_export(Clamp(), (torch.rand(4),), tmp_path / "clip.onnx", opset_version=12, **NAMES)
        clip = next(n for n in onnx.load(tmp_path / "clip.onnx").graph.node if n.op_type == "Clip")
        assert list(clip.input)[1] == ""
        assert_like_torch(Clamp(), tmp_path / "clip.onnx", torch.rand(4))

    def test_list_of_tensors_becomes_as_many_inputs(self, tmp_path):
        class Cat(nn.Module):
            def forward(self, x, z):
                return torch.cat([x, z, x], 1)

        with linger.onnx.operator("aten::cat", to="Concat", attributes={"axis": "dim"}):
            torch_export(Cat(), (whole(1, 2), whole(1, 3)), tmp_path / "cat.onnx", opset_version=12)
        assert_like_torch(Cat(), tmp_path / "cat.onnx", (whole(1, 2), whole(1, 3)))


class TestBody:
    """The file says what the op computes, so ONNX Runtime needs nothing else."""

    @both_exporters
    @pytest.mark.parametrize("opset", [12, 13, 17, 20])
    def test_file_runs_in_a_process_without_linger_and_torch(self, tmp_path, export, opset, scale_op):
        path, model, x = tmp_path / "scale.onnx", Scaled(3.0, factor=2.0, power=3), whole(2, 1, 4, 4)
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=SCALE_BODY):
            export(model, (x,), path, opset_version=opset, **NAMES)
        onnx.checker.check_model(onnx.load(path), full_check=True)
        assert ("custom", "scale") in nodes(path)
        np.testing.assert_array_equal(run_elsewhere(path, x), model(x).detach().numpy())

    def test_arguments_become_attributes_with_torchs_defaults(self, tmp_path, scale_op):
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=[SCALE_BODY, UNSHIFTED_BODY]):
            model = Scaled(factor=0.5, is_odd=True, levels=[0.25, 1.0], mode="fine")
            torch_export(model, (whole(1, 1, 4, 4),), tmp_path / "scale.onnx", opset_version=12)
        node = next(n for n in onnx.load(tmp_path / "scale.onnx").graph.node if n.op_type == "scale")
        found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        expected = {"factor": 0.5, "power": 1, "is_odd": 1, "sizes": [1, 2], "levels": [0.25, 1.0], "mode": b"fine"}
        assert found == expected  # axis is None, and a dtype is no attribute

    @both_exporters
    def test_tensor_that_is_none_has_a_body_of_its_own(self, tmp_path, export, scale_op):
        x = whole(2, 1, 4, 4)
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=[SCALE_BODY, UNSHIFTED_BODY]):
            for shift, domain in ((None, "custom.without_shift"), (1.0, "custom")):
                path, model = tmp_path / f"{shift}.onnx", Scaled(shift)
                export(model, (x,), path, opset_version=12, **NAMES)
                assert functions(path) == [(domain, "scale")]
                np.testing.assert_array_equal(run_stock(path, x=x), model(x).detach().numpy())

    def test_tensor_that_is_none_without_such_a_body_is_refused(self, tmp_path, scale_op):
        with (
            linger.onnx.operator("mylib::scale", to="custom::scale", body=SCALE_BODY),
            pytest.raises(UnsupportedError, match=r"custom::scale: shift of mylib::scale is None in this call"),
        ):
            linger_export(Scaled(), (whole(1, 1, 4, 4),), tmp_path / "scale.onnx")
        assert not list(tmp_path.iterdir())

    @both_exporters
    def test_open_sizes_stay_open_behind_the_op(self, tmp_path, export, scale_op):
        path, model = tmp_path / "scale.onnx", Scaled(1.0)
        axes = {"x": {0: "n", 2: "h"}}
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=SCALE_BODY):
            export(model, (whole(1, 1, 4, 4),), path, opset_version=12, dynamic_axes=axes, **NAMES)
        for x in (whole(1, 1, 4, 4), whole(5, 1, 7, 4)):
            np.testing.assert_array_equal(run_stock(path, x=x), model(x).detach().numpy())

    @both_exporters
    def test_onnxscript_body_may_call_functions(self, tmp_path, export, scale_op):
        path, model, x = tmp_path / "scale.onnx", Scaled(3.0, factor=2.0, power=3), whole(2, 1, 4, 4)
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=scripted_scale):
            export(model, (x,), path, opset_version=17, **NAMES)
        assert functions(path) == [("custom", "scale")]
        onnx.checker.check_model(onnx.load(path), full_check=True)
        np.testing.assert_array_equal(run_elsewhere(path, x), model(x).detach().numpy())

    @both_exporters
    def test_autograd_function_gets_a_body_and_keeps_its_class(self, tmp_path, export):
        class Doubled(nn.Module):
            def forward(self, x):
                return Doubling.apply(x, 3, [1.0, 0.5])

        body = """double <times, offsets> (x) => (y) {
            two = Constant <value = float {2.0}> ()
            t = Constant <value_int: int = @times> ()
            exponent = Cast <to = 1> (t)
            factor = Pow (two, exponent)
            o = Constant <value_floats: floats = @offsets> ()
            scaled = Mul (x, factor)
            sum = ReduceSum <keepdims = 0> (o)
            y = Add (scaled, sum)
        }"""
        with linger.onnx.operator(Doubling, to="custom::double", body=body):
            export(Doubled(), (whole(2, 3),), tmp_path / "double.onnx", opset_version=13, **NAMES)
        assert "symbolic" not in vars(Doubling)
        x = whole(2, 3)
        np.testing.assert_array_equal(run_elsewhere(tmp_path / "double.onnx", x), Doubled()(x).numpy())

    def test_standard_form_of_an_op_used_twice_keeps_its_values_apart(self, tmp_path, scale_op):
        class Twice(nn.Module):
            def forward(self, x):
                once = torch.ops.mylib.scale(x, x, factor=3.0)
                return torch.ops.mylib.scale(once, x, power=2)

        path, x = tmp_path / "scale.onnx", whole(2, 3)
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=SCALE_BODY):
            linger_export(Twice(), (x,), path, opset_version=12, form="standard", **NAMES)
        onnx.checker.check_model(onnx.load(path), full_check=True)
        np.testing.assert_array_equal(run_stock(path, x=x), Twice()(x).numpy())

    def test_torch_op_and_onnx_op_may_have_the_same_name(self, tmp_path, scale_op):
        path, model, x = tmp_path / "scale.onnx", Scaled(3.0), whole(1, 1, 4, 4)
        with linger.onnx.operator("mylib::scale", to="mylib::scale", body=SCALE_BODY):
            torch_export(model, (x,), path, opset_version=12, custom_opsets={"mylib": 3}, **NAMES)
        np.testing.assert_array_equal(run_stock(path, x=x), model(x).detach().numpy())

    def test_body_for_a_later_opset_is_refused_and_no_file_is_left(self, tmp_path, scale_op):
        late = f'<domain: "custom", opset_import: ["": 15]>{SCALE_BODY}'
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=late, opset=9):
            with pytest.raises(UsageError, match=r"opset version 12 is not supported\. .*added in version 15"):
                linger_export(Scaled(1.0), (whole(1, 1, 4, 4),), tmp_path / "scale.onnx", opset_version=12)
            linger_export(Scaled(1.0), (whole(1, 1, 4, 4),), tmp_path / "later.onnx", opset_version=17)
        assert [p.name for p in tmp_path.iterdir()] == ["later.onnx"]
        assert onnx.load(tmp_path / "later.onnx").functions[0].opset_import[0].version == 17

    @pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
    def test_float_island_of_a_quantized_model_carries_its_body(self, tmp_path, form, scale_op):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)

            def forward(self, x):
                return self.second(torch.ops.mylib.scale(self.first(x), torch.tensor(0.5)))

        x, path = torch.randn(8, 6), tmp_path / "net.onnx"
        model = quantized(Mixed(), x)
        linger.restore()
        with linger.onnx.operator("mylib::scale", to="custom::scale", body=SCALE_BODY):
            linger.onnx.export(model, (x,), path, form=form, **NAMES)
        assert (("custom", "scale") in functions(path)) == (form == "dialect")
        assert (("custom", "scale") in nodes(path)) == (form != "standard")
        if form != "bare":
            np.testing.assert_array_equal(run_elsewhere(path, x), model(x).dequantize().detach().numpy())


CASES = {
    "masked": {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "offset_groups": 1},
    "grouped": {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2), "groups": 2, "offset_groups": 2},
    "many_offsets": {"stride": (1, 2), "padding": (2, 0), "dilation": (2, 1), "groups": 1, "offset_groups": 4},
}


class TestDeformableConvolution:
    """A real operator with 14 arguments and a body of 146 nodes."""

    def declared(self):
        return linger.onnx.operator(
            deform_conv2d.NAME,
            to="custom::deform_conv2d",
            inputs=deform_conv2d.INPUTS,
            attributes=deform_conv2d.ATTRIBUTES,
            body=deform_conv2d.BODY,
        )

    @pytest.mark.parametrize("case", CASES)
    def test_torch_op_is_the_definition(self, case, deform_op):
        model, x = Deforming(channels=4, is_masked=case != "grouped", **CASES[case]), torch.randn(2, 4, 6, 7)
        offset, mask = model.places(x)
        geometry = [CASES[case][name] for name in ("stride", "padding", "dilation", "groups", "offset_groups")]
        used = mask if model.is_masked else None
        with torch.no_grad():
            expected = deform_conv2d.by_hand(x, model.weight, offset, used, model.bias, *geometry)
            error = np.abs(model(x).numpy() - expected).max()
        assert error <= self.bound(model, x)

    @staticmethod
    def bound(model, x):
        """Float32 against float64: each of the taps adds one rounding, sampling between pixels a dozen more.

        A position of at most 16 is rounded too, and a step of one pixel changes a value by at most twice the largest, along
        both axes. All of it relative to the sum of |weight|·max|x|, in units of 2^-24.
        """
        taps = model.weight[0].numel()
        return (taps + 12 + 4 * 16) * 2.0**-24 * float(model.weight.detach().abs().sum((1, 2, 3)).max() * x.abs().max())

    @pytest.mark.parametrize("opset", [12, 13, 17, 20])
    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.thin(every=2)
    def test_stock_onnx_runtime_computes_what_torch_computes(self, tmp_path, case, opset, deform_op):
        path, x = tmp_path / "deform.onnx", torch.randn(2, 4, 6, 7)
        model = Deforming(channels=4, is_masked=case != "grouped", **CASES[case])
        axes = {"x": {0: "n", 2: "h", 3: "w"}}
        with self.declared():
            linger_export(model, (x,), path, opset_version=opset, dynamic_axes=axes, **NAMES)
        onnx.checker.check_model(onnx.load(path), full_check=True)
        assert nodes(path).count(("custom", "deform_conv2d")) == 1
        assert_like_torch(model, path, x, torch.randn(1, 4, 9, 8))

    def test_file_runs_in_a_process_without_linger_and_torch(self, tmp_path, deform_op):
        path, x, model = tmp_path / "deform.onnx", torch.randn(1, 2, 6, 6), Deforming()
        with self.declared():
            torch_export(model, (x,), path, opset_version=12, **NAMES)
        error = np.abs(run_elsewhere(path, x) - model(x).detach().numpy()).max()
        assert error <= 2 * self.bound(model, x)  # both sides round

    @pytest.mark.parametrize("case", ["masked", "many_offsets"])
    def test_standard_op_of_later_opsets_computes_the_same(self, tmp_path, case, deform_op):
        path, x = tmp_path / "deform.onnx", torch.randn(2, 4, 6, 7)
        attributes = {
            "strides": ["stride_h", "stride_w"],
            "pads": ["pad_h", "pad_w", "pad_h", "pad_w"],
            "dilations": ["dilation_h", "dilation_w"],
            "group": "groups",
            "offset_group": "offset_groups",
        }
        inputs = ["input", "weight", "offset", "bias", "mask"]
        model = Deforming(channels=4, **CASES[case])
        with linger.onnx.operator(deform_conv2d.NAME, to="DeformConv", inputs=inputs, attributes=attributes):
            linger_export(model, (x,), path, opset_version=19, **NAMES)
        assert ("", "DeformConv") in nodes(path)
        try:
            assert_like_torch(model, path, x)
        except GraphError as error:
            if "NOT_IMPLEMENTED" in str(error):
                pytest.skip("this ONNX Runtime has no DeformConv")
            raise

    def test_standard_form_has_standard_nodes_only(self, tmp_path, deform_op):
        path, x, model = tmp_path / "deform.onnx", torch.randn(1, 2, 6, 6), Deforming()
        with self.declared():
            linger_export(model, (x,), path, opset_version=12, form="standard", **NAMES)
        proto = onnx.load(path)
        onnx.checker.check_model(proto, full_check=True)
        assert {n.domain for n in proto.graph.node} == {""}
        assert [o.domain for o in proto.opset_import] == [""]
        assert not proto.functions
        assert_like_torch(model, path, x)

    def test_dynamo_exporter_writes_the_same_node(self, tmp_path, deform_op):
        path, x, model = tmp_path / "deform.onnx", torch.randn(1, 2, 6, 6), Deforming().eval()
        with self.declared():
            linger_export(model, (x,), path, dynamo=True, opset_version=18, **NAMES)
        proto = onnx.load(path)
        onnx.checker.check_model(proto, full_check=True)
        node = next(n for n in proto.graph.node if n.domain == "custom")
        found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert found["stride"] == [1, 1]
        assert found["use_mask"] == 1
        assert_like_torch(model, path, x)


class TestDeclaring:
    """Declarations come and go, and leave torch as it was (every test here checks it)."""

    def test_newest_declaration_counts_and_the_one_before_returns(self, tmp_path):
        def written():
            torch_export(Asinh(), (torch.rand(3),), tmp_path / "asinh.onnx", opset_version=12)
            return nodes(tmp_path / "asinh.onnx")

        first = linger.onnx.operator("aten::asinh", to="one::asinh")
        second = linger.onnx.operator("aten::asinh", to="two::asinh", opset=9)
        assert written() == [("two", "asinh")]
        second.unregister()
        assert written() == [("one", "asinh")]
        third = linger.onnx.operator(torch.ops.aten.asinh, to="three::asinh")
        first.unregister()
        assert written() == [("three", "asinh")]
        third.unregister()
        third.unregister()
        assert not third.is_registered

    def test_hand_written_symbolic_function_comes_back(self, tmp_path):
        with registered("aten::asinh", lambda g, x: g.op("hand::asinh", x), 12):
            linger.onnx.operator("aten::asinh", to="Asinh").unregister()
            torch_export(Asinh(), (torch.rand(3),), tmp_path / "asinh.onnx", opset_version=12)
        assert nodes(tmp_path / "asinh.onnx") == [("hand", "asinh")]

    def test_block_ends_the_declaration_also_after_an_error(self):
        with pytest.raises(KeyError), linger.onnx.operator("aten::asinh", to="Asinh") as declared:
            raise KeyError
        assert not declared.is_registered

    def test_repr_says_what_is_declared(self):
        with linger.onnx.operator("aten::asinh", to="Asinh") as declared:
            assert repr(declared) == "<operator aten::asinh → Asinh, without a body>"
        assert repr(declared) == "<operator aten::asinh → Asinh, without a body, ended>"

    def test_one_onnx_op_has_one_body(self, scale_op):
        body = "scale (x) => (y) { y = Identity (x) }"
        with (
            linger.onnx.operator("aten::asinh", to="custom::scale", body=body),
            linger.onnx.operator("aten::acosh", to="custom::scale", body=body),
            pytest.raises(UsageError, match=r"aten::asinh is declared as custom::scale with another body"),
        ):
            linger.onnx.operator("aten::atanh", to="custom::scale", body=body.replace("Identity", "Neg"))


class TestAttaching:
    """The hook for exporters."""

    MODEL = """<ir_version: 7, opset_import: ["": 13, "custom": 1, "other": 1]>
    g (float[2] x, bool c) => (float[2] y) {
      y = If (c) <
        then_branch = a () => (float[2] p) { p = custom.twice (x) },
        else_branch = b () => (float[2] q) { q = other.thing (x) }>
    }"""
    TWICE = "twice (x) => (y) { z = custom.sum (x, x)  y = Identity (z) }"
    SUM = "sum (a, b) => (c) { c = Add (a, b) }"

    def test_functions_behind_branches_and_functions_are_found(self):
        header = '<domain: "custom", opset_import: ["": 13, "custom": 1]>'
        with (
            linger.onnx.operator("aten::asinh", to="custom::twice", body=header + self.TWICE),
            linger.onnx.operator("aten::add.Tensor", to="custom::sum", attributes={}, body=self.SUM),
        ):
            model = ir.from_onnx_text(self.MODEL)
            changes = attach_bodies(model)
            assert sorted(f[:2] for f in model.functions) == [("custom", "sum"), ("custom", "twice")]
            assert model.ir_version == 8
            assert len(changes) == 2
            attach_bodies(model)
            assert len(model.functions) == 2

    @pytest.mark.parametrize(("form", "domains"), [("bare", {"custom", "other"}), ("standard", {"", "other"})])
    def test_forms_without_functions(self, form, domains):
        with linger.onnx.operator("aten::asinh", to="custom::twice", body=self.TWICE.replace("custom.sum", "Add")):
            model = ir.from_onnx_text(self.MODEL)
            attach_bodies(model, form=form)
        assert not model.functions
        assert model.ir_version == 7
        inner = {n.domain for n in ir.traversal.RecursiveGraphIterator(model.graph) if n.op_type != "If"}
        assert inner == domains
        assert ("custom" in model.graph.opset_imports) == ("custom" in domains)

    def test_the_bare_form_keeps_the_imports_of_the_model(self):
        header = '<domain: "custom", opset_import: ["": 13, "inner": 1]>'
        with (
            linger.onnx.operator(
                "aten::asinh", to="custom::twice", body=header + self.TWICE.replace("custom.", "inner.")
            ),
            linger.onnx.operator("aten::add.Tensor", to="inner::sum", attributes={}, body=self.SUM),
        ):
            model = ir.from_onnx_text(self.MODEL.replace('"other": 1', '"other": 1, "inner": 1'))
            attach_bodies(model, form="bare")
        assert not model.functions
        assert dict(model.graph.opset_imports) == {"": 13, "custom": 1, "other": 1, "inner": 1}

    def test_model_without_declared_nodes_stays_as_it_is(self):
        model = ir.from_onnx_text(self.MODEL)
        content = ir.to_proto(model).SerializeToString()
        assert not linger.onnx.attach_bodies(model)
        with linger.onnx.operator("aten::asinh", to="unused::op", body="op (x) => (y) { y = Identity (x) }"):
            assert not linger.onnx.attach_bodies(model, form="standard")
        assert ir.to_proto(model).SerializeToString() == content


class Deforming(nn.Module):
    """A deformable convolution whose offsets and mask are computed from the input."""

    def __init__(
        self, channels=2, *, is_masked=True, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, offset_groups=1
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, channels // groups, 3, 2))
        self.bias = nn.Parameter(torch.randn(4))
        taps = offset_groups * 6
        self.offset = nn.Conv2d(channels, 2 * taps, (3, 2), stride, padding, dilation)
        self.mask = nn.Conv2d(channels, taps, (3, 2), stride, padding, dilation)
        self.is_masked = is_masked
        self.geometry = (*stride, *padding, *dilation, groups, offset_groups)

    def places(self, x):
        mask = torch.sigmoid(self.mask(x)) if self.is_masked else x.new_zeros(x.shape[0], 1)
        return self.offset(x), mask

    def forward(self, x):
        offset, mask = self.places(x)
        return torch.ops.torchvision.deform_conv2d(
            x, self.weight, offset, mask, self.bias, *self.geometry, self.is_masked
        )


my_functions = Opset("my.functions", 1)


@script(my_functions, default_opset=op)
def raised(factor: FLOAT, power: FLOAT):
    return op.Pow(factor, power)


@script(my_functions, default_opset=op)
def scripted_scale(x: FLOAT, shift: FLOAT, factor: float, power: int):
    exponent = op.Cast(op.Constant(value_int=power), to=1)
    return x * raised(op.Constant(value_float=factor), exponent) + shift
