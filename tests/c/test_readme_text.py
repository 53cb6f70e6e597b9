"""The page of a folder: its numbers are those of the program, and its lines of C compile."""

import json
import re
import subprocess

import numpy as np
import pytest

from linger.c import export
from tests.support.c_compiler import STRICT, require_compiler
from tests.support.c_folders import image_network, sequence_network
from tests.support.streams import conv, dialect, network, recurrent


def test_memory_and_multiplications(tmp_path):
    text = (export(image_network(), tmp_path / "c", name="net") / "README.md").read_text()
    # 4·3·9 + 5·120 bytes of weights, (4 + 5)·4 of biases
    assert "| flash: weights | 744 | exact |" in text
    # windows that lie in the image and its border: 4·3·9·30, and 5·120
    assert "3,840 multiply-accumulates" in text
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [row[3] for row in rows] == ["0", "3,240", "600", "0"]
    assert not [row[1] for row in rows if re.match(r"\d", row[1])]  # what it computes, without the number again
    assert [row[4] for row in rows] == ["0.0%", "84.4%", "15.6%", "0.0%"]


def test_every_file_is_listed(tmp_path):
    folder = export(image_network(), tmp_path / "c", framework="arduino")
    listed = re.findall(
        r"^\| `([^`]+)` \| \w", (folder / "README.md").read_text().partition("## Files")[2], re.MULTILINE
    )
    assert sorted(listed) == sorted(
        str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file() and f.name != "README.md"
    )


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("zephyr", "a Zephyr module: add its path to EXTRA_ZEPHYR_MODULES and set CONFIG_NET=y."),
        ("esp-idf", "an ESP-IDF component: put it into the folder components of a project."),
        ("arduino", "an Arduino library: put it into the folder libraries of the sketchbook."),
    ],
    ids=["zephyr", "esp-idf", "arduino"],
)
def test_the_page_says_where_a_framework_takes_the_folder(framework, words, tmp_path):
    page = (export(image_network(), tmp_path / "c", name="net", framework=framework) / "README.md").read_text()
    assert f"This folder is {words}" in page


CASES = {
    "plain": (image_network, {}),
    "given": (image_network, {"arena": "caller", "weights": "file"}),
    "stream": (sequence_network, {"stream": 1}),
}


@pytest.mark.parametrize(("make", "options"), CASES.values(), ids=CASES)
def test_the_call_compiles(make, options, tmp_path):
    compiler = require_compiler()
    folder = export(make(), tmp_path / "c", name="net", **options)
    lines = re.search(r"```c\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1].splitlines()
    calls = [line for line in lines if re.match(r"net_\w+\(", line)]
    declared = [line for line in lines if line not in calls]
    text = "\n".join([*declared, "int main(void) {", *calls, "return 0; }", ""])
    (tmp_path / "main.c").write_text(text)
    command = [compiler, *STRICT, f"-I{folder}", "-fsyntax-only", str(tmp_path / "main.c")]
    subprocess.run(command, check=True)


def test_weights_have_one_size(tmp_path):
    """The file is larger than the arrays in it: each begins at a multiple of 16."""
    folder = export(image_network(), tmp_path / "c", name="net", weights="file")
    page, size = (folder / "README.md").read_text(), (folder / "net_weights.bin").stat().st_size
    assert size > 744
    assert f"| flash: weights | {size:,} | exact: `net_weights.bin`" in page
    assert "net_check_weights(weights, NET_WEIGHTS_BYTES);" in page
    header = (folder / "net.h").read_text()
    assert f"#define NET_WEIGHTS_BYTES {size}u" in header
    assert "weights: the NET_WEIGHTS_BYTES bytes of net_weights.bin" in header
    assert json.loads((folder / "manifest.json").read_bytes())["weight_bytes"] == size


def test_a_stream_says_its_delay_and_its_state(tmp_path):
    """The state is as large as the compiler makes it."""
    compiler = require_compiler()

    def build_late(g, x):
        y = conv(g, x, np.random.default_rng(1), (3, 3), pads=(1, 1))
        y = g.op("Transpose", y, perm=[2, 0, 1])
        return recurrent(g, y, np.random.default_rng(2), (3, 5))[0]

    model = network(build_late, inputs="int8[1,3,8] x", outputs="int8[8,1,5] y")
    folder = export(model, tmp_path / "c", name="net", stream=1)
    page = (folder / "README.md").read_text()
    assert "the first 1 frames of a stream (`NET_Y_DELAY`) mean nothing" in page
    assert "#define NET_Y_DELAY 1" in (folder / "net.h").read_text()
    assert "`net.c` itself computes with floats, too" in page
    size = int(re.search(r"RAM: state \| ([\d,]+) \| `net_state`", page)[1].replace(",", ""))
    (tmp_path / "size.c").write_text(f'#include "net.h"\ntypedef char check[sizeof(net_state) == {size} ? 1 : -1];\n')
    subprocess.run([compiler, *STRICT, f"-I{folder}", "-fsyntax-only", str(tmp_path / "size.c")], check=True)


def test_integers_alone_are_not_called_floats(tmp_path):
    page = (export(image_network(), tmp_path / "c", name="net") / "README.md").read_text()
    assert "computes with floats, too" not in page


def test_headers_are_described_by_what_they_hold(tmp_path):
    def build_pool(g, x):
        q = dialect(g, "Quant", x, data_bits=8, scale_x=16.0)
        return dialect(g, "MaxPool", q, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0])

    model = network(build_pool, inputs="float[1,8,4,4] x", outputs="int8[1,8,2,2] y")
    page = (export(model, tmp_path / "c", name="net") / "README.md").read_text()
    assert "| `linger_pools.h` | sums and largest numbers of windows" in page
