"""What a user finds at the front door: few names, in the order of the pipeline, each with a sentence."""

import ast
import copy
import importlib
import inspect
import re
import subprocess
import sys
from unittest import mock

import pytest

import linger
import linger.c
import linger.checks
import linger.graph
import linger.onnx
from linger.lazy_exports import lazy_exports
from tests.conftest import REPOSITORY

PACKAGES = (linger, linger.onnx, linger.graph, linger.checks, linger.c)
PIPELINE = (
    *("wb_analyse", "trace_layers", "init", "compare_layers", "onnx", "convert_dialect", "check"),
    *("record", "verify", "Session", "compare", "write_vectors", "LingerError"),
)
"""One name of every stage, in the order in which a model meets them."""


def stub_of(package):
    return ast.parse((REPOSITORY / "src" / package.__name__.replace(".", "/") / "__init__.pyi").read_text("utf-8"))


def test_dir_is_short_and_in_the_order_of_the_pipeline():
    shown = linger.__dir__()
    assert len(shown) == len(set(shown)) <= 69
    assert sorted(shown) == dir(linger)
    assert [name for name in shown if name in PIPELINE] == list(PIPELINE)
    assert linger.graph.__dir__()[0] == "load"
    assert linger.onnx.__dir__()[0] == "export"


def test_the_docstring_lists_what_dir_shows():
    listed = [line.split("  ")[-1].split() for line in linger.__doc__.splitlines() if line.startswith("    ")]
    assert [name for names in listed for name in names] == linger.__dir__()


@pytest.mark.needs_torch
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_name_says_in_one_sentence_what_it_is_for(package):
    for name in package.__dir__():
        first, *more = inspect.getdoc(getattr(package, name)).splitlines()
        assert re.fullmatch(r".{10,120}\.", first), name
        assert not re.search(r"\. [A-Z]", first) or inspect.ismodule(getattr(package, name)), name
        assert not more or more[0] == "", f"{name}: the first line is a sentence of its own"


@pytest.mark.needs_torch
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_stub_says_where_every_name_lives(package):
    lines = {alias.asname: node.module for node in stub_of(package).body[1:] for alias in node.names}
    assert list(lines) == package.__all__
    assert set(package.__dir__()) <= set(lines)
    for name, home in lines.items():
        found = getattr(package, name)
        assert found is getattr(importlib.import_module(home), name)
        assert inspect.ismodule(found) or getattr(found, "__module__", home) == home, (
            "its own home, not one that imports it"
        )


def test_a_star_import_still_brings_what_version_0_1_brought():
    names = (REPOSITORY / "tests/data/0.1/names.txt").read_text("utf-8").split()
    public = {name.removeprefix("linger.") for name in names if name.count(".") == 1}
    for name in ("SetIQTensorAdd", "PlatFormQuant", "NormalizeConv2d", "EmptyBatchNorm", "parser_dequant"):
        assert name in public
        assert name not in dir(linger)
    assert public - {"__version__"} <= {*linger.__all__, "cli"}


def test_other_names_are_refused():
    for package in PACKAGES:
        with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'nothing'"):
            package.nothing  # noqa: B018


def test_a_name_whose_module_needs_another_package_says_which(tmp_path, monkeypatch):
    folder = tmp_path / "front_door_example"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__init__.pyi").write_text(
        "from front_door_example import inner as inner\nfrom front_door_example.heavy import thing as thing\n"
    )
    (folder / "inner.py").write_text("")
    (folder / "heavy.py").write_text("raise ModuleNotFoundError('no', name='torch')")
    monkeypatch.syspath_prepend(tmp_path)
    load, listed, everything = lazy_exports("front_door_example", ["thing"])
    assert (listed(), everything) == (["thing"], ["inner", "thing"])
    assert load("inner") is importlib.import_module("front_door_example.inner")
    with pytest.raises(linger.UsageError, match=r"front_door_example.thing needs torch.*extra 'torch'"):
        load("thing")


