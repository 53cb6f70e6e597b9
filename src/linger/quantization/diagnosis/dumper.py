# SPDX-License-Identifier: Apache-2.0
"""Dumper: statistics of every layer's output, or files of the tensors that a model computes with."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from linger.analysis.batches import tensors_of
from linger.analysis.layer_outputs import (
    Calls,
    Hook,
    LayerOutputs,
    compiled_pattern,
    is_without_values,
    leaf_layers,
    main_output,
    matching_layers,
    no_match,
    root_name,
)
from linger.analysis.result import Analysis
from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm
from linger.dialect import EXTENSIONS, Op, ops
from linger.errors import UsageError, listing
from linger.files import Writer, file_stem, made_folder, write_atomically, write_together
from linger.quantization.core.observation import is_calibrating
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import Frozen
from linger.quantization.core.runtime import runtime_of
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.setup.initialize import quantized_layers

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_LINES = 1 << 14
_NUMPY_KNOWS = frozenset(
    {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
)


class Dumper:
    """Watches forward passes inside a `with` block; at its end no hook is left on any model.

    >>> import linger, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> with linger.Dumper() as dumper:
    ...     dumper.analyse_layer_output(model)
    ...     _ = model(torch.ones(1, 4))
    >>> [row.name for row in dumper.result.rows]
    ['root.0', 'root.1']
    """

    def __init__(self) -> None:
        self._outputs = LayerOutputs(_real_values)
        self._cleanup = ExitStack()
        self._registered: set[tuple[str, nn.Module]] = set()
        self._is_open = self._is_over = False

    def __enter__(self) -> Dumper:
        """Begin to watch."""
        if self._is_open or self._is_over:
            raise UsageError(
                "Dumper: a Dumper is used for one `with` block. Make a new one: `with linger.Dumper() as d:`."
            )
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        """Remove every hook; what was measured stays readable."""
        self._is_open, self._is_over = False, True
        self._registered.clear()
        self._cleanup.close()

    def analyse_layer_output(self, model: nn.Module, match_pattern: str | re.Pattern[str] = ".*") -> None:
        """Measure the outputs of layers in the forward passes that follow.

        A row per call of a layer within a pass, in the order of the calls; further passes widen the same rows. Count, mean
        and maximum are exact. Dynamic is exact for one pass; over several it is at most 2^-8 above the true order
        statistic and never below it (`linger.analysis.layer_outputs`).

        Args:
            model: A float or a quantized model, in any mode.
            match_pattern: Regular expression for the beginning of a layer's name, `root.<path>` (`root` for a model that
                is a single layer).

        Raises:
            UsageError: The expression is none or fits no layer; the model is being analyzed already.
        """
        method = "analyse_layer_output"
        self._check(method, model)
        pattern = compiled_pattern(method, match_pattern)
        layers = matching_layers(method, _layers_of(model), pattern)
        self._keep(method, model, self._outputs.watch(model, layers, is_counted=partial(_is_counted, model)))

    @property
    def result(self) -> Analysis:
        """The rows of all passes so far.

        Raises:
            UsageError: Nothing is analyzed, or no pass has run.
        """
        if not self._outputs.is_watching:
            raise UsageError(
                "Dumper: no model is analyzed. Call analyse_layer_output(model) inside the `with` block first."
            )
        if not self._outputs.has_run:
            raise UsageError(
                "Dumper: no analyzed layer has run. Run the model on a typical input inside the `with` block first: "
                "model(typical_input)."
            )
        return self._outputs.result

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the rows, and the layers that have no row."""
        return (*self.result.notes, *self._missing_rows())

    def save_out_analyse_log(
        self, save_log_path: str | os.PathLike[str] | None = "Analyse_layer_output.log"
    ) -> Analysis:
        """Write the log of the passes so far, also after the block, and return its rows.

        Args:
            save_log_path: Where the log goes; None: nowhere.

        Raises:
            UsageError: No pass has run, or the file cannot be written.
        """
        found = self.result
        if save_log_path is not None:
            log = found.to_log() + "".join(f"{note}\n" for note in self._missing_rows())
            write_atomically(Path(save_log_path), log.encode())
        return found

    def _missing_rows(self) -> list[str]:
        silent, unused = self._outputs.silent, self._outputs.never_called
        notes = [f"{listing(silent)}: returned no tensor, so there is no row"] if silent else []
        return notes + ([f"{listing(unused)}: never called"] if unused else [])

    def enable_dump_quanted(
        self, model: nn.Module, path: str | os.PathLike[str] = "./dump", match_pattern: str | re.Pattern[str] = ".*"
    ) -> None:
        """Write the operands and the result of every op in the evaluation passes that follow.

        `<path>/root.conv1.Conv2dInt.q_input` and so on: text, one number per line, real values and (`q_…`) the integers of
        the exported file; `<path>/root.conv1.Conv2dInt.npz`: all of them with shapes and types, and the node's attributes.
        The next pass writes over them.

        Args:
            model: What `linger.init` returned, in evaluation mode.
            path: The folder; made if it is not there.
            match_pattern: Regular expression for the beginning of `root.<path of the module>` or of the same with the op,
                `root.<path>.<op>`.

        Raises:
            UsageError: The model is not quantized or in training mode; the expression is none or fits nothing; the
                folder cannot be made; the model is being dumped already.
        """
        method = "enable_dump_quanted"
        self._check(method, model)
        runtime = runtime_of(model)
        if runtime is None and quantized_layers(model):
            raise UsageError(
                f"{method}: this is a part of a quantized model, or holds one. Give the model that linger.init returned, and "
                "name the part in match_pattern."
            )
        if runtime is None:
            raise UsageError(
                f"{method}: this model is not quantized. Call linger.init(model) first, or use enable_dump_model for a float "
                "model."
            )
        if model.training:
            raise UsageError(
                f"{method}: the model is in training mode, where layers compute with floats. Call model.eval() first."
            )
        pattern = compiled_pattern(method, match_pattern)
        _require_op(method, model, pattern)
        write = partial(_write_op, _Gate(method, model), made_folder(method, os.fspath(path)), pattern)
        runtime.observers.append(write)
        self._cleanup.callback(runtime.observers.remove, write)
        self._keep(method, model, [])

    def enable_dump_model(
        self,
        model: nn.Module,
        path: str | os.PathLike[str] = "./dump",
        match_pattern: str | re.Pattern[str] = ".*",
        hook_forward: object = None,
    ) -> None:
        """Write inputs and outputs of layers in the evaluation passes that follow; a training pass writes nothing.

        `<path>/root.conv1_input_float` (the first input) and `<path>/root.conv1_output_float` (all outputs; of an RNN the
        sequence): text, one number per line. `<path>/root.conv1.npz`: every input and output with shape and type. The
        second call of a layer in a pass is `root.relu@1`; the next pass writes over the files.

        Args:
            model: Any model.
            path: The folder; made if it is not there.
            match_pattern: Regular expression for the beginning of a layer's name, `root.<path>`.
            hook_forward: Without effect, as it always was; accepted so that old calls go on working.

        Raises:
            UsageError: The expression is none or fits no layer; the folder cannot be made; the model is being dumped
                already.
        """
        method = "enable_dump_model"
        self._check(method, model)
        if hook_forward is not None:
            logger.warning("%s: hook_forward has no effect", method)
        layers = matching_layers(method, _layers_of(model), compiled_pattern(method, match_pattern))
        dump = _LayerDump(_Gate(method, model), made_folder(method, os.fspath(path)))
        self._keep(method, model, dump.watch(model, layers))

    def _check(self, method: str, model: nn.Module) -> None:
        if not self._is_open:
            when = "its `with` block has ended" if self._is_over else "it is outside a `with` block"
            raise UsageError(
                f"{method}: this Dumper cannot watch a model, {when}. Use `with linger.Dumper() as dumper:`."
            )
        if not isinstance(model, nn.Module):
            raise UsageError(f"{method}: {type(model).__name__} is no model. Give a torch.nn.Module.")
        if isinstance(model, torch.jit.ScriptModule):
            raise UsageError(f"{method}: a scripted model takes no hooks. Give the model that it was made from.")
        if (method, model) in self._registered:
            raise UsageError(
                f"{method}: this Dumper watches the model already. One expression can name several layers: 'root.a|root.b'."
            )

    def _keep(self, method: str, model: nn.Module, handles: Sequence[RemovableHandle]) -> None:
        self._registered.add((method, model))
        for handle in handles:
            self._cleanup.callback(handle.remove)


