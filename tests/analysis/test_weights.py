"""wb_analyse from the outside: the documented log, the rows, what is left out, and what nothing depends on."""

import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import linger
from linger import wb_analyse
from linger.errors import UsageError
from tests.support.analysis import in_threads, is_running_statistic, weights
from tests.support.by_sorting import statistics
from tests.support.seed_blocks import read_blocks

COMPRESSED = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")


def tensor_of(mean, largest, dynamic, count=200):
    """`count` numbers with this mean, maximum and 0.99 order statistic of their magnitudes, of both signs.

    Of 200 sorted magnitudes number 197 is the order statistic, the two above are the maximum, those below make the mean.
    """
    position = int(count * 0.99) - 1
    top = [largest] * (count - position - 1)
    rest = (mean * count - dynamic - sum(top)) / position
    assert 0 <= rest <= dynamic
    signs = torch.tensor([1.0, -1.0]).repeat(count // 2)
    return (torch.tensor([*top, dynamic, *[rest] * position]) * signs).reshape(4, 5, -1)


WIDEST = "decoder.a_layer_as_wide_as_the_documented_column.wwww"


def documented_checkpoint():
    """Tensors whose statistics print as in the documents; the last is as wide as the widest row there, and abnormal."""
    return {
        "encoder.conv1.conv.weight": tensor_of(4.0748 / 5.0348, 4.0748, 3.2437),
        "encoder.conv1.conv.bias": tensor_of(0.099999, 0.1, 0.1),
        "encoder.conv1.bn.weight": tensor_of(1.2380 / 2.6208, 1.2380, 1.0338),
        "encoder.conv1.bn.bias": tensor_of(1.91098 / 6.3075, 1.91098, 1.50302),
        "encoder.conv1.bn.running_mean": torch.full((9,), 77.0),
        "encoder.conv1.bn.running_var": torch.full((9,), 77.0),
        "encoder.conv1.bn.num_batches_tracked": torch.tensor(6185962),
        WIDEST: tensor_of(4e-6, 5e-5, 3.75e-6),
    }


def as_pt(state, folder):
    torch.save(state, folder / "tool_test.pt")
    return folder / "tool_test.pt"


def as_wrapped_legacy(state, folder):
    torch.save({"state_dict": state, "epoch": 3}, folder / "b.pth", _use_new_zipfile_serialization=False)
    return str(folder / "b.pth")


def as_shards(state, folder):
    """Two files and an index, which keeps the order."""
    halves = [dict(list(state.items())[half::2]) for half in (0, 1)]
    save_file(halves[0], folder / "1.safetensors")
    torch.save(halves[1], folder / "2.bin")
    files = {name: "1.safetensors" if name in halves[0] else "2.bin" for name in state}
    (folder / "m.index.json").write_text(json.dumps({"weight_map": files}))
    return folder / "m.index.json"


SOURCES = pytest.mark.parametrize(
    "source", [lambda state, _: state, as_pt, as_wrapped_legacy, as_shards], ids=["memory", "pt", "legacy", "shards"]
)


@SOURCES
@pytest.mark.parametrize("document", ["000", "001"])
def test_log_is_the_documented_one_byte_for_byte(shared, tmp_path, document, source):
    (page,) = (shared / "seeds").glob(f"{document}_*.txt")
    text = next(block.text for block in read_blocks(page) if block.is_python and "num_batches_tracked" in block.text)
    border, header, _, *rows, _ = [line for line in text.splitlines() if line[:1] in ("+", "|")]
    assert len(rows) == 5
    made = wb_analyse(source(documented_checkpoint(), tmp_path), tmp_path / "wb.log")
    widest = f"| {WIDEST} | tensor(4.0000e-06) | tensor(5.0000e-05) | tensor(12.5000) | tensor(3.7500e-06) | tensor(13.3333) |"
    marks = "!" * 14
    alarm = f"|{' ' * 21}{marks}{' ' * 20}|   {marks}   |   {marks}   |  {marks} |   {marks}   |  {marks} |"
    assert (tmp_path / "wb.log").read_text().splitlines() == [border, header, border, *rows, widest, alarm, border]
    assert (tmp_path / "wb.log").read_text() == str(made)


def test_nearly_one_is_told_from_one():
    rows = {row.name: row.cells() for row in wb_analyse(documented_checkpoint(), None).rows}
    assert rows["encoder.conv1.conv.bias"][3:] == ["tensor(1.0000)", "tensor(0.1000)", "tensor(1.)"]


def test_log_of_a_small_checkpoint_by_hand(tmp_path):
    state = {"w": torch.tensor([0.5, -1.0, 0.0, 2.5]), "spike": torch.tensor([-4.0, 0.25])}
    wb_analyse(state, str(tmp_path / "a.log"))
    bar = "+----------------+----------------+----------------+----------------+----------------+----------------+"
    alarm = "|" + " !!!!!!!!!!!!!! |" * 6
    assert (tmp_path / "a.log").read_text().splitlines() == [
        bar,
        "|   Layer_name   |      Mean      |      Max       |    Multiple    |  Dynamic 0.99  |     Versu      |",
        bar,
        "|       w        |   tensor(1.)   | tensor(2.5000) | tensor(2.5000) |   tensor(1.)   | tensor(2.5000) |",
        "|     spike      | tensor(2.1250) |   tensor(4.)   | tensor(1.8824) | tensor(0.2500) |  tensor(16.)   |",
        alarm,
        bar,
    ]


def test_default_log_is_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = linger.wb_analyse({"w": torch.ones(2)})
    assert (tmp_path / "wb_analyse.log").read_text() == str(made)
    assert isinstance(made, linger.Analysis)


def test_no_log_is_written_where_none_is_wanted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wb_analyse({"w": torch.ones(2)}, None)
    assert not list(tmp_path.iterdir())


def test_older_log_is_replaced(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("older\n" * 1000)
    assert log.read_text() != str(wb_analyse({"w": torch.ones(2)}, log)) == log.read_text()


def test_running_statistics_are_left_out_and_similar_names_kept():
    left_out = ["bn.running_mean", "bn.running_var", "conv.running_x", "running_o"]
    kept = [
        "bn.weight",
        "bn.num_batches_tracked",
        "running_man.weight",
        "running.bias",
        "conv.scale_x",
        "prerunning_mean",
    ]
    made = wb_analyse({key: torch.ones(2) for key in (*left_out, *kept)}, None)
    assert [row.name for row in made.rows] == kept
    assert [is_running_statistic(key) for key in (*left_out, *kept)] == [True] * len(left_out) + [False] * len(kept)


def test_rows_have_the_order_of_the_checkpoint():
    keys = [f"layer.{i * 7 % 50}" for i in range(50)]
    state = {key: torch.full((i + 1,), float(i)) for i, key in enumerate(keys)}
    assert [(row.name, row.max, row.count) for row in wb_analyse(state, None).rows] == [
        (key, i, i + 1) for i, key in enumerate(keys)
    ]


def test_module_with_batch_norm_has_rows_for_its_parameters():
    model = nn.DataParallel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    made = wb_analyse(model, None)
    assert [(row.name, row.shape, row.dtype) for row in made.rows] == [
        ("module.0.weight", "2×1×3×3", "float32"),
        ("module.0.bias", "2", "float32"),
        ("module.1.weight", "2", "float32"),
        ("module.1.bias", "2", "float32"),
        ("module.1.num_batches_tracked", "scalar", "int64"),
    ]


@COMPRESSED
@pytest.mark.filterwarnings("ignore:torch.quantize_per")
def test_every_kind_of_tensor_has_its_row_and_its_note():
    real = torch.tensor([[0.0, -3.0], [0.5, 0.0]])
    nothing = ["-"] * 5
    kinds = {
        "int8": (torch.tensor([-128, 101], dtype=torch.int8), ["tensor(114.5000)", "tensor(128)"], ""),
        "int64": (torch.tensor([-(2**63)] * 2), ["tensor(9.2234e+18)", "tensor(9223372036854775808)"], ""),
        "bool": (torch.tensor([True, True, False]), ["tensor(0.6667)", "tensor(1)"], ""),
        "scalar": (torch.tensor(-0.5), ["tensor(0.5000)", "tensor(0.5000)", "tensor(1.)"], ""),
        "zeros": (torch.zeros(3), ["tensor(0.)", "tensor(0.)", "tensor(nan)", "tensor(0.)", "tensor(nan)"], "all zero"),
        "empty": (torch.empty(0, 3), nothing, "empty"),
        "nan": (torch.tensor([torch.nan, 1.0]), ["tensor(1.)", "tensor(1.)"], "1 NaN, left out of the statistics"),
        "inf": (
            torch.tensor([-torch.inf, 1.0]),
            ["tensor(1.)", "tensor(1.)"],
            "1 infinite, left out of the statistics",
        ),
        "only nan": (torch.tensor([torch.nan]), nothing, "1 NaN, left out of the statistics; no finite values"),
        "half": (real.half(), ["tensor(0.8750)", "tensor(3.)"], ""),
        "bfloat16": (real.bfloat16(), ["tensor(0.8750)", "tensor(3.)"], ""),
        "float8": (real.to(torch.float8_e5m2), ["tensor(0.8750)", "tensor(3.)"], ""),
        "coo": (real.to_sparse(), ["tensor(0.8750)", "tensor(3.)"], "sparse_coo; its zeros count too"),
        "csr": (real.to_sparse_csr(), ["tensor(0.8750)", "tensor(3.)"], "sparse_csr; its zeros count too"),
        "complex": (torch.tensor([3 + 4j, 3]), ["tensor(4.)", "tensor(5.)"], "complex; absolute values"),
        "meta": (real.to("meta"), nothing, "a meta tensor has no values"),
        "quantized": (
            torch.quantize_per_tensor(real, 0.5, 0, torch.qint8),
            ["tensor(0.8750)", "tensor(3.)"],
            "quantized; its real values are analyzed",
        ),
    }
    made = wb_analyse({name: tensor for name, (tensor, *_) in kinds.items()}, None)
    for row, (name, (tensor, cells, note)) in zip(made.rows, kinds.items(), strict=True):
        assert (row.name, row.note) == (name, note)
        assert row.cells()[1 : len(cells) + 1] == cells
        assert row.dtype == str(tensor.dtype).removeprefix("torch.")
    assert {row.name for row in made.abnormal} == {"nan", "inf", "only nan"}
    assert made.notes == tuple(f"{name}: {note}" for name, (*_, note) in kinds.items() if note)
    assert made.to_log().endswith("".join(f"{note}\n" for note in made.notes))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
        min_size=1,
        max_size=8,
    )
)
def test_rows_are_those_of_the_sorted_tensors(tensors):
    made = wb_analyse({str(i): torch.tensor(numbers) for i, numbers in enumerate(tensors)}, None)
    for row, numbers in zip(made.rows, tensors, strict=True):
        expected = statistics(torch.tensor(numbers))
        assert repr((row.mean, row.max, row.multiple, row.dynamic, row.versu, row.count)) == repr(
            (expected.mean, expected.maximum, expected.multiple, expected.dynamic, expected.versu, expected.count)
        )