def test_the_front_door_opens_from_an_archive(tmp_path):
    code = f"""
import shutil, sys
sys.path.insert(0, shutil.make_archive({str(tmp_path / "linger")!r}, "zip", {str(REPOSITORY / "src")!r}, "linger"))
import linger
print(linger.__file__, linger.LingerError.__name__, len(dir(linger)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert done == [str(tmp_path / "linger.zip/linger/__init__.py"), "LingerError", str(len(dir(linger)))]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What public functions return, by name."""
    import torch

    from tests.support.models import small_net

    folder = tmp_path_factory.mktemp("results")
    torch.save(torch.nn.Conv2d(3, 4, 3).state_dict(), folder / "weights.pt")
    pair = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()).eval()
    model, x = small_net()
    quantized_pair = linger.init(copy.deepcopy(pair)).eval()
    linger.restore()
    with linger.calibration():
        quantized_pair(x)
    net = folder / "net.onnx"
    linger.onnx.export(model, (x,), net)
    compared = linger.onnx.compare(model, net, (x,))
    with linger.onnx.operator("aten::asinh", to="Asinh") as operator:
        pass
    return {
        "wb_analyse": linger.wb_analyse(folder / "weights.pt", None),
        "advise": linger.advise(folder / "weights.pt"),
        "coverage": linger.coverage(model),
        "compare_layers": linger.compare_layers(pair, quantized_pair, x),
        "sensitivity": linger.sensitivity(pair, [x]),
        "convert_dialect": linger.convert_dialect(net, "linger", partial=True),
        "check": linger.check(net, "venus"),
        "repair": linger.repair(net),
        "record": next(iter(linger.record(model, (x,)))),
        "verify": linger.verify(model, net, (x,)),
        "compare": linger.compare(net, net),
        "write_vectors": linger.write_vectors(net, folder / "vectors"),
        "onnx.compare": compared,
        "an output of onnx.compare": compared.outputs[0],
        "onnx.operator": operator,
        "onnx.attach_bodies": linger.onnx.attach_bodies(linger.graph.load(net)),
        "Session": linger.Session(net),
        "Switches": linger.Switches(add=False),
        "FixedPoint": linger.FixedPoint(8, 7),
    }


@pytest.mark.needs_torch
def test_a_result_is_shown_in_one_short_line(results):
    for name, result in results.items():
        assert re.fullmatch(r".{1,199}", repr(result)), name
    assert repr(results["convert_dialect"]) == f"Conversion({results['convert_dialect'].summary()})"
    assert repr(results["Switches"]) == "Switches(add=False)"
    assert repr(results["onnx.compare"]) == "ModelComparison(1 output on 1 input, all within tolerance)"


IMPORTED_BY_USERS = {
    *("linger", "linger.onnx", "linger.graph", "linger.checks", "linger.checks.repair_rules", "linger.targets"),
    *("linger.dialect", "linger.numeric.fixed", "linger.numeric.numpy_kernel"),  # the pages on the arithmetic itself
}


def test_the_pages_for_users_import_public_places_only():
    docs = REPOSITORY / "docs"
    pages = [
        REPOSITORY / "README.md",
        *(page for page in sorted(docs.rglob("*.md")) if page.parent.name != "contributing"),
    ]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    found = re.findall(r"^(?:from|import) (linger[\w.]*)", text, re.MULTILINE)
    assert len(found) > 20
    assert set(found) <= IMPORTED_BY_USERS


def test_a_name_that_was_asked_for_can_be_replaced_for_a_while(monkeypatch):
    original = linger.Session
    with monkeypatch.context() as patch:
        patch.setattr(linger, "Session", None)
        assert linger.Session is None
    assert linger.Session is original
    with mock.patch("linger.Session") as other:
        assert linger.Session is other
    assert linger.Session is original


def test_imports_are_left_out_of_later_searches_for_garbage():
    script = """
import gc
from linger.lazy_exports import importing
before = gc.get_threshold()
with importing():
    pass
assert gc.get_freeze_count() == 0, "nothing was imported"
with importing():
    import csv
    assert gc.get_threshold() > before
assert gc.get_freeze_count() > 0
assert gc.get_threshold() == before
gc.unfreeze()
try:
    with importing():
        raise KeyError
except KeyError:
    assert gc.get_threshold() == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)
