"""tools/make_golden.py: copies what linger covers, checks every byte, never takes other people's models."""

import hashlib
import importlib.util
import json

import pytest

from tests.conftest import REPOSITORY
from tests.support.golden import GOLDEN


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_golden", REPOSITORY / "tools" / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path):
    """A folder like the shared one: a covered case, one with an unknown op, a whole model without a list of ops."""
    folder = tmp_path / "golden" / "ops"
    folder.mkdir(parents=True)
    cases = []
    for name, held in {
        "plain": ["Quant", "Reshape"],
        "strange": ["Quant", "NoSuchOp"],
        "resnet18-12-regular": None,
    }.items():
        files = {f"{name}.onnx": b"model " + name.encode(), f"{name}.npz": b"arrays " + name.encode()}
        for file, content in files.items():
            (folder / file).write_bytes(content)
        digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        case = {"case": name, "op": "Quant", "platform": "venus", "notes": [], "sha256": digests, "values": 3}
        cases.append(case | ({} if held is None else {"ops": held}))
    content = {"made_with": "an engine", "compare": "equality", "cases": cases}
    (folder / "manifest.json").write_text(json.dumps(content))
    return tmp_path


def test_only_covered_cases_are_copied(tool, source, tmp_path):
    target = tmp_path / "copied"
    assert tool.make_golden(source, target) == ["plain"]
    assert {p.name for p in target.iterdir()} == {"plain.onnx", "plain.npz", "manifest.json"}
    (entry,) = json.loads((target / "manifest.json").read_text())["cases"]
    assert set(entry) == {"case", "op", "ops", "platform", "notes", "sha256"}


def test_the_resnet_is_not_copied_even_with_a_list_of_ops(tool):
    case = {"case": "resnet18-12-regular", "ops": ["Quant"]}
    assert tool.covered([case], ["Quant"]) == []
    assert tool.covered([case | {"case": "another"}], ["Quant"]) == [{"case": "another", "ops": ["Quant"]}]


def test_cases_of_another_chip_are_left_out(tool):
    case = {"case": "curve", "ops": ["Quant"]}
    assert tool.covered([case | {"platform": "venusA"}], ["Quant"]) == []
    for known in ("venus", "arcs"):
        assert tool.covered([case | {"platform": known}], ["Quant"]) == [case | {"platform": known}]


def test_damaged_file_is_refused_and_nothing_is_written(tool, source, tmp_path):
    (source / "golden" / "ops" / "plain.npz").write_bytes(b"arrays plaim")
    with pytest.raises(SystemExit, match=r"plain\.npz: sha256 is"):
        tool.make_golden(source, tmp_path / "copied")
    assert not (tmp_path / "copied").exists()


def test_missing_file_is_refused(tool, source, tmp_path):
    (source / "golden" / "ops" / "plain.onnx").unlink()
    with pytest.raises(SystemExit, match=r"plain\.onnx: .* not there"):
        tool.make_golden(source, tmp_path / "copied")


def test_leftovers_are_removed(tool, source, tmp_path):
    target = tmp_path / "copied"
    target.mkdir()
    (target / "old.onnx").write_bytes(b"")
    tool.make_golden(source, target)
    assert not (target / "old.onnx").exists()


def test_folder_without_vectors_is_refused(tool, tmp_path):
    with pytest.raises(SystemExit, match=r"no manifest\.json"):
        tool.make_golden(tmp_path, tmp_path / "copied")


def test_the_vectors_in_the_repository_are_what_the_tool_copies(tool, shared, tmp_path):
    tool.make_golden(shared, tmp_path / "copied")
    for path in GOLDEN.iterdir():
        copied = tmp_path / "copied" / path.name
        assert copied.read_bytes() == path.read_bytes(), f"{path.name}: run tools/make_golden.py again"
