# SPDX-License-Identifier: Apache-2.0
"""A dialect file in stock ONNX Runtime, as it is written or as the fastest exact graph for this CPU; options as plain data.

At the end: the arrays of one pass through a file, from every form that inputs may have (page "Inputs").

Find out whether integer products of unsigned and signed bytes saturate on this CPU.

On x64 without VNNI a kernel adds two products u8×s8 in 16 bits: beyond ±32767 the sum saturates, silently. Weights
within ±64 are safe, since 2·255·64 = 32640.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from linger.dialect import is_known
from linger.errors import GraphError, UsageError, in_one_line, listing, refuse_unknown
from linger.files import write_atomically
from linger.graph.core.dialects import with_carried
from linger.graph.core.nodes import all_nodes, is_dialect, op_of
from linger.graph.files.model_io import copied, exchange, external_tensors, in_memory
from linger.graph.files.soundness import require_bounded
from linger.graph.lowering.bodies import attach_functions, drop_bodies, expand_dialect, state_recurrent_shapes
from linger.graph.lowering.byte_layers import write_byte_layers
from linger.graph.lowering.row_forms import ROW_FORMS
from linger.graph.network import Network, NetworkLike
from linger.version import __version__

_DATA, _WEIGHT, _LENGTH = 255, 127, 64

_MATMUL = f"""<ir_version: 8, opset_import: ["": 13]>
matmul (uint8[8,{_LENGTH}] x) => (int32[8,32] y) <int64[2] s = {{{_LENGTH}, 32}}> {{
  w = ConstantOfShape<value = int8[1] {{{_WEIGHT}}}>(s)
  y = MatMulInteger(x, w)
}}"""
_CONV = f"""<ir_version: 8, opset_import: ["": 13]>
conv (uint8[1,{_LENGTH},4,4] x) => (int32[1,32,4,4] y) <int64[4] s = {{32, {_LENGTH}, 1, 1}}> {{
  w = ConstantOfShape<value = int8[1] {{{_WEIGHT}}}>(s)
  y = ConvInteger(x, w)
}}"""


@cache
def has_saturating_products() -> bool:
    """Whether ONNX Runtime, on this CPU, gives a wrong sum of products u8×s8; asked once per process.

    64 products 255·127 make 2 072 640. Where pairs of them saturate at 32767, 32 pairs make 1 048 544.
    """
    for text in (_MATMUL, _CONV):
        content = ir.to_proto(ir.from_onnx_text(text)).SerializeToString()
        session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
        data = np.full(session.get_inputs()[0].shape, _DATA, np.uint8)
        if (session.run(None, {"x": data})[0] != _DATA * _WEIGHT * _LENGTH).any():
            return True
    return False


Array = NDArray[Any]
Feeds = Mapping[str, NDArray[Any]]
AnyFeed = Mapping[str, Any] | Sequence[Any] | NDArray[Any]
"""Arrays or tensors by name, or in the order of the inputs."""

LEVELS: Mapping[str, Any] = {
    "disable": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
"""How far ONNX Runtime may rewrite a graph before it runs it; its own default is "all"."""

Options = Mapping[str, str | int | bool]
"""Attributes of `onnxruntime.SessionOptions`, and config entries, whose names contain a dot."""

CPU = "CPUExecutionProvider"

_ONLY_FATAL = 4
"""Log severity: errors are raised, so ONNX Runtime need not print them as well."""

_QUIET: Options = {"session.intra_op.allow_spinning": "0"}
"""Waiting threads sleep instead of keeping a core busy."""

_FOLDER = "session.model_external_initializers_file_folder_path"

ORT_ERRORS = tuple(
    value
    for value in vars(ort.capi.onnxruntime_pybind11_state).values()
    if isinstance(value, type) and issubclass(value, Exception)
)
"""Every error class of ONNX Runtime's binding; they share no base class of their own."""


