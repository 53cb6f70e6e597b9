"""Tensors of a checkpoint from every source; what is no checkpoint is refused, and never run."""

import json
import math
import pickle
from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from linger import wb_analyse
from linger.errors import UsageError
from tests.support.analysis import TensorValues, dtype_text, load_state_dict, measure, stored_tensors
from tests.support.checkpoint_files import MakesFolder

QUANTIZED = pytest.mark.filterwarnings("ignore:torch.quantize_per")
COMPRESSED = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
SCRIPTED = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
ZIP, LEGACY = {}, {"_use_new_zipfile_serialization": False}
FORMATS = pytest.mark.parametrize("form", [ZIP, LEGACY], ids=["zip", "legacy"])


def state():
    """Not in the order of the alphabet."""
    return {"stem.weight": torch.tensor([[1.0, -2.0]]), "bn.bias": torch.tensor([3.0]), "a": torch.tensor(4)}


def contents(source):
    """Name, shape, type and largest magnitude of every tensor."""
    return [(t.name, t.shape, dtype_text(t.dtype), measure(t.open()).maximum) for t in stored_tensors(source)]


CONTENTS = [("stem.weight", (1, 2), "float32", 2.0), ("bn.bias", (1,), "float32", 3.0), ("a", (), "int64", 4)]


def names(source):
    return [t.name for t in stored_tensors(source)]


@FORMATS
@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt"])
def test_file_of_torch_is_read_in_its_order(tmp_path, form, suffix):
    path = tmp_path / f"model.{suffix}"
    torch.save(state(), path, **form)
    assert contents(path) == contents(str(path)) == CONTENTS


@pytest.mark.parametrize("wrap", [dict, OrderedDict, MappingProxyType], ids=lambda kind: kind.__name__)
def test_state_dict_in_memory_is_read_in_its_order(wrap):
    assert contents(wrap(state())) == CONTENTS


def test_module_is_read_by_its_state_dict():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert names(model) == list(model.state_dict())
    assert stored_tensors(model)[0].shape == (3, 2)


def test_safetensors_file_is_read_by_number_and_name(tmp_path):
    save_file({"l.10.w": torch.ones(1), "l.9.w": torch.full((2, 2), 5.0)}, tmp_path / "m.safetensors")
    assert contents(tmp_path / "m.safetensors") == [("l.9.w", (2, 2), "float32", 5), ("l.10.w", (1,), "float32", 1)]


def shard(folder, weight_map, **files):
    for name, tensors in files.items():
        path = folder / name.replace("_", ".")
        save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    index = folder / "model.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_shards_are_read_in_the_order_of_the_index(tmp_path):
    where = {"z": "b.bin", "a": "a.safetensors", "m": "b.bin"}
    files = {"a_safetensors": {"a": torch.tensor([1.0])}, "b_bin": {"m": torch.tensor([2.0]), "z": torch.tensor([3.0])}}
    assert [(name, top) for name, _, _, top in contents(shard(tmp_path, where, **files))] == [
        ("z", 3),
        ("a", 1),
        ("m", 2),
    ]


def test_tensor_is_taken_from_the_shard_that_the_index_names(tmp_path):
    old, new = {"w": torch.tensor([1.0]), "v": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}
    index = shard(tmp_path, {"v": "old.bin", "w": "new.bin"}, new_bin=new, old_bin=old)
    assert [top for *_, top in contents(index)] == [1, 2]
    index = shard(tmp_path, {"w": "new.bin", "v": "old.bin"}, new_bin=new, old_bin=old)
    assert [top for *_, top in contents(index)] == [2, 1]


def test_tensors_that_the_shards_lack_are_named(tmp_path):
    index = shard(tmp_path, {"w": "a.bin", "v": "a.bin", "u": "a.bin"}, a_bin={"w": torch.ones(1)})
    with pytest.raises(UsageError, match="its files do not hold v, u"):
        stored_tensors(index)