def test_analyses_do_not_influence_each_other(tmp_path):
    first = wb_analyse({"a": torch.ones(3), "spike": torch.tensor([1.0] * 99 + [50.0])}, tmp_path / "1.log")
    before = first.to_log()
    second = wb_analyse({"b": torch.ones(4)}, tmp_path / "2.log")
    again = wb_analyse({"a": torch.ones(3), "spike": torch.tensor([1.0] * 99 + [50.0])}, tmp_path / "1.log")
    assert [row.name for row in second.rows] == ["b"]
    assert first.to_log() == again.to_log() == before == (tmp_path / "1.log").read_text()


@pytest.mark.parametrize("cores", [1, 2, 3, 64, None])
def test_result_does_not_depend_on_the_number_of_threads(tmp_path, monkeypatch, cores):
    generator = torch.Generator().manual_seed(1)
    state = {f"w{i}": torch.randn(3000 * i, generator=generator) for i in range(12)}
    state["w5"][7] = torch.nan
    save_file(state, tmp_path / "m.safetensors")
    expected = repr(wb_analyse(state, None))
    used = []

    class Counted(weights.ThreadPoolExecutor):
        def __init__(self, most):
            used.append(most)
            super().__init__(most)

    monkeypatch.setattr(weights, "ThreadPoolExecutor", Counted)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert repr(wb_analyse(state, None)) == repr(wb_analyse(tmp_path / "m.safetensors", None)) == expected
    assert used == [min(cores or 1, 8)] * 2


