"""A file against dumps: of a device, of another tool, damaged ones."""

import json
from functools import partial

import numpy as np
import pytest

import linger
from linger import compare as compare_tensors
from linger.errors import UsageError
from tests.support.small_dialect import TENSORS, Q, R, S, X, Y, model

compare = partial(compare_tensors, engine="numpy")
"""The engine without sessions: ten times as quick. The tests that say linger.compare take the other."""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "dump"
    made.mkdir()
    return made


def save(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def rows(result):
    return {row.name: row for row in result.rows}


def test_dumps_with_their_input(folder):
    save(folder, **TENSORS)
    result = linger.compare(model(), folder)
    assert result.ok
    assert list(rows(result)) == ["q", "r", "s", "y"]  # the input was fed, so it proves nothing
    assert (result.values, result.only_a, result.only_b) == (24, (), ())


def test_rows_are_in_the_order_of_execution(folder):
    renamed = model(("q = ", "z_first = "), ("Relu(q)", "Relu(z_first)"), ("(q, r)", "(z_first, r)"))
    save(folder, x=X, r=R + 1, z_first=Q + 1)
    result = compare(renamed, folder)
    assert [row.name for row in result.rows] == ["z_first", "r"]
    assert result.first.tensor == "z_first"


def test_a_wrong_integer_is_named(folder):
    wrong = R.copy()
    wrong[0, 1, 0, 2] = 3
    save(folder, x=X, r=wrong, q=Q)
    result = compare(model(), folder)
    assert not result.ok
    assert result.first.tensor == "r"
    assert (result.first.row.first.index, result.first.row.first.a, result.first.row.first.b) == ((0, 1, 0, 2), 0, 3)
    assert (result.first.row.largest, result.first.row.largest_real) == (3.0, 3 / 16)
    assert result.only_a == ("s", "y")


def test_given_inputs_are_compared_with_dumped_ones(folder):
    save(folder, x=X + 1, q=Q)
    result = compare(model(), folder, X)
    assert result.first.tensor == "x"
    assert rows(result)["q"].ok


def test_mangled_names_say_how_they_were_found(folder):
    save(folder, x=X)
    save(folder, **{"001_Q": Q, "R_": R})
    assert {n: r.matched for n, r in rows(compare(model(), folder)).items()} == {
        "q": "normalized name without its number",
        "r": "normalized name",
    }


def test_texts_integers_or_real_values(folder):
    save(folder, x=X)
    (folder / "q.txt").write_text(" ".join(map(str, Q.reshape(-1).tolist())))
    np.savetxt(folder / "r.txt", R.reshape(-1), fmt="%.6f")
    np.savetxt(folder / "s.txt", S.reshape(-1) / 8, fmt="%.6f")
    np.savetxt(folder / "y.txt", Y.reshape(-1), fmt="%.3f")
    result = compare(model(), folder)
    assert result.ok
    assert "read as real values" in rows(result)["s"].notes


def test_raw_bytes_of_a_device(folder):
    padded = np.zeros((1, 1, 3, 8), np.int16)  # NHWC, channels padded to 8
    padded[..., :2] = np.moveaxis(Q, 1, -1)
    (folder / "0.bin").write_bytes(padded.astype(">i2").tobytes())
    (folder / "in.bin").write_bytes(X.tobytes())
    (folder / "manifest.csv").write_text(
        "name,file,dtype,shape,byte_order,layout,channel_align\n"
        "x,in.bin,float32,1x2x1x3,,,\n"
        "q,0.bin,int16,1x2x1x3,big,NHWC,8\n"
    )
    result = compare(model(), folder)
    assert result.ok
    assert list(rows(result)["q"].notes) == ["int8 against int16"]


def test_a_scale_of_the_manifest_that_is_another(folder):
    save(folder, x=X, q=Q)
    tensors = [{"name": "x", "file": "x.npy"}, {"name": "q", "file": "q.npy", "scale": 32.0}]
    (folder / "manifest.json").write_text(json.dumps({"tensors": tensors}))
    result = compare(model(), folder)
    assert list(rows(result)["q"].notes) == ["scale 16 against 32"]
    assert not result.ok


def test_several_batches(folder):
    for batch, factor in enumerate((1, 2)):
        (folder / f"batch_{batch}").mkdir()
        np.save(folder / f"batch_{batch}" / "x.npy", X * factor)
        np.save(folder / f"batch_{batch}" / "r.npy", R)
    result = compare(model(), folder)
    assert (result.batches, result.first.row.first.batch) == (2, 1)
    for name in ("x.npy", "r.npy"):
        (folder / "batch_1" / name).unlink()
    (folder / "batch_1").rmdir()
    assert compare(model(), folder).ok


def test_given_inputs_for_several_batches(folder):
    for batch in range(2):
        (folder / f"batch_{batch}").mkdir()
        np.save(folder / f"batch_{batch}" / "q.npy", Q)
    assert compare(model(), folder, [X, X]).ok
    with pytest.raises(UsageError, match="dumps of 2 batches, but inputs of 1"):
        compare(model(), folder, X)


def test_a_pile_of_inputs_for_a_file_that_takes_one(folder):
    one = model(("float[n,2,1,3] x", "float[1,2,1,3] x"), ("float[n,2,1,3] y", "float[1,2,1,3] y"))
    save(folder, x=np.concatenate([X, X * 0]), q=np.concatenate([Q, Q * 0]))
    np.savetxt(folder / "r.txt", np.concatenate([R, R * 0]).reshape(-1), fmt="%d")
    result = compare(one, folder)
    assert (result.ok, result.batches) == (True, 2)
    save(folder, q=np.concatenate([Q, Q]))
    assert compare(one, folder).first.row.first.batch == 1
    save(folder, q=np.int8([1, 2, 3]))
    with pytest.raises(UsageError, match="3 numbers cannot be divided among the 2 inputs"):
        compare(one, folder)


def test_flat_input(folder):
    (folder / "x.txt").write_text("\n".join(map(str, X.reshape(-1).tolist())))
    save(folder, q=Q)
    assert compare(model(), folder).ok


def test_integers_behind_the_quant_are_the_input(folder):
    save(folder, q=Q, r=R)
    result = compare(model(), folder)
    assert result.ok
    assert [row.name for row in result.rows] == ["r"]  # q was fed, so it proves nothing
    assert result.only_a == ("s", "y")
    assert "The input x is made from the dumped integers q." in result.summary()


def test_dumper_gives_the_input_of_a_quant(folder):
    np.savez(folder / "root.q.npz", q_outputs=Q, outputs=Q / 16, input=X, scale_o=16.0)
    np.savez(folder / "root.r.npz", q_outputs=R, outputs=R / 16, scale_o=16.0)
    result = compare(model(), folder)
    assert result.ok
    assert {r.matched for r in result.rows} == {"file name"}


def test_a_single_npz(tmp_path):
    np.savez(tmp_path / "dump.npz", x=X, y=Y)
    result = compare(model(), tmp_path / "dump.npz")
    assert result.ok
    assert result.only_a == ("q", "r", "s")


def test_inputs_alone_compare_nothing(folder):
    save(folder, x=X)
    result = compare(model(), folder)
    assert not result.ok
    assert "No tensor could be compared" in result.summary()


# -- damage ---------------------------------------------------------------------------------------------------


def test_all_damage_is_one_sentence_each_at_once(folder):
    save(folder, x=X, q=np.int8([1, 2]), nonsense=Q)
    np.save(folder / "001_r.npy", R)
    save(folder, r=R)
    (folder / "s.txt").write_text("1 nan 3 4 5 6")
    (folder / "y.bin").write_bytes(b"\0")
    with pytest.raises(UsageError) as error:
        compare(model(), folder)
    for words in (
        "q.npy: it is too short: 2 numbers; q has 6 (1x2x1x3).",
        "nonsense.npy: nonsense: the file has no tensor of this name.",
        "r has two files, ",
        "'nan' in line 1",
        "y.bin: raw bytes need a manifest.json",
    ):
        assert words in str(error.value)


def test_unknown_names_can_be_allowed(folder):
    save(folder, x=X, q=Q, scratch=Q)
    with pytest.raises(UsageError, match="scratch: the file has no tensor of this name"):
        compare(model(), folder)
    result = compare(model(), folder, allow_unknown=True)
    assert result.ok
    assert result.only_b == ("scratch",)


def test_missing_inputs_are_named(folder):
    save(folder, r=R)
    with pytest.raises(UsageError, match=r"The inputs x are not among the dumps\. Give inputs"):
        compare(model(), folder)


def test_inputs_that_do_not_fit(folder):
    save(folder, x=np.zeros((1, 3, 1, 3), np.float32), q=Q)
    with pytest.raises(UsageError, match=r"x is float32\[1, 3, 1, 3\], expected float"):
        compare(model(), folder)


def test_empty_and_missing_folder(folder, tmp_path):
    with pytest.raises(UsageError, match="there is no dump in it"):
        compare(model(), folder)
    with pytest.raises(UsageError, match="no such file or folder"):
        compare(model(), tmp_path / "none.npz")
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(UsageError) as error:
        compare(model(), tmp_path / "t.txt", X)
    assert str(error.value).startswith(f"{tmp_path / 't.txt'}: there is no number in it.")


# -- a real network -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet(shared):
    return shared / "golden" / "resnet18-12-regular.onnx"


@pytest.fixture(scope="module")
def recorded(shared):
    with np.load(shared / "golden" / "ops" / "resnet18-12-regular.npz") as content:
        return {name: content[name][:2] for name in content.files}


def test_the_engines_recorded_outputs_are_equal(resnet, recorded, folder):
    save(folder, **recorded)
    result = linger.compare(resnet, folder)
    assert result.ok
    assert (result.batches, result.values, len(result.only_a)) == (2, 200, 65)
    assert rows(result)["output"].scale == 16.0


def test_one_flipped_integer_is_named(resnet, recorded, folder):
    """One LSB, in the middle of the network and at its end."""
    output = recorded["output"].copy()
    output[1, 37] += 1 / 16
    save(folder, input=recorded["input"], output=output)
    result = compare(resnet, folder)
    place = result.first.row.first
    assert (result.first.tensor, place.batch, place.index, result.differing) == ("output", 1, (0, 37), 1)
    assert (place.b - place.a, result.first.row.largest) == (1 / 16, 1.0)