def _layers_of(model: nn.Module) -> dict[str, nn.Module]:
    return leaf_layers(
        model,
        is_whole=lambda module: isinstance(module, (QuantLayer, ConvBN)),
        is_helper=lambda module: isinstance(module, (FunctionalLayer, EmptyBatchNorm)),
    )


def _real_values(module: nn.Module, tensor: Tensor) -> Tensor:
    """The values of a layer's output. Where only ReLU reads it, those after ReLU, which may be part of the layer."""
    if not isinstance(tensor, QTensor):
        return tensor
    real = tensor.dequantize()
    return real.clamp(min=0.0) if isinstance(module, QuantLayer) and module.is_ahead_of_relu else real


def _is_counted(model: nn.Module) -> bool:
    """Whether a pass is the user's own, and not one of an export or a proof."""
    runtime = runtime_of(model)
    return runtime is None or not (runtime.is_thorough or runtime.emitter is not None)


def _require_op(method: str, model: nn.Module, pattern: re.Pattern[str]) -> None:
    paths = [path for path, module in model.named_modules() if not isinstance(module, FunctionalLayer)]
    if any(pattern.match(root_name(path)) for path in paths):
        return
    # an expression may also name ops, of which a module may call any, several times
    endings = [f"{name}{number}" for name in ops() for number in ("", "_1")]
    if not any(pattern.match(f"{root_name(path)}.{ending}") for path in paths for ending in endings):
        raise UsageError(f"{method}: {no_match(pattern, _layers_of(model))}")


