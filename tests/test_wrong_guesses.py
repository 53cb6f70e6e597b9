"""What a new user writes first and linger does not have: one sentence with what to call."""

import inspect
from collections import OrderedDict
from pathlib import Path

import onnx
import pytest
import torch
import yaml
from torch import nn

import linger
from linger.errors import UsageError
from tests.conftest import REPOSITORY
from tests.support.models import small_net

pytestmark = pytest.mark.needs_torch

GUESSES = {
    "prepare": "linger.init",
    "prepare_qat": "linger.calibration",
    "convert": "linger.onnx.export",
    "fuse": "linger.trace_layers",
    "fuse_modules": "linger.trace_layers",
    "quantize_static": "linger.quantize",
    "load": "linger.Session",
    "save": "linger.onnx.export",
    "export": "linger.onnx.export",
    "calibrate": "linger.calibration",
    "run": "linger.Session",
    "QConfig": "linger.quant_module",
    "verfy": "linger.verify",
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_answered_with_what_to_call(name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*{GUESSES[name]}"):
        getattr(linger, name)
    assert not hasattr(linger, name)


@pytest.mark.parametrize("version", ["1", "3"])
def test_every_older_name_that_is_gone_points_to_its_page(version):
    sections = yaml.safe_load((REPOSITORY / f"tools/migration/linger-{version}.yaml").read_text("utf-8"))
    gone = [
        (name, e)
        for s in sections
        for e in s["names"]
        if e.get("here") != "same" and "of" not in e
        for name in e.get("names", ())
    ]
    assert gone
    for name, entry in gone:
        with pytest.raises(AttributeError, match=f"page 'From linger {version}.x'") as caught:
            getattr(linger, name.replace("*", "RELU"))
        assert entry["here"] == "none" or entry["here"] in str(caught.value), name


def program():
    return torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))


NO_MODELS = {
    "a class": (lambda: nn.Linear, r"Linear is a class. Give a model of it: Linear\(…\)"),
    "a text": (lambda: "net.pt", "'net.pt' is a path. Build the model, and load its weights"),
    "a path": (lambda: Path("net.onnx"), "'net.onnx' is a path.*linger.Session"),
    "weights": (lambda: nn.Linear(2, 2).state_dict(), "this OrderedDict holds weights alone.*load_state_dict"),
    "an exported program": (program, "this ExportedProgram holds a graph.*Give the torch.nn.Module"),
    "a file in memory": (onnx.ModelProto, "this ModelProto holds a graph"),
    "a function": (lambda: torch.relu, "a torch module is expected, not builtin_function_or_method"),
    "a scripted module": (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), "Pass the nn.Module"),
}
TAKES_A_MODEL = {
    "init": linger.init,
    "tune": lambda model: linger.tune(model, torch.ones(4, 2)),
    "sensitivity": lambda model: linger.sensitivity(model, torch.ones(4, 2)),
    "trace_layers": lambda model: linger.trace_layers(model, torch.ones(4, 2)),
    "normalize_layers": linger.normalize_layers,
    "quantize": lambda model: linger.quantize(model, torch.ones(4, 2)),
    "disable_quant": linger.disable_quant,
    "quant_module": linger.quant_module,
    "equalize": lambda model: linger.equalize(model, torch.ones(4, 2)),
}
TAKES_A_QUANTIZED_MODEL = {
    "coverage": linger.coverage,
    "learn_scales": linger.learn_scales,
    "LearnedRanges": linger.LearnedRanges,
    "choose_ranges": linger.choose_ranges,
    "save_statistics": lambda model: linger.save_statistics(model, "part.stat"),
    "Schedule": linger.Schedule,
    "record": lambda model: list(linger.record(model, torch.ones(4, 2))),
}


