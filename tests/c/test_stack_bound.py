"""The bound of the stack holds, for whole programs on emulated processors and for each function of linger's headers."""

import re
import subprocess
from importlib.resources import files

import numpy as np
import pytest

from linger.c import build, export
from linger.c.readme_text import HEADERS, _StackBytes, stack_bound
from linger.c.toolchains import toolchain
from tests.support.c_folders import image_network
from tests.support.c_targets import require_target
from tests.support.streams import dialect, network

KINDS = {"cortex-m0": "plain", "cortex-m3": "plain", "cortex-m4": "dsp", "cortex-m55": "helium", "rv32imac": "plain"}
TOLD = {"plain": r"at most ([\d,]+)", "dsp": r"([\d,]+) with DSP", "helium": r"([\d,]+) with (?:DSP or )?Helium"}


def attention_network():
    """Two products of activations, and a softmax between them: calls inside calls, which need the most stack."""
    widths = {"data_bits": 8, "o_bits": 8}

    def build_attention(g, x):
        keys = g.op("Transpose", x, perm=[0, 2, 1])
        scores = dialect(g, "BmmInt", x, keys, **widths, scale_x=16.0, scale_y=16.0, scale_o=8.0)
        shares = dialect(g, "SoftmaxInt", scores, dim=-1, **widths, scale_x=8.0, scale_o=128.0)
        return dialect(g, "BmmInt", shares, x, **widths, scale_x=128.0, scale_y=16.0, scale_o=16.0)

    return network(build_attention, inputs="int8[1,9,16] x", outputs="int8[1,9,16] y")


def depthwise_network():
    """A depthwise convolution, whose function needs the most stack with Helium."""
    window = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 32}
    widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_w": 64.0, "scale_o": 16.0}

    def build_depthwise(g, x):
        w = np.random.default_rng(0).integers(-90, 90, (32, 1, 3, 3)).astype(np.int8)
        return dialect(g, "Conv2dInt", x, w, **window, **widths)

    return network(build_depthwise, inputs="int8[1,32,6,6] x", outputs="int8[1,32,6,6] y")


STACKS = {"images": image_network, "attention": attention_network, "depthwise": depthwise_network}
CASES = [(make, target) for make in STACKS for target in KINDS]
QUICK = [("attention", "cortex-m4"), ("depthwise", "cortex-m55")]


@pytest.mark.parametrize(
    ("make", "target"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_stack_is_not_above_what_is_said(make, target, tmp_path):
    require_target(target)
    folder = export(STACKS[make](), tmp_path / "c", name="net")
    row = re.search(r"RAM: stack \|(.*)", (folder / "README.md").read_text())[1]
    told = int(re.search(TOLD[KINDS[target]], row)[1].replace(",", ""))
    with build(folder, target=target) as program:
        zeros = {e.name: np.zeros(e.shape, e.layout(quantized=False).dtype) for e in program.folder.inputs}
        assert program.stack(zeros) <= told <= 3 * program.stack(zeros)


def test_two_functions_and_one_header_count():
    functions = [
        "static void a(int8_t *x) {\n    int32_t sums0[4];\n}\n",
        "static void b(int8_t *x) {\n    int64_t sums0[LINGER_PIXELS * 8];\n    int8_t row0[3];\n}\n",
        "static void c(int8_t *x) {\n    int32_t sums0[LINGER_PIXELS * LINGER_TILE(96, 16)];\n}\n",
    ]
    nothing, found = stack_bound("", []), stack_bound("".join(functions), ["linger_pools.h", "linger_dots.h"])
    assert nothing == _StackBytes(384, 384, 384)  # gcc needed 264 for calls alone, with any instructions
    assert found.plain - nothing.plain == 8 * 2 * 8 + 3 + 4 * 2 * 16 + HEADERS["linger_dots.h"].plain
    assert found.dsp - nothing.dsp == 8 * 2 * 8 + 3 + 4 * 2 * 16 + HEADERS["linger_dots.h"].dsp
    assert found.helium - nothing.helium == 8 * 2 * 8 + 3 + 4 * 2 * 32 + HEADERS["linger_dots.h"].helium


def deepest_call(graph):
    """The most bytes of a chain of calls, from a call graph as gcc writes it."""
    sizes = {
        name: int((re.search(r"(\d+) bytes", label) or [0, 0])[1])
        for name, label in re.findall(r'node: \{ title: "([^"]+)" label: "([^"]*)"', graph)
    }
    calls = re.findall(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"', graph)

    def depth(name):
        return sizes.get(name, 0) + max((depth(called) for caller, called in calls if caller == name), default=0)

    return max(map(depth, sizes))


def header_stack(header, target, flag, place):
    """The stack that the functions of a header need, and how many they are."""
    tools = toolchain(target)
    command = [tools.find_compiler(None), "-std=c99", flag, *tools.machine_flags, f"-I{files('linger.c') / 'include'}"]
    source = place / f"{target}{flag}.c"
    source.write_text(f'#include "{header}"\n')
    text = subprocess.run([*command, "-E", "-P", str(source)], check=True, capture_output=True, text=True).stdout
    names = re.findall(r"static[^;{}]*?\bvoid (linger_[a-z_]+(?:_\d+)+)\([^;{}]*\)\s*\{", text)
    source.write_text(f'#include "{header}"\nvoid *all[] = {{{", ".join(f"(void *){name}" for name in names)}}};\n')
    subprocess.run([*command, "-fcallgraph-info=su", "-c", source.name, "-o", "all.o"], check=True, cwd=place)
    return deepest_call((place / "all.ci").read_text()), len(names)


@pytest.mark.slow
@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("header", HEADERS)
def test_the_functions_of_a_header_need_what_is_said(header, target, tmp_path):
    require_target(target)
    told = getattr(HEADERS[header], KINDS[target])
    for flag in ("-O2", "-Os", "-O3"):
        used, count = header_stack(header, target, flag, tmp_path)
        assert count >= 6
        assert used <= told
