"""The pages for users of linger 1.x and 3.x are true: every name imports or does not, as the tables say, and tests exist."""

import ast
import inspect
import re
import warnings

import pytest
import torch
import yaml
from torch import nn

import linger
from linger.errors import LingerError
from tests.conftest import REPOSITORY
from tests.support.tools import load_tool

pytestmark = pytest.mark.needs_torch

tool = load_tool("migration_pages")
VERSIONS = {version: [e for s in tool.sections(version) for e in s.names] for version in tool.VERSIONS}
ENTRIES = [e for entries in VERSIONS.values() for e in entries]
KEYS = [e for e in VERSIONS["3"] if e.key]


def found(place):
    """What a dotted name stands for; AttributeError where there is none."""
    value = linger
    for part in place.split(".")[1:]:
        # what a tensor has is asked of a tensor
        value = getattr(linger.from_tensor_to_qtensor(torch.ones(1)) if value is linger.QTensor else value, part)
    return value


def is_there(place):
    try:
        found(place)
    except AttributeError:
        return False
    return True


def test_pages_are_up_to_date():
    for path, version, language in tool.files():
        text = path.read_text(encoding="utf-8")
        assert tool.page(text, version, language) == text, "run python tools/migration_pages.py"


def test_names_that_are_there_are_there():
    assert [place for e in ENTRIES for place in e.places if not is_there(place)] == []


def test_names_that_are_not_there_are_not():
    wrong = [place for e in ENTRIES for place in e.missing if is_there(place)]
    assert wrong == [], "say in tools/migration that it is there"
    assert not any(name.startswith("LINGER_") for name in vars(linger))


def takes(place, argument, *, by_options):
    parameters = inspect.signature(found(place)).parameters
    if argument in parameters:
        return True
    return by_options and any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_arguments_are_taken():
    layers = ("linger.Normalize",)  # what they pass on to the classes they are made of is their **options
    missing = [
        (place, argument)
        for e in ENTRIES
        for place in e.places
        for argument in (*e.arguments, *e.options)
        if not takes(place, argument, by_options=argument in e.options or place.startswith(layers))
    ]
    assert missing == []