def training():
    """What a training script saves beside the weights."""
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule = {"last_lr": [torch.tensor(0.1)], "epoch": 3}
    return {"epoch": 3, "arch": "net", "optimizer": optimizer.state_dict(), "lr_scheduler": schedule}


@FORMATS
@pytest.mark.parametrize(
    "key", ["state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params"]
)
def test_training_state_is_not_analysed(tmp_path, key, form):
    assert any(isinstance(v, torch.Tensor) for s in training()["optimizer"]["state"].values() for v in s.values())
    checkpoint = training() | {key: state()}
    torch.save(checkpoint, tmp_path / "c.pt", **form)
    assert contents(checkpoint) == contents(tmp_path / "c.pt") == CONTENTS


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"best_acc": torch.tensor(0.7)}, id="an accuracy"),
        pytest.param({"rng_state": torch.get_rng_state()}, id="a random state"),
        pytest.param({"history": np.ones(3)}, id="an array"),
        pytest.param({"model": {"name": "resnet", "depth": 50}}, id="a description under a usual key"),
        pytest.param({"model": "resnet"}, id="a word under a usual key"),
        pytest.param({"model": {}}, id="nothing under a usual key"),
    ],
)
def test_what_else_a_checkpoint_holds_does_not_hide_the_state_dict(extra):
    assert contents(training() | extra | {"weights": state()}) == CONTENTS


def test_state_dict_may_be_wrapped_twice():
    assert contents({"model": {"state_dict": state(), "optimizer": {"m": torch.ones(2)}}}) == CONTENTS


def test_module_inside_a_checkpoint_is_read():
    assert names({"epoch": 1, "model": nn.Linear(1, 1)}) == ["weight", "bias"]


def test_several_models_are_named_by_their_keys():
    checkpoint = training() | {"generator": {"w": torch.ones(1)}, "critic": {"w": torch.ones(1), "l": [torch.ones(1)]}}
    assert names(checkpoint) == ["generator.w", "critic.w", "critic.l.0"]


def test_parameters_named_like_training_state_are_kept():
    keys = ["scaler.weight", "optimus.bias", "args", "model.weight", "state_dict"]
    assert names({key: torch.ones(1) for key in keys}) == keys


def test_prefix_of_parallel_training_is_kept():
    assert names(nn.DataParallel(nn.Linear(1, 1))) == ["module.weight", "module.bias"]
    assert names({"module.conv.weight": torch.ones(1)}) == ["module.conv.weight"]


@FORMATS
def test_file_of_one_tensor_has_one_row(tmp_path, form):
    torch.save(torch.tensor([1.0, -7.0]), tmp_path / "t.pt", **form)
    assert contents(tmp_path / "t.pt") == [("tensor", (2,), "float32", 7)]


def read_only():
    array = np.array([1.0, -2.0], np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "shape", "dtype"),
    [
        pytest.param(np.array([[1.0, -2.0]], np.float32), (1, 2), "float32", id="single"),
        pytest.param(np.array([1, 2], np.uint16), (2,), "uint16", id="integers"),
        pytest.param(np.array([True, False]), (2,), "bool", id="bools"),
        pytest.param(np.array(2.0), (), "float64", id="scalar"),
        pytest.param(read_only(), (2,), "float32", id="read-only"),
        pytest.param(np.array([1.0, 2.0], ">f4"), (2,), "float32", id="other byte order"),
        pytest.param(np.array([1.0, 2.0], np.longdouble), (2,), "float64", id="long double"),
        pytest.param(np.array([2j, 1], np.complex64), (2,), "complex64", id="complex"),
        pytest.param(np.arange(6.0).reshape(2, 3).T[:, :1], (3, 1), "float64", id="not contiguous"),
    ],
)
def test_arrays_of_numpy_are_tensors(array, shape, dtype):
    expected = 1 if dtype == "bool" else 2
    assert contents({"w": array, "name": np.array(["text"])}) == [("w", shape, dtype, expected)]