_DIGEST = hashlib.sha256().digest_size

_LARGEST_WEIGHTS = 1 << 30
"""A graph of its own holds its weights itself, and a model in memory is at most 2 GB."""


_OPTIONS = ("provider_options", "enable_fallback", "read_config_from_model", "disabled_optimizers")
"""Further arguments of onnxruntime.InferenceSession."""


class Session:
    """Runs an ONNX model; a bare dialect file gets its function bodies on load.

    Offers what `onnxruntime.InferenceSession` offers (`run`, `get_inputs`, `get_outputs`, …) and `intermediates`,
    which returns every tensor of the main graph.

    >>> import numpy as np
    >>> text = '''<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
    ... g (float[n] x) => (float[n] y) {
    ...   q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x)
    ...   y = thinker.Dequant <scale_o: float = 16.0> (q)
    ... }'''
    >>> session = Session(ir.to_proto(ir.from_onnx_text(text)))
    >>> session.run(None, {"x": np.array([0.5, 1.03, 9.0], np.float32)})[0].tolist()
    [0.5, 1.0, 7.9375]

    Args:
        model: The file, a model in memory or a `Network`, which stays as it is.
        sess_options: As for `onnxruntime.InferenceSession`, and so are `providers` and the other options.
        providers: None: the CPU.
        is_checked: The model is an `ir.Model` that `load` has returned: it is not checked again.
        as_written: Run the functions of the file, as any ONNX Runtime does, instead of the fastest exact graph for this CPU.
    """

    def __init__(
        self,
        model: NetworkLike,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[str] | None = None,
        *,
        is_checked: bool = False,
        as_written: bool = False,
        **options: Any,
    ) -> None:
        refuse_unknown("Session", options, _OPTIONS)
        self._network = Network.of(model, is_checked=is_checked)
        self._where = "" if self._network.path is None else f"{self._network.path}: "
        self._data_folder: str | None = None
        self._arguments: dict[str, Any] = {
            "sess_options": sess_options or make_session_options(),
            "providers": list(providers) if providers else [CPU],
            **options,
        }
        self._may_be_fast = self._arguments["providers"] == [CPU] and not as_written
        kept = _kept_graph(Path(model)) if isinstance(model, (str, os.PathLike)) and self._may_be_fast else None
        self._inner = self._open(kept or ir.to_proto(self._fastest[0] if self._fastest else self._model))
        self._expected = {i.name: i.type for i in self._inner.get_inputs()}
        self._watching: ort.InferenceSession | None = None
        self._watching_fastest: ort.InferenceSession | None = None

    @cached_property
    def _model(self) -> ir.Model:
        require_bounded(self._network.model)
        model = copied(self._network.normal)
        self._data_folder = _data_folder(model)
        attach_functions(model, is_normal=True)
        return model

    @cached_property
    def _fastest(self) -> tuple[ir.Model, str] | None:
        """The graph that runs, and what it uses; None where that is the model as it is written, which is looked at first."""
        return self._network.once(fastest) if self._model and self._may_be_fast else None

    def keep(self) -> Path:
        """Write the graph that runs beside the file (`net.onnx.session`): the next session of the file loads it and makes none.

        It is taken only for the same file, by the same releases of linger and ONNX Runtime, on a CPU with the same products; else
        a session makes its graph as ever. An older one is replaced.
        """
        path = self._network.path
        if path is None or self._fastest is None or self._data_folder is not None:
            reason = "it runs as it is written" if self._fastest is None else "it is no file with its weights inside"
            raise UsageError(f"{self._where}no graph of this model can be kept: {reason}. Load it as ever.")
        self._network.require_unchanged()
        place, content = _place_beside(path), ir.to_proto(self._fastest[0]).SerializeToString()
        write_atomically(place, _digest(path, content) + content)
        return place

    def _open(self, model: onnx.ModelProto | bytes) -> ort.InferenceSession:
        content = model if isinstance(model, bytes) else model.SerializeToString()
        try:
            return ort.InferenceSession(content, **self._session_arguments())
        except ORT_ERRORS as error:
            raise GraphError(
                f"{self._where}ONNX Runtime cannot load the model: {in_one_line(error)} "
                "linger check says what is wrong with a file, linger repair may repair it."
            ) from error

    def _session_arguments(self) -> dict[str, Any]:
        """The user's arguments, and the folder of the data file: the model itself is loaded from memory."""
        if self._data_folder is None:
            return self._arguments
        options = self._arguments["sess_options"]
        try:
            present = options.get_session_config_entry(_FOLDER)
        except RuntimeError:  # there is none
            present = None
        if present != self._data_folder:  # ONNX Runtime prints a line about an entry that is set again
            options.add_session_config_entry(_FOLDER, self._data_folder)
        return self._arguments

    @property
    def model(self) -> ir.Model:
        """The model as it is written, function bodies attached."""
        return self._model

    @property
    def kernels(self) -> str:
        """Which graph runs, in a sentence: how many nodes are integer kernels or tables, or the file as it is written."""
        return "the file as it is written" if self._fastest is None else self._fastest[1]

    def run(self, output_names: Sequence[str] | None, input_feed: AnyFeed, run_options: Any = None) -> list[Any]:
        """The named outputs (None: all), as onnxruntime returns them.

        The feed is one pass in any form of the page "Inputs": arrays or tensors by name, as for onnxruntime, or in the order of
        the inputs.
        """
        return self._run(self._inner, output_names, self._feeds(input_feed), run_options)

    def intermediates(self, input_feed: Feeds) -> dict[str, NDArray[Any]]:
        """Every tensor that a node of the main graph produces, by name."""
        feeds = self._feeds(input_feed)
        if self._watching is None:
            self._watching = self._open(_with_every_output(self._model))
        return self._everything(self._watching, feeds)

    def fastest_intermediates(self, input_feed: Feeds) -> dict[str, NDArray[Any]]:
        """The tensors of the graph that `run` runs, where it is another than the file's; those that both have, by their names."""
        feeds = self._feeds(input_feed)
        if self._fastest is None:
            return {}
        if self._watching_fastest is None:
            self._watching_fastest = self._open(_with_every_output(self._fastest[0]))
        return self._everything(self._watching_fastest, feeds)

    def _everything(self, inner: ort.InferenceSession, feeds: Feeds) -> dict[str, NDArray[Any]]:
        names = [o.name for o in inner.get_outputs()]
        return with_carried(dict(zip(names, self._run(inner, names, feeds), strict=True)))

    def run_up_to(self, name: str, input_feed: Feeds) -> NDArray[Any]:
        """One tensor of the main graph, from a model that ends there: nothing else is an output, nothing behind it runs."""
        feeds = self._feeds(input_feed)
        return np.asarray(self._run(self._open(_ending_at(self._model, name)), [name], feeds)[0])

    @staticmethod
    def _run(inner: ort.InferenceSession, names: Sequence[str] | None, feeds: Feeds, options: Any = None) -> list[Any]:
        try:
            results: list[Any] = inner.run(names, dict(feeds), options)
        except ORT_ERRORS as error:
            given = ", ".join(f"{name} {np.asarray(a).dtype}{list(np.shape(a))}" for name, a in feeds.items())
            expected = ", ".join(f"{i.name} {i.type}{i.shape}" for i in inner.get_inputs())
            raise UsageError(f"the model cannot run on {given}; it expects {expected}. {in_one_line(error)}") from error
        return results

    def integer_tensors(self) -> list[str]:
        """Names of the quantized tensors: outputs of dialect nodes of integer type."""
        return [
            output.name
            for node in all_nodes(self._model)
            if is_dialect(node)
            for output in node.outputs
            if output.name and output.dtype is not None and output.dtype.is_integer()
        ]

    def _feeds(self, given: AnyFeed) -> Feeds:
        """Arrays by the names of the inputs; torch tensors become arrays, and what has no names counts in order."""
        if type(given) is dict and given.keys() == self._expected.keys() and all(map(_is_plain, given.values())):
            return given  # as ONNX Runtime takes it: reading it would cost as much as a small network
        expected = list(self._expected)
        is_tensor = all(kind.startswith("tensor(") for kind in self._expected.values())
        read = pass_of(given, expected, "the feed") if is_tensor or not isinstance(given, Mapping) else given
        if not isinstance(read, Mapping) and len(read) != len(expected):
            raise UsageError(
                f"the feed is {len(read)} arrays without names. The model's inputs are {listing(expected)}: give "
                "a dict of arrays by these names, or a tuple with an array for each."
            )
        read = read if isinstance(read, Mapping) else dict(zip(expected, read, strict=True))
        _require_names(read, expected)
        return {name: as_expected(array, self._expected[name]) for name, array in read.items()}

    def __getattr__(self, name: str) -> Any:
        # everything else that an InferenceSession has is asked of the wrapped one
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def _place_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.session")


