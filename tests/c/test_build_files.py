"""Build files: CMake builds and tests a folder; the frameworks get what they look for."""

import re
import subprocess

import pytest

from linger.c import export
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import image_network, require_tool, sequence_network


@pytest.mark.parametrize("options", [{}, {"weights": "file", "arena": "caller"}], ids=["plain", "weights in a file"])
def test_cmake_builds_and_tests_the_folder(options, tmp_path):
    cmake, ctest = require_tool("cmake", "cmake"), require_tool("ctest", "cmake")
    folder = export(image_network(), tmp_path / "c", name="net", **options)
    build = str(tmp_path / "build")
    for command in ([cmake, "-S", str(folder), "-B", build], [cmake, "--build", build], [ctest, "--test-dir", build]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "100% tests passed, 0 tests failed out of 2" in done.stdout


def test_cmake_sees_a_test_that_fails(tmp_path):
    cmake, ctest = require_tool("cmake", "cmake"), require_tool("ctest", "cmake")
    folder = export(image_network(), tmp_path / "c", name="net")
    text = (folder / "net.c").read_text()
    (folder / "net.c").write_text(re.sub(r"\+ (\d+)\) >> (\d+)", r"+ 1\1) >> \2", text))
    build = str(tmp_path / "build")
    for command in ([cmake, "-S", str(folder), "-B", build], [cmake, "--build", build]):
        subprocess.run(command, capture_output=True, check=True)
    assert subprocess.run([ctest, "--test-dir", build], capture_output=True, check=False).returncode != 0


def test_a_zephyr_module(tmp_path):
    folder = export(image_network(), tmp_path / "c", name="net", framework="zephyr")
    assert "name: net\nbuild:\n  cmake: .\n  kconfig: Kconfig\n" in (folder / "zephyr/module.yml").read_text()
    assert "config NET\n    bool" in (folder / "Kconfig").read_text()
    text = (folder / "CMakeLists.txt").read_text()
    assert "if(CONFIG_NET)" in text
    listed = re.search(r"zephyr_library_sources\(\s+(.*?)\)", text, re.DOTALL)[1].split()
    assert sorted(listed) == ["net.c", "net_float.c", "net_weights.c"]


def test_an_idf_component(tmp_path):
    folder = export(image_network(), tmp_path / "c", name="net", framework="esp-idf")
    text = (folder / "CMakeLists.txt").read_text()
    assert re.findall(r'"([\w.]+)"', text) == ["net.c", "net_float.c", "net_weights.c", "."]
    assert 'version: "1.0.0"' in (folder / "idf_component.yml").read_text()


def test_an_arduino_library(tmp_path):
    folder = export(sequence_network(), tmp_path / "c", name="net", framework="arduino", stream=1)
    fields = dict(line.split("=", 1) for line in (folder / "library.properties").read_text().splitlines())
    assert (fields["name"], fields["includes"], fields["architectures"]) == ("net", "net.h", "*")
    assert {f.name for f in (folder / "src").iterdir()} >= {"net.c", "net.h", "net_internal.h", "net_weights.c"}
    sketch = (folder / "examples/net_once/net_once.ino").read_text()
    assert "net_reset(&state);" in sketch
    assert "net_step_q(&state, x, y);" in sketch


@pytest.mark.parametrize("options", [{}, {"arena": "caller", "weights": "file"}], ids=["plain", "given"])
def test_a_sketch_compiles(options, tmp_path):
    compiler = require_tool("g++", "g++")
    require_compiler()
    folder = export(image_network(), tmp_path / "c", name="net", framework="arduino", **options)
    (tmp_path / "main.cpp").write_text(
        "struct { void begin(long) {} template <class T> void println(T) {} } Serial;\n"
        '#include "examples/net_once/net_once.ino"\n'
    )
    command = [compiler, "-std=c++11", "-Wall", "-Werror", f"-I{folder}", f"-I{folder}/src", "-fsyntax-only"]
    subprocess.run([*command, str(tmp_path / "main.cpp")], check=True)
