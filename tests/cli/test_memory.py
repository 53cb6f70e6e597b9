"""linger memory."""

import json
import re
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.cli import COMMANDS
from linger.graph import save
from tests.support.chip import WIDTHS, WINDOW, model_of, node
from tests.support.command import run

CONV = node("Conv2dInt", "q, w", **WIDTHS | WINDOW | {"group": 32}).replace("y =", "c =", 1)
ENDS = f"""[quant] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [conv] {CONV}
    [dequant] y = thinker.Dequant<scale_o=16.0>(c)"""
HOSTILE = "[bold red]$x_{$ [/nothing] \x1b[31m\n卷积 " + "n" * 300


@pytest.fixture
def nets(folder):
    """large.onnx does not fit venus, ends.onnx only without its float ends, small.onnx does, open.onnx cannot be decided."""
    for name, inputs in (
        ("large", "float[1,32,128,128] x"),
        ("ends", "float[1,32,64,64] x"),
        ("small", "float[batch,32,8,8] x"),
        ("open", "float[1,32,h,w] x"),
    ):
        save(model_of(ENDS, inputs=inputs, w=(32, 1, 3, 3)), folder / f"{name}.onnx")
    return folder


def test_it_is_a_command():
    assert "memory" in COMMANDS


def cells_of(page):
    return [re.split(r"\s*│\s*", line.strip("│ \n")) for line in page.splitlines() if line.startswith("│")]