def test_error_in_a_thread_reaches_the_caller():
    def fail(item):
        raise UsageError(f"{item} is wrong")

    with pytest.raises(UsageError, match="1 is wrong"):
        in_threads(fail, [1, 2, 3], "work")
    assert in_threads(str, iter([3, 1, 2]), "work") == ["3", "1", "2"]


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        pytest.param("nowhere/a.log", "the folder .* does not exist", id="no folder"),
        pytest.param("folder", "this is a folder", id="a folder"),
        pytest.param("m.pt/a.log", "does not exist", id="below a file"),
    ],
)
def test_log_that_cannot_be_written_is_refused_and_nothing_changes(tmp_path, log, reason):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(3)}, path)
    (tmp_path / "folder").mkdir()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=reason):
        wb_analyse(path, tmp_path / log)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "m.pt"]


def test_full_disk_keeps_the_older_log(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    (tmp_path / "a.log").write_text("older")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        wb_analyse({"w": torch.ones(3)}, tmp_path / "a.log")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.log", "older")]


def test_nothing_is_printed_without_a_terminal(capsys):
    wb_analyse({"w": torch.ones(3)}, None)
    assert capsys.readouterr() == ("", "")


def test_the_log_never_replaces_the_checkpoint(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"w": torch.ones(3)}, path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="the log would replace the checkpoint"):
        wb_analyse(path, tmp_path / "." / "w.pt")
    assert path.read_bytes() == before


def test_numpy_numbers_beside_the_weights(tmp_path):
    content = {
        "state_dict": {"w": torch.ones(3)},
        "best": np.float64(0.98),
        "curve": np.arange(4.0),
        "epoch": np.int64(3),
    }
    torch.save(content, tmp_path / "w.pt")
    assert [row.name for row in wb_analyse(tmp_path / "w.pt", None).rows] == ["w"]
    torch.save({"w": torch.ones(3), "hook": np.array([print], dtype=object)}, tmp_path / "code.pt")
    with pytest.raises(UsageError, match="ObjectDType"):
        wb_analyse(tmp_path / "code.pt", None)


def test_arguments_have_their_documented_names(tmp_path):
    found = wb_analyse(path={"w": torch.ones(2)}, save_log_path=tmp_path / "log")
    assert [row.name for row in found.rows] == ["w"]