class _Gate:
    """Decides whether a pass is written, and warns once if one is not."""

    def __init__(self, method: str, model: nn.Module) -> None:
        self._method, self._model = method, model
        self._has_warned = False

    @property
    def is_open(self) -> bool:
        if is_without_values() or not _is_counted(self._model):
            return False
        is_refused = self._model.training or (is_calibrating() and runtime_of(self._model) is not None)
        if is_refused and not self._has_warned:
            self._has_warned = True
            logger.warning("%s: passes in training mode or calibration are not written", self._method)
        return not is_refused


def _write_op(
    gate: _Gate,
    folder: Path,
    pattern: re.Pattern[str],
    name: str,
    op: Op,
    operands: Sequence[Tensor | Frozen],
    attributes: Mapping[str, Any],
    result: QTensor,
) -> None:
    """Write one op of a quantized model; an observer of its runtime."""
    full = root_name(name)
    if (pattern.match(root_name(name.rpartition(".")[0])) or pattern.match(full)) and gate.is_open:
        tensors = op_tensors(op, operands, result)
        texts = {f".{key}": [array] for key, array in tensors.items()}
        write_tensors(folder, file_stem(full), texts, op_settings(op, operands, attributes, result) | tensors)


class _LayerDump:
    """Writes what goes into layers and what comes out; hooks before and after each."""

    def __init__(self, gate: _Gate, folder: Path) -> None:
        self._gate, self._folder = gate, folder
        self._inputs: dict[nn.Module, list[Array]] = {}

    def watch(self, model: nn.Module, layers: Mapping[nn.Module, str]) -> list[RemovableHandle]:
        calls = Calls()
        handles = calls.watch(model)
        for layer, name in layers.items():
            handles.append(layer.register_forward_pre_hook(Hook(self._before), with_kwargs=True))
            handles.append(layer.register_forward_hook(Hook(partial(self._after, name, calls))))
        return handles

    def _before(self, layer: nn.Module, args: object, kwargs: object) -> None:
        """Inputs are copied now: the layer may write over them."""
        self._inputs.pop(layer, None)
        if self._gate.is_open:
            self._inputs[layer] = _arrays((args, kwargs))

    def _after(self, name: str, calls: Calls, layer: nn.Module, args: object, output: object) -> None:
        del args
        inputs = self._inputs.pop(layer, None)
        if inputs is None:
            return
        number = calls.number(name)
        texts = {"_input_float": inputs[:1], "_output_float": _arrays(main_output(layer, output))}
        stem = file_stem(name) + (f"@{number}" if number else "")
        content = _numbered("input", inputs) | _numbered("output", _arrays(output))
        if content:
            write_tensors(self._folder, stem, {suffix: a for suffix, a in texts.items() if a}, content)


def _arrays(tree: object) -> list[Array]:
    return [as_array(t.dequantize() if isinstance(t, QTensor) else t) for t in tensors_of(tree)]


def _numbered(name: str, arrays: Sequence[Array]) -> dict[str, Array]:
    return {name: arrays[0]} if len(arrays) == 1 else {f"{name}_{i}": array for i, array in enumerate(arrays)}