def test_layers_and_totals(nets):
    done = run("memory", "small.onnx", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    assert cells_of(done.stdout)[:3] == [
        ["quant (Quant)", "1×32×8×8", "10.0", "0.0", "0"],
        ["conv (Conv2dInt)", "1×32×8×8", "4.0", "0.3", "18,432"],
        ["dequant (Dequant)", "1×32×8×8", "10.0", "0.0", "0"],
    ]
    assert (
        "small.onnx: 10,240 bytes (10.0 KB) of tensors alive at one time, at quant (Quant); 288 bytes of weights; "
        "18,432 multiply-accumulates. Counted as 1: the open batch axis batch."
    ) in done.stdout.splitlines()


def test_the_steps_of_the_program_in_c(nets):
    # q and c have 2048 bytes each; the real numbers of x and y belong to the caller; 32 biases of 4 bytes are stored
    done = run("memory", "small.onnx", cwd=nets)
    assert cells_of(done.stdout)[3:] == [
        ["0: input quant (Quant)", "q 1×32×8×8", "2,048", "0.0", "0"],
        ["1: conv (Conv2dInt)", "c 1×32×8×8", "4,096", "0.4", "18,432"],
        ["2: output dequant (Dequant)", "c 1×32×8×8", "2,048", "0.0", "0"],
    ]
    assert done.stdout.splitlines()[-1] == (
        "As C: an arena of 4,096 bytes (4.0 KB), the least that is possible (step 1), no scratch; 416 bytes of weights."
    )


def test_a_network_without_c_is_shown_all_the_same(nets):
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,2] x) => (float[1,2] y) { [odd] y = Sin(x) }'
    onnx.save(onnx.parser.parse_model(text), nets / "float.onnx")
    done = run("memory", "float.onnx", "--plot", "p.svg", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    assert cells_of(done.stdout) == [["odd (Sin)", "1×2", "0.0", "0.0", "0"]]
    assert done.stdout.splitlines()[-1].startswith("There is no program in C: g cannot be written as C: ")
    assert "<!-- tensors alive, KB -->" in (nets / "p.svg").read_text("utf-8")
    read = json.loads(run("memory", "float.onnx", "--format", "json", cwd=nets).stdout)
    assert read["c"] is None
    assert f"{read['c_refusal']}\n" in done.stdout


def test_of_a_chip_only_the_sentence_about_c(nets):
    done = run("memory", "small.onnx", "--target", "venus", cwd=nets)
    assert len(cells_of(done.stdout)) == 3
    assert "As C: an arena of 4,096 bytes" in done.stdout


def test_a_chip_without_room_fails_with_the_remedy(nets):
    done = run("memory", "large.onnx", "--target", "venus", cwd=nets)
    assert (done.returncode, done.stderr) == (1, "")
    assert "On venus the tensors must take less than 655,360 bytes (640.0 KB). It does not fit." in done.stdout
    assert "1048576 bytes of tensors are alive here (q 524288, c 524288); venus has 655360" in done.stdout
    assert "Use a smaller image or fewer channels here." in done.stdout
    assert "tpacker" not in done.stdout


def test_float_ends_without_room_are_said_and_do_not_fail(nets):
    done = run("memory", "ends.onnx", "--target", "venus", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(640.0 KB). It fits, if the packer does not keep the float ends." in done.stdout
    assert "655360 bytes of tensors are alive here (x 524288, q 131072); venus has 655360" in done.stdout
    assert "is_input_quant=True" in done.stdout
    read = json.loads(run("memory", "ends.onnx", "--target", "venus", "--format", "json", cwd=nets).stdout)
    assert read["ok"]
    assert [(finding["severity"], finding["rule"]) for finding in read["findings"]] == [("warning", "LGR951")]


@pytest.fixture
def dense(nets):
    """dense.onnx: two fully connected layers with biases, which share their weight."""
    layer = node("LinearInt", "{}, w, {}", **WIDTHS)
    body = f"[one] {layer.format('x', 'b').replace('y =', 'a =', 1)} [two] {layer.format('a', 'c')}"
    biases = {name: np.zeros(256, np.int32) for name in "bc"}
    save(model_of(body, inputs="int8[1,256] x", w=(256, 256), **biases), nets / "dense.onnx")
    return nets


def test_scratch_is_a_column_of_a_chip(dense):
    # 256 results of 4 bytes each
    done = run("memory", "dense.onnx", "--target", "venus", cwd=dense)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scratch KB" in done.stdout
    assert cells_of(done.stdout) == [
        ["one (LinearInt)", "1×256", "0.5", "65.0", "1.0", "65,536"],
        ["two (LinearInt)", "1×256", "0.5", "65.0", "1.0", "65,536"],
    ]
    plain = run("memory", "dense.onnx", cwd=dense).stdout
    assert "scratch KB" not in plain
    assert cells_of(plain)[0] == ["one (LinearInt)", "1×256", "0.5", "65.0", "65,536"]


def test_scratch_for_programs(dense):
    for chip, size in (((), 0), (("--target", "venus"), 1024)):
        read = json.loads(run("memory", "dense.onnx", *chip, "--format", "json", cwd=dense).stdout)
        assert [layer["scratch_bytes"] for layer in read["rows"]] == [size, size]


def test_parameters_that_are_shared_in_part_need_an_option(dense):
    done = run("memory", "dense.onnx", "--target", "venus", cwd=dense)
    assert done.stdout.splitlines()[-1] == "The packer needs options for this file: tpacker … --dma_prefetch False"


def test_a_chip_with_room(nets):
    done = run("memory", "small.onnx", "--target", "venus", cwd=nets)
    assert done.returncode == 0
    assert "It fits." in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "The packer needs options for this file: tpacker … --dynamic_shape batch=1:1"
    )


def test_open_sizes_do_not_fail(nets):
    done = run("memory", "open.onnx", "--target", "venus", cwd=nets)
    assert done.returncode == 0
    assert "Whether it fits could not be decided." in done.stdout
    assert "size not known: x, q" in done.stdout
    assert "1×32×?×?" in done.stdout


def test_without_a_chip_nothing_fails(nets):
    assert run("memory", "large.onnx", cwd=nets).returncode == 0


def test_json_for_programs(nets):
    done = run("memory", "large.onnx", "--target", "venus", "--format", "json", cwd=nets)
    assert done.returncode == 1
    read = json.loads(done.stdout)
    assert (read["path"], read["target"], read["ok"], read["peak_bytes"]) == ("large.onnx", "venus", False, 2621440)
    assert [finding["rule"] for finding in read["findings"]] == ["LGR951"]
    assert read["c_refusal"] is None
    assert (read["c"]["arena_bytes"], read["c"]["least_bytes"]) == (2 * 32 * 128 * 128, 2 * 32 * 128 * 128)
    assert [step["function"] for step in read["c"]["steps"]] == ["", "step_0", ""]
    assert [block["kind"] for block in sorted(read["c"]["blocks"], key=lambda b: b["first"])] == ["input", "output"]


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_report_in_a_file_is_what_would_be_printed(nets, form):
    printed = run("memory", "large.onnx", "--target", "venus", "--format", form, cwd=nets).stdout
    done = run("memory", "large.onnx", "--target", "venus", "--format", form, "--out", "report", cwd=nets)
    assert (done.returncode, done.stdout) == (1, "")
    assert (nets / "report").read_text(encoding="utf-8") == printed


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
@pytest.mark.parametrize("chip", [(), ("--target", "venus")], ids=["c", "chip"])
def test_a_image_is_the_same_every_time(nets, suffix, start, chip):
    for name in ("a", "b"):
        done = run("memory", "small.onnx", *chip, "--plot", f"{name}.{suffix}", cwd=nets)
        assert (done.returncode, done.stderr) == (0, "")
        assert "As C: " in done.stdout
    assert (nets / f"a.{suffix}").read_bytes().startswith(start)
    assert (nets / f"a.{suffix}").read_bytes() == (nets / f"b.{suffix}").read_bytes()


def test_a_image_shows_the_limit_of_a_chip_or_the_arena(nets):
    run("memory", "small.onnx", "--target", "venus", "--plot", "chip.svg", cwd=nets)
    run("memory", "small.onnx", "--plot", "arena.svg", cwd=nets)
    chip, arena = ((nets / f"{name}.svg").read_text("utf-8") for name in ("chip", "arena"))
    assert "<!-- venus: 640 KB -->" in chip
    assert "<!-- arena 4.0 KB = the least possible -->" in arena
    assert "640 KB" not in arena
    assert "arena" not in chip.replace("arena.svg", "")


def test_a_image_needs_matplotlib(nets, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("memory", "small.onnx", "--plot", "p.png", cwd=nets)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("linger: images need matplotlib. Install it with: pip install 'linger-nn[report]'\n")


def test_names_in_the_file_cannot_break_anything(nets):
    model = model_of(ENDS, inputs="float[batch,32,8,8] x", w=(32, 1, 3, 3))
    for n in model.graph:
        n.name = HOSTILE
    for value in (model.graph.inputs[0], *(n.outputs[0] for n in model.graph)):
        value.name = HOSTILE + (value.name or "")
    model.graph.inputs[0].shape = ir.Shape([HOSTILE, 32, "[h]", 8])
    save(model, nets / "[red]odd.onnx")
    for arguments in ((), ("--target", "venus"), ("--plot", "p.png"), ("--plot", "p.svg")):
        done = run("memory", "[red]odd.onnx", *arguments, cwd=nets, columns=100)
        assert (done.returncode, done.stderr) == (0, "")
        assert "[bold red]$x_{$ [/nothing] \\x1b[31m\\n卷积 nnn" in done.stdout
        assert "\x1b" not in done.stdout
        assert "[red]odd.onnx: " in done.stdout
    assert run("memory", "[red]odd.onnx", "--target", "venus", cwd=nets, encoding="ascii").returncode == 0
    assert json.loads(run("memory", "[red]odd.onnx", "--format", "json", cwd=nets).stdout)["batch_axes"] == [HOSTILE]


def test_a_network_without_layers(nets):
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] x) { }'
    onnx.save(onnx.parser.parse_model(text), nets / "empty.onnx")
    done = run("memory", "empty.onnx", "--target", "venus", "--plot", "p.png", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "none.onnx: there is no such file"),
        (["."], 2, "this is a folder"),
        (["broken.onnx"], 1, "not a complete ONNX model"),
        (["small.onnx", "--target", "pluto"], 2, "there is no chip 'pluto'"),
        (["none.onnx", "--target", "pluto"], 2, "there is no chip 'pluto'"),
        (["small.onnx", "--plot", "p.jpg"], 2, "images are written as .png, .svg"),
        (["small.onnx", "--out", "no/such/folder.json"], 2, "does not exist"),
        (["small.onnx", "--out", "report", "--plot", "no/p.png"], 2, "does not exist"),
        (["small.onnx", "--out", "p.png", "--plot", "p.png"], 2, "--out and --plot"),
        (["small.onnx", "--format", "sarif"], 2, "--format"),
        ([], 2, "model"),
    ],
    ids=["missing", "folder", "broken", "chip", "chip-first", "ending", "out", "plot", "twice", "format", "nothing"],
)
@pytest.mark.thin(every=2)
def test_what_cannot_be_done_is_said_and_nothing_is_written(nets, arguments, code, message):
    before = sorted(path.name for path in nets.iterdir())
    done = run("memory", *arguments, cwd=nets)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in nets.iterdir()) == before


def test_help_names_every_option(nets):
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("memory", "--help", cwd=nets).stdout)
    for option in ("--target", "--format", "--out", "--plot"):
        assert option in text