def test_options_that_a_signature_does_not_name_are_known():
    assert [e.names for e in ENTRIES if e.options] == [("quant_module",)]
    for option in next(e.options for e in ENTRIES if e.options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some have no effect, and say so
            linger.quant_module(nn.Linear(2, 2), **{option: {"bias_bits": 32}.get(option, 8)})


SIZES = {"Conv": (2, 2, 1), "BatchNorm2d": (2,), "LayerNorm": (2,)}


def test_layers_with_limits_are_made_with_every_argument():
    for entry in (e for e in VERSIONS["1"] if e.names[0].startswith("Normalize") and e.arguments):
        for name in entry.names:
            sizes = next((s for kind, s in SIZES.items() if name.startswith(f"Normalize{kind}")), (2, 2))
            getattr(linger, name)(*sizes, **dict.fromkeys(entry.arguments, 1))


def test_each_name_is_answered_once():
    for entries in VERSIONS.values():
        names = [f"{e.of}.{name}" for e in entries for name in e.names] + [e.key for e in entries if e.key]
        assert len(names) == len(set(names))
    assert all(bool(e.en) == bool(e.zh) and bool(e.names) != bool(e.key) for e in ENTRIES)
    assert all(e.en for e in ENTRIES if e.here == tool.NONE), "a name that is not there has a reason"


def values(kind):
    return [pytest.param(e.key, value, id=f"{e.key}={value}") for e in KEYS for value in getattr(e, kind)]


def written(key, value, path):
    """A file with this one key of linger 3.x."""
    section, _, inner = key.rpartition(".")
    content = {section: {inner: value}} if section else {key: value}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(("key", "value"), values("takes"))
def test_keys_are_read(key, value, tmp_path):
    model = linger.init(nn.Sequential(nn.Linear(2, 2)), config_file=written(key, value, tmp_path / "config.yaml"))
    with linger.calibration():
        model(torch.eye(2))


@pytest.mark.parametrize(("key", "value"), values("warns"))
def test_what_asks_for_more_is_said(key, value, tmp_path):
    with pytest.warns(UserWarning, match="after calibration"):
        linger.init(nn.Sequential(nn.Linear(2, 2)), config_file=written(key, value, tmp_path / "config.yaml"))


@pytest.mark.parametrize(("key", "value"), values("refuses"))
def test_values_without_a_meaning_are_refused(key, value, tmp_path):
    with pytest.raises(LingerError, match=re.escape(key.rpartition(".")[2])):
        linger.init(nn.Sequential(nn.Linear(2, 2)), config_file=written(key, value, tmp_path / "config.yaml"))


def test_weights_of_a_newer_checkpoint_are_taken():
    source = nn.Sequential(nn.Linear(2, 2))
    state = {**source.state_dict(), "0.weight_quantizer.scale": torch.ones(1), "0.input_quantizer.scale": torch.ones(1)}
    model = linger.init(nn.Sequential(nn.Linear(2, 2)))
    model.load_state_dict(state, strict=False)
    assert torch.equal(model[0].weight, source[0].weight)


# -- the list of names is complete ----------------------------------------------------------------------------------------

CODE = re.compile(r"`([^`]+)`")
NAME = re.compile(r"[A-Za-z_]\w*\*?")
NO_NAMES = {"running", "quant", "dequant", "running_to_scale", "apply"}
"""Words in code that are parts of the names beside them."""


def between(text, begin, end):
    return text[text.index(begin) : text.index(end, text.index(begin) + len(begin))]


def first_cells(text):
    """The names in the first column of every table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for code in CODE.findall(cell) for name in listed(code)}


def listed(code):
    """The names that a piece of code stands for: `a, b`, `f(x=1)`, `SetA/B(x)`, `module.name`."""
    heads = re.sub(r"\([^)]*\)", "", code).replace("linger.", "").split(",")
    for head in (h.strip().rpartition(".")[2] for h in heads):
        prefix = "SetIQTensor" if head.startswith("SetIQTensor") else ""
        for part in head.split("/"):
            if NAME.fullmatch(part):
                yield part if part.startswith("Set") else prefix + part


@pytest.fixture(scope="module")
def facts(shared):
    """What is known of the original; a file beside the repository."""
    if not (shared / "FACTS.md").exists():
        pytest.skip("nothing to compare the tables with")
    return (shared / "FACTS.md").read_text(encoding="utf-8")


def test_every_public_name_of_the_older_one_is_answered(facts):
    text = between(facts, "## 1. Public API", "### 1.5")
    names = first_cells(text)
    for begin, end in (("Public classes:", "Type lists"), ("- `DefaultQuantIntXOP`", "### 1.2")):
        found_here = between(text, begin, end)
        names |= {name for code in CODE.findall(found_here) for name in listed(code)}
    names |= {"FuseBNIntoConv", "QuantMode", "PlatFormQuant", "Conv2dInt", "ReLU6Int", "BmmInt", "NormalizeEmbedding"}
    names |= set(re.findall(r"`(\w+_?)\(", between(facts, "Helper methods:", "---")))
    known = {name for e in VERSIONS["1"] for name in e.names} | {"onnx", "config"}
    assert {n for n in names if n not in known} - NO_NAMES == set()
    assert len(names) > 90


def test_every_public_name_of_the_newer_one_is_answered(facts):
    text = between(facts, "## 2. Public API", "Removed vs L1")
    known = {name for e in VERSIONS["3"] for name in e.names}
    assert first_cells(text) - known == set()
    assert len(first_cells(text)) > 15
    keys = {key.rpartition(".")[2] for key in (e.key for e in KEYS)} | {"quant_info", "clamp_info"}
    file = between(facts, "### 2.1 config.yaml", "<anyPartName>")
    assert set(re.findall(r"\b(\w+):\s", file)) - keys == set()


# -- complaints ---------------------------------------------------------------------------------------------------------


def test_every_complaint_names_tests_that_exist_or_says_why_not():
    every = [one for group in tool.complaints().values() for one in group]
    named = {test for one in every for test in one.tests}
    files = {test.partition("::")[0] for test in named}
    functions = {
        f"{file}::{node.name}"
        for file in files
        for node in ast.walk(ast.parse((REPOSITORY / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert named - functions == set()
    assert [one.complaint for one in every if not one.tests] == [
        "One scale per tensor, symmetric, a power of two, no other mode"
    ]


def test_every_complaint_of_the_documents_is_answered(facts):
    text = between(facts, "## 8.", "## 9.")
    numbers = [int(n) for n in re.findall(r"\((\d+)\) ", text)]
    assert numbers == list(range(1, 29))
    assert len(tool.complaints()["faq"]) == len(numbers)
    raised = between(text, "From source (additional):", "---").count(";")
    assert len(tool.complaints()["source"]) >= raised - 2  # two lines answer two each
