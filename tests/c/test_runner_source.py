"""The main program around an exported network, as text."""

import pytest

from linger.c.exported_folder import read_folder
from linger.c.runner_source import Variant, main_source
from tests.support.tiny_c_network import write_tiny


@pytest.mark.parametrize(
    ("variant", "stem", "call"),
    [
        pytest.param(Variant(), "program", "tiny_run(", id="nothing asked for"),
        pytest.param(Variant(quantized=True), "program_quantized", "tiny_run_q(", id="integers"),
    ],
)
def test_a_program_calls_the_float_interface_unless_integers_are_asked_for(tmp_path, variant, stem, call):
    lines = main_source(read_folder(write_tiny(tmp_path / "tiny")), variant).splitlines()
    assert variant.stem == stem
    assert [line.strip().partition("input_0")[0] for line in lines if "tiny_run" in line] == [call]
