"""The page of a folder: its numbers are those of the program, and its lines of C compile."""

import re
import subprocess

import pytest

from linger.c.exporter import export
from linger.c.folder.readme_text import stack_bytes
from linger.c.program import build
from tests.support.c_compiler import STRICT, require_compiler
from tests.support.c_folders import picture_network, sequence_network
from tests.support.c_targets import require_target


def test_memory_and_multiplications(tmp_path):
    text = (export(picture_network(), tmp_path / "c", name="net") / "README.md").read_text()
    # 4·3·9 + 5·120 bytes of weights, (4 + 5)·4 of biases
    assert "| flash: weights | 744 | exact |" in text
    # windows that lie in the picture and its border: 4·3·9·30, and 5·120
    assert "3,840 multiply-accumulates" in text
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [row[3] for row in rows] == ["0", "3,240", "600", "0"]
    assert [row[4] for row in rows] == ["0.0%", "84.4%", "15.6%", "0.0%"]


def test_every_file_is_listed(tmp_path):
    folder = export(picture_network(), tmp_path / "c", framework="arduino")
    listed = re.findall(
        r"^\| `([^`]+)` \| \w", (folder / "README.md").read_text().partition("## Files")[2], re.MULTILINE
    )
    assert sorted(listed) == sorted(
        str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file() and f.name != "README.md"
    )


CASES = {
    "plain": (picture_network, {}),
    "given": (picture_network, {"arena": "caller", "weights": "file"}),
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


def test_the_stack_is_what_a_processor_needs(tmp_path):
    """The estimate is at most a few hundred bytes above what an emulated Cortex-M4 has used, and not below."""
    require_target("cortex-m4")
    folder = export(picture_network(), tmp_path / "c", name="net")
    told = int(re.search(r"stack \| about ([\d,]+)", (folder / "README.md").read_text())[1].replace(",", ""))
    with build(folder, target="cortex-m4") as program:
        layouts = {edge.name: edge.integer for edge in program.folder.inputs}
        import numpy as np

        used = program.stack({n: np.zeros(x.shape, x.dtype) for n, x in layouts.items()}, quantized=True)
    assert used <= told <= used + 400


def test_the_stack_is_that_of_the_largest_function():
    small = "static void a(int8_t *x) {\n    int32_t sums0[4];\n}\n"
    large = "static void b(int8_t *x) {\n    int64_t sums0[LINGER_PIXELS * 8];\n    int8_t row0[3];\n}\n"
    assert stack_bytes(small + large) - stack_bytes(small) == 8 * 2 * 8 + 3 - 16