def as_array(tensor: Tensor) -> Array:
    """A copy of a tensor in its own type; types that numpy does not have become float32, which holds them exactly."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_quantized:
        plain = plain.dequantize()
    plain = plain.cpu().resolve_conj().resolve_neg()
    known = plain if plain.dtype in _NUMPY_KNOWS else plain.float()
    return np.array(known.numpy())


def op_tensors(op: Op, operands: Sequence[Tensor | Frozen], result: QTensor) -> dict[str, Array]:
    """The tensors of one op by their documented names, as real numbers and as integers (`q_…`).

    `input` (or `input1`, `input2` …), `weights`, `bias`, `outputs`. The input of Quant has no integers.
    """
    data, _ = _without_constants(op, operands)
    inputs = [operand for operand in data if isinstance(operand, Tensor)]
    pairs: dict[str, tuple[Tensor, Tensor | None]] = {}
    for number, operand in enumerate(inputs, start=1):
        pairs["input" if len(inputs) == 1 else f"input{number}"] = _real_and_integers(operand)
    for frozen in data:
        if isinstance(frozen, Frozen):
            pairs |= {"weights": (frozen.weight, frozen.weight_integers), **_bias_of(frozen)}
    pairs["outputs"] = _real_and_integers(result)
    integers = {f"q_{key}": as_array(whole) for key, (_, whole) in pairs.items() if whole is not None}
    return {key: as_array(real) for key, (real, _) in pairs.items()} | integers


def _bias_of(frozen: Frozen) -> dict[str, tuple[Tensor, Tensor | None]]:
    has_bias = frozen.bias is not None and frozen.bias_integers is not None
    return {"bias": (cast(Tensor, frozen.bias), frozen.bias_integers)} if has_bias else {}


def _real_and_integers(operand: Tensor) -> tuple[Tensor, Tensor | None]:
    return (operand.content, operand.integers()) if isinstance(operand, QTensor) else (operand, None)


def op_settings(
    op: Op, operands: Sequence[Tensor | Frozen], attributes: Mapping[str, Any], result: QTensor
) -> dict[str, Any]:
    """The attributes of one op's node, its integer constants (`q_low`), and scale and bits where the node has none.

    `data_bits` of an op with several operands is a list.
    """
    data, constants = _without_constants(op, operands)
    quantized = [operand for operand in data if isinstance(operand, QTensor)]
    settings: dict[str, Any] = {"scale_o": result.scale, "o_bits": result.bits}
    if len(quantized) == 1:
        settings |= {"scale_x": quantized[0].scale, "data_bits": quantized[0].bits}
    elif quantized:
        settings["data_bits"] = [operand.bits for operand in quantized]
    settings |= _said(op, attributes)
    return settings | {f"q_{name}": as_array(c.integers()) for name, c in constants.items() if isinstance(c, QTensor)}


def _said(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes with their defaults, but for extensions that a node leaves out."""
    full = {key: value for key, value in op.complete(attributes).items() if value is not None}
    return {key: value for key, value in full.items() if key in attributes or key not in EXTENSIONS}


def _without_constants(
    op: Op, operands: Sequence[Tensor | Frozen]
) -> tuple[Sequence[Tensor | Frozen], dict[str, Tensor | Frozen]]:
    """The operands that hold data, and those that hold settings of the op, by their names."""
    count = len(operands) - len(op.constant_names)
    names = op.inputs[len(op.inputs) - len(op.constant_names) :]
    return operands[:count], dict(zip(names, operands[count:], strict=True))


def write_tensors(folder: Path, stem: str, texts: Mapping[str, Sequence[Array]], arrays: Mapping[str, Any]) -> None:
    """Write `<stem><suffix>` for every suffix of `texts`, and `<stem>.npz`; all of them or none.

    A text is every number of its arrays as `%.6f`, one per line; a complex number is two.

    Raises:
        UsageError: A file cannot be written.
    """
    writers: dict[Path, Writer] = {
        folder / f"{stem}{suffix}": partial(_write_lines, parts) for suffix, parts in texts.items()
    }
    writers[folder / f"{stem}.npz"] = lambda file: np.savez(file, **arrays)
    write_together(writers)


def _write_lines(arrays: Sequence[Array], file: IO[bytes]) -> None:
    for array in arrays:
        flat = array.ravel()
        if np.iscomplexobj(flat):
            flat = flat.view(flat.real.dtype)
        for start in range(0, flat.size, _LINES):
            numbers = flat[start : start + _LINES].tolist()
            file.write(("%.6f\n" * len(numbers) % tuple(numbers)).encode())
