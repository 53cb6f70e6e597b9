"""linger demo."""

import json
from types import SimpleNamespace

import pytest

from linger.errors import LingerError, missing_extra
from tests.cli.schemas.test_schemas import schema_of, strict
from tests.support.command import run

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def two_batches(monkeypatch):
    """Few images, so that the whole way is short."""
    from linger.workflow import demo

    train_x, train_y, test_x, test_y = demo.digits()
    monkeypatch.setattr(demo, "digits", lambda: (train_x[:128], train_y[:128], test_x[:32], test_y[:32]))


def test_file_and_certificate_are_written_and_proven(two_batches, tmp_path):
    import jsonschema

    done = run("demo", "--epochs", "1", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    jsonschema.validate(content, strict(schema_of("demo", tmp_path)))
    assert content["integers"] > 10_000
    assert content["differing"] == 0
    assert {"digits.onnx", "digits.certificate.json", "report.html"} == {
        path.name for path in (tmp_path / "linger-demo").iterdir()
    }
    held = run("verify", "--certificate", "linger-demo/digits.certificate.json", cwd=tmp_path)
    assert held.returncode == 0, held.stderr
    again = run("demo", "--epochs", "1", cwd=tmp_path)
    assert again.returncode == 2
    assert "the folder exists" in again.stderr


def test_integers_that_differ_are_an_error(tmp_path, monkeypatch):
    from linger.workflow import demo

    proof = SimpleNamespace(ok=False, summary=lambda: "1 of 9 integers differ.")
    findings = SimpleNamespace(ok=True, counts=lambda: {"error": 0})
    monkeypatch.setattr(demo, "demonstrate", lambda *a, **k: demo.Demonstration(98.0, 97.0, proof, findings))
    done = run("demo", "--out", "d", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "linger: d: 1 of 9 integers differ. linger check: 0 errors.\n")


@pytest.mark.parametrize(
    ("extra", "is_replaced"), [("report.html", True), ("thesis.txt", False)], ids=["own files", "a file of others"]
)
def test_only_a_folder_of_its_own_files_is_replaced(tmp_path, monkeypatch, extra, is_replaced):
    from linger.workflow import demo

    def stop(*_, **__):
        raise LingerError("the work begins")

    monkeypatch.setattr(demo, "demonstrate", stop)
    (tmp_path / "d").mkdir()
    for name in ("digits.onnx", "digits.certificate.json", extra):
        (tmp_path / "d" / name).write_text("old")
    done = run("demo", "--out", "d", "--overwrite", cwd=tmp_path)
    assert ("the work begins" in done.stderr) == is_replaced
    assert ("not ours to replace" in done.stderr) == (not is_replaced)
    assert (tmp_path / "d" / extra).read_text() == "old"


@pytest.mark.slow
def test_the_whole_way_reaches_its_accuracy(tmp_path):
    done = run("demo", "--json", cwd=tmp_path)
    content = json.loads(done.stdout)
    assert done.returncode == 0
    assert content["float_accuracy"] > 97
    assert content["integer_accuracy"] > 97


@pytest.mark.parametrize(("package", "extra"), [("sklearn", "demo"), ("netron", "view")])
def test_a_missing_extra_is_one_sentence(package, extra):
    error = missing_extra(f"linger {extra}", ModuleNotFoundError(name=package))
    assert str(error).endswith(f"Install linger with the extra {extra!r}: pip install 'linger-nn[{extra}]'.")
