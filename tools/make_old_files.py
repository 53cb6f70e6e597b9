# SPDX-License-Identifier: Apache-2.0
"""How the files in tests/data/0.1 were made. Version 0.1 of linger wrote them, and they are never written again.

Every later version must read them and give the same integers (tests/test_old_files.py). The script stays to say what they
hold, and because the tests build the same models from it; it refuses to write into a folder that exists. A later version
that has new kinds of files gets a folder and a script of its own.

    python tools/make_old_files.py FOLDER

Two small networks, one of convolutions and one recurrent, are trained for a few steps as integers. Their weights are then
rounded to multiples of 1/256 and the variances of batch norms to powers of four, so that no result of the checkpoints
depends on the order of a sum or on the kind of CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from exported_files import numbers, with_fixed_weights
from safetensors.torch import save_file
from torch import Tensor, nn

import linger

FORMS = ("dialect", "bare", "standard", "qdq")
REPOSITORY = Path(__file__).resolve().parent.parent
WRITTEN_ABOUT = ("docs", "README.md", "README.zh-CN.md", "CONTRIBUTING.md", "examples")


class ConvNet(nn.Module):
    """Convolution with batch norm and ReLU, a residual sum, a pool, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4, eps=2.0**-16)
        self.mix = nn.Conv2d(4, 4, 3, padding=1)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores, n×3, of images, n×1×6×6."""
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.relu(x + self.mix(x))
        return self.head(self.pool(x).flatten(1))


class RecurrentNet(nn.Module):
    """An LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores, n×t×3, of sequences, n×t×4."""
        y, _ = self.rnn(x)
        return self.head(y)


MODELS: dict[str, Callable[[], nn.Module]] = {"conv": ConvNet, "lstm": RecurrentNet}
EXAMPLES = {"conv": (1, 1, 6, 6), "lstm": (1, 3, 4)}
"""Sizes of an example input."""


def prepared(name: str) -> nn.Module:
    """A new model, fused and quantized, as it must be to load a checkpoint."""
    model = MODELS[name]()
    if name == "conv":
        linger.trace_layers(model, torch.zeros(EXAMPLES[name]))
    return linger.init(model)


def batches_of(name: str) -> list[Tensor]:
    """The inputs, in two batches of unequal size."""
    _, *sizes = EXAMPLES[name]
    return [numbers(3, *sizes), numbers(2, *sizes, step=41)]


def _train(model: nn.Module, inputs: Tensor) -> nn.Module:
    """Three steps; the targets are what makes the scores differ from each other."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-3)
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(inputs)
        nn.functional.mse_loss(scores, numbers(*scores.shape, step=23)).backward()
        optimizer.step()
    return model.eval()