def _digest(path: Path, graph: bytes) -> bytes:
    """What stands in front of a kept graph: a digest of the file, of the graph, and of what the graph was made by and for."""
    facts = f"{__version__} {ort.__version__} {has_saturating_products()}".encode()
    parts = (hashlib.sha256(part).digest() for part in (facts, path.read_bytes(), graph))
    return hashlib.sha256(b"".join(parts)).digest()


def _kept_graph(path: Path) -> bytes | None:
    """The graph that `Session.keep` wrote for a file as it is now; None where there is none, or one of another file or release."""
    place = _place_beside(path)
    if not place.is_file():
        return None
    content = place.read_bytes()
    digest, graph = content[:_DIGEST], content[_DIGEST:]
    return graph if digest == _digest(path, graph) else None


def _is_plain(value: object) -> bool:
    """Whether a value is an array of a type that no input lets become another."""
    return type(value) is np.ndarray and value.dtype.kind in "biuf" and value.dtype != np.float64


def _require_names(feed: Iterable[str], expected: Sequence[str]) -> None:
    """Refuse a feed that lacks inputs or has others."""
    names = list(feed)
    wrong = {"lacks": [n for n in expected if n not in names], "has unknown": [n for n in names if n not in expected]}
    text = " and ".join(f"{verb} {listing(found)}" for verb, found in wrong.items() if found)
    if text:
        raise UsageError(f"the feed {text}. The model's inputs are {listing(expected)}.")


