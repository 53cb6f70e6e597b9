# SPDX-License-Identifier: Apache-2.0
"""Write a fixed set of exported files, and compare two such sets byte for byte.

A change of the source code that must not change any file is shown to change none:

    PYTHONPATH=before/src python tools/exported_files.py write FOLDER_A
    PYTHONPATH=after/src python tools/exported_files.py write FOLDER_B
    python tools/exported_files.py compare FOLDER_A FOLDER_B

Weights and inputs are small whole numbers divided by powers of two, computed from their position and never drawn, so the
files do not depend on a seed, on the kind of CPU or on hashes. They do depend on versions, and that is not hidden: the field
`producer_version` is linger's version, in the file of the float model torch's, and torch decides what a traced graph looks
like. So write both sets with the same torch and onnx. Only public names of linger are used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError, Message
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linger

WRITERS: dict[str, Callable[[Path], None]] = {}
"""What writes each file, by the name of the file without its ending; filled by `exported`."""


def exported(name: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Add a function that writes a file to the set."""

    def add(write: Callable[[Path], None]) -> Callable[[Path], None]:
        WRITERS[name] = write
        return write

    return add


def numbers(*shape: int, step: int = 37, divisor: int = 16, limit: int = 31) -> Tensor:
    """A tensor of the whole numbers from -limit to limit in a fixed, uneven order, divided by a power of two."""
    count = 1
    for size in shape:
        count *= size
    place = torch.arange(count, dtype=torch.int64)
    whole = (place * step + place // 7 * 3 + 5) % (2 * limit + 1) - limit
    return (whole.to(torch.float32) / divisor).reshape(shape)


def with_fixed_weights(model: nn.Module, *, divisor: int = 64) -> nn.Module:
    """The model with weights that depend on their place only, and batch norms whose standard deviations are powers of two."""
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(numbers(*parameter.shape, step=29 + 2 * index, divisor=divisor))
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.eps = 2.0**-16
                layer.running_mean.copy_(numbers(layer.num_features, step=11))
                exponents = torch.arange(layer.num_features) % 3 - 1
                layer.running_var.copy_(4.0**exponents - layer.eps)  # exact in float32, and so is its sum with eps
                layer.weight.copy_(numbers(layer.num_features, step=13, divisor=32, limit=15) + 1)
            if isinstance(layer, nn.LayerNorm | nn.GroupNorm):
                layer.weight.copy_(numbers(*layer.weight.shape, step=13, divisor=32, limit=15) + 1)
    return model.eval()


def quantized(model: nn.Module, *inputs: Any, fuse: bool = False, **options: Any) -> nn.Module:
    """The model with fixed weights, quantized and calibrated on the inputs."""
    model = with_fixed_weights(model)
    if fuse:
        linger.trace_layers(model, *inputs)
    model = linger.init(model, **options).eval()
    with linger.calibration(), torch.no_grad():
        model(*inputs)
    return model


@exported("01_conv_bn_relu")
def _conv_bn_relu(path: Path) -> None:
    images = numbers(2, 2, 6, 6)
    net = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5))
    linger.onnx.export(quantized(net, images, fuse=True), (images,), path, verify=True)


@exported("02_depthwise_bare")
def _depthwise(path: Path) -> None:
    images = numbers(1, 4, 7, 7)
    net = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), nn.ReLU6(), nn.Conv2d(4, 8, 1, bias=False))
    linger.onnx.export(quantized(net, images), (images,), path, form="bare", input_names=["image"])


@exported("03_linear_standard")
def _linear(path: Path) -> None:
    rows = numbers(3, 12)
    net = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4, bias=False), nn.LeakyReLU(0.25))
    linger.onnx.export(quantized(net, rows), (rows,), path, form="standard", opset_version=17)


@exported("04_transposed_conv")
def _transposed_conv(path: Path) -> None:
    images = numbers(1, 3, 4, 5)
    net = nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2)
    )
    linger.onnx.export(quantized(net, images), (images,), path, opset_version=11)


class _Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.rnn, self.out = kind(4, 6, **options), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y, state = self.rnn(x)
        return self.out(y), state


@exported("05_lstm")
def _lstm(path: Path) -> None:
    steps = numbers(5, 2, 4)
    linger.onnx.export(quantized(_Recurrent(nn.LSTM, num_layers=2), steps), (steps,), path, input_names=["steps"])


@exported("06_gru_standard")
def _gru(path: Path) -> None:
    steps = numbers(2, 5, 4)
    net = quantized(_Recurrent(nn.GRU, batch_first=True), steps)
    linger.onnx.export(net, (steps,), path, form="standard", input_names=["steps"])


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 6, bidirectional=True, batch_first=True)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(y)


