"""Files and dumps that the torch side writes."""

import numpy as np
import pytest

import linger
from tests.support.models import small_net

pytestmark = pytest.mark.needs_torch


@pytest.fixture(scope="module")
def other_forms(written):
    """The same network in the forms that are tried less often."""
    model, x = small_net()
    for form in ("bare", "qdq"):
        linger.onnx.export(model, (x,), written / f"{form}.onnx", form=form, input_names=["x"])
    return written


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A network in every form of file, and its dumps."""
    folder = tmp_path_factory.mktemp("net")
    model, x = small_net()
    for form in ("dialect", "standard"):
        linger.onnx.export(model, (x,), folder / f"{form}.onnx", form=form, input_names=["x"])
    with linger.Dumper() as dumper:
        dumper.enable_dump_quanted(model, path=folder / "dump")
        model(x)
    np.savez(folder / "x.npz", x=x.numpy())
    return folder


def require_equal(folder, form, absent=frozenset()):
    result = linger.compare(folder / "dialect.onnx", folder / f"{form}.onnx", folder / "x.npz")
    assert result.ok, result.summary()
    integers = set(linger.Session(folder / "dialect.onnx").integer_tensors())
    assert {row.name for row in result.rows} >= integers - absent
    assert {row.matched for row in result.rows} == {"name"}
    assert set(result.only_a) == absent


def test_the_standard_form_is_equal_and_lacks_what_only_a_relu_reads(written):
    absent = {"stem.Conv2dInt", "block.conv1.Conv2dInt", "block.iqAdd", "iqAdd"}
    require_equal(written, "standard", absent)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bare", "qdq"])
def test_other_forms_are_equal(other_forms, form):
    require_equal(other_forms, form)


def test_dumper_folder_is_equal_and_brings_the_input(written):
    result = linger.compare(written / "dialect.onnx", written / "dump", engine="numpy")
    assert result.ok, result.summary()
    assert {row.name for row in result.rows} == set(linger.Session(written / "dialect.onnx").integer_tensors())


def test_texts_of_the_dumper_alone(written, tmp_path):
    for path in (written / "dump").iterdir():
        if path.suffix == ".q_outputs":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    result = linger.compare(written / "dialect.onnx", tmp_path, written / "x.npz", engine="numpy")
    assert result.ok, result.summary()
    assert len(result.rows) == len(linger.Session(written / "dialect.onnx").integer_tensors())


def test_one_wrong_line_of_a_text_is_named(written, tmp_path):
    lines = (written / "dump" / "root.fc.LinearInt.q_outputs").read_text().splitlines()
    lines[12] = f"{float(lines[12]) - 1:.6f}"
    (tmp_path / "root.fc.LinearInt.q_outputs").write_text("\n".join(lines))
    result = linger.compare(written / "dialect.onnx", tmp_path, written / "x.npz", engine="numpy")
    assert (result.first.tensor, result.first.row.first.index, result.differing) == ("fc.LinearInt", (1, 2), 1)


@pytest.mark.slow
def test_real_values_of_the_dumper(written, tmp_path):
    for path in (written / "dump").iterdir():
        if path.suffix == ".outputs":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    result = linger.compare(written / "dialect.onnx", tmp_path, written / "x.npz", engine="numpy")
    assert result.ok, result.summary()
