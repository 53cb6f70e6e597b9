"""What must hold after a block: its file is valid, has the opset asked for, and computes what torch computes."""

import copy
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from PIL import Image
from torch import nn

import linger
from tests.seeds.preludes import LINEAR_WEIGHTS, Asinh, Detections
from tests.seeds.stage import Stage
from tests.support.comparison import assert_same


def nothing(stage: Stage) -> None:
    """The run itself is the check."""


def opset_of(path: str) -> int:
    """The opset of a file that passes the full checker."""
    onnx.checker.check_model(path, full_check=True)
    return next(entry.version for entry in onnx.load(path).opset_import if not entry.domain)


def run(path: str, *inputs: torch.Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: t.numpy() for i, t in zip(session.get_inputs(), inputs, strict=True)})


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape).float()


def assert_runs_as(model: nn.Module, path: str, *inputs: torch.Tensor) -> None:
    """Equal to torch: whole numbers are exact in float32, whatever the order of the sums."""
    with torch.no_grad():
        assert_same(run(path, *inputs)[0], model(*inputs).numpy())


def tolerance(model: nn.Module, *inputs: torch.Tensor) -> float:
    """How far another float32 computation may be off.

    torch's own rounding error (its float32 against its float64) shows what the sums of this model cost; another order
    of the same sums may cost a few times that. At least four units in the last place of the largest result.
    """
    with torch.no_grad():
        single = model(*inputs).double()
        double = copy.deepcopy(model).double()(*(t.double() for t in inputs))
    return max(8 * float((single - double).abs().max()), 4 * 2.0**-23 * float(double.abs().max()))


def export_at_default_opset(stage: Stage) -> None:
    assert opset_of("all.onnx") == 12
    assert_runs_as(stage["model"], "all.onnx", whole(1, 3, 20, 20))


def simple_export(stage: Stage) -> None:
    assert opset_of("test.onnx") == 12
    assert_runs_as(stage["torch_model"], "test.onnx", whole(1, 3, 244, 244))


def open_batch(stage: Stage) -> None:
    path = "super_resolution.onnx"
    assert opset_of(path) == 12
    for batch in (1, 2, 7):
        assert_runs_as(stage["torch_model"], path, whole(batch, 3, 24, 24))


def named_at_opset_11(stage: Stage) -> None:
    assert opset_of("test.onnx") == 11
    session = onnxruntime.InferenceSession("test.onnx", providers=["CPUExecutionProvider"])
    assert [value.name for value in (*session.get_inputs(), *session.get_outputs())] == ["input", "output"]
    assert_runs_as(stage["torch_model"], "test.onnx", whole(1, 3, 244, 244))


def open_axes(stage: Stage) -> None:
    """The axes of the block, on a picture whose channels come second."""
    _export_with_axes(stage, whole(2, 3, 9, 8), whole(3, 3, 5, 7))


