"""Findings of required rules of MISRA C:2012 in exported C are those that the page explains, and no others."""

import re
import subprocess

import numpy as np
import pytest

from linger.c import export
from tests.conftest import REPOSITORY
from tests.support.c_folders import WIDTHS, image_network, require_tool, sequence_network
from tests.support.streams import dialect, network

ADVISORY = frozenset(
    [
        "2.3",
        "2.4",
        "2.5",
        "2.6",
        "2.7",
        "4.2",
        "5.9",
        "8.7",
        "8.9",
        "8.11",
        "8.13",
        "10.5",
        "11.4",
        "11.5",
        "12.1",
        "12.3",
        "12.4",
        "13.3",
        "13.4",
        "15.1",
        "15.4",
        "15.5",
        "17.5",
        "17.8",
        "18.4",
        "18.5",
        "19.2",
        "20.1",
        "20.5",
        "20.10",
        "21.12",
    ]
)


def pool_network():
    """Pools, and so many weights that they are strings."""
    draw = np.random.default_rng(1)

    def build(g, x):
        x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        pool = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0]}
        x = dialect(g, "AvgPool2dInt", x, **pool, data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0)
        w = draw.integers(-90, 90, (50, 100)).astype(np.int8)
        return dialect(g, "LinearInt", g.op("Flatten", x, axis=1), w, **WIDTHS, scale_x=16.0, scale_w=64.0, scale_o=1.0)

    return network(build, inputs="int8[1,4,20,20] x", outputs="int8[1,50] y")


CASES = {
    "pools": (pool_network, {}),
    "image": (image_network, {}),
    "given by the caller": (image_network, {"arena": "caller", "weights": "file", "layout": "nhwc"}),
    "stream": (sequence_network, {"stream": 1}),
}


def findings(folder):
    cppcheck = require_tool("cppcheck", "cppcheck")
    sources = [str(file) for file in folder.glob("*.c") if file.name != "test.c"]
    options = ["--addon=misra", "--std=c99", "--enable=style", "-DLINGER_GENERIC", "-ULINGER_PROOF", "-U__cplusplus"]
    done = subprocess.run([cppcheck, *options, *sources], capture_output=True, text=True, check=True)
    return set(re.findall(r"misra-c2012-(\d+\.\d+)", done.stderr))


def explained():
    page = (REPOSITORY / "docs/c-misra.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| (\d+\.\d+) \|", page, re.MULTILINE)), page


@pytest.mark.slow
def test_findings_are_explained(tmp_path):
    required, page = explained()
    found = set()
    for number, (make, options) in enumerate(CASES.values()):
        found |= findings(export(make(), tmp_path / str(number), name="net", **options))
    assert found - ADVISORY == required
    assert found & ADVISORY <= set(re.findall(r"\b\d+\.\d+\b", page.partition("Advisory rules")[2]))


@pytest.mark.slow
def test_a_finding_that_nobody_explains_is_seen(tmp_path):
    folder = export(image_network(), tmp_path / "c", name="net")
    with (folder / "net.c").open("a") as file:
        file.write(
            "\nint32_t net_more(int32_t x);\nint32_t net_more(int32_t x) { if (x) goto end; x = 2; end: return x; }\n"
        )
    assert findings(folder) - ADVISORY - explained()[0]
