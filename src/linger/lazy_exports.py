# SPDX-License-Identifier: Apache-2.0
"""Packages whose public names are loaded on first use.

A package's stub (`__init__.pyi`) is what type checkers read: one line per name, `from home import name as name`. The same
lines say here where each name lives, so that no name has to be listed twice.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from linger.errors import missing_extra

_INSTEAD = {
    "prepare prepare_qat prepare_fx prepare_qat_fx prepare_pt2e prepare_model": "linger.init(model) replaces the layers by "
    "quantized ones; calibrate it inside `with linger.calibration():`, or train it",
    "convert convert_fx convert_pt2e convert_model": "nothing needs to be converted: after linger.init(model) and calibration, "
    "linger.onnx.export(model, x, path) writes the integers",
    "fuse fuse_modules fuse_modules_qat fuse_conv_bn fuse_bn": "linger.trace_layers(model, x) fuses convolutions and batch norms",
    "quantize quantize_static quantize_dynamic quantize_qat quantize_model quantize_ ptq optimize compress": "linger.quantize(model, "
    "data) makes, proves and judges a quantized model",
    "load load_model read_model": "linger.Session(path) runs an ONNX file and linger.graph.load(path) opens it for editing; a "
    "checkpoint is torch's: model.load_state_dict(torch.load(path))",
    "save save_model": "linger.onnx.export(model, x, path) writes a model, torch.save(model.state_dict(), path) a checkpoint",
    "export export_onnx to_onnx export_debug": "linger.onnx.export(model, x, path) writes an ONNX file, linger.c.export C",
    "calibrate calib": "run typical inputs inside `with linger.calibration():`",
    "run infer inference InferenceSession": 'linger.Session(path).run(None, {"x": array}) runs a file',
    "QConfig QConfigMapping get_default_qconfig observer Observer": "linger.quant_module(module, …) chooses widths, "
    "linger.calibration(method) how ranges are found",
    "FuseConvBNAheadRelu FuseBNIntoConv": "linger.trace_layers",
    "channel_shuffle_quant": "linger.channel_shuffle",
    "ScaledRoundLayer": "linger.quant_tensor",
    "Quant": "linger.quant",
    "version_info": "linger.__version__",
    "config": "linger.Switches",
    "OnnxRunner": "linger.Session",
}
"""What to call instead of names that other tools, or older versions, have."""

_OLDER = {
    "1.x": "onnx_quant FuseConvBNAheadRelu FuseBNIntoConv channel_shuffle_quant cat sigmoid sigmoid_ tanh tanh_ clamp clamp_ dropout "
    "bmm softmax logsoftmax var pack_padded_sequence pad_packed_sequence torch_relu torch_cat torch_sigmoid torch_softmax "
    "get_device get_max_value Requant ScaledRoundLayer Quant ClipGrad NormalizeFunction ScalerBuffer QuantInfo ClampInfo Singleton "
    "LayerFusion LayerQuantPredictor ModuleIntConfig version_info logger config",
    "3.x": "SparifyFFN OnnxRunner QatMethod QuantStrategy ActivationType",
}
"""Public names of older versions that are not there any longer."""

_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazy_exports(package: str, shown: Iterable[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package with a stub.

    Args:
        package: Its full name.
        shown: The names for `__dir__`, in order. Others of the stub can be imported all the same, also by `import *`.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None  # it is installed beside the package
    homes = {name: home for home, name in _LINE.findall(stub.decode())}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_hint(package, name, homes)}")
        try:
            if home == package:
                return importlib.import_module(f"{package}.{name}")
            value = getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as error:
            raise missing_extra(f"{package}.{name}", error) from error
        return vars(sys.modules[package]).setdefault(name, value)  # so that the next use does not come here

    return load, lambda: list(shown), list(homes)


def _hint(package: str, name: str, known: Iterable[str]) -> str:
    """What to do about a name that is not there, as the rest of a sentence."""
    told = []
    if package == "linger":
        told += [
            f"use {text}" if " " not in text else text for names, text in _INSTEAD.items() if name in names.split()
        ]
        older = [
            v for v, names in _OLDER.items() if name in names.split() or (v == "1.x" and name.startswith("LINGER_"))
        ]
        told += [f"the page 'From linger {version}' tells what became of it" for version in older]
    near = [] if told or name.startswith("_") else difflib.get_close_matches(name, known, 1)
    told += [f"did you mean {package}.{one}?" for one in near]
    return f": {'; '.join(told)}" if told else ""


@contextmanager
def importing() -> Iterator[None]:
    """Import modules without searching for garbage: what they define stays, and each search would look through all of it.

    Searches after the block leave out what is there at its end, if it has imported anything.
    """
    modules, thresholds = len(sys.modules), gc.get_threshold()
    gc.set_threshold(100_000, *thresholds[1:])
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        gc.set_threshold(*thresholds)
