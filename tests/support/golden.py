"""The recorded vectors of tests/golden, and the ways to run a case."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from linger.graph.files.model_io import load
from linger.graph.forms.expand_dialect import expand_dialect
from linger.runtime.reference import Reference
from linger.runtime.session import Session
from tests.support.comparison import output_mismatches

GOLDEN = Path(__file__).resolve().parent.parent / "golden"

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Path, Arrays], Arrays]


def entries() -> list[dict]:
    """What the manifest says of each case."""
    return json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))["cases"]


def case_names(op: str | None = None) -> list[str]:
    """Names of the cases, or of those recorded for the sake of one op."""
    return [entry["case"] for entry in entries() if op in (None, entry["op"])]


def model_path(case: str) -> Path:
    return GOLDEN / f"{case}.onnx"


def recorded(case: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(what was fed, what came out), told apart by the model's inputs."""
    fed = {value.name for value in load(model_path(case)).graph.inputs}
    with np.load(GOLDEN / f"{case}.npz") as content:
        arrays = {name: content[name] for name in content.files}
    return {n: a for n, a in arrays.items() if n in fed}, {n: a for n, a in arrays.items() if n not in fed}


def run_session(path: Path, feeds: Arrays) -> Arrays:
    """Stock ONNX Runtime on the functions, default optimisation."""
    session = Session(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def run_expanded(path: Path, feeds: Arrays) -> Arrays:
    """Stock ONNX Runtime on standard nodes only."""
    model = load(path)
    expand_dialect(model)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # leftovers of unused initializers are not news
    options.intra_op_num_threads = 1
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_reference(path: Path, feeds: Arrays, kernel=None) -> Arrays:
    """The numpy interpreter."""
    return Reference(path, kernel=kernel).run(feeds)


def run_torch(path: Path, feeds: Arrays, kernel=None) -> Arrays:
    """The torch kernel under the same interpreter."""
    from tests.support.array_kernel import TorchOnArrays  # the other ways run without torch

    return run_reference(path, feeds, kernel=TorchOnArrays(kernel))


def golden_mismatches(cases: Iterable[str], run: Run) -> Iterator[str]:
    """Where `run` does not give the recorded arrays."""
    for case in cases:
        feeds, expected = recorded(case)
        for found in output_mismatches(run(model_path(case), feeds), expected):
            yield f"{case}: {found}"