def fastest(network: Network) -> tuple[ir.Model, str] | None:
    """The fastest exact graph of a dialect file, and what it uses in a sentence; None where that is the file as it is written.

    The integers are those of the ops: a function body in the file that computes others is not looked at. `linger.verify` compares both.
    """
    if not any(map(_has_fast_form, network.model.graph)) or _weight_bytes(network.model) > _LARGEST_WEIGHTS:
        return None
    copy, is_saturating = copied(network.normal), has_saturating_products()
    _data_folder(copy)
    drop_bodies(copy)
    count = len(write_byte_layers(copy, is_saturating=is_saturating, is_normal=True))
    loops = sum(is_dialect(node) and op_of(node).is_recurrent for node in copy.graph)
    if count + loops == 0:
        return None
    if loops:
        state_recurrent_shapes(copy)
    expand_dialect(copy)
    unsigned = "with weights as unsigned bytes where signed ones would saturate on this CPU"
    weights = unsigned if is_saturating else "with signed weights"
    text = (
        f"nodes in integer kernels or tables: {count}, {weights}; the others in float"
        if count
        else "all nodes in float"
    )
    return copy, f"{text}; recurrent loops written for known numbers: {loops}" if loops else text


def _weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _has_fast_form(node: ir.Node) -> bool:
    """Whether another form may follow from a node: a product, a curve, a form of rows or a recurrent layer."""
    if not is_dialect(node) or not is_known(node.op_type):
        return False
    op = op_of(node)
    return op.weight_axes is not None or op.is_pointwise or op.is_recurrent or op.name in ROW_FORMS