@exported("07_bidirectional_with_lengths")
def _bidirectional(path: Path) -> None:
    batch = numbers(3, 6, 4), torch.tensor([4, 6, 1])
    axes = {"x": [0, 1], "lengths": [0]}
    linger.onnx.export(quantized(_Tagger(), *batch), batch, path, input_names=["x", "lengths"], dynamic_axes=axes)


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = linger.quant_module(nn.Embedding(11, 6), [nn.Embedding])
        self.out = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.softmax(self.out(self.words(ids)), -1)


@exported("08_embedding")
def _embedding(path: Path) -> None:
    ids = torch.arange(10).reshape(2, 5) * 7 % 11
    linger.onnx.export(quantized(_Words(), ids), (ids,), path, dynamic_axes={"ids": {1: "words"}})


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.query = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x)
        y, _ = self.attention(q, q, q, need_weights=False)
        return functional.scaled_dot_product_attention(y, y, y)


@exported("09_attention")
def _attention(path: Path) -> None:
    rows = numbers(2, 4, 8)
    linger.onnx.export(quantized(_Attention(), rows), (rows,), path, opset_version=14)


@exported("10_layer_norm")
def _layer_norm(path: Path) -> None:
    rows = numbers(2, 3, 16)
    net = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4), nn.LogSoftmax(-1))
    linger.onnx.export(quantized(net, rows), (rows,), path)


@exported("11_group_norm")
def _group_norm(path: Path) -> None:
    images = numbers(1, 2, 5, 5)
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.InstanceNorm2d(8))
    linger.onnx.export(quantized(net, images), (images,), path)


class _Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        a, b = self.left(x), self.right(x)
        joined = torch.cat((a + b, a * b, a / 4 + a / b), -1)
        chosen = torch.where(mask, a, b).masked_fill(mask, 0.5)
        return joined.mean(-1), chosen, torch.sigmoid(a - b).sum(1), functional.pad(b, (1, 2)).clamp(-0.5, 1.0)


@exported("12_functions")
def _functions(path: Path) -> None:
    batch = numbers(2, 3, 6), torch.arange(36).reshape(2, 3, 6) % 5 < 2
    linger.onnx.export(quantized(_Functions(), *batch), batch, path, input_names=["x", "mask"], opset_version=13)


class _Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.conv(x)
        small = functional.max_pool2d(functional.avg_pool2d(y, 2), 3, 1, 1)
        bilinear = functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
        nearest = functional.pixel_shuffle(functional.interpolate(small, size=(5, 3)), 2)
        return bilinear + y, nearest, functional.adaptive_avg_pool2d(y, 3), functional.adaptive_max_pool2d(y, 1)


@exported("13_pools_and_interpolation")
def _pools(path: Path) -> None:
    images = numbers(1, 1, 8, 8)
    linger.onnx.export(quantized(_Pools(), images), (images,), path, output_names=["sum", "shuffled", "mean", "top"])


@exported("14_open_sizes")
def _open_sizes(path: Path) -> None:
    images = numbers(2, 1, 9, 8)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(24, 3))
    axes = {"image": {0: "n", 2: "height", 3: "width"}, "scores": {0: "n"}}
    names = {"input_names": ["image"], "output_names": ["scores"]}
    linger.onnx.export(quantized(net, images), (images,), path, dynamic_axes=axes, verify=True, **names)


@exported("15_16_and_4_bits")
def _widths(path: Path) -> None:
    rows = numbers(4, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3))
    linger.quant_module(net[0], data_bits=16, parameter_bits=8, out_bits=16)
    linger.quant_module(net[2], parameter_bits=4)
    linger.quant_module(net[4], data_bits=4, parameter_bits=4, out_bits=32)
    linger.onnx.export(quantized(net, rows), (rows,), path)


@exported("16_qdq")
def _qdq(path: Path) -> None:
    images = numbers(1, 2, 6, 6)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    linger.onnx.export(quantized(net, images, fuse=True), (images,), path, form="qdq", opset_version=13)


class _FloatTail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.head(torch.atan(y).flatten(1)) + torch.relu(y).mean()


@exported("17_repaired")
def _repaired(path: Path) -> None:
    images = numbers(1, 1, 6, 6)
    net = quantized(_FloatTail(), images)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file is broken on purpose
        linger.onnx.export(net, (images,), Path(folder) / "broken.onnx", is_update_dequant=False, input_names=["image"])
        repair = linger.fix_dequant(Path(folder) / "broken.onnx")
        assert repair.changes, "the file was not broken"
        path.write_bytes(repair.path.read_bytes())


