"""linger.report: what may be given, what is written, and the same run seen as data, as text and as a page."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import linger
from linger import Report, report
from linger.errors import LingerError, UsageError
from linger.graph import save
from tests.support.chip import WIDTHS, model_of, node

BODY = f"""[quant] q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
    [linear] {node("LinearInt", "q, w", **WIDTHS).replace("y =", "h =", 1)} [end] y = thinker.Dequant<scale_o=16.0>(h)"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    save(model_of(BODY, inputs="float[2,4] x", w=np.arange(12, dtype=np.int8).reshape(3, 4)), path)
    return path


@pytest.fixture(scope="module")
def made(net):
    return report(net, None, name="first")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_a_public_name():
    assert linger.report is report
    assert linger.Report is Report
    assert "report" in dir(linger)


def test_the_page_is_written(net, here):
    found = report(net)
    assert found.path.read_text() == found.to_html()
    assert [p.name for p in here.iterdir()] == ["report.html"]
    assert found.runs[0].name == "net"


def test_without_a_path_nothing_is_written(made, here):
    assert made.path is None
    assert list(here.iterdir()) == []
    assert made.runs[0].name == "first"


def test_the_verdict_in_words(made):
    assert made.summary().startswith(f"{made.verdict.word}: {made.verdict.headline}.")
    assert [line.partition(":")[0] for line in made.summary().splitlines()[1:] if "→" not in line] == [
        "  exact",
        "  good enough",
        "  fits",
    ]
    assert str(made) == made.summary()
    assert repr(made) == f"Report(first: {made.verdict.headline})"


def test_a_notebook_shows_the_page(made):
    shown = made._repr_html_()
    assert shown.startswith("<iframe")
    assert "srcdoc" in shown


def test_the_data_carry_the_verdict(made):
    decision = json.loads(made.to_json())["decision"]
    assert (decision["level"], decision["headline"]) == (made.verdict.level, made.verdict.headline)
    assert [part["name"] for part in decision["parts"]] == ["exact", "good enough", "fits"]


def test_data_of_earlier_versions_are_read(made, here):
    content = json.loads(made.to_json())
    del content["decision"], content["cautions"]
    for figure in content["quality"]:
        del figure["output"], figure["seen"], figure["chance"]
    (here / "old.json").write_text(json.dumps(content))
    assert report(here / "old.json", None).runs == made.runs


def test_data_are_read_again(made, here):
    made.to_json(here / "first.json")
    again = report(here / "first.json", None)
    assert again.runs == made.runs
    assert again.to_html() == made.to_html()


def test_runs_side_by_side_have_different_names(made, here):
    both = report([made, made.runs[0]], None)
    assert [run.name for run in both.runs] == ["first", "first (2)"]
    named = [line.partition(":")[0] for line in both.summary().splitlines() if not line.startswith(" ")]
    assert named == ["first", "first (2)"]
    both.to_json(here / "both.json")
    assert isinstance(json.loads((here / "both.json").read_text()), list)
    assert report("both.json", None).runs == both.runs


def test_the_worst_verdict_counts(made):
    run = made.runs[0]
    bad = replace(run, name="bad", proof=replace(run.proof, is_exact=False, differing=3))
    assert Report((run, bad)).verdict.level == "not ready"


def test_data_made_without_the_chip_do_not_answer_for_it(made, net, here):
    made.to_json(here / "first.json")
    for given in ("first.json", made, made.runs[0], ["first.json", net]):
        with pytest.raises(UsageError, match="the data of first were made without venus"):
            report(given, "page.html", target="venus")
    assert not (here / "page.html").exists()
    asked = report(net, None, target="venus")
    assert report(asked, None, target="venus").runs == asked.runs
    with pytest.raises(UsageError, match="were made without arcs"):
        report(asked, None, target="arcs")


def test_settings_are_kept(net):
    found = report(net, None, command="linger quantize …", config="bits: 8").runs[0]
    assert (found.command, found.config) == ("linger quantize …", "bits: 8")


RESULTS = {
    "memory": linger.memory,
    "arena": linger.c.memory,
    "check": linger.check,
    "verification": lambda net: linger.verify(None, net, batches=1),
    "comparison": lambda net: linger.compare(net, net),
    "repair": lambda net: linger.repair(net.read_bytes()),
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)
def test_results_show_themselves_in_notebooks(make, net):
    result = make(net)
    page = ET.fromstring(result._repr_html_())
    texts = " ".join(page.itertext())
    rows = list(page.iter("tr"))
    assert len({len(row) for row in rows}) <= 1
    assert result.summary().split(": ")[-1][:40] in texts
    if make is linger.memory:
        assert [row[0].text for row in rows[1:]] == [row[0] for row in result.rows()]
        assert list(page.iter("{http://www.w3.org/2000/svg}rect")) or list(page.iter("rect"))


WRONG = {
    "missing": (["nosuch.onnx"], {}, "nosuch.onnx (not there)"),
    "two missing": ([["a.onnx", "b.json"]], {}, "a.onnx (not there), b.json (not there)"),
    "folder": ([""], {}, "a folder"),
    "not ONNX": (["text.onnx"], {}, "text.onnx"),
    "not data": (["other.json"], {}, "this is no report data"),
    "no JSON": (["text.json"], {}, "this is no JSON"),
    "nothing": ([[]], {}, "there is nothing to report"),
    "a number": ([3], {}, "int is nothing that can be reported"),
    "chip": (["NET"], {"target": "moon"}, "moon"),
    "page with another ending": (["NET"], {"path": "net.onnx"}, "ends in .html"),
    "page in no folder": (["NET"], {"path": "no/such/page.html"}, "there is no folder"),
    "page is a folder": (["NET"], {"path": "folder.html"}, "this is a folder"),
    "page is a number": (["NET"], {"path": 3}, "path is a int"),
    "data of another shape": (["NET"], {"data": np.zeros((2, 9), np.float32)}, "expected float"),
    "data of no numbers": (["NET"], {"data": np.array(["a"])}, "no arrays of numbers"),
    "labels without a model": (["NET"], {"labels": [1]}, "labels needs the quantized model"),
    "metric without a model": (["NET"], {"metric": len}, "metric needs the quantized model"),
    "verification of another kind": (["NET"], {"verification": 3}, "verification is a int"),
    "certificate missing": (["NET"], {"verification": "nosuch.json"}, "there is no such file"),
    "certificate of another kind": (["NET"], {"verification": "other.json"}, "this is no certificate"),
    "several files with a name": ([["NET", "NET"]], {"name": "x"}, "name can be given with one ONNX file only"),
    "data of a report": (["run.json"], {"data": [1], "name": "x"}, "data, name can be given with one ONNX file only"),
}


@pytest.mark.parametrize(("given", "settings", "message"), WRONG.values(), ids=WRONG)
def test_wrong_uses_change_nothing(given, settings, message, net, made, here):
    (here / "text.onnx").write_text("this is no model")
    (here / "text.json").write_text("{")
    (here / "other.json").write_text('{"format": "other"}')
    made.to_json(here / "run.json")
    (here / "folder.html").mkdir()
    before = {p: p.read_bytes() for p in here.iterdir() if p.is_file()}
    files = given[0]
    files = [str(net) if f == "NET" else f for f in files] if isinstance(files, list) else files
    files = str(net) if files == "NET" else str(here) if files == "" else files
    with pytest.raises(LingerError) as caught:
        report(files, **settings)
    assert message in str(caught.value)
    assert {p: p.read_bytes() for p in here.iterdir() if p.is_file()} == before
