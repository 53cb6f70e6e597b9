"""Report data is read back as it was written, and wrong entries are all named."""

import json
import math

import pytest

from linger.errors import UsageError
from linger.reporting.facts import Bins, Block, LayerFacts, MemoryFacts, Proof, Quality, Run, TensorFacts, read_run

RUN = Run(
    "net",
    file="net.onnx",
    layers=(LayerFacts("conv.Conv2dInt", "conv", sqnr_db=float("inf"), advice=("wider",)),),
    tensors=(TensorFacts("conv", 0, bits=8, scale=32.0, clipped=0.25, values=Bins(-1.0, 0.5, (1, 0, 2))),),
    quality=(Quality("agreement", 99.5, unit="%", samples=200),),
    proof=Proof(True, "0 of 5 integers differ", ("torch",), 5, digests={"net.onnx": "00ff"}),
    memory=MemoryFacts(is_arena=True, steps=("a",), blocks=(Block("x", 16, 0, 0, 0),)),
)


def test_a_run_is_read_as_it_was_written():
    assert read_run(RUN.to_json(), "net.json") == RUN


def test_json_has_no_infinity():
    assert json.loads(RUN.to_json())["layers"][0]["sqnr_db"] == "inf"


def test_what_is_no_number_is_read_again():
    run = Run("net", quality=(Quality("loss", float("nan"), 1.0),), layers=(LayerFacts("a", sqnr_db=float("nan")),))
    text = run.to_json()
    assert json.loads(text)["quality"][0]["after"] == "nan"
    found = read_run(text, "net.json")
    assert math.isnan(found.quality[0].after)
    assert math.isnan(found.layers[0].sqnr_db)


ODD = {
    "half a letter": ({"name": "\ud800"}, "half a character"),
    "half a letter in a key": (
        {"proof": {"is_exact": True, "summary": "", "digests": {"\ud800": ""}}},
        "half a character",
    ),
    "400 digits": ({"name": "net", "integer_share": 10**400}, "integer_share is not a number (1000"),
}


@pytest.mark.parametrize(("entries", "said"), ODD.values(), ids=ODD)
def test_what_no_file_or_float_can_hold_is_a_wrong_entry(entries, said):
    text = json.dumps({"format": "linger-report", "version": 1, "name": "net", **entries})
    with pytest.raises(UsageError) as raised:
        read_run(text, "net.json")
    assert said in str(raised.value)
    assert str(raised.value).encode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is no JSON"),
        ("[]", "this is no report data"),
        ("[" * 100_000, "this is no JSON"),
        ('{"format": "linger-memory"}', "this is no report data"),
        ('{"format": "linger-report", "version": 9}', "version 9 of report data; this linger reads 1"),
    ],
    ids=["no JSON", "list", "deep", "other format", "other version"],
)
def test_what_is_no_run_is_refused(text, said):
    with pytest.raises(UsageError, match=rf"^net\.json: {said}"):
        read_run(text, "net.json")


def test_all_wrong_entries_are_named():
    content = json.loads(RUN.to_json())
    content["macs"] = "many"
    content["layers"][0]["color"] = "red"
    content["tensors"][0].pop("name")
    with pytest.raises(UsageError) as raised:
        read_run(json.dumps(content), "net.json")
    said = ("macs is not an integer ('many')", "layers[0].color is not known", "tensors[0].name is missing")
    assert [part for part in said if part not in str(raised.value)] == []
