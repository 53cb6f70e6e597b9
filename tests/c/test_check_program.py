"""The program test.c: it passes, and names what differs if something does."""

import re

import numpy as np
import pytest

from linger.c import export
from linger.c.source_files import _narrowed
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import image_network, run_test_program, sequence_network


@pytest.fixture
def folder(tmp_path):
    require_compiler()
    return export(image_network(), tmp_path / "c", name="net")


def spoil(folder, pattern, new, file="net.c"):
    """In every form of a step, as x86 has another one, but not in what the proof copies."""
    text = (folder / file).read_text()
    first = re.search(pattern, text)
    assert first is not None
    wrong = re.sub(pattern, new, first[0])
    lines = text.splitlines(keepends=True) if "+ " in first[0] else [text]
    made = "".join(x if "linger_tap" in x and len(lines) > 1 else x.replace(first[0], wrong) for x in lines)
    (folder / file).write_text(made)


@pytest.mark.parametrize("flags", [(), ("-DLINGER_PROOF",)], ids=["outputs", "every tensor"])
def test_a_sound_program_passes(flags, folder, tmp_path):
    done = run_test_program(folder, tmp_path, *flags)
    assert (done.returncode, done.stdout) == (0, "net: 2 samples, every output is as it must be\n")


def test_integers_are_compared_as_integers(tmp_path):
    text = (export(image_network(), tmp_path / "c", name="net") / "test.c").read_text()
    integers, reals = (
        text.partition(f"static void check_{what}(void) {{")[2].partition("\n}\n")[0] for what in ("0", "0_real")
    )
    assert "const int8_t want =" in integers
    assert not re.search("float|double|%.9g", integers)
    assert "const float want =" in reals


def test_a_wrong_output_is_named_with_its_element(folder, tmp_path):
    spoil(folder, r"copy_out_0\(\(const int8_t \*\)&memory", "copy_out_0(1 + (const int8_t *)&memory")
    done = run_test_program(folder, tmp_path)
    assert done.returncode == 1
    assert re.match(r"net_run_q, sample 0: output scores, element 0 is -?\d+, expected -?\d+\n", done.stdout)


def test_a_wrong_conversion_is_named(folder, tmp_path):
    spoil(folder, r"0\.5f;", "0.25f;", "net_float.c")
    done = run_test_program(folder, tmp_path)
    assert done.returncode == 1
    assert "net_run, sample 0: output picture, element" in done.stdout


def test_the_first_wrong_tensor_is_named(folder, tmp_path):
    spoil(folder, r"\+ (\d+)\) >> (\d+)", r"+ 1\1) >> \2")
    done = run_test_program(folder, tmp_path, "-DLINGER_PROOF")
    assert done.returncode == 1
    assert re.match(r"net_run_q, sample 0: tensor \d+ \(picture\) is the first that differs\n", done.stdout)


def test_a_tensor_that_is_not_shown_is_noticed(folder, tmp_path):
    spoil(folder, r"    LINGER_SHOW\(.*\n    LINGER_NEXT", "    LINGER_NEXT")
    done = run_test_program(folder, tmp_path, "-DLINGER_PROOF")
    assert done.returncode == 1
    assert re.search(r"net_run_q, sample 0: \d+ tensors instead of \d+", done.stdout)


def test_other_weights_are_refused(tmp_path):
    require_compiler()
    folder = export(image_network(), tmp_path / "c", name="net", weights="file")
    weights = folder / "net_weights.bin"
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    done = run_test_program(folder, tmp_path)
    assert (done.returncode, done.stdout) == (1, "the weights cannot be read, or are not those of this program\n")
    weights.write_bytes(weights.read_bytes()[:-1])
    assert run_test_program(folder, tmp_path).returncode == 1


def test_a_state_that_is_not_reset_is_found(tmp_path):
    require_compiler()
    folder = export(sequence_network(), tmp_path / "c", name="net", stream=1)
    spoil(folder, r"state->state_0\[i\] = 0;", "state->state_0[i] = 1;")
    done = run_test_program(folder, tmp_path, "-DLINGER_PROOF")
    assert done.returncode == 1
    assert "net_step_q, sample 0: tensor" in done.stdout


@pytest.mark.parametrize(
    ("lowest", "highest", "kind"), [(-32768, 32767, "int16"), (-32769, 0, "int32"), (0, 32768, "int32")]
)
def test_the_grid_of_real_inputs_takes_two_bytes_where_it_can(lowest, highest, kind):
    assert _narrowed([np.array([lowest, highest], np.int32), np.zeros(2, np.int32)])[1].dtype == kind