@pytest.mark.parametrize("given", NO_MODELS)
@pytest.mark.parametrize("function", TAKES_A_MODEL)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_model_is_told_what_to_give(function, given):
    make, message = NO_MODELS[given]
    if given == "a scripted module" and function not in ("init", "tune", "quantize"):
        pytest.skip("the step runs what it is given")
    with pytest.raises(UsageError, match=message):
        TAKES_A_MODEL[function](make())


@pytest.mark.parametrize("given", [nn.Linear, "net.pt", None, [nn.Linear(2, 2)], {"w": torch.ones(1)}], ids=repr)
@pytest.mark.parametrize("function", TAKES_A_QUANTIZED_MODEL)
def test_what_is_no_quantized_model_is_told_in_a_sentence(function, given):
    with pytest.raises(UsageError):
        TAKES_A_QUANTIZED_MODEL[function](given)


def test_a_hint_is_a_sentence():
    with pytest.raises(AttributeError, match=r"no attribute 'prepare': linger.init\(model\) replaces the layers"):
        _ = linger.prepare
    with pytest.raises(
        AttributeError, match=r"no attribute 'OnnxRunner': use linger.Session; the page 'From linger 3.x'"
    ):
        _ = linger.OnnxRunner


NEEDED = {
    "model": lambda: small_net()[0],
    "args": lambda: small_net()[1],
    "module": lambda: nn.Linear(2, 2),
    "content": lambda: torch.ones(2),
}


def public_callables():
    for place in (linger, linger.c, linger.graph, linger.onnx):
        for name in place.__all__:
            found = getattr(place, name)
            if callable(found) and not (isinstance(found, type) and issubclass(found, Exception)):
                yield pytest.param(found, id=f"{place.__name__}.{name}")


@pytest.mark.parametrize("function", list(public_callables()))
def test_no_public_name_ignores_a_keyword(function, tmp_path):
    """Whatever takes `**options` says which it knows; Python refuses the others by itself."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD] if takes_all else []
    files = {"f": tmp_path / "net.onnx"} if any(p.name == "f" for p in needed) else {}
    if needed and function is linger.Session:
        files = {"model": tmp_path / "net.onnx"}
        linger.onnx.export(*small_net(), files["model"])
    given = {p.name: files[p.name] if p.name in files else NEEDED[p.name]() for p in needed}
    sizes = (2, 2, 1) if takes_all and not needed and issubclass(function, nn.Module) else ()
    with pytest.raises((TypeError, UsageError), match=r"nonsense|quantized layers are made by linger\.init"):
        function(*sizes, **given, nonsense=1)


def test_unknown_arguments_are_refused_with_the_nearest(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, x, tmp_path / "net.onnx")
    calls = {
        r"Session: unknown argument target\. It takes": lambda: linger.Session(
            tmp_path / "net.onnx", target="nonsense"
        ),
        r"provider_option \(did you mean provider_options\?\)": lambda: linger.Session(
            tmp_path / "net.onnx", provider_option=[]
        ),
        r"quant_module: unknown argument databits \(did you mean data_bits\?\)": lambda: linger.quant_module(
            model, databits=8
        ),
        r"export: unknown argument opset \(did you mean opset_version\?\)": lambda: linger.onnx.export(
            model, x, tmp_path / "b.onnx", opset=12
        ),
        r"export: unknown argument is_inputquant \(did": lambda: linger.onnx.export_debug(
            model, x, tmp_path / "b.onnx", is_inputquant=True
        ),
    }
    for message, call in calls.items():
        with pytest.raises(UsageError, match=message):
            call()
    assert not (tmp_path / "b.onnx").exists()


def test_what_onnx_runtime_takes_is_taken(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, x, tmp_path / "net.onnx")
    session = linger.Session(tmp_path / "net.onnx", disabled_optimizers=["ConstantFolding"], enable_fallback=0)
    assert session.run(None, x)


def test_a_state_dict_of_another_mapping_is_one():
    with pytest.raises(UsageError, match="this dict holds weights alone"):
        linger.init(dict(OrderedDict(w=torch.ones(1))))
