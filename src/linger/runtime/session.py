# SPDX-License-Identifier: Apache-2.0
"""A dialect file in stock ONNX Runtime, with the calls of onnxruntime.InferenceSession."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from linger.errors import GraphError, UsageError, listing
from linger.graph.core.dialect_node import all_nodes, is_dialect
from linger.graph.files.external_data import exchange, external_tensors, in_memory
from linger.graph.files.growth import require_bounded
from linger.graph.files.model_io import ModelLike, copied, load_own
from linger.graph.forms.attach_functions import attach_functions
from linger.runtime.foreign_errors import in_one_line
from linger.runtime.session_options import make_session_options

# every error class of ONNX Runtime's binding; they share no base of their own
_ORT_ERRORS = tuple(
    value
    for value in vars(ort.capi.onnxruntime_pybind11_state).values()
    if isinstance(value, type) and issubclass(value, Exception)
)

Feeds = Mapping[str, NDArray[Any]]


_FOLDER = "session.model_external_initializers_file_folder_path"


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
    """

    def __init__(
        self,
        model: ModelLike,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._where = f"{os.fspath(model)}: " if isinstance(model, (str, os.PathLike)) else ""
        self._model = load_own(model)
        self._data_folder = _data_folder(self._model)
        require_bounded(self._model)
        attach_functions(self._model)
        self._arguments: dict[str, Any] = {
            "sess_options": sess_options or make_session_options(),
            "providers": list(providers) if providers else ["CPUExecutionProvider"],
            **options,
        }
        self._inner = self._open(ir.to_proto(self._model))
        self._watching: ort.InferenceSession | None = None

    def _open(self, proto: onnx.ModelProto) -> ort.InferenceSession:
        try:
            return ort.InferenceSession(proto.SerializeToString(), **self._session_arguments())
        except _ORT_ERRORS as error:
            raise GraphError(
                f"{self._where}ONNX Runtime cannot load the model: {in_one_line(error)} "
                "linger check says what is wrong with a file, linger fix may mend it."
            ) from error

    def _session_arguments(self) -> dict[str, Any]:
        """The user's arguments; a model with a data file also says where that is, since it is loaded from memory."""
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
        """The model that runs, function bodies attached."""
        return self._model

    def run(self, output_names: Sequence[str] | None, input_feed: Feeds, run_options: Any = None) -> list[Any]:
        """The named outputs (None: all), as onnxruntime returns them."""
        self._check_feeds(input_feed)
        result: list[Any] = self._run(self._inner, output_names, input_feed, run_options)
        return result

    def intermediates(self, input_feed: Feeds) -> dict[str, NDArray[Any]]:
        """Every tensor that a node of the main graph produces, by name."""
        self._check_feeds(input_feed)
        if self._watching is None:
            self._watching = self._open(_with_every_output(self._model))
        names = [o.name for o in self._watching.get_outputs()]
        return dict(zip(names, self._run(self._watching, names, input_feed), strict=True))

    def run_up_to(self, name: str, input_feed: Feeds) -> NDArray[Any]:
        """One tensor of the main graph, as if the model ended there: nothing else is watched, nothing behind it runs."""
        self._check_feeds(input_feed)
        return np.asarray(self._run(self._open(_ending_at(self._model, name)), [name], input_feed)[0])

    @staticmethod
    def _run(inner: ort.InferenceSession, names: Sequence[str] | None, feeds: Feeds, options: Any = None) -> Any:
        try:
            return inner.run(names, dict(feeds), options)
        except _ORT_ERRORS as error:
            given = ", ".join(f"{name} {np.asarray(a).dtype}{list(np.shape(a))}" for name, a in feeds.items())
            expected = ", ".join(f"{i.name} {i.type}{i.shape}" for i in inner.get_inputs())
            raise UsageError(f"the model cannot run on {given}; it expects {expected}. {in_one_line(error)}") from error

    def integer_tensors(self) -> list[str]:
        """Names of the quantised tensors: outputs of dialect nodes of integer type."""
        return [
            output.name
            for node in all_nodes(self._model)
            if is_dialect(node)
            for output in node.outputs
            if output.name and output.dtype is not None and output.dtype.is_integer()
        ]

    def _check_feeds(self, feeds: Feeds) -> None:
        expected = [i.name for i in self._inner.get_inputs()]
        missing = [n for n in expected if n not in feeds]
        unknown = [n for n in feeds if n not in expected]
        if missing or unknown:
            wrong = (f"lacks {listing(missing)}" if missing else "") + (" and " if missing and unknown else "")
            wrong += f"has unknown {listing(unknown)}" if unknown else ""
            raise UsageError(f"the feed {wrong}. The model's inputs are {listing(expected)}.")

    def __getattr__(self, name: str) -> Any:
        # what Session does not define itself is the wrapped session's
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def _data_folder(model: ir.Model) -> str | None:
    """The folder of a model's data files; ONNX Runtime knows one, so weights out of several are taken into memory."""
    folders = {str(tensor.base_dir) for tensor in external_tensors(model)}
    if len(folders) > 1:
        exchange(model, in_memory(model))
        return None
    return next(iter(folders), None)


def _with_every_output(model: ir.Model) -> onnx.ModelProto:
    made = ir.to_proto(model)
    present = {o.name for o in made.graph.output}
    for node in model.graph:
        for output in node.outputs:
            if output.name and output.name not in present:
                shown = ir.serde.serialize_value(output)
                if shown.type.HasField("tensor_type"):
                    # ONNX Runtime infers the type itself; a wrong shape would only be in the way
                    shown.type.tensor_type.ClearField("shape")
                made.graph.output.append(shown)
                present.add(output.name)
    return made


def _ending_at(model: ir.Model, name: str) -> onnx.ModelProto:
    copy = copied(model)
    (value,) = (o for node in copy.graph for o in node.outputs if o.name == name)
    if value not in copy.graph.outputs:
        value.shape = None  # as above
    copy.graph.outputs[:] = [value]
    RemoveUnusedNodesPass()(copy)
    return ir.to_proto(copy)
