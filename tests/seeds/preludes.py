"""What the blocks take for granted: models, inputs, weights and files, supplied from outside the blocks.

Weights of the models here are small whole numbers: on whole-number input every float32 sum is exact, in any order.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn
from torch.onnx import TrainingMode, register_custom_op_symbolic
from torch.onnx.symbolic_helper import parse_args

import linger
from tests.seeds.stage import Stage
from tests.support.resnet50 import resnet50

LINEAR_WEIGHTS = torch.tensor([[1.0, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]])
SRCNN_WIDTHS = ((64, 3, 9), (32, 64, 1), (3, 32, 5))


def whole_numbers(module: nn.Module) -> nn.Module:
    """The module with weights from −3 to 3, ready for inference."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -3.5, 3.5).data.round_()
    return module.eval()


class Picture(nn.Module):
    """Pictures of any size to a small map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.pool = nn.MaxPool2d(2)
        whole_numbers(self)

    def forward(self, x):
        return F.relu(self.pool(self.conv(x)))


class Detections(nn.Module):
    """A picture and a gain per picture to one row per place: open in batch, places, and the picture's sides."""

    def __init__(self, *, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.conv = nn.Conv2d(3, 5, 3)
        whole_numbers(self)

    def forward(self, x, gain):
        x = x.permute(0, 3, 1, 2) if self.channels_last else x
        return self.conv(x).flatten(2).transpose(1, 2) * gain.view(-1, 1, 1)


class Asinh(nn.Module):
    def forward(self, x):
        return torch.asinh(x)


def nothing(stage: Stage) -> None:
    """The block runs as it stands."""


def whole_signature(stage: Stage) -> None:
    """Values for the positional names of the old signature."""
    linger.redirect()
    stage.give(torch=torch, model=Picture(), args=torch.zeros(1, 3, 20, 20), f="all.onnx", TrainingMode=TrainingMode)


def model_class(stage: Stage) -> None:
    linger.redirect()
    stage.give(Model=Picture)


def model_with_batches(stage: Stage) -> None:
    linger.redirect()
    stage.give(torch=torch, linger=linger, torch_model=Picture(), x=torch.zeros(1, 3, 24, 24))


def blank_model(stage: Stage) -> None:
    """The model that the block leaves blank (`= ...`)."""
    linger.redirect()
    stage.give(linger=linger, torch_model=Picture())


def quantized_net(stage: Stage) -> None:
    net = linger.init(nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Conv2d(4, 2, 3)))
    with linger.calibration():
        net.eval()(torch.rand(2, 3, 224, 224))
    stage.give(torch=torch, linger=linger, net=net)


def checkpoint_files(stage: Stage) -> None:
    """Checkpoints in both of the layouts that the documents load."""
    state = Picture().state_dict()
    Path("data.ignore").mkdir()
    torch.save(state, "data.ignore/tool_test.pt")
    torch.save({"state_dict": state}, "best_checkpoint.pth")
    stage.give(torch=torch, linger=linger)


def wrong_file(stage: Stage) -> None:
    """A file whose Dequant stands before the last convolution, as older versions wrote them."""
    quantized_net(stage)
    linger.onnx.export(stage["net"], torch.zeros(1, 3, 224, 224), "right.onnx", input_names=["input"], form="bare")
    model = onnx.load("right.onnx")
    *_, last, dequant = model.graph.node
    assert (last.op_type, dequant.op_type) == ("Conv2dInt", "Dequant")
    before, output = last.input[0], dequant.output[0]
    last.output[0], last.input[0] = output, "moved"
    dequant.input[0], dequant.output[0] = before, "moved"
    del model.graph.node[-2:]
    model.graph.node.extend([dequant, last])
    onnx.save(model, "dbpagec2_wrong.onnx")


def network_on_a_card(stage: Stage) -> None:
    """The network of the missing torchvision, its checkpoint, and a card."""
    stage.give_cuda()
    stage.give(torch=torch, linger=linger, resnet50=resnet50, checkpoint=resnet50().state_dict())


def super_resolution(stage: Stage) -> None:
    """Imports, a face, weights under a trainer's prefix, and the file of the document's source."""
    linger.redirect()
    stage.keep_prints()
    stage.give_cv2()
    stage.give(torch=torch, nn=nn, np=np, onnx=onnx, onnxruntime=onnxruntime, interpolate=F.interpolate)
    Image.fromarray(load_sample_image("china.jpg")[100:356, 200:456]).save("face.png")
    torch.save({"state_dict": near_identity()}, "srcnn.pth")
    fixed = nn.Sequential(nn.Upsample(scale_factor=3, mode="bicubic"), nn.Conv2d(3, 3, 5, padding=2))
    linger.onnx.export(fixed, torch.zeros(1, 3, 8, 8), "srcnn.onnx", opset_version=11)


def near_identity() -> dict[str, torch.Tensor]:
    """Weights that hand the picture through, with a little noise: results stay between 0 and 255."""
    state = {}
    for number, (outputs, inputs, size) in enumerate(SRCNN_WIDTHS, start=1):
        weight = nn.init.dirac_(torch.empty(outputs, inputs, size, size))
        state[f"generator.conv{number}.weight"] = weight + 1e-4 * torch.randn_like(weight)
        state[f"generator.conv{number}.bias"] = torch.zeros(outputs)
    return state


def defined_interpolation(stage: Stage) -> None:
    super_resolution(stage)
    stage.run(0)


def loaded_super_resolution(stage: Stage) -> None:
    defined_interpolation(stage)
    stage.run(1)


def course(stage: Stage) -> None:
    """The imports of the course, and its folder for models beside the scripts."""
    linger.redirect()
    stage.keep_prints()
    scripts = stage.folder / "scripts"
    scripts.mkdir()
    (stage.folder / "models").mkdir()
    stage.monkeypatch.chdir(scripts)
    stage.give(torch=torch, nn=nn, onnxruntime=onnxruntime)
    torch.manual_seed(0)


def course_with_linear(stage: Stage) -> None:
    course(stage)
    stage.run(0)


def course_with_two_heads(stage: Stage) -> None:
    course(stage)
    stage.run(4)


def course_with_model(stage: Stage) -> None:
    """A model and an input under the names that the call uses."""
    course_with_linear(stage)
    stage.give(model=stage["Model"](4, 3, LINEAR_WEIGHTS).eval(), input=torch.zeros(1, 1, 1, 4))


def unbound_asinh(stage: Stage) -> None:
    """The registration function; without the block, the export is refused."""
    course(stage)
    with pytest.raises(linger.UsageError, match="asinh"):
        linger.onnx.export(Asinh(), torch.zeros(1, 5), "refused.onnx", opset_version=12)
    assert not Path("refused.onnx").exists()
    stage.forget_symbolic("aten::asinh")
    stage.give(register_custom_op_symbolic=register_custom_op_symbolic)


def exported_asinh(stage: Stage) -> None:
    unbound_asinh(stage)
    stage.run(8)
    linger.onnx.export(
        Asinh(), torch.zeros(1, 5), "../models/sample-asinh2.onnx", opset_version=12, input_names=["input0"]
    )
    stage.give(Model=Asinh)


def symbolic_helpers(stage: Stage) -> None:
    course(stage)
    stage.give_torchvision()
    stage.forget_symbolic("torchvision::deform_conv2d")
    stage.give(parse_args=parse_args, register_custom_op_symbolic=register_custom_op_symbolic)
