"""The recorded vectors of tests/golden, those of whole networks in tests/golden/nets, and the ways to run a case."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from linger import Session
from linger.graph import load
from linger.graph.files.model_io import ModelLike
from linger.graph.lowering.bodies import expand_dialect
from linger.runtime.reference import Reference
from tests.support.comparison import output_mismatches

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
NETS = GOLDEN / "nets"

Arrays = Mapping[str, np.ndarray]
Compute = Callable[[Arrays], Arrays]
Run = Callable[[Path, Arrays], Arrays]


def entries(folder: Path = GOLDEN) -> list[dict]:
    """What the manifest says of each case."""
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["cases"]


def case_names(op: str | None = None, *, folder: Path = GOLDEN) -> list[str]:
    """Names of the cases, or of those recorded for the sake of one op."""
    return [entry["case"] for entry in entries(folder) if op in (None, entry.get("op"))]


def model_path(case: str, folder: Path = GOLDEN) -> Path:
    return folder / f"{case}.onnx"


def file_digests(case: str, folder: Path = GOLDEN) -> dict[str, str]:
    """The sha256 of the model and of the arrays, as the files are now, by name."""
    paths = (model_path(case, folder), folder / f"{case}.npz")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def recorded(case: str, folder: Path = GOLDEN) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(what was fed, what came out), told apart by the model's inputs."""
    fed = {value.name for value in load(model_path(case, folder)).graph.inputs}
    with np.load(folder / f"{case}.npz") as content:
        arrays = {name: content[name] for name in content.files}
    return {n: a for n, a in arrays.items() if n in fed}, {n: a for n, a in arrays.items() if n not in fed}


def open_session(model: ModelLike) -> Compute:
    """Stock ONNX Runtime on the functions, default optimization, opened once for any number of runs."""
    session = Session(model)
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def run_session(path: Path, feeds: Arrays) -> Arrays:
    """Stock ONNX Runtime on the functions, default optimization."""
    return open_session(path)(feeds)


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


def net_mismatches(case: str, compute: Compute, folder: Path = NETS) -> Iterator[str]:
    """Where `compute` does not give what the engine computed for a network; along the first axis lie runs at batch 1."""
    feeds, expected = recorded(case, folder)
    for index in range(len(next(iter(feeds.values())))):
        outputs = compute(_nth_run(feeds, index))
        for found in output_mismatches(outputs, _nth_run(expected, index)):
            yield f"{case}, run {index}: {found}"


def _nth_run(arrays: Arrays, index: int) -> Arrays:
    return {name: array[index] for name, array in arrays.items()}
