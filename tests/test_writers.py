"""Everything that writes a file, at a target that is a link, a pipe or a device."""

import re
import stat
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import linger
from linger import Recording
from linger.cli import load_commands
from tests.runtime.test_session import TEXT
from tests.support.odd_targets import Pipe, null_device

SOURCE = Path(linger.__file__).parent
WRITERS = {}


def writer(name, suffix="", *marks):
    """Registers a function that writes one file, given its path and the folder with a model."""

    def register(function):
        WRITERS[name] = pytest.param(function, suffix, id=name, marks=marks)
        return function

    return register


def command(*arguments):
    done = CliRunner().invoke(load_commands(), [str(a) for a in arguments])
    assert done.exit_code == 0, done.output


@writer("linger check --out")
def _(path, folder):
    command("check", folder / "m.onnx", "--format", "json", "--out", path)


@writer("linger run --output")
def _(path, folder):
    command("run", folder / "m.onnx", "--output", path)


@writer("linger convert --out")
def _(path, folder):
    command("convert", folder / "m.onnx", "--to", "linger", "--out", path)


@writer("linger repair", "_fix.onnx")
def _(path, folder):
    (folder / path.name.replace("_fix", "")).write_bytes((folder / "m.onnx").read_bytes())
    command("repair", folder / path.name.replace("_fix", ""))


@writer("linger verify --write-certificate")
def _(path, folder):
    command("verify", folder / "m.onnx", "--batches", "1", "--write-certificate", path)


@writer("linger compare --plot", ".svg")
def _(path, folder):
    command("compare", folder / "m.onnx", folder / "m.onnx", "--plot", path)


@writer("graph.save")
def _(path, folder):
    linger.graph.save(linger.graph.load(folder / "m.onnx"), path)


@writer("save_recordings", ".npz")
def _(path, folder):
    linger.save_recordings(Recording(integers={"q": np.ones(3, np.int8)}), path)


TORCH = pytest.mark.needs_torch


def _network():
    import torch

    model, x = linger.init(torch.nn.Sequential(torch.nn.Linear(2, 2))).eval(), torch.tensor([[1.0, -0.5]])
    with linger.calibration():
        model(x)
    return model, x


@writer("onnx.export", "", TORCH)
def _(path, folder):
    model, x = _network()
    linger.onnx.export(model, (x,), path)


@writer("save_statistics", "", TORCH)
def _(path, folder):
    linger.save_statistics(_network()[0], path)


@writer("wb_analyse", "", TORCH)
def _(path, folder):
    linger.wb_analyse(_network()[0], path)


@writer("Analysis.to_csv", "", TORCH)
def _(path, folder):
    linger.wb_analyse(_network()[0], None).to_csv(path)


@writer("Dumper.save_out_analyse_log", "", TORCH)
def _(path, folder):
    model, x = _network()
    with linger.Dumper() as dumper:
        dumper.analyse_layer_output(model)
        model(x)
        dumper.save_out_analyse_log(path)


@writer("coverage.to_json", "", TORCH)
def _(path, folder):
    model, _ = _network()
    linger.coverage(model).to_json(path)