def open_named_axes(stage: Stage) -> None:
    """The block with its brace closed: names for the axes, on a picture whose channels come last."""
    stage.run(5, closing="}")
    _export_with_axes(stage, whole(2, 9, 8, 3), whole(3, 5, 7, 3))
    dims = onnx.load("axes.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["batch", "width", "height", 3]


def _export_with_axes(stage: Stage, traced: torch.Tensor, other: torch.Tensor) -> None:
    axes = stage["dynamic_axes"]
    model = Detections(channels_last=traced.shape[-1] == 3)
    names = {"input_names": ["input_1", "input_2"], "output_names": ["output"]}
    linger.onnx.export(model, (traced, whole(2)), "axes.onnx", opset_version=12, dynamic_axes=axes, **names)
    assert opset_of("axes.onnx") == 12
    graph = onnx.load("axes.onnx").graph
    opened = {v.name: _open_axes(v) for v in (*graph.input, *graph.output)}
    opened["output"].discard(2)  # behind a Reshape the exporter knows no size: open unasked
    assert opened == {name: set(wanted) for name, wanted in axes.items()}
    assert_runs_as(model, "axes.onnx", traced, whole(2))
    assert_runs_as(model, "axes.onnx", other, whole(3))


def _open_axes(value: onnx.ValueInfoProto) -> set[int]:
    return {axis for axis, dim in enumerate(value.type.tensor_type.shape.dim) if not dim.HasField("dim_value")}


def init_redirects(stage: Stage) -> None:
    """What the fragment says: after init, torch.onnx.export is linger's."""
    assert torch.onnx.export is not linger.onnx.export
    linger.init(nn.Sequential(nn.Linear(2, 2)))
    assert torch.onnx.export is linger.onnx.export


def debug_file(stage: Stage) -> None:
    """No Dequant and numbered names; everything else is as in a finished file."""
    nodes = onnx.load("export_debug.onnx").graph.node
    assert [n.name for n in nodes] == [f"{n.op_type}_{i}" for i, n in enumerate(nodes)]
    finished = stage.folder / "finished.onnx"
    linger.onnx.export(stage["net"], torch.ones(1, 3, 224, 224), finished, form="bare")
    expected = [n.op_type for n in onnx.load(finished).graph.node]
    assert "Dequant" in expected
    assert [n.op_type for n in nodes] == [name for name in expected if name != "Dequant"]


def log_at_the_given_place(stage: Stage) -> None:
    assert not Path("wb_analyse.log").exists()
    assert_logs("data.ignore/wb_anylse.log", torch.load("data.ignore/tool_test.pt"))


def log_at_the_default_place(stage: Stage) -> None:
    assert list(stage["checkpoint"]) == ["conv.weight", "conv.bias"]
    assert_logs("wb_analyse.log", stage["checkpoint"])


def assert_logs(path: str, state: dict[str, torch.Tensor]) -> None:
    """The documented columns, and a row per tensor with what sorting finds, as torch prints it."""
    rows = [line.split("|")[1:-1] for line in Path(path).read_text().splitlines() if line.startswith("|")]
    header, *found = [[text.strip() for text in row] for row in rows if set(row[0].strip()) != {"!"}]
    assert header == ["Layer_name", "Mean", "Max", "Multiple", "Dynamic 0.99", "Versu"]
    expected = []
    for name, tensor in state.items():
        ordered = tensor.abs().flatten().sort().values
        mean = ordered.double().mean().float()  # the sum of whole numbers is exact
        top, dynamic = ordered[-1], ordered[int(len(ordered) * 0.99) - 1]
        expected.append([name, *map(str, (mean, top, top / mean, dynamic, top / dynamic))])
    assert found == expected


def log_of_layer_outputs(stage: Stage) -> None:
    """The columns and the first rows of the printed log, in its order; numbers of the first layer as torch prints them."""
    found = rows_of(Path("Analyse_layer_output.log").read_text())
    printed = rows_of(next(block.text for block in stage.blocks if "root.layer1.0.conv1" in block.text))
    assert found[0] == printed[0]
    assert [row[0] for row in found[1 : len(printed)]] == [row[0] for row in printed[1:]]
    output = stage["model"].conv1(stage["typical_input"]).detach()
    ordered = output.abs().flatten().sort().values
    mean, top, dynamic = ordered.double().mean().float(), ordered[-1], ordered[int(len(ordered) * 0.99) - 1]
    assert found[1] == ["root.conv1", *map(str, (mean, top, top / mean, dynamic, top / dynamic))]


def rows_of(log: str) -> list[list[str]]:
    """The cells of a log, header first, without the rows of alarms."""
    rows = [line.split("|")[1:-1] for line in log.splitlines() if line.startswith("|")]
    return [[text.strip() for text in row] for row in rows if set(row[0].strip()) != {"!"}]


def resizes_at_run_time(stage: Stage) -> None:
    """The interpolation of the block alone: traced at 2, run at 3 and at 5."""
    model = Interpolation(stage["NewInterpolate"])
    picture, names = torch.rand(1, 3, 12, 10), ["input", "factor"]
    linger.onnx.export(model, (picture, factor(2)), "resize.onnx", opset_version=11, input_names=names)
    assert opset_of("resize.onnx") == 11
    for times in (2, 3, 5):
        found = run("resize.onnx", picture, factor(times))[0]
        expected = model(picture, factor(times)).numpy()
        assert found.shape == (1, 3, 12 * times, 10 * times)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(model, picture, factor(times)))


class Interpolation(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x, times):
        return self.function.apply(x, times)


def factor(times: float) -> torch.Tensor:
    return torch.tensor([1, 1, times, times], dtype=torch.float)


def upscaled_picture(stage: Stage) -> None:
    """Two windows, and a saved picture three times as large that still shows the original."""
    assert stage.shown == ["Input Image (256, 256, 3)", "Torch Output (768, 768, 3)"]
    small = np.asarray(Image.open("face.png")).astype(float)
    saved = np.asarray(Image.open("face_torch2.png")).astype(float)
    assert saved.shape == (768, 768, 3)
    assert np.abs(saved[1::3, 1::3] - small).mean() < 10  # every third pixel is an old one, but for ringing and noise


def five_times_in_the_runtime(stage: Stage) -> None:
    assert stage.printed == [("Model correct",)]
    assert opset_of("srcnn2.onnx") == 11
    assert np.asarray(Image.open("face_torch2_run.png")).shape == (1280, 1280, 3)
    model, picture = stage["model"], torch.from_numpy(stage["input_img"])
    found = run("srcnn2.onnx", picture, factor(5))[0]
    with torch.no_grad():
        expected = model(picture, factor(5)).numpy()
    # pixel coordinates are rounded too, the more the farther out: a strip over the whole width shows what that costs
    strip = picture[..., 128:152, :]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(model, strip, factor(5)))
    assert_same(stage["ort_output"], np.clip(found[0], 0, 255).transpose(1, 2, 0).astype(np.uint8))


def signature_is_linger_s(stage: Stage) -> None:
    """The unfinished definition, finished: same names in the same order, same defaults."""
    stage.give(TrainingMode=torch.onnx.TrainingMode)
    stage.run(3, closing="    pass")
    printed = inspect.signature(stage["export"]).parameters.values()
    ours = list(inspect.signature(linger.onnx.export).parameters.values())[: len(printed)]
    assert [p.name for p in ours] == [p.name for p in printed]
    differing = [p.name for p, q in zip(printed, ours, strict=True) if p.default != q.default]
    assert differing == ["training"]  # None means the same mode


