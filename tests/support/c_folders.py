"""Small networks for exported C, and folders of them: compiled as they are, and searched for symbols."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.c_compiler import STRICT, require_compiler
from tests.support.streams import conv, dialect, network, recurrent

WIDTHS = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
WINDOW = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
QUICK = ("-O0", *STRICT[1:])


def image_network(seed=5, *, channels=3, scores="scores"):
    """Two inputs, one of real numbers; two outputs, one of them a picture; a Flatten whose columns are moved."""
    draw = np.random.default_rng(seed)

    def build(g, image, mask):
        x = dialect(g, "Quant", image, data_bits=8, scale_x=16.0)
        w = draw.integers(-90, 90, (4, channels, 3, 3)).astype(np.int8)
        b = draw.integers(-900, 900, 4).astype(np.int32)
        y = dialect(g, "Conv2dInt", x, w, b, **WINDOW, **WIDTHS, scale_x=16.0, scale_w=64.0, scale_o=8.0)
        y = dialect(g, "iqAdd", y, mask, scale_x=8.0, scale_y=8.0, scale_o=4.0)
        flat = g.op("Flatten", y, axis=1)
        w = draw.integers(-90, 90, (5, 4 * 30)).astype(np.int8)
        b = draw.integers(-900, 900, 5).astype(np.int32)
        z = dialect(g, "LinearInt", flat, w, b, **WIDTHS, scale_x=4.0, scale_w=64.0, scale_o=0.5)
        return dialect(g, "Dequant", z, scale_o=0.5), y

    inputs = f"float[1,{channels},5,6] image; int8[1,4,5,6] mask"
    return network(build, inputs=inputs, outputs=f"float[1,5] {scores}; int8[1,4,5,6] picture")


def sequence_network(frames=8, seed=3):
    """A causal Conv1d and an LSTM over time, with a Quant and a Dequant."""
    draw = np.random.default_rng(seed)

    def build(g, x):
        q = dialect(g, "Quant", x, data_bits=8, scale_x=16.0)
        y = conv(g, q, draw, (4, 6), pads=(2, 0))
        y = g.op("Transpose", y, perm=[2, 0, 1])
        y = recurrent(g, y, draw, (6, 5))[0]
        return dialect(g, "Dequant", y, scale_o=128.0)

    return network(build, inputs=f"float[1,4,{frames}] x", outputs=f"float[{frames},1,5] y")


def require_tool(name, package):
    """The path of a tool; without it the test is skipped, or fails where nothing may be skipped."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} cannot be found (Debian: {package})"
        if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def run_test_program(folder: Path, place: Path, *flags, cc=None):
    """Build every C file of a folder with its test program, and run that."""
    sources = sorted(map(str, folder.rglob("*.c")))
    folders = sorted({str(file.parent) for file in folder.rglob("*.h")})
    program = place / "test_program"
    command = [cc or require_compiler(), *STRICT, "-O0", *flags, *(f"-I{name}" for name in folders), *sources]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    weights = sorted(map(str, folder.rglob("*_weights.bin")))
    return subprocess.run([str(program), *weights], capture_output=True, text=True, check=False)


def symbols(folder: Path, place: Path, names, *flags, cc="gcc", nm="nm"):
    """What objects of C files define for the linker, and what they need of others."""
    objects = []
    for name in names:
        objects.append(str(place / f"{Path(name).stem}.o"))
        command = [cc, "-std=c99", "-O2", *flags, "-c", str(folder / name), "-o", objects[-1]]
        subprocess.run(command, check=True, capture_output=True)
    found = subprocess.run([nm, "-g", *objects], check=True, capture_output=True, text=True).stdout
    defined = set(re.findall(r"^[0-9a-f]+ [A-TV-Z] (\S+)$", found, re.MULTILINE))
    needed = set(re.findall(r"^ +U (\S+)$", found, re.MULTILINE))
    return defined, needed - defined