@pytest.fixture
def folder(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path


@pytest.mark.parametrize(("write", "suffix"), WRITERS.values())
@pytest.mark.thin(every=2)
def test_a_link_a_pipe_and_a_device_stay_what_they_are(folder, write, suffix):
    plain, link, place, pipe, device = (folder / f"{name}{suffix}" for name in ("a", "link", "place", "pipe", "null"))
    write(plain, folder)
    assert plain.stat().st_size > 0

    place.write_bytes(b"old")
    place.chmod(0o640)
    link.symlink_to(place)
    write(link, folder)
    assert link.readlink() == place
    assert place.read_bytes() != b"old"
    assert stat.S_IMODE(place.stat().st_mode) == 0o640

    with Pipe(pipe) as opened:
        write(pipe, folder)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert len(opened.content()) > 0
    assert not list(folder.glob(".linger*"))

    null_device(device)
    write(device, folder)
    assert stat.S_ISCHR(device.stat().st_mode)


def large():
    """A model whose weights do not stay inline."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[n] x) => (float[n] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1000, np.float32), "w"))
    return ir.from_proto(model)


def test_a_data_file_lies_beside_what_a_link_leads_to(tmp_path):
    (tmp_path / "newest.onnx").symlink_to("v3.onnx")
    linger.graph.save(large(), tmp_path / "newest.onnx", external_data=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newest.onnx", "v3.onnx", "v3.onnx.data"]
    for name in ("newest.onnx", "v3.onnx"):
        feeds = {"x": np.zeros(1000, np.float32)}
        assert linger.Session(tmp_path / name).run(None, feeds)[0].sum() == 1000


def test_a_data_file_that_would_not_be_found_is_not_written(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "m.onnx").symlink_to("far/m.onnx")
    with pytest.raises(linger.UsageError, match=r"m\.onnx: this leads out of its folder"):
        linger.graph.save(large(), tmp_path / "m.onnx", external_data=True)
    with Pipe(tmp_path / "p") as pipe:
        with pytest.raises(linger.UsageError, match="beside it, and this is a pipe"):
            linger.graph.save(large(), tmp_path / "p", external_data=True)
        assert pipe.content() == b""
    assert list((tmp_path / "far").iterdir()) == []


def test_a_folder_of_vectors_is_written_through_a_link(folder):
    (folder / "link").symlink_to("place")
    for _ in range(2):
        command("vectors", folder / "m.onnx", "--out", folder / "link", "--format", "npz", "--force")
    assert (folder / "link").is_symlink()
    assert (folder / "place" / "manifest.json").is_file()


def test_a_certificate_with_inputs_beside_it_goes_through_a_link(folder):
    (folder / "link.json").symlink_to("c.json")
    np.savez(folder / "x.npz", x=np.zeros((3000, 3), np.float32))
    command("verify", folder / "m.onnx", "--inputs", folder / "x.npz", "--write-certificate", folder / "link.json")
    assert (folder / "link.json").is_symlink()
    assert (folder / "c.inputs.npz").is_file()
    command("verify", "--certificate", folder / "link.json")
    command("verify", "--certificate", folder / "c.json")


@pytest.mark.needs_torch
def test_dumps_follow_links_inside_their_folder(tmp_path):
    model, x = _network()
    with linger.Dumper() as dumper:
        dumper.enable_dump_quanted(model, tmp_path / "dump")
        model(x)
    first = min((tmp_path / "dump").glob("*.npz"))
    content = first.read_bytes()
    first.rename(tmp_path / "kept")
    first.symlink_to(tmp_path / "kept")
    (tmp_path / "kept").write_bytes(b"old")
    with linger.Dumper() as dumper:
        dumper.enable_dump_quanted(model, tmp_path / "dump")
        model(x)
    assert first.is_symlink()
    assert (tmp_path / "kept").read_bytes() == content


@pytest.mark.needs_torch
def test_folders_that_cannot_be_made_are_a_sentence(tmp_path):
    model, x = _network()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(linger.UsageError, match=r"debug_dump: the folder .* cannot be made"):
        linger.onnx.export(model, (x,), tmp_path / "m.onnx", debug_dump=tmp_path / "file")
    with pytest.raises(linger.UsageError, match=r"plot_tensors: the folder .* cannot be made"):
        linger.plot_tensors(model, tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


WRITES = re.compile(
    r"""\.(write_text|write_bytes|mkdir|touch|tofile)\(|\bopen\([^)]*["'][wax]|savez?\(path|savefig\(path"""
)


def test_no_other_file_of_the_package_writes():
    # vector_files and exporter fill a folder that files.write_folder moves; model_io writes into a file that it is given;
    # program and toolchains write into a temporary folder of their own
    filling = {"verification/devices/vectors.py", "c/exporter.py", "graph/files/model_io.py"}
    allowed = {"files.py", "c/program.py", "c/toolchains.py"} | filling
    found = {str(f.relative_to(SOURCE)) for f in SOURCE.rglob("*.py") if WRITES.search(f.read_text())}
    assert found == allowed