def kinds():
    """Unusual tensors, and what is said about them."""
    real = torch.tensor([[0.0, -3.0], [0.5, 0.0]])
    return {
        "coo": (real.to_sparse(), (4, 3.0), "sparse_coo; its zeros count too"),
        "csr": (real.to_sparse_csr(), (4, 3.0), "sparse_csr; its zeros count too"),
        "quantized": (torch.quantize_per_tensor(real, 0.5, 0, torch.qint8), (4, 3.0), "quantized; its real values are analyzed"),
        "complex": (torch.tensor([3 + 4j]), (1, 5.0), "complex; absolute values"),
        "meta": (real.to("meta"), (0, math.nan), "a meta tensor has no values"),
        "opaque": (torch.zeros(2, dtype=torch.uint8).view(torch.uint4), (0, math.nan), "torch cannot read values of this type"),
        "lazy": (nn.LazyLinear(2).weight, (0, math.nan), "no values yet: run the model once"),
        "plain": (real, (4, 3.0), ""),
        "parameter": (nn.Parameter(real), (4, 3.0), ""),
        "half": (real.half(), (4, 3.0), ""),
        "bfloat16": (real.bfloat16(), (4, 3.0), ""),
        "float8": (real.to(torch.float8_e4m3fn), (4, 3.0), ""),
        "empty": (torch.empty(0, 2), (0, math.nan), ""),
    }  # fmt: skip


@QUANTIZED
@COMPRESSED
def test_unusual_tensors_are_read_or_excused():
    for name, (tensor, (count, maximum), note) in kinds().items():
        (stored,) = stored_tensors({name: tensor})
        found = measure(stored.open())
        assert (name, stored.note, found.count) == (name, note, count)
        assert repr(found.maximum) == repr(maximum)


@FORMATS
@QUANTIZED
@COMPRESSED
def test_unusual_tensors_survive_a_file(tmp_path, form):
    cannot = ("lazy", "opaque", *(["float8"] if form is LEGACY else []))  # torch itself does not write or read these
    chosen = {name: t for name, (t, *_) in kinds().items() if name not in cannot}
    torch.save(chosen, tmp_path / "k.pt", **form)
    read = [(t.name, t.shape, t.dtype, t.note, repr(measure(t.open()))) for t in stored_tensors(tmp_path / "k.pt")]
    assert read == [(t.name, t.shape, t.dtype, t.note, repr(measure(t.open()))) for t in stored_tensors(chosen)]


def test_module_that_never_ran_says_so():
    assert [t.note for t in stored_tensors(nn.LazyLinear(2))] == ["no values yet: run the model once"] * 2


@COMPRESSED
def test_analysis_leaves_the_tensors_alone():
    tensors = {"w": torch.tensor([-1.0, torch.nan, 2.0]), "s": torch.tensor([[0.0, -2.0]]).to_sparse()}
    before = {key: value.clone() for key, value in tensors.items()}
    stored_tensors(tensors)
    wb_analyse(tensors, None)
    torch.testing.assert_close(tensors, before, rtol=0, atol=0, equal_nan=True)


@FORMATS
def test_state_dict_of_a_file_can_be_loaded_whole(tmp_path, form):
    torch.save(training() | {"model": state()}, tmp_path / "m.pt", **form)
    save_file(state(), tmp_path / "m.safetensors")
    index = shard(
        tmp_path, {"a": "a.bin", "b": "b.safetensors"}, a_bin={"a": state()["a"]}, b_safetensors={"b": torch.ones(2)}
    )
    for name in ("m.pt", "m.safetensors"):
        assert_same_tensors(load_state_dict(tmp_path / name), state())
    assert_same_tensors(load_state_dict(index), {"a": state()["a"], "b": torch.ones(2)})


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def refused(folder, source):
    """The message of the error: one line; nothing was written."""
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(UsageError) as caught:
        wb_analyse(source, folder / "out.log")
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