def _data_folder(model: ir.Model) -> str | None:
    """The folder of a model's data files; ONNX Runtime takes one folder, so weights from several are read into memory."""
    folders = {str(tensor.base_dir) for tensor in external_tensors(model)}
    if len(folders) > 1:
        exchange(model, in_memory(model))
        return None
    return next(iter(folders), None)


def _with_every_output(model: ir.Model) -> onnx.ModelProto:
    """The model with every tensor of the main graph as an output."""
    made = ir.to_proto(model)
    present = {o.name for o in made.graph.output}
    for output in (o for node in model.graph for o in node.outputs):
        if output.name and output.name not in present:
            shown = ir.serde.serialize_value(output)
            if shown.type.HasField("tensor_type"):
                # ONNX Runtime infers shapes itself, and refuses a declared one that is wrong
                shown.type.tensor_type.ClearField("shape")
            made.graph.output.append(shown)
            present.add(output.name)
    return made


def _ending_at(model: ir.Model, name: str) -> onnx.ModelProto:
    """The model with one tensor as its only output, and without the nodes that it does not need."""
    copy = copied(model)
    (value,) = (o for node in copy.graph for o in node.outputs if o.name == name)
    if value not in copy.graph.outputs:
        value.shape = None  # as above
    copy.graph.outputs[:] = [value]
    RemoveUnusedNodesPass()(copy)
    return ir.to_proto(copy)


def checked_levels(levels: str | Iterable[str]) -> tuple[str, ...]:
    """Optimization levels by name, each once, in the order given.

    >>> checked_levels(["basic", "all", "basic"]), checked_levels("all")
    (('basic', 'all'), ('all',))

    Raises:
        UsageError: Names that are no levels, or none at all.
    """
    given = [levels] if isinstance(levels, str) else list(levels)
    unknown = [str(level) for level in given if not isinstance(level, str) or level not in LEVELS]
    if unknown or not given:
        wrong = f"unknown: {listing(unknown)}" if unknown else "none is given"
        raise UsageError(f"levels: {wrong}. Choose among {listing(LEVELS)}.")
    return tuple(dict.fromkeys(given))


def make_session_options(level: str = "all", options: Options | None = None) -> ort.SessionOptions:
    """The options of one session.

    Raises:
        UsageError: Options that ONNX Runtime does not have or whose value it refuses; all of them are named.
    """
    made = ort.SessionOptions()
    made.graph_optimization_level = LEVELS[level]
    made.log_severity_level = _ONLY_FATAL
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(
            f"session_options: a {type(options).__name__} cannot be kept with a result. Give a mapping: attributes of "
            'onnxruntime.SessionOptions and config entries, as in {"intra_op_num_threads": 1, '
            '"session.disable_quant_qdq": "1"}.'
        )
    chosen = {**_QUIET, **(options or {})}
    wrong = [problem for name, value in chosen.items() if (problem := _set_option(made, name, value)) is not None]
    if wrong:
        raise UsageError(f"session_options: {listing(wrong)}.")
    return made


def _set_option(made: ort.SessionOptions, name: str, value: object) -> str | None:
    """Set one option; the result is the reason why it cannot be set, or None."""
    if name == "graph_optimization_level":
        return f"{name} is what levels are for ({listing(LEVELS)})"
    try:
        if "." in name:
            made.add_session_config_entry(name, str(int(value) if isinstance(value, bool) else value))
        elif name.startswith("_") or not isinstance(getattr(type(made), name, None), property):
            return f"ONNX Runtime has no option {name}"
        else:
            setattr(made, name, value)
    except TypeError:
        return f"{name}={value!r:.40} is of a type that it does not take"
    except (ValueError, RuntimeError) as error:
        return f"{name}={value!r:.40} is refused ({str(error).splitlines()[0]})"
    return None


