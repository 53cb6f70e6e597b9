# SPDX-License-Identifier: Apache-2.0
"""The memory of a chip, what its packer must be told about a file, and `linger.memory`, which shows both layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from linger.checks.limits.limit import OPEN_SIZE, limit_rule
from linger.checks.limits.whole_file import open_batch_option
from linger.checks.memory_use import LayerMemory, Lifetime, MemoryUse, amount, memory_use, open_batch_axes
from linger.dialect import find_op, is_known
from linger.errors import UsageError, listing, printable
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.dialects import NEWER_OPS, is_newer
from linger.graph.core.finding import ERROR, NOTE, Finding
from linger.graph.core.walking import all_nodes
from linger.graph.files.model_io import ModelLike, load
from linger.targets import Target, filled, find_target, problems_of

_SHOWN = 3
"""Tensors of the peak that a message names, the largest first."""

_INTEGER_ENDS = "Make inputs and outputs integers: linger.onnx.export(…, is_input_quant=True)."
_SMALLER = "Use a smaller picture or fewer channels here."
_SPLIT = "Use fewer inputs or outputs, or let several layers compute the outputs and join them."


@dataclass(frozen=True)
class MemoryLimits:
    """The table [memory] of a chip's file; `targets/packer.toml` explains each value."""

    command: str
    op_options: Mapping[str, str]
    batch_option: str
    tensor_bytes: int | None = None
    product_bytes: int | None = None


MEMORY = limit_rule(951, "memory", "The tensors alive at one time fit into the chip's memory.")
PRODUCT_MEMORY = limit_rule(
    952, "product-memory", "Weights, input and output of a fully connected layer fit into the chip's memory."
)


def memory(path: ModelLike, target: str | Target | None = None) -> MemoryUse:
    """What a network needs, layer by layer: memory for tensors and weights, multiplications, and whether a chip has that.

    Args:
        path: The file, or a model in memory. It is not changed.
        target: The chip that it is for (`"venus"`, `"arcs"`, `"venusA"`); None asks no chip.

    Returns:
        The layers with their totals; `result.ok` where nothing was found that does not fit the chip.

    Raises:
        UsageError: There is no such file or chip, or the chip's file has a wrong table [memory].
        GraphError: The file is no complete ONNX model, or contradicts itself.
    """
    chip = find_target(target) if isinstance(target, str) else target
    limits = None if chip is None else _limits_of(chip)
    model = load(path)
    use = replace(memory_use(model), path=Path(path) if isinstance(path, (str, os.PathLike)) else None)
    if chip is None or limits is None:
        return use
    return replace(
        use,
        target=chip.name,
        tensor_bytes=limits.tensor_bytes,
        findings=tuple(memory_findings(use, chip, limits)),
        packer_line=packer_line(packer_options(model, limits), limits),
    )


def _limits_of(target: Target) -> MemoryLimits:
    values = target.limits.get("memory", {})
    problems = list(problems_of(MemoryLimits, values))
    if problems:
        raise UsageError(
            f"the chip file of {target.name}: [memory]: {'; '.join(problems)}. Compare it with linger/targets/packer.toml."
        )
    return filled(MemoryLimits, values)


def memory_findings(use: MemoryUse, target: Target, limits: MemoryLimits) -> Iterator[Finding]:
    """What of a network does not fit into a chip's memory; a note where open sizes leave that undecided."""
    found = [*_peak_findings(use, target, limits.tensor_bytes), *_product_findings(use, target, limits.product_bytes)]
    yield from found
    if limits.tensor_bytes is not None and use.is_lower_bound and not any(f.rule == MEMORY.id for f in found):
        reason = f"a size is open, so the memory for tensors could not be checked ({amount(use.peak_bytes)} are known)"
        yield Finding(NOTE, "", reason, OPEN_SIZE, MEMORY.id)


def _peak_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Tensors that are alive at one time: as many bytes as the chip has are refused already."""
    peak = use.peak_layer
    if room is None or peak is None or use.peak_bytes < room:
        return
    layer, alive = use.layers[peak], use.alive_at(peak)
    least = "at least " if layer.is_lower_bound else ""
    others = listing([each.node for each in use.layers if each.live_bytes >= room and each is not layer], limit=_SHOWN)
    reason = (
        f"{least}{use.peak_bytes} bytes of tensors are alive here ({_largest(alive)}); {target.name} has {room}, "
        f"and they must take less{f', as at {others}' if others else ''}"
    )
    has_float_ends = any(tensor.is_float and (tensor.is_input or tensor.is_output) for tensor in alive)
    yield Finding(ERROR, layer.node, reason, _INTEGER_ENDS if has_float_ends else _SMALLER, MEMORY.id)


def _largest(alive: Sequence[Lifetime]) -> str:
    """The largest tensors with their bytes."""
    ordered = sorted(alive, key=lambda tensor: -(tensor.bytes or 0))
    return listing((f"{printable(t.tensor)} {'?' if t.bytes is None else t.bytes}" for t in ordered), limit=_SHOWN)


def _product_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Fully connected layers, which the chip does not split."""
    for layer in use.layers if room is not None else ():
        size = layer.weight_bytes + layer.input_bytes + layer.output_bytes
        if room is not None and _is_fully_connected(layer) and size > room:
            reason = (
                f"{layer.weight_bytes} bytes of weights, {layer.input_bytes} of input and {layer.output_bytes} of output "
                f"are {size}; {target.name} has {room}"
            )
            yield Finding(ERROR, layer.node, reason, _SPLIT, PRODUCT_MEMORY.id)


def _is_fully_connected(layer: LayerMemory) -> bool:
    return layer.op_type == "LinearInt"


def packer_options(model: ir.Model, limits: MemoryLimits) -> tuple[str, ...]:
    """What the packer must be told about this file, each once: because of ops in it, and of batch axes that are open."""
    present = {_packed_name(node) for node in all_nodes(model)}
    of_ops = [option for op_type, option in limits.op_options.items() if op_type in present]
    of_axes = [open_batch_option(limits.batch_option, name) for name in open_batch_axes(model)]
    return tuple(dict.fromkeys([*of_ops, *of_axes]))


def _packed_name(node: ir.Node) -> str:
    """The op that the packer takes a node for."""
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    if newer is not None and newer.older is not None:
        return newer.older
    return find_op(node.op_type).name if is_dialect(node) and is_known(node.op_type) else node.op_type


def packer_line(options: tuple[str, ...], limits: MemoryLimits) -> str:
    """A line to copy, with … for what only the user knows, such as the file; empty without options.

    >>> packer_line(("--dynamic_shape batch=1:1",), MemoryLimits("tpacker", {}, "--dynamic_shape {}=1:1"))
    'tpacker … --dynamic_shape batch=1:1'
    """
    return " ".join([limits.command, "…", *options]) if options else ""