def _rounded(model: nn.Module) -> nn.Module:
    """The same model with weights and statistics of few bits."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.floor(parameter * 256 + 0.5) / 256)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.floor(buffer * 256 + 0.5) / 256)
            if name.endswith("running_var"):
                buffer.copy_(4.0 ** torch.floor(torch.log2(buffer) / 2 + 0.5) - 2.0**-16)
    return model


def _write_model(name: str, folder: Path) -> None:
    """Checkpoints, recordings, files, certificates, vectors and dumps of one model."""
    batches = batches_of(name)
    start = with_fixed_weights(MODELS[name]())
    torch.save(start.state_dict(), folder / f"{name}_float.pt")
    model = prepared(name)
    model.load_state_dict(start.state_dict())
    model = _rounded(_train(model, batches[0]))
    torch.save(model.state_dict(), folder / f"{name}.pt")
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, folder / f"{name}.safetensors")
    linger.save_recordings(linger.record(model, batches), folder / f"{name}_recordings")
    axes = {"x": {0: "n"}, "scores": {0: "n"}}
    names = {"input_names": ["x"], "output_names": ["scores"], "dynamic_axes": axes}
    for form in FORMS:
        linger.onnx.export(model, (batches[0],), folder / f"{name}_{form}.onnx", form=form, **names)
    file = folder / f"{name}_dialect.onnx"
    linger.verify(model, file, batches, certificate=folder / f"{name}_embedded.json")
    linger.verify(None, file, batches=3, levels=("disable", "all"), certificate=folder / f"{name}_generated.json")
    large = numbers(130 if name == "conv" else 400, *batches[0].shape[1:]).numpy()
    linger.verify(None, file, [large], certificate=folder / f"{name}_stored.json")
    linger.write_vectors(file, folder / f"{name}_vectors", batches[1].numpy(), header_limit=64)
    with linger.Dumper() as dumper:
        dumper.enable_dump_quanted(model, path=str(folder / f"{name}_dump"))
        model(batches[1][:1])


def _write_findings(folder: Path) -> None:
    """What linger says of the convolutional network: sensitivities, weights, a check, and other forms of its file."""
    model = MODELS["conv"]()
    model.load_state_dict(torch.load(folder / "conv_float.pt"))
    found = linger.sensitivity(model.eval(), batches_of("conv"), target_db=36, save_path=folder / "measurements.json")
    found.to_json(folder / "sensitivity.json")
    linger.wb_analyse(folder / "conv.safetensors", str(folder / "wb_analyse.log")).to_json(folder / "wb_analyse.json")
    linger.convert_dialect(folder / "conv_bare.onnx", to="linger", path=folder / "conv_newer.onnx")
    result = linger.check(folder / "conv_bare.onnx", target="venus")
    (folder / "check.json").write_text(result.to_json(), encoding="utf-8")


def resolved(dotted: str) -> Any:
    """The module or attribute of a dotted name, whichever there is.

    Raises:
        AttributeError: There is no such thing.
    """
    parts = dotted.split(".")
    found = importlib.import_module(parts[0])
    for count, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[:count]))
            except ModuleNotFoundError as error:
                raise AttributeError(f"{dotted}: there is no {part!r}") from error
    return found


def _is_there(dotted: str) -> bool:
    try:
        resolved(dotted)
    except AttributeError:
        return False
    return True


def documented_names() -> Iterator[str]:
    """Every dotted name of linger that a page or an example ever had, also those that were removed since."""
    command = ["git", "log", "--format=", "-p", "--", *WRITTEN_ABOUT]
    history = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    yield from re.findall(r"(?<![\w./-])linger(?:\.[A-Za-z_]\w*)+", history)
    for module, listed, line in re.findall(r"from (linger[\w.]*) import (?:\(([^)]*)\)|([\w, ]+))", history):
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", listed or line))


def _write_names(folder: Path) -> None:
    """The public names, and apart from them the paths of modules inside the package that pages ever named."""
    public = {f"linger.{name}" for name in linger.__all__}
    for package in ("onnx", "graph"):
        public |= {f"linger.{package}.{name}" for name in importlib.import_module(f"linger.{package}").__all__}
    there = {name for name in documented_names() if _is_there(name)}
    inside = {name for name in there if not any(name == known or name.startswith(f"{known}.") for known in public)}
    inside |= {name for name in there - public if name.startswith(("linger.onnx.", "linger.graph."))}
    inside |= {name.rpartition(".")[0] for name in inside} - public - {"linger"}
    for file, names in (("names.txt", public | there - inside), ("module_paths.txt", inside)):
        (folder / file).write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")


def make(folder: Path, steps: Iterable[Callable[[Path], None]]) -> None:
    """Write everything into a new folder."""
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    for step in steps:
        step(folder)
    about = {"linger": linger.__version__, "torch": str(torch.__version__)}
    (folder / "versions.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    assert __doc__ is not None  # this module has one
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    folder = parser.parse_args(arguments).folder
    if folder.exists():
        raise SystemExit(f"{folder}: files of an older version are not written again. Give a new folder.")
    if not linger.__version__.startswith("0.1."):
        raise SystemExit(f"this is linger {linger.__version__}; these files are those of version 0.1.")
    make(folder, [lambda place: [_write_model(name, place) for name in MODELS], _write_findings, _write_names])
    files = [path for path in folder.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files)} bytes in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