@FORMATS
@pytest.mark.parametrize("place", ["alone", "beside tensors", "inside"])
def test_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, form, place):
    trap = MakesFolder(tmp_path / "trap")
    what = {"alone": trap, "beside tensors": {"w": torch.ones(1), "x": trap}, "inside": {"state_dict": {"x": [trap]}}}
    path = tmp_path / "m.pt"
    torch.save(what[place], path, **form)
    message = refused(tmp_path, path)
    assert message.startswith(f"{path}: refused: unpickling it would run code (")
    assert "mkdir), which linger never does" in message
    assert not (tmp_path / "trap").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "trap").exists(), "the trap itself must work"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickle_is_refused_and_not_run(tmp_path, protocol):
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps({"w": MakesFolder(tmp_path / "trap")}, protocol))
    assert refused(tmp_path, path).startswith(f"{path}: ")
    assert not (tmp_path / "trap").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "trap").exists(), "the trap itself must work"


def test_shard_that_would_run_code_is_refused_and_not_run(tmp_path):
    index = shard(tmp_path, {"w": "a.bin"}, a_bin={"w": torch.ones(1), "x": MakesFolder(tmp_path / "trap")})
    assert "a.bin: refused: unpickling it would run code" in refused(tmp_path, index)
    assert not (tmp_path / "trap").exists()


def test_pickle_under_the_name_of_a_safetensors_file_is_refused_and_not_run(tmp_path):
    torch.save({"x": MakesFolder(tmp_path / "trap")}, tmp_path / "m.safetensors")
    assert "this is not a whole safetensors file" in refused(tmp_path, tmp_path / "m.safetensors")
    assert not (tmp_path / "trap").exists()


@FORMATS
def test_pickled_module_is_refused(tmp_path, form):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt", **form)
    message = refused(tmp_path, tmp_path / "m.pt")
    assert "would run code (torch.nn.modules.linear.Linear)" in message
    assert message.endswith("Save model.state_dict() and analyse that.")


@SCRIPTED
def test_torchscript_is_refused_with_advice_that_works(tmp_path):
    path = tmp_path / "m.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), path)
    assert refused(tmp_path, path) == (
        f"{path}: this is a TorchScript archive. Pass torch.jit.load(path) instead of the path."
    )
    assert names(torch.jit.load(path)) == ["weight", "bias"]


@pytest.mark.parametrize("kept", [2, 40, 0.5, 0.99], ids=str)
def test_truncated_archive_is_refused(tmp_path, kept):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(3000)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    assert refused(tmp_path, path) == f"{path}: the file ends early: its table of contents is missing. Copy it again."


@pytest.mark.parametrize("kept", [0, 1, 40, 0.5, 0.99], ids=str)
def test_truncated_legacy_file_is_refused(tmp_path, kept):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(3000)}, path, **LEGACY)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    assert refused(tmp_path, path).startswith(f"{path}: this is not a whole torch checkpoint (")


def test_truncated_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"w": torch.ones(3000)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(tmp_path, path).startswith(f"{path}: this is not a whole safetensors file (")


@pytest.mark.parametrize(
    "content", [b"just some text, no checkpoint\n" * 9, b"PK\x03\x04", bytes(500)], ids=["text", "zip", "zeros"]
)
def test_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "m.pt").write_bytes(content)
    assert refused(tmp_path, tmp_path / "m.pt").endswith("opy it again.")


def test_archive_of_something_else_is_refused(tmp_path):
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    assert "m.npz: this is not a whole torch checkpoint (" in refused(tmp_path, tmp_path / "m.npz")


def test_folder_is_refused_and_what_it_holds_is_named(tmp_path):
    assert refused(tmp_path, tmp_path) == f"{tmp_path}: this is a folder. Give one checkpoint file."
    for name in ("m-2.safetensors", "m-10.safetensors", "config.json", "m.index.json", "notes.txt", "a.pt", "b.bin"):
        (tmp_path / name).touch()
    holds = "It holds m.index.json, a.pt, b.bin, config.json, m-2.safetensors and 1 more."
    assert refused(tmp_path, str(tmp_path)).endswith(f"Give one checkpoint file. {holds}")