def as_array(value: Any) -> Array:
    """An array; of a torch tensor its numbers."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def as_expected(given: Any, kind: str) -> Any:
    """An array for an input of a type, as ONNX Runtime calls it: of 64 bits, as numpy makes them by itself, where 32 are expected.

    >>> as_expected(np.array([0.5]), "tensor(float)").dtype
    dtype('float32')
    """
    if not kind.startswith("tensor("):
        return given
    array = as_array(given)
    return array.astype(np.float32) if kind == "tensor(float)" and array.dtype == np.float64 else array


def pass_of(batch: object, names: Sequence[str], where: str = "inputs") -> dict[str, Array] | list[Array]:
    """The arrays of one pass: by name, or those without names in order.

    Args:
        batch: An array, a mapping by name, a tuple of arrays, which may end in a mapping, or (args, kwargs); or a list as a
            DataLoader gives it, whose end is labels where it has more than there are names. The end of a tuple is labels where
            it can be nothing else.
        names: Those of the file's inputs.
        where: Whose argument it is.

    Raises:
        UsageError: Nothing of this kind, or an array is given twice.
    """
    if isinstance(batch, Mapping):
        return {str(name): _numbers(array, f"{where}: {name}") for name, array in batch.items()}
    if not isinstance(batch, (list, tuple)):
        return [_numbers(batch, where)]
    if not batch:
        return []
    if isinstance(batch[-1], Mapping):
        return _with_keywords(batch, names, where)
    if {int, bool}.issuperset(map(type, batch)):
        shape = tuple(batch)
        raise UsageError(f"{where}: {shape} is a shape. Give an array of this shape: np.random.randn{shape}.")
    parts = [_numbers(part, where) for part in batch]
    is_labeled = isinstance(batch, list) or _are_labels(parts[len(names) :], parts[:1])
    return parts[: len(names)] if is_labeled else parts


def _with_keywords(batch: Sequence[Any], names: Sequence[str], where: str) -> dict[str, Array]:
    """The arrays of a tuple that ends in a mapping, or of (args, kwargs)."""
    args, kwargs = batch[:-1], batch[-1]
    if len(batch) == 2 and isinstance(batch[0], tuple):
        args = batch[0]
    twice = [name for name in names[: len(args)] if name in kwargs]
    if twice or len(args) > len(names):
        what = f"{listing(twice)} is given twice" if twice else f"{len(args)} arrays have no names"
        raise UsageError(f"{where}: {what}. The model's inputs are {listing(names)}.")
    given = (*zip(names, args, strict=False), *kwargs.items())
    return {str(name): _numbers(array, f"{where}: {name}") for name, array in given}


def _numbers(value: Any, where: str) -> Array:
    if not hasattr(value, "__array__") and not isinstance(value, (list, tuple, int, float)):
        raise UsageError(
            f"{where}: {type(value).__name__} is no array of numbers. Give an array, a tuple with an array for each input, "
            "(args, kwargs), or a dict by the names of the inputs; for several passes, a list of these."
        )
    try:
        made = as_array(value)
    except (TypeError, ValueError, RuntimeError):  # lists of several lengths, or of tensors
        made = np.array(None)
    if made.dtype.kind == "O":
        raise UsageError(
            f"{where}: this {type(value).__name__} holds no array of numbers. Give an array; a list holds one for each pass."
        )
    return made


def _are_labels(rest: Sequence[Array], first: Sequence[Array]) -> bool:
    """Whether arrays are a whole number for each sample."""
    return bool(first and first[0].ndim) and all(
        a.dtype.kind in "iub" and a.ndim > 0 and len(a) == len(first[0]) for a in rest
    )
