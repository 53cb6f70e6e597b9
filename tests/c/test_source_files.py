"""The C of a folder: no warnings, no hidden memory, and nothing that a sanitizer or valgrind would say."""

import re
import subprocess

import numpy as np
import pytest

from linger.c import build, export
from linger.c.writer import array_definition
from tests.support.c_compiler import SANITIZERS, STRICT, require_compiler
from tests.support.c_folders import (
    image_network,
    require_tool,
    run_test_program,
    sequence_network,
)

NETWORKS = {
    "image": (image_network, {}),
    "image, all given by the caller": (image_network, {"arena": "caller", "layout": "nhwc", "weights": "file"}),
    "stream": (sequence_network, {"stream": 1}),
}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def folder(request, tmp_path):
    make, options = request.param
    return export(make(), tmp_path / "c", name="net", **options)


@pytest.mark.parametrize("cc", ["gcc", pytest.param("clang", marks=pytest.mark.devices)])
def test_no_compiler_warns(cc, folder, tmp_path):
    compiler = require_tool(cc, cc)
    done = run_test_program(folder, tmp_path, "-Wvla", "-Wmissing-prototypes", "-Wstrict-prototypes", cc=compiler)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_in_cpp_can_include_the_header(folder, tmp_path):
    compiler = require_tool("g++", "g++")
    (tmp_path / "main.cpp").write_text('#include "net.h"\nint main() { return NET_ARENA_BYTES > 0 ? 0 : 1; }\n')
    options = ["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{folder}"]
    subprocess.run([compiler, *options, "-fsyntax-only", str(tmp_path / "main.cpp")], check=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CHAR_BIT == 8", "CHAR_BIT == 9"),
        ("(-1 >> 1) == -1", "(-1 >> 1) == 0"),
        ("FLT_MANT_DIG == 24", "FLT_MANT_DIG == 53"),
    ],
)
def test_a_machine_that_is_otherwise_does_not_compile_it(old, new, tmp_path):
    compiler = require_compiler()
    folder = export(image_network(), tmp_path / "c", name="net")
    header = (folder / "net.h").read_text()
    assert old in header
    (folder / "net.h").write_text(header.replace(old, new))
    done = subprocess.run(
        [compiler, "-std=c99", "-fsyntax-only", str(folder / "net.c")], capture_output=True, check=False
    )
    assert done.returncode != 0


def test_the_only_variable_is_the_arena(tmp_path):
    """And a program with the caller's arena has none at all: it is reentrant."""
    compiler, nm = require_compiler(), require_tool("nm", "binutils")
    for arena, variables in (("static", ["net_arena"]), ("caller", [])):
        folder = export(image_network(), tmp_path / arena, name="net", arena=arena)
        objects = []
        for source in ("net.c", "net_float.c", "net_weights.c"):
            objects.append(str(tmp_path / f"{source}.o"))
            subprocess.run([compiler, "-std=c99", "-O1", "-c", str(folder / source), "-o", objects[-1]], check=True)
        found = subprocess.run([nm, *objects], capture_output=True, text=True, check=True).stdout
        assert re.findall(r"^[0-9a-f]+ [bBdDcC] (\S+)$", found, re.MULTILINE) == variables


def test_an_initial_state_that_varies_is_written(tmp_path):
    """The reset copies it from a table."""
    require_compiler()
    from dataclasses import replace

    from linger.c.exported_folder import StreamOptions
    from linger.c.exporter import _FolderOptions, interface_of
    from linger.c.source_files import source_text

    face = interface_of(sequence_network(), "net", _FolderOptions(), StreamOptions(1))
    first = face.stream.states[0]
    changed = replace(
        first, initial=np.arange(first.initial.size, dtype=first.initial.dtype).reshape(first.initial.shape)
    )
    face = replace(face, stream=replace(face.stream, states=(changed, *face.stream.states[1:])))
    text = source_text(face)
    assert f"static const int8_t net_state_0_initial[{first.initial.size}] = {{\n    0, 1, 2" in text
    assert "state->state_0[i] = net_state_0_initial[i];" in text


@pytest.mark.slow
def test_sanitizers_are_silent(folder, tmp_path):
    done = run_test_program(folder, tmp_path, *SANITIZERS, "-DLINGER_PROOF")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_valgrind_is_silent(folder, tmp_path):
    valgrind = require_tool("valgrind", "valgrind")
    assert run_test_program(folder, tmp_path).returncode == 0  # builds the program
    weights = sorted(map(str, folder.rglob("*_weights.bin")))
    command = [valgrind, "--error-exitcode=9", "-q", str(tmp_path / "test_program"), *weights]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_other_instruction_sets_compute_the_same(folder, tmp_path):
    for flags in (("-O3",), ("-O2", "-DLINGER_GENERIC"), ("-O2", "-march=native")):
        assert run_test_program(folder, tmp_path, *flags, "-DLINGER_PROOF").returncode == 0


ARRAYS = {
    "few bytes": np.array([-128, 0, 127], np.int8),
    "every byte, as strings": np.arange(40 * 256).astype(np.int8),
    "text that looks like escapes": np.frombuffer(b'7"\\?7??/0%' * 999, np.int8),
    "16 bits": np.array([-(2**15), 2**15 - 1], np.int16),
    "32 bits": np.array([-(2**31), 2**31 - 1], np.int32),
    "64 bits": np.array([-(2**63), 2**63 - 1], np.int64),
    "floats": np.array([0.0, -1.5, 1e-30, 3.4e38], np.float32),
}


def test_arrays_are_what_they_were(tmp_path):
    """Every array of weights, read back from a compiled program byte by byte."""
    compiler = require_compiler()
    parts = ["#include <stdint.h>\n#include <stdio.h>\n"]
    calls = []
    for number, content in enumerate(ARRAYS.values()):
        parts.append(array_definition(f"a{number}", content))
        calls.append(f"    fwrite(a{number}, 1, {content.nbytes}, stdout);")
    parts += ["int main(void) {", *calls, "    return 0;", "}"]
    (tmp_path / "arrays.c").write_text("\n".join(parts))
    subprocess.run(
        [compiler, *STRICT, "-trigraphs", str(tmp_path / "arrays.c"), "-o", str(tmp_path / "arrays")], check=True
    )
    done = subprocess.run([str(tmp_path / "arrays")], capture_output=True, check=True)
    assert done.stdout == b"".join(content.tobytes() for content in ARRAYS.values())


@pytest.mark.slow
def test_millions_of_weights_compile_fast(tmp_path):
    """11 million bytes: a few seconds of processor time; 30 are allowed."""
    import resource

    from tests.support.c_folders import WIDTHS
    from tests.support.streams import dialect, network

    draw = np.random.default_rng(0)

    def build_large(g, x):
        w = draw.integers(-127, 128, (3300, 3300)).astype(np.int8)
        b = draw.integers(-9000, 9000, 3300).astype(np.int32)
        return dialect(g, "LinearInt", x, w, b, **WIDTHS, scale_x=16.0, scale_w=64.0, scale_o=0.25)

    def seconds():
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))

    model = network(build_large, inputs="int8[1,3300] x", outputs="int8[1,3300] y")
    begin = seconds()
    with build(export(model, tmp_path / "c")):
        assert seconds() - begin < 30
