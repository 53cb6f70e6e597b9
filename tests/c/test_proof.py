"""linger.c.prove finds what differs, wherever it is, and says where."""

import re

import numpy as np
import onnx_ir as ir
import pytest

import linger.c.network
from linger.c import CProof, build, export, prove
from linger.c.proof import TensorProof
from linger.errors import UsageError
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import image_network, sequence_network
from tests.support.streams import conv, dialect, network, recurrent


@pytest.fixture(scope="module")
def model():
    return image_network()


@pytest.fixture
def folder(model, tmp_path):
    require_compiler()
    return export(model, tmp_path / "c", name="net")


def spoil(folder, old, new, file="net.c"):
    path = folder / file
    text = path.read_text()
    assert old in text
    lines = text.splitlines(keepends=True)  # in every form of a step, but not in what the proof copies
    path.write_text("".join(line if "linger_tap" in line else line.replace(old, new) for line in lines))
    return build(folder, flags=("-O0",), check_files=False)


def first_conv(folder):
    """The rounding constant of the first step."""
    return re.search(r"\+ (\d+)\) >> (\d+)", (folder / "net.c").read_text())[0]


def test_a_sound_program(model, folder):
    with build(folder, flags=("-O0",)) as program:
        proof = prove(program, model, samples=3, seed=4)
    assert proof.ok
    assert (proof.samples, proof.differing, proof.missing) == (3, 0, ())
    assert proof.elements == sum(row.elements for row in proof.rows)
    assert repr(proof) == f"CProof({proof.tensors} tensors, {proof.elements:,} numbers, 0 differ)"
    assert str(proof) == proof.summary()


def test_a_wrong_constant_is_found_in_the_tensor_that_it_makes(model, folder):
    rounding = first_conv(folder)
    with spoil(folder, rounding, rounding.replace("+ ", "+ 1")) as program:
        proof = prove(program, model, samples=1)
    assert not proof.ok
    assert proof.differing > 0
    wrong = next(row for row in proof.rows if row.differing)
    assert wrong.name == "picture"  # the sum of the convolution and the mask: one step
    assert re.match(r"sample 0, index \[0, \d, \d, \d\]: -?\d+ instead of -?\d+", wrong.first)
    assert wrong.name in proof.summary()


def test_a_fault_of_the_integer_interface_alone_is_found(model, folder):
    with spoil(folder, "copy_out_0((const int8_t *)", "copy_out_0(1 + (const int8_t *)") as program:
        proof = prove(program, model, samples=1)
    assert [row.name for row in proof.rows if row.differing] == ["scores (integers)"]


def test_a_fault_of_the_float_interface_alone_is_found(model, folder):
    with spoil(folder, "* 16.0f", "* 15.0f", "net_float.c") as program:
        proof = prove(program, model, samples=1)
    assert "Quant" in next(row for row in proof.rows if row.differing).name


def test_a_layout_that_the_manifest_does_not_say_is_found(model, tmp_path):
    require_compiler()
    folder = export(model, tmp_path / "c", name="net", layout="nhwc")
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(re.sub(r'"order": \[\s*0,\s*2,\s*3,\s*1\s*\]', '"order": [0, 1, 2, 3]', text, count=1))
    with build(folder, flags=("-O0",)) as program:
        assert not prove(program, model, samples=1).ok


def test_given_inputs_are_run(model, folder):
    feed = {"image": np.ones((1, 3, 5, 6), np.float32), "mask": np.zeros((1, 4, 5, 6), np.int8)}
    with build(folder, flags=("-O0",)) as program:
        assert prove(program, model, [feed, feed]).samples == 2
        with pytest.raises(UsageError, match="it lacks image, mask"):
            prove(program, model, {"other": feed["image"]})


def test_a_state_that_is_forgotten_is_found(tmp_path):
    require_compiler()
    model = sequence_network()
    folder = export(model, tmp_path / "c", name="net", stream=1)
    text = (folder / "net.c").read_text()
    line = re.search(r"    copy_out_\d\(.*, state->state_\d\);\n", text)[0]
    (folder / "net.c").write_text(text.replace(line, "    (void)" + line.strip().partition("(")[0] + ";\n", 1))
    with build(folder, flags=("-O0",), check_files=False) as program:
        assert not prove(program, model).ok


def step_network():
    """A file that is one step itself: it takes a state, and gives the next one."""

    def build_step(g, x, old):
        y = dialect(g, "iqAdd", x, old, scale_x=16.0, scale_y=16.0, scale_o=16.0)
        return g.op("Identity", y), y

    return network(build_step, inputs="int8[1,4] x; int8[1,4] old", outputs="int8[1,4] y; int8[1,4] new")


