# SPDX-License-Identifier: Apache-2.0
"""The inputs that a device had: given, among its dumps, or behind the Quant that a device leaves out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.verification.devices.dump_folder import DumpTensor
from linger.verification.feeds import Feed, cut, fitted, given_feeds
from linger.verification.tensor_facts import inputs_of

Array = NDArray[Any]
Matched = dict[str, tuple[DumpTensor, str]]
"""The dump of each tensor of the file, and how it was found."""


@dataclass
class FoundInputs:
    """What the file is run on.

    Attributes:
        feeds: Of every batch of dumps; several where a batch holds several of the file's.
        used: Dumps that became inputs: comparing them would prove nothing.
        problems: A sentence for each thing that is missing or does not fit.
        notes: What had to be converted.
    """

    feeds: dict[int, list[Feed]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)


def find_inputs(model: ir.Model, matched: dict[int, Matched], inputs: Any = None) -> FoundInputs:
    """The feeds of every batch of dumps.

    Args:
        model: The file.
        matched: The dumps of every batch.
        inputs: What the caller gave; None: the inputs are among the dumps.

    Raises:
        UsageError: Given inputs that are none.
    """
    found = FoundInputs()
    if inputs is not None:
        _distribute(given_feeds(inputs, model), matched, found)
        return found
    missing: dict[str, None] = {}
    for number, tensors in matched.items():
        feed = {}
        for value in inputs_of(model):
            array = _dumped(value, tensors, found)
            if array is None:
                missing[value.name or ""] = None
            else:
                feed[value.name or ""] = array
        if len(feed) == len(inputs_of(model)):
            try:
                found.feeds[number] = cut(fitted(feed, model, f"batch {number}"), model)
            except UsageError as error:
                found.problems.append(str(error))
    if missing:
        found.problems.append(f"The inputs {listing(missing)} are not among the dumps. Give inputs.")
    return found


def _distribute(given: list[Feed], matched: dict[int, Matched], found: FoundInputs) -> None:
    """Given feeds in order: one per batch of dumps, or all of them for the only one."""
    if len(matched) == 1:
        found.feeds = {next(iter(matched)): given}
    elif len(given) == len(matched):
        found.feeds = {number: [feed] for number, feed in zip(matched, given, strict=True)}
    elif matched:
        found.problems.append(f"There are dumps of {len(matched)} batches, but inputs of {len(given)}.")


def _dumped(value: ir.Value, tensors: Matched, found: FoundInputs) -> Array | None:
    name = value.name or ""
    quants = [node for node in value.consumers() if node.op_type == "Quant"]
    if name in tensors:
        found.used.add(name)
        return _shaped(_real(tensors[name][0], value, quants, found), value)
    for node in quants:
        output = node.outputs[0].name or ""
        if output not in tensors:
            continue
        dump = tensors[output][0]
        if dump.op_input is not None:  # linger.Dumper keeps what went into the Quant
            return dump.op_input
        if len(quants) == len(value.uses()) == 1 and dump.array.dtype.kind == "i":
            found.used.add(output)
            found.notes[f"The input {name} is made from the dumped integers {output}."] = None
            return _shaped(dump.array / _scale(node), value)
    return None


def _real(dump: DumpTensor, value: ir.Value, quants: list[ir.Node], found: FoundInputs) -> Array:
    """A float input that a device took as integers: divided by the scale of its Quant, which gives them back exactly."""
    scales = {_scale(node) for node in quants}
    is_quantised = dump.array.dtype.kind == "i" and not dump.is_text
    is_real = value.dtype is not None and value.dtype.is_floating_point()
    if not (is_quantised and is_real and len(scales) == 1 and len(quants) == len(value.uses())):
        return dump.array
    (scale,) = scales
    found.notes[f"The input {value.name} was dumped as {dump.array.dtype}: divided by its scale {scale:g}."] = None
    return np.asarray(dump.array / scale)


def _scale(node: ir.Node) -> float:
    return float(node.attributes["scale_x"].as_float())


def _shaped(array: Array, value: ir.Value) -> Array:
    """Flat numbers in the sizes of an input; several batches behind each other where there are more."""
    if value.shape is None or array.ndim == len(value.shape):
        return array
    open_sizes = [i for i, d in enumerate(value.shape) if not isinstance(d, int)]
    sizes = [d if isinstance(d, int) else -1 for d in value.shape]
    if len(open_sizes) > 1 or not sizes:
        return array.reshape(()) if not sizes and array.size == 1 else array
    if not open_sizes:
        sizes[0] = -1
    rest = math.prod(n for n in sizes if n != -1)
    return array.reshape(sizes) if rest and array.size % rest == 0 else array