@pytest.mark.parametrize("name", ["gone.pt", "gone.safetensors", "gone.index.json", "no/folder/gone.pt"])
def test_missing_file_is_named(tmp_path, name):
    assert refused(tmp_path, tmp_path / name) == f"{tmp_path / name}: there is no such file."


def test_file_that_the_system_does_not_open_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "m.pt"
    torch.save(state(), path)

    def closed(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", closed)
    with pytest.raises(UsageError, match=r"m\.pt: it cannot be read \(Permission denied\)"):
        stored_tensors(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [('{"layers": 3}', "this JSON is no index of a checkpoint"), ('{"weight_map": {', "this is not JSON")],
    ids=["no index", "broken"],
)
def test_json_without_an_index_is_refused(tmp_path, content, reason):
    (tmp_path / "config.json").write_text(content)
    assert reason in refused(tmp_path, tmp_path / "config.json")


def test_index_whose_files_are_missing_names_them_all(tmp_path):
    index = shard(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    assert "1.safetensors, 2.safetensors is missing beside it" in refused(tmp_path, index)


@pytest.mark.parametrize("name", ["../x.safetensors", "{folder}/x.safetensors"], ids=["up", "absolute"])
def test_index_that_points_outside_its_folder_is_refused(tmp_path, name):
    save_file({"w": torch.ones(1)}, tmp_path / "x.safetensors")
    (tmp_path / "model").mkdir()
    index = shard(tmp_path / "model", {"w": name.format(folder=tmp_path)})
    assert "lies outside its folder" in refused(tmp_path, index)


@FORMATS
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(dict, id="empty"),
        pytest.param(lambda: {"epoch": 3, "name": "net"}, id="words"),
        pytest.param(lambda: {"state_dict": {}}, id="no weights"),
        pytest.param(training, id="training only"),
    ],
)
def test_file_without_a_tensor_is_refused(tmp_path, make, form):
    path = tmp_path / "m.pt"
    torch.save(make(), path, **form)
    assert refused(tmp_path, path) == (
        f"{path}: there is no tensor in it. Give a checkpoint that holds the weights of a model."
    )
    assert refused(tmp_path, make()).startswith("the state_dict: there is no tensor in it.")


def test_module_and_safetensors_file_without_a_tensor_are_refused(tmp_path):
    assert refused(tmp_path, nn.ReLU()).startswith("ReLU: there is no tensor in it.")
    save_file({}, tmp_path / "m.safetensors")
    assert "there is no tensor in it" in refused(tmp_path, tmp_path / "m.safetensors")


@pytest.mark.parametrize("content", [[torch.ones(1)], 3, "text"], ids=["list", "number", "text"])
def test_file_of_another_object_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "m.pt")
    assert f"it holds a {type(content).__name__}, not a state_dict" in refused(tmp_path, tmp_path / "m.pt")


@pytest.mark.parametrize(
    "source", [3, None, b"m.pt", [torch.ones(1)], torch.ones(2)], ids=["number", "None", "bytes", "list", "tensor"]
)
def test_object_that_is_no_checkpoint_is_refused(tmp_path, source):
    assert refused(tmp_path, source).startswith(f"a {type(source).__name__} is no checkpoint. Give a path, ")


def test_checkpoint_that_contains_itself_is_refused(tmp_path):
    endless = {"w": torch.ones(1)}
    endless["again"] = endless
    assert refused(tmp_path, endless) == "the checkpoint contains itself. Give the state_dict of a model."
    torch.save(endless, tmp_path / "m.pt")
    assert "contains itself" in refused(tmp_path, tmp_path / "m.pt")


def test_values_are_opened_only_when_they_are_asked_for():
    tensors = stored_tensors({"w": torch.tensor([1.0, 2.0])})
    first, second = tensors[0].open(), tensors[0].open()
    assert isinstance(first, TensorValues)
    assert first is not second
    assert first.read(0, 2).tolist() == second.read(0, 2).tolist() == [1, 2]
