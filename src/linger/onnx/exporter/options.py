# SPDX-License-Identifier: Apache-2.0
"""The arguments of an export, old and new, as one frozen object, checked before anything runs."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from linger.errors import UsageError, listing, refuse_unknown
from linger.onnx.exporter.assembly import FormOptions
from linger.onnx.exporter.finishing import free_name
from linger.onnx.exporter.forms import PACKED_FORMS, check_form, check_opset, check_packed
from linger.onnx.exporter.tracing import TORCH_KEYWORDS, DynamicAxes, declared_axes

logger = logging.getLogger(__name__)

FIRST_BFLOAT16_OPSET = 13
"""The first opset at which ONNX's ops take bfloat16."""

_IMAGE_AXES = 4
"""An input with so many axes has samples on its first one; rows of a matrix, and matrices, are no batch."""

REMOVED = {"aten": False, "export_raw_ir": False, "_retain_param_name": True, "example_outputs": None}
"""Arguments that torch removed and that have no meaning left, with the defaults they had."""


@dataclass(frozen=True)
class ExportOptions(FormOptions):
    """All arguments of an export: those of the trace, those of the graph, and those of the last steps."""

    verbose: bool = False
    external_data: bool | None = None
    simplify: bool = False
    allow_findings: bool = False


def warn_about_removed(**given: object) -> None:
    """Give one DeprecationWarning per removed argument that the caller has set."""
    for name, value in given.items():
        if value != REMOVED[name]:
            warnings.warn(
                f"linger.onnx.export: the argument {name!r} has no meaning in today's torch and is ignored.",
                DeprecationWarning,
                stacklevel=3,
            )


