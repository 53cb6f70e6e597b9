# SPDX-License-Identifier: Apache-2.0
"""Trace which files of linger its main functions walk through; `house.py` runs this file and reads the JSON it prints.

Only the public functions are called, so that any commit can be traced: PYTHONPATH decides which one is imported.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

# A Dequant with a wrong scale stands before an integer op, and two float ops read raw integers.
MISPLACED = """
<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
net (float[n] x) => (float[n] y, float[n] z) {
    q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x)
    d = thinker.Dequant <scale_o: float = 4.0> (q)
    s = thinker.iqAdd <scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 16.0> (d, q)
    y = Sigmoid(s)
    z = Relu(s)
}"""


MY_NET = """
import torch
from torch import nn

def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()

def data():
    torch.manual_seed(1)
    return torch.randn(40, 1, 8, 8)
"""


Reads = Counter[tuple[str, int]]
"""How often each model file was read, by its path and the time of its content."""


def trace(root: Path, action: Callable[[], object], reads: Reads | None = None) -> tuple[list[str], int]:
    """Run an action; return the files of a tree in which at least one function ran, and the number of hops.

    A hop is a call, or the resumption of a generator, from a function in one file of the tree to a function in another,
    directly or through a library. Model files that are read are counted where a counter is given.
    """
    files: set[str] = set()
    hops = 0
    prefix = f"{root}{os.sep}"

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal hops
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(prefix):
            return
        files.add(name.removeprefix(prefix))
        if reads is not None and name.endswith("model_io.py") and frame.f_code.co_name == "_content":
            path = Path(frame.f_locals["path"])
            reads[str(path), path.stat().st_mtime_ns] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(prefix):
            caller = caller.f_back
        hops += caller is not None and caller.f_code.co_filename != name

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(files), hops


def walks() -> dict[str, Callable[[], object]]:
    """The walks by name, on a conv-bn-relu that is fused, quantized and calibrated; they leave files in this folder.

    `forward` runs in training mode. `repair` mends a file, and `repair and check` also runs the result.
    """
    import onnx
    import torch
    from torch import nn

    import linger

    torch.manual_seed(0)
    images = torch.randn(4, 3, 8, 8)
    weights = nn.Conv2d(3, 8, 3).state_dict()
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    linger.trace_layers(net, net, images[:1])
    training = linger.init(net).train()
    with linger.calibration():
        training(images)
    model = copy.deepcopy(training).eval()
    onnx.save(onnx.parser.parse_model(MISPLACED), "wrong.onnx")
    Path("my_net.py").write_text(MY_NET)
    job = ["quantize", "my_net.py:make_net", "--data", "my_net.py:data", "--budget", "8 trials", "--overwrite"]
    return {
        "forward": lambda: training(images),
        "export": lambda: linger.onnx.export(model, (images[:1],), "net.onnx"),
        "verify": lambda: linger.verify(model, "net.onnx", [images[:1]]),
        "repair": lambda: linger.fix_dequant("wrong.onnx"),
        "repair and check": lambda: linger.fix_dequant("wrong.onnx", True),  # noqa: FBT003 - it had another name
        "wb_analyse": lambda: linger.wb_analyse(weights, None),
        "linger c": lambda: command("c", "net.onnx", "net_c", "--overwrite"),
        "linger quantize": lambda: command(*job),
    }


def command(*words: str) -> None:
    """Run a command of linger in this process; what it prints goes to standard error, and any exit code will do."""
    import typer

    from linger.cli import load_commands

    with contextlib.redirect_stdout(sys.stderr):
        typer.main.get_command(load_commands(words[0])).main(list(words), prog_name="linger", standalone_mode=False)


def main(root: Path) -> None:
    """Trace every walk and count the public names; a walk runs once before, so that imports and registrations do not count."""
    import linger

    if Path(str(linger.__file__)).parent != root:
        raise SystemExit(f"{linger.__file__} was imported instead of the tree {root}.")
    names = [name for name in dir(linger) if not name.startswith("__")]
    traced = {}
    for name, action in walks().items():
        action()
        reads: Reads = Counter()
        traced[name] = (*trace(root, action, reads), max(reads.values(), default=0))
    counted = {"names in dir(linger)": len(names), "names in linger.__all__": len(linger.__all__)}
    print("\n" + json.dumps({"names": counted, "walks": traced}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
