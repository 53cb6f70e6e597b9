"""tools/make_golden.py: copies what linger covers and whole networks, checks every digest, never takes other people's models."""

import hashlib
import importlib.util
import json

import pytest

from tests.conftest import REPOSITORY
from tests.support.golden import GOLDEN

FILES_OF_DEEP = {"deep.npz": b"arrays deep", "deep.onnx": b"model deep"}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_golden", REPOSITORY / "tools" / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_case(folder, name):
    """Two files of a case; returns their digests."""
    files = {f"{name}.onnx": b"model " + name.encode(), f"{name}.npz": b"arrays " + name.encode()}
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}


@pytest.fixture
def source(tmp_path):
    """A folder like the shared one: a covered case, one with an unknown op, a model without a list of ops; two networks."""
    folder = tmp_path / "golden" / "ops"
    folder.mkdir(parents=True)
    cases = []
    for name, held in {
        "plain": ["Quant", "Reshape"],
        "strange": ["Quant", "NoSuchOp"],
        "resnet18-12-regular": None,
    }.items():
        digests = write_case(folder, name)
        case = {"case": name, "op": "Quant", "platform": "venus", "notes": [], "sha256": digests, "values": 3}
        cases.append(case | ({} if held is None else {"ops": held}))
    content = {"made_with": "an engine", "compare": "equality", "cases": cases}
    (folder / "manifest.json").write_text(json.dumps(content))
    write_nets(tmp_path / "golden" / "nets")
    return tmp_path


def write_nets(folder):
    """Networks, with the digest of the model alone."""
    folder.mkdir()
    about = {"chip": "arcs", "form": "dialect", "ops": ["Quant", "Flatten"], "distinct": 3, "seconds": 1}
    cases = [about | {"case": name, "sha256": write_case(folder, name)[f"{name}.onnx"]} for name in ("wide", "deep")]
    (folder / "manifest.json").write_text(json.dumps({"note": "an engine", "cases": cases}))


def test_only_covered_cases_are_copied(tool, source, tmp_path):
    target = tmp_path / "copied"
    cases, _ = tool.make_golden(source, target)
    assert cases == ["plain"]
    assert {p.name for p in target.iterdir()} == {"plain.onnx", "plain.npz", "manifest.json", "nets"}
    (entry,) = json.loads((target / "manifest.json").read_text())["cases"]
    assert set(entry) == {"case", "op", "ops", "platform", "notes", "sha256"}


def test_every_network_is_copied_in_the_order_of_the_names(tool, source, tmp_path):
    _, nets = tool.make_golden(source, tmp_path / "copied")
    assert nets == ["deep", "wide"]
    files = {p.name for p in (tmp_path / "copied" / "nets").iterdir()}
    assert files == {"deep.onnx", "deep.npz", "wide.onnx", "wide.npz", "manifest.json"}


def test_networks_get_the_digests_of_both_files(tool, source, tmp_path):
    tool.make_golden(source, tmp_path / "copied")
    entry, _ = json.loads((tmp_path / "copied" / "nets" / "manifest.json").read_text())["cases"]
    assert set(entry) == {"case", "chip", "form", "ops", "distinct", "sha256"}
    assert entry["sha256"] == {name: hashlib.sha256(content).hexdigest() for name, content in FILES_OF_DEEP.items()}


def test_the_resnet_is_not_copied_even_with_a_list_of_ops(tool):
    case = {"case": "resnet18-12-regular", "ops": ["Quant"]}
    assert tool.covered([case], ["Quant"]) == []
    assert tool.covered([case | {"case": "another"}], ["Quant"]) == [{"case": "another", "ops": ["Quant"]}]


def test_cases_of_another_chip_are_left_out(tool):
    case = {"case": "curve", "ops": ["Quant"]}
    assert tool.covered([case | {"platform": "venusA"}], ["Quant"]) == []
    for known in ("venus", "arcs"):
        assert tool.covered([case | {"platform": known}], ["Quant"]) == [case | {"platform": known}]


@pytest.mark.parametrize("damaged", ["ops/plain.npz", "ops/plain.onnx", "nets/wide.onnx"])
def test_damaged_file_is_refused_and_nothing_is_written(tool, source, tmp_path, damaged):
    (source / "golden" / damaged).write_bytes(b"plaim")
    with pytest.raises(SystemExit, match=rf"{damaged}: sha256 is"):
        tool.make_golden(source, tmp_path / "copied")
    assert not (tmp_path / "copied").exists()


@pytest.mark.parametrize("missing", ["ops/plain.onnx", "nets/wide.onnx", "nets/wide.npz"])
def test_missing_file_is_refused_and_nothing_is_written(tool, source, tmp_path, missing):
    (source / "golden" / missing).unlink()
    with pytest.raises(SystemExit, match=rf"{missing}: .* not there"):
        tool.make_golden(source, tmp_path / "copied")
    assert not (tmp_path / "copied").exists()


def test_case_with_a_superfluous_file_is_refused(tool, source, tmp_path):
    path = source / "golden" / "ops" / "manifest.json"
    content = json.loads(path.read_text())
    content["cases"][0]["sha256"]["plain.txt"] = ""
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=r"plain: the manifest lists .*plain\.txt"):
        tool.make_golden(source, tmp_path / "copied")


@pytest.mark.parametrize("leftover", ["old.onnx", "nets/old.npz"])
def test_leftovers_are_removed(tool, source, tmp_path, leftover):
    stale = tmp_path / "copied" / leftover
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"")
    tool.make_golden(source, tmp_path / "copied")
    assert not stale.exists()


@pytest.mark.parametrize("folder", ["ops", "nets"])
def test_folder_without_vectors_is_refused(tool, source, tmp_path, folder):
    (source / "golden" / folder / "manifest.json").unlink()
    with pytest.raises(SystemExit, match=rf"no manifest\.json\. Give the folder that holds golden/{folder}"):
        tool.make_golden(source, tmp_path / "copied")


def test_the_vectors_in_the_repository_are_what_the_tool_copies(tool, shared, tmp_path):
    tool.make_golden(shared, tmp_path / "copied")
    for path in (path for path in GOLDEN.rglob("*") if path.is_file()):
        copied = tmp_path / "copied" / path.relative_to(GOLDEN)
        assert copied.read_bytes() == path.read_bytes(), f"{path.name}: run tools/make_golden.py again"