def check_keywords(given: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Refuse arguments that neither linger nor torch knows, all at once."""
    refuse_unknown("export", given, {*TORCH_KEYWORDS, *own})


def check_place(f: object) -> None:
    """Refuse a target that is neither a path nor a file object, before the work."""
    if not isinstance(f, (str, os.PathLike)) and not callable(getattr(f, "write", None)):
        raise UsageError(
            f"export: f={f!r} is no place for a file. Give a path, or a file object that is open for writing bytes."
        )


def check_tensors(model: object, inputs: Sequence[Tensor], opset: int, *, is_quantized: bool) -> None:
    """Refuse tensors that a file cannot hold, all at once. Weights of a quantized model become integers, of any type."""
    given = {f"input {i}": tensor for i, tensor in enumerate(inputs)}
    stored = dict(chain(model.named_parameters(), model.named_buffers())) if isinstance(model, nn.Module) else {}
    _refuse_empty(given | stored)
    _refuse_bfloat16(given if is_quantized else given | stored, opset)


def _refuse_empty(tensors: Mapping[str, Tensor]) -> None:
    empty = [name for name, tensor in tensors.items() if tensor.is_meta]
    if empty:
        raise UsageError(
            f"export: {listing(empty)} on the device 'meta', without numbers that a file could hold. "
            "Load the weights first (model.to_empty(device='cpu'), then load_state_dict), and give an input with values."
        )


def _refuse_bfloat16(tensors: Mapping[str, Tensor], opset: int) -> None:
    brief = [name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16]
    if brief and opset < FIRST_BFLOAT16_OPSET:
        raise UsageError(
            f"export: {listing(brief)} of type bfloat16, which ONNX has from opset {FIRST_BFLOAT16_OPSET} on, not at {opset}. "
            f"Give model.float() and inputs in float32, or opset_version={FIRST_BFLOAT16_OPSET}."
        )


def check_options(options: ExportOptions, *, is_quantized: bool) -> None:
    """Refuse combinations of arguments that do not work, and name one that does."""
    check_form(options.form)
    check_opset(options.opset, is_quantized=is_quantized, is_dynamo=options.dynamo)
    if options.target is not None:
        _check_target(options, is_quantized=is_quantized)
    if options.dynamic_axes and options.dynamic_shapes:
        raise UsageError("export: dynamic_axes and dynamic_shapes say the same thing. Give one of them.")


def with_names(options: ExportOptions, inputs: Sequence[str], output_count: int) -> ExportOptions:
    """The options with a name for every input and output.

    Where fewer were given, the names of forward's parameters follow, and `output`, `output_1`, …; a taken name gets a number.
    """
    given, outputs = list(options.input_names), list(options.output_names)
    for name in inputs[len(given) :]:
        given.append(free_name(name, [*given, *outputs]))
    for number in range(len(outputs), output_count):
        outputs.append(free_name(f"output_{number}" if number else "output", [*given, *outputs]))
    return replace(options, input_names=tuple(given), output_names=tuple(outputs))


def with_one_sample(options: ExportOptions, shapes: Sequence[tuple[int, ...]]) -> ExportOptions:
    """The options with the batch fixed to one sample, as chips compute it; other axes stay open.

    Raises:
        UsageError: The example has several samples, or torch's newer exporter is told to leave the batch open.
    """
    axes = declared_axes(options) if options.is_dynamic else {}
    names = [name for name, places in axes.items() if any(int(axis) == 0 for axis in places)]
    several = [
        f"{name!r} of the shape {list(shape)}"
        for name, shape in zip(options.input_names, shapes, strict=False)
        if shape and shape[0] > 1 and (len(shape) >= _IMAGE_AXES or name in names)
    ]
    if several:
        raise UsageError(
            f"export: {options.target} computes one sample at a time, and the example has {listing(several)}. Give one "
            "sample, for example x[:1]."
        )
    if names and options.dynamo:
        raise UsageError(
            f"export: {options.target} computes one sample at a time, and dynamic_shapes leaves the batch of {listing(names)} "
            "open. Leave that axis out of dynamic_shapes."
        )
    if not names:
        return options
    logger.warning("export for %s: the batch of %s is fixed to 1", options.target, listing(names))
    kept = {name: _but_the_first(places) for name, places in axes.items()}
    return replace(options, dynamic_axes={name: places for name, places in kept.items() if places} or None)


def _but_the_first(places: Mapping[int, str] | Sequence[int]) -> Mapping[int, str] | Sequence[int]:
    if isinstance(places, Mapping):
        return {axis: label for axis, label in places.items() if int(axis) != 0}
    return [axis for axis in places if int(axis) != 0]


def with_target(options: ExportOptions, own: str | None) -> ExportOptions:
    """The options with the chip that the model simulates as target, if the form is one for chips.

    Raises:
        UsageError: Another chip was asked for.
    """
    if own is None:
        return options
    if options.target not in (None, own):
        raise UsageError(
            f"export: the model computes as {own} does (linger.init), not as {options.target}. "
            f"Leave target out, or quantize the model anew with linger.init(model, target={options.target!r})."
        )
    is_for_chips = options.form in PACKED_FORMS and options.is_update_dequant
    return replace(options, target=own) if is_for_chips else options


def _check_target(options: ExportOptions, *, is_quantized: bool) -> None:
    """Refuse a target for a float model, for a form that no packer reads, and for a file without Dequants."""
    assert options.target is not None  # the caller checks
    where = f"export: target={options.target!r}"
    if not is_quantized:
        raise UsageError(f"{where} is for quantized models. Call linger.init(model) first, or leave target out.")
    check_packed(options.form, options.target)
    if not options.is_update_dequant:
        raise UsageError(f"{where} cannot be judged with is_update_dequant=False, whose file does not run.")
    if not options.export_params:
        raise UsageError(f"{where} needs weights in the file: packers refuse one without. Leave export_params at True.")


def check_names(options: ExportOptions, ranks: Sequence[int], output_ranks: Sequence[int]) -> None:
    """Refuse names and axes that do not fit the model's inputs and outputs."""
    wrong = []
    for what, names, found in (("input", options.input_names, ranks), ("output", options.output_names, output_ranks)):
        if len(names) > len(found):
            wrong.append(f"{len(names)} {what} names ({listing(names)}) for {len(found)} {what} tensors")
        if len(set(names)) != len(names):
            wrong.append(f"{what} names that repeat ({listing(names)})")
    twice = [name for name in options.input_names if name in options.output_names]
    if twice:
        wrong.append(f"{listing(twice)} as the name of an input and of an output, which are two tensors")
    named = {
        **dict(zip(options.input_names, ranks, strict=False)),
        **dict(zip(options.output_names, output_ranks, strict=False)),
    }
    wrong += _axis_problems(options.dynamic_axes or {}, named)
    if wrong:
        raise UsageError(f"export: {'; '.join(wrong)}. Match names and axes to the model's inputs and outputs.")


def _axis_problems(dynamic_axes: DynamicAxes, ranks: Mapping[str, int]) -> list[str]:
    wrong = []
    for name, axes in dynamic_axes.items():
        rank = ranks.get(name)
        if rank is None:
            wrong.append(f"dynamic_axes for {name!r}, which is no input or output name")
            continue
        outside = [axis for axis in axes if not -rank <= int(axis) < rank]
        if outside:
            wrong.append(f"dynamic axis {listing(map(str, outside))} of {name!r}, which has {rank} axes")
    return wrong