@exported("18_converted")
def _converted(path: Path) -> None:
    images = numbers(1, 2, 6, 6)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 4), nn.Tanh())
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder) / "older.onnx"
        linger.onnx.export(quantized(net, images), (images,), older, form="bare", is_scoped_info=False)
        linger.convert_dialect(older, to="linger", path=path)


@exported("19_target_venus")
def _target(path: Path) -> None:
    images = numbers(1, 1, 8, 8)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU6(), nn.Flatten(), nn.Linear(512, 8), nn.Sigmoid())
    options = {"simplify": False, "is_input_quant": True, "input_names": ["image"]}
    linger.onnx.export(quantized(net, images, target="venus"), (images,), path, **options)


class _Soft(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor, slope: float) -> Tensor:
        return x / (1 + slope * x.abs())


class _FloatNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_Soft.apply(self.bn(self.conv(x)), 0.5).flatten(1))


SOFT = """
soft <slope> (x) => (y) {
  s = Constant <value_float: float = @slope> ()
  one = Constant <value = float {1.0}> ()
  size = Abs (x)
  scaled = Mul (size, s)
  divisor = Add (scaled, one)
  y = Div (x, divisor)
}
"""


@exported("20_float_with_custom_operator")
def _float(path: Path) -> None:
    images = numbers(1, 1, 4, 4)
    with linger.onnx.operator(_Soft, to="custom::soft", body=SOFT):
        linger.onnx.export(with_fixed_weights(_FloatNet()), (images,), path, input_names=["x"], output_names=["y"])


def write(folder: Path) -> int:
    """Write every file of the set into a folder, which may exist."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, make in WRITERS.items():
        make(folder / f"{name}.onnx")
    print(f"{len(WRITERS)} files in {folder}, written by linger {linger.__version__} of {Path(linger.__file__).parent}")
    return 0


def differences(a: Message, b: Message, where: str = "model") -> Iterator[str]:
    """The fields in which two messages differ, in the order of the format, each as the place and both values."""
    for field in a.DESCRIPTOR.fields:
        one, other, place = getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}"
        if one == other:
            continue
        if not field.is_repeated:
            nested = field.message_type is not None
            yield from differences(one, other, place) if nested else [f"{place}: {one!r:.80} against {other!r:.80}"]
            continue
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                named = f"{place}[{index}{' ' + repr(left.name) if getattr(left, 'name', '') else ''}]"
                nested = isinstance(left, Message)
                yield from differences(left, right, named) if nested else [f"{named}: {left!r} against {right!r}"]
        if len(one) != len(other):
            yield f"{place}: {len(one)} entries against {len(other)}"


def verdict(a: Path, b: Path) -> str:
    """'equal', or the sizes of both files and their first difference."""
    missing = [str(path) for path in (a, b) if not path.is_file()]
    if missing:
        return f"missing: {', '.join(missing)}"
    left, right = a.read_bytes(), b.read_bytes()
    if left == right:
        return "equal"
    sizes = f"{len(left)} and {len(right)} bytes"
    try:
        found = list(differences(onnx.load_from_string(left), onnx.load_from_string(right)))
    except DecodeError as error:
        return f"{sizes}; not both are ONNX files ({error})"
    if not found:
        at = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
        return f"{sizes}; the same model, written in another way from byte {at} on"
    count = "the only difference" if len(found) == 1 else f"the first of {len(found)} differences"
    return f"{sizes}; {count}: {found[0]}"


def compare(a: Path, b: Path) -> int:
    """Print a verdict for each file of either folder; 0 where the whole set is there twice and equal."""
    others = {path.stem for folder in (a, b) for path in folder.glob("*.onnx")}
    verdicts = {name: verdict(a / f"{name}.onnx", b / f"{name}.onnx") for name in sorted({*WRITERS, *others})}
    for name, found in verdicts.items():
        print(f"{name}: {found}")
    equal = sum(found == "equal" for found in verdicts.values())
    print(f"{equal} of {len(verdicts)} files are equal, byte for byte")
    return 0 if equal == len(verdicts) else 1


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    assert __doc__ is not None  # this module has one
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="export every model of the set").add_argument("folder", type=Path)
    comparison = commands.add_parser("compare", help="compare two folders byte for byte")
    comparison.add_argument("a", type=Path)
    comparison.add_argument("b", type=Path)
    chosen = parser.parse_args(arguments)
    return write(chosen.folder) if chosen.command == "write" else compare(chosen.a, chosen.b)


if __name__ == "__main__":
    sys.exit(main())
