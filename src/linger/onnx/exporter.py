# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.export: a model becomes an ONNX file, and the model stays as it was."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils._pytree import tree_leaves, tree_map

from linger.errors import LingerError, UsageError
from linger.graph.model_io import write_atomically
from linger.onnx.assembly import FORMS, assemble
from linger.onnx.emission import TraceEmitter
from linger.onnx.preserve import preserved
from linger.quantization.qtensor import QTensor

_FLOAT_OPSETS = range(9, 21)
_INTEGER_OPSETS = range(11, 21)


def export(
    model: nn.Module,
    args: Any,
    f: str | os.PathLike[str] | IO[bytes],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int = 12,
    dynamic_axes: Mapping[str, Any] | None = None,
    form: str = "dialect",
) -> None:
    """Write a model as ONNX.

    A quantised model becomes nodes of the `thinker` dialect with integer weights, a Dequant wherever a float op or
    an output needs real values. A float model gives the graph of torch's own tracing exporter.

    Args:
        model: Quantised (and calibrated or trained) or float. It is not changed.
        args: Example input: a tensor or a tuple of arguments.
        f: Path or binary file object. A path is written whole or not at all.
        input_names: Names of the graph's inputs.
        output_names: Names of the graph's outputs.
        opset_version: 11 to 20 for a quantised model, 9 to 20 for a float one.
        dynamic_axes: Axes whose size stays open, as in torch.onnx.export.
        form: "dialect" (nodes and function bodies), "bare" (nodes only), "standard" (standard ONNX only).

    Raises:
        UsageError: An argument is wrong, a layer has no scale, the model fails on the example input.
    """
    arguments = args if isinstance(args, tuple) else (args,)
    with preserved(model) as runtime:
        _check(form, opset_version, is_quantized=runtime is not None)
        run_once(model, arguments)
        options = {
            "input_names": input_names,
            "output_names": output_names,
            "opset_version": opset_version,
            "dynamic_axes": dynamic_axes,
        }
        if runtime is None:
            content = _trace(model, arguments, options)
        else:
            runtime.emitter = TraceEmitter(is_dynamic=bool(dynamic_axes))
            traced = _trace(model, arguments, options | {"custom_opsets": {"thinker": 1}})
            content = assemble(traced, form=form, dynamic_axes=dynamic_axes).SerializeToString()
    if isinstance(f, (str, os.PathLike)):
        write_atomically(Path(f), content)
    else:
        f.write(content)


def _check(form: str, opset: int, *, is_quantized: bool) -> None:
    if form not in FORMS:
        raise UsageError(f"export: there is no form {form!r}. Choose one of {', '.join(FORMS)}.")
    allowed = _INTEGER_OPSETS if is_quantized else _FLOAT_OPSETS
    if opset not in allowed:
        kind = "quantised" if is_quantized else "float"
        raise UsageError(
            f"export: opset {opset} is not available for a {kind} model. Use {allowed.start} to {allowed.stop - 1}."
        )


def run_once(model: nn.Module, arguments: Sequence[Any]) -> Any:
    """A forward pass whose failure says what to do."""
    try:
        return model(*arguments)
    except LingerError:
        raise
    except Exception as error:
        shapes = [tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__ for a in tree_leaves(list(arguments))]
        raise UsageError(
            f"{type(model).__name__}: the forward pass fails on the example input {shapes}: "
            f"{type(error).__name__}: {error}. Give an input that the model accepts."
        ) from error


def _trace(model: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    handle = model.register_forward_hook(_real_outputs)
    try:
        with warnings.catch_warnings():
            # the tracing exporter announces its own retirement on every call, and traces Python numbers on purpose
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", TracerWarning)
            torch.onnx.export(model, arguments, cast(Any, buffer), dynamo=False, **options)  # a file object is allowed
    except (RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError) as error:
        raise UsageError(f"{type(model).__name__}: torch cannot export the model: {error}") from error
    finally:
        handle.remove()
    return buffer.getvalue()


def _real_outputs(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001 - a hook's signature
    """Outputs of a file are real values: each integer output gets its Dequant."""
    return tree_map(lambda leaf: leaf.dequantize() if isinstance(leaf, QTensor) else leaf, output)