def linear_model(stage: Stage) -> None:
    model = stage["Model"](4, 3, LINEAR_WEIGHTS)
    assert_same(model(torch.eye(4)).detach().numpy(), LINEAR_WEIGHTS.T.numpy())


def inferred(stage: Stage) -> None:
    """Worked out by hand: 1+4+9+16, 2+6+12+20, 3+8+15+24."""
    stage["infer"]()
    assert stage.printed[0][1].tolist() == [30.0, 40.0, 50.0]


def exported_linear(stage: Stage) -> None:
    if "export_onnx" in stage.names:
        stage["export_onnx"]()
    assert opset_of("../models/example.onnx") == 12
    model = stage["Model"](4, 3, LINEAR_WEIGHTS)
    assert_runs_as(model, "../models/example.onnx", whole(1, 1, 1, 4))


def two_heads(stage: Stage) -> None:
    model = stage["Model"](4, 3, LINEAR_WEIGHTS, LINEAR_WEIGHTS + 1)
    first, second = model(torch.eye(4))
    assert_same((second - first).detach().numpy(), np.ones((4, 3), np.float32))


def exported_two_heads(stage: Stage) -> None:
    stage["export_onnx"]()
    path = "../models/example_two_head.onnx"
    assert opset_of(path) == 12
    assert [o.name for o in onnx.load(path).graph.output] == ["output0", "output1"]
    x = whole(1, 1, 1, 4)
    for found, weights in zip(run(path, x), (LINEAR_WEIGHTS, LINEAR_WEIGHTS + 1), strict=True):
        assert_same(found, (x @ weights.T).numpy())


def exported_open_batch(stage: Stage) -> None:
    path = "../models/example_dynamic_shape.onnx"
    assert opset_of(path) == 12
    assert stage.printed == [("Finished onnx export",)]
    for batch in (1, 6):
        assert_runs_as(stage["model"], path, whole(batch, 1, 1, 4))


def folded_batch_norm(stage: Stage) -> None:
    path = "../models/sample-cbr.onnx"
    assert opset_of(path) == 15
    assert [n.op_type for n in onnx.load(path).graph.node] == ["Conv", "Relu"]
    torch.manual_seed(0)  # as before the block: the same input and the same weights are drawn again
    x, model = torch.rand(1, 3, 5, 5), stage["Model"]().eval()
    with torch.no_grad():
        np.testing.assert_allclose(run(path, x)[0], model(x), rtol=0, atol=tolerance(model, x))


def exported_asinh(stage: Stage) -> None:
    linger.onnx.export(Asinh(), torch.zeros(1, 5), "asinh.onnx", opset_version=12)
    assert opset_of("asinh.onnx") == 12
    assert [n.op_type for n in onnx.load("asinh.onnx").graph.node] == ["Asinh"]
    x = torch.linspace(-9, 9, 37).view(1, -1)[:, :5]
    np.testing.assert_allclose(run("asinh.onnx", x)[0], torch.asinh(x), rtol=0, atol=tolerance(Asinh(), x))


def validated_asinh(stage: Stage) -> None:
    """Both lines that the block prints, as numbers."""
    stage["validate_onnx"]()
    (_, in_torch), (_, in_runtime) = stage.printed
    np.testing.assert_allclose(in_runtime[0], in_torch, rtol=0, atol=tolerance(Asinh(), torch.rand(1, 5)))


def custom_deform_conv(stage: Stage) -> None:
    """The new ONNX op is in the file, with the inputs that the symbolic hands on."""
    linger.onnx.export(DeformConv(), (torch.rand(1, 3, 8, 8), torch.zeros(1, 18, 6, 6)), "dcn.onnx", opset_version=12)
    assert opset_of("dcn.onnx") == 12
    found = [(n.domain, n.op_type, len(n.input)) for n in onnx.load("dcn.onnx").graph.node if n.domain]
    assert found == [("custom", "deform_conv2d", 2)]


class DeformConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 3, 3, 3))
        self.bias = nn.Parameter(torch.rand(4))

    def forward(self, x, offset):
        mask = torch.ones(1, 9, 6, 6)
        geometry = (1, 1, 0, 0, 1, 1, 1, 1, True)
        return torch.ops.torchvision.deform_conv2d(x, self.weight, offset, mask, self.bias, *geometry)


def mended_file(stage: Stage) -> None:
    """The mended file computes what the right one computes, and nothing else was left behind."""
    assert sorted(p.name for p in Path().glob("*")) == ["dbpagec2_wrong.onnx", "dbpagec2_wrong_fix.onnx", "right.onnx"]
    x = np.random.default_rng(0).normal(0, 1, (1, 3, 224, 224)).astype(np.float32)
    right, mended = (linger.Session(name).run(None, {"input": x}) for name in ("right.onnx", "dbpagec2_wrong_fix.onnx"))
    assert_same(mended[0], right[0])
    assert len(np.unique(right[0])) > 16