def test_a_file_that_is_one_step_itself(tmp_path):
    require_compiler()
    model = step_network()
    folder = export(model, tmp_path / "c", name="net", stream=0, pairs={"new": "old"})
    assert "void net_step(net_state *state, const int8_t *x, int8_t *y);" in (folder / "net.h").read_text()
    feeds = [{"x": np.full((1, 4), n, np.int8)} for n in (1, 20, 100, 100)]
    with build(folder, flags=("-O0",)) as program:
        assert [r["y"][0, 0] for r in program.run_many(feeds)] == [1, 21, 121, 127]
        assert prove(program, model, feeds).ok
        assert prove(program, model, samples=3).samples == 3


def spoil_preparation(monkeypatch, kind, shift):
    """Let the preparation of a network change the first constant of a type."""
    right = linger.c.network.fix_shapes

    def wrong(model):
        right(model)
        value = next(v for v in model.graph.initializers.values() if v.dtype == kind)
        value.const_value = ir.tensor((value.const_value.numpy() + shift).astype(kind.numpy()))

    monkeypatch.setattr(linger.c.network, "fix_shapes", wrong)


def test_a_fault_of_the_preparation_is_found(model, tmp_path, monkeypatch):
    """The program and the reference of the prepared network have it both; the file has not."""
    require_compiler()
    spoil_preparation(monkeypatch, ir.DataType.INT32, 5000)
    with build(export(model, tmp_path / "c", name="net"), flags=("-O0",)) as program:
        proof = prove(program, model, samples=1)
    assert "picture" in [row.name for row in proof.rows if row.differing]


def test_a_fault_of_the_preparation_of_a_step_is_found(tmp_path, monkeypatch):
    require_compiler()
    model = sequence_network()
    spoil_preparation(monkeypatch, ir.DataType.INT32, 5000)
    with build(export(model, tmp_path / "c", name="net", stream=2), flags=("-O0",)) as program:
        proof = prove(program, model)
    found = [row.name for row in proof.rows if row.differing]
    assert found[-1] == "y (whole sequence)"
    assert "y" in found  # the steps themselves, too


def stateful_network():
    """An LSTM whose states are inputs and outputs of the file."""
    draw = np.random.default_rng(11)

    def build_states(g, x, h0, c0):
        y, h, c = recurrent(g, x, draw, (3, 5), states=(h0, c0), lengths=4)
        return y, h, c

    return network(
        build_states,
        inputs="int8[4,1,3] x; float[1,1,5] h0; float[1,1,5] c0",
        outputs="int8[4,1,5] y; float[1,1,5] hn; float[1,1,5] cn",
    )


def test_a_stream_begins_at_its_states_whatever_the_inputs_say(tmp_path):
    require_compiler()
    model = stateful_network()
    x = np.random.default_rng(2).integers(-128, 128, (4, 1, 3)).astype(np.int8)
    states = {"h0": np.full((1, 1, 5), 0.9, np.float32), "c0": np.full((1, 1, 5), -0.9, np.float32)}
    with build(export(model, tmp_path / "c", name="net", stream=1), flags=("-O0",)) as program:
        for inputs in (None, {"x": x}, {"x": x, **states}):
            proof = prove(program, model, inputs)
            assert proof.ok, proof.summary()
        assert proof.rows[-1].name == "y (whole sequence)"


def offset_network():
    """A causal Conv1d, and an input without time that is added to every frame."""
    draw = np.random.default_rng(5)

    def build_sum(g, x, offset):
        y = conv(g, x, draw, (4, 4), pads=(2, 0))
        return dialect(g, "iqAdd", y, offset, scale_x=16.0, scale_y=16.0, scale_o=16.0)

    return network(build_sum, inputs="int8[1,4,8] x; int8[1,4,1] offset", outputs="int8[1,4,8] y")


def test_every_step_of_a_stream_gets_the_whole_of_an_input_without_time(tmp_path):
    require_compiler()
    model, draw = offset_network(), np.random.default_rng(6)
    feed = {
        name: draw.integers(-60, 60, shape).astype(np.int8) for name, shape in (("x", (1, 4, 8)), ("offset", (1, 4, 1)))
    }
    folder = export(model, tmp_path / "c", name="net", stream=2)
    assert "const int8_t *x, const int8_t *offset," in (folder / "net.h").read_text()
    with build(folder, flags=("-O0",)) as program:
        for inputs in (feed, None):
            proof = prove(program, model, inputs)
            assert proof.ok, proof.summary()
            assert proof.samples == 4  # steps of two frames
            assert [(row.name, row.elements) for row in proof.rows][-1] == ("y (whole sequence)", 32)


def test_another_model_and_wrong_arguments_are_refused(model, folder):
    with build(folder, flags=("-O0",)) as program:
        with pytest.raises(UsageError, match=r"the program has image, mask, scores, picture, the model x, old, y, new"):
            prove(program, step_network())
        with pytest.raises(UsageError, match=r"samples=0 is no number of inputs"):
            prove(program, model, samples=0)


def test_nothing_compared_is_no_proof():
    assert not CProof("C", 0, ()).ok
    assert not CProof("C", 1, (TensorProof("y", 3, 0),), ("z",)).ok
    assert "the program did not show z" in CProof("C", 1, (TensorProof("y", 3, 0),), ("z",)).summary()
