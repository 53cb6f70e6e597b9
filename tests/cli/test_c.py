"""linger c."""

import json
import shutil

import pytest

from linger.cli import COMMANDS
from linger.graph import save
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import image_network, sequence_network
from tests.support.c_targets import require_target
from tests.support.command import run
from tests.support.streams import network


@pytest.fixture
def nets(folder):
    save(image_network(), folder / "net.onnx")
    save(sequence_network(), folder / "voice.onnx")
    return folder


def cells(text):
    rows = [line.strip("│ \n").split("│") for line in text.splitlines() if line.startswith("│")]
    return {row[0].strip(): row[1].strip() for row in rows}


def test_it_is_a_command():
    assert "c" in COMMANDS


def test_a_folder_is_written_and_described(nets):
    done = run("c", "net.onnx", "out", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    # the image of 90 bytes and the mask of 120, each rounded up to 16; the sum lies where the mask lay
    assert cells(done.stdout) == {"functions": "net_run, net_run_q", "arena": "224 bytes", "weights": "744 bytes"}
    assert (nets / "out/net.h").exists()


def test_a_folder_is_proven_on_this_machine(nets):
    require_compiler()
    done = run("c", "net.onnx", "out", "--prove", "--samples", "2", "--layout", "nhwc", "--weights", "file", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("of 2 samples compared with the numpy reference, 0 differ.")
    assert "RAM" in cells(done.stdout)


def test_an_emulated_processor_is_measured(nets):
    require_target("cortex-m4")
    done = run("c", "voice.onnx", "out", "--stream", "1", "--target", "cortex-m4", "--prove", "--json", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert content["functions"] == ["voice_reset", "voice_step", "voice_step_q"]
    assert content["proof"]["ok"]
    assert content["proof"]["differing"] == 0
    assert content["measured"]["target"] == "cortex-m4"
    assert content["measured"]["constants"] >= content["weight_bytes"]
    assert 1000 < content["measured"]["instructions"] < 100_000
    assert 0 < content["measured"]["stack"] < 1000


def test_a_target_alone_is_measured_without_running(nets):
    require_compiler()
    done = run("c", "net.onnx", "out", "--target", "host", "--json", cwd=nets)
    content = json.loads(done.stdout)
    assert content["proof"] is None
    assert content["measured"]["instructions"] is None
    assert content["measured"]["ram"] >= content["arena_bytes"]


def test_all_options_reach_the_folder(nets):
    options = ("--name", "other", "--arena", "caller", "--framework", "arduino", "--json")
    assert json.loads(run("c", "net.onnx", "out", *options, cwd=nets).stdout)["name"] == "other"
    assert "void *arena" in (nets / "out/src/other.h").read_text()
    again = run("c", "net.onnx", "out", cwd=nets)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert run("c", "net.onnx", "out", "--overwrite", cwd=nets).returncode == 0
    assert not (nets / "out/src").exists()


def test_time_and_states_are_said(nets):
    require_compiler()
    done = run("c", "voice.onnx", "out", "--stream", "2", "--time", "x=2", "--prove", cwd=nets)
    assert (done.returncode, done.stderr) == (0, "")
    # two frames of 4 for the convolution, and two states of 5 real numbers
    assert cells(done.stdout)["state"] == "48 bytes for each stream"
    assert cells(done.stdout)["RAM"].endswith("bytes, without state, inputs, outputs and stack")
    step = network(
        lambda g, x, a, b: (g.op("Identity", x), g.op("Identity", a), g.op("Identity", b)),
        inputs="int8[1,4] x; int8[1,3] a; int8[1,3] b",
        outputs="int8[1,4] y; int8[1,3] p; int8[1,3] q",
    )
    save(step, nets / "step.onnx")
    options = ("--stream", "0", "--pairs", "p=a", "--pairs", "q=b", "--json")
    done = run("c", "step.onnx", "out2", *options, cwd=nets)
    assert json.loads(done.stdout)["state_bytes"] == 6
    manifest = json.loads((nets / "out2/manifest.json").read_bytes())
    assert manifest["stream"]["pairs"] == {"p": "a", "q": "b"}


def test_what_the_caller_gives_is_not_counted(nets):
    require_compiler()
    options = ("--arena", "caller", "--weights", "file", "--target", "host")
    told = cells(run("c", "net.onnx", "out", *options, cwd=nets).stdout)
    assert told["arena"] == "224 bytes, given with every call"
    assert told["RAM"].endswith("without arena, inputs, outputs and stack")
    assert told["flash"].endswith("; without the file of weights")


def test_a_program_that_differs_is_an_error(nets, monkeypatch):
    """A fault of the writer: the folder is there, the command says what differs and fails."""
    require_compiler()
    from linger.c import source_files

    right = source_files.source_text

    def wrong(*arguments):  # in what is computed, not in what the proof copies
        lines = right(*arguments).splitlines(keepends=True)
        return "".join(line if "linger_tap" in line else line.replace("+ 64) >> ", "+ 64) >> 1 + ") for line in lines)

    monkeypatch.setattr(source_files, "source_text", wrong)
    done = run("c", "net.onnx", "out", "--prove", "--samples", "1", cwd=nets)
    assert done.returncode == 1
    assert "differ, first in picture (sample 0, index [0, 0, 0," in done.stderr
    assert "Traceback" not in done.stderr


WRONG = {
    "no model": (("nothing.onnx", "out"), "nothing.onnx"),
    "name": (("net.onnx", "out", "--name", "int"), "name='int' has a meaning of its own"),
    "arena": (("net.onnx", "out", "--arena", "heap"), "'heap' is not one of 'static', 'caller'"),
    "target": (("net.onnx", "out", "--target", "cortex-m5"), "Did you mean 'cortex-m55'?"),
    "compiler": (("net.onnx", "out", "--prove", "--cc", "no-such-cc"), "no C compiler can be found"),
    "compiler for nothing": (("net.onnx", "out", "--cc", "gcc"), "--cc names a compiler, and nothing is built"),
    "samples for nothing": (("net.onnx", "out", "--samples", "3"), "--batches belongs to --prove"),
    "stream": (("net.onnx", "out", "--stream", "1"), "no recurrent layer and no Conv1d"),
    "long stream": (("voice.onnx", "out", "--stream", "9", "--prove"), "has 8 frames, fewer than one step"),
    "no states": (("net.onnx", "out", "--stream", "0"), "stream=0 is for a file that is one step"),
    "time for nothing": (("net.onnx", "out", "--time", "image=1"), "time and pairs belong to a stream"),
    "time": (
        ("voice.onnx", "out", "--stream", "1", "--time", "x"),
        "--time x: expected a name, = and what it is given",
    ),
    "axis": (("voice.onnx", "out", "--stream", "1", "--time", "x=last"), "--time x=last: the axis is no number"),
    "pairs": (("voice.onnx", "out", "--stream", "0", "--pairs", "=x"), "--pairs =x: expected a name"),
    "twice": (("voice.onnx", "out", "--stream", "1", "--time", "x=1", "--time", "x=2"), "expected each name once"),
    "certificate": (("net.onnx", "out", "--certificate", "nothing.json"), "nothing.json: there is no such file"),
    "folder": (("net.onnx", "."), "not ours to replace"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.thin(every=2)
def test_wrong_usage_is_one_line_and_writes_nothing(arguments, message, nets, fails):
    fails("c", *arguments, code=2, message=message)


def test_what_has_no_c_fails_in_one_line(nets, fails):
    save(network(lambda g, x: g.op("Tanh", x), inputs="float[1,4] x", outputs="float[1,4] y"), nets / "floats.onnx")
    fails("c", "floats.onnx", "out", code=1, message="cannot be written as C")


def test_a_machine_without_tools_is_told_what_to_install(nets, fails, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    message = "Install it (Debian: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm)"
    fails("c", "net.onnx", "out", "--target", "cortex-m4", "--prove", code=2, message=message)
