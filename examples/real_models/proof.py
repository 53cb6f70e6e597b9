# SPDX-License-Identifier: Apache-2.0
"""From a trained float network to a file that is proven to compute the same integers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import linger

FORMATS = ("Quant", "Dequant", "Requant")
"""Ops that change how a number is written, and no work."""


@dataclass(frozen=True)
class Outcome:
    """One network, measured against its float self and proven against its file."""

    name: str
    figures: dict[str, float]
    proof: linger.Verification
    coverage: linger.Coverage
    share: float
    """Products computed as integers, of all."""

    @property
    def float_ops(self) -> dict[str, int]:
        """What stayed float, with the number of calls."""
        found: dict[str, int] = {}
        for record in self.coverage.float_ops:
            found[record.op] = found.get(record.op, 0) + 1
        return found


def quantize(
    model: nn.Module,
    batches: Sequence[tuple[Any, ...]],
    *,
    prepare: Callable[[nn.Module], Any] | None = None,
    can_fuse: bool = True,
) -> nn.Module:
    """A quantized copy, calibrated on the batches. `prepare` states wishes before `init`."""
    made = copy.deepcopy(model).eval()
    if can_fuse:
        linger.trace_layers(made, *batches[0])
    if prepare is not None:
        prepare(made)
    made = linger.init(made).eval()
    with linger.calibration():
        for batch in batches:
            made(*batch)
    return made


def prove(
    quantized: nn.Module, batches: Iterable[tuple[Any, ...]], path: Path, names: Sequence[str], **options: Any
) -> linger.Verification:
    """Write the file, its batch size open, and compare every integer of every batch: torch, numpy, ONNX Runtime."""
    batches = list(batches)
    axes = {name: {0: "batch"} for name in names}
    settings = {"input_names": list(names), "dynamic_axes": axes} | options
    linger.onnx.export(quantized, batches[0], path, **settings)
    return linger.verify(quantized, path, batches)


def plain(tensor: Tensor) -> Tensor:
    """Real values, as a user of the model sees them."""
    return torch.from_numpy(tensor.detach().numpy())


def share_of_integers(model: nn.Module, quantized: nn.Module, batch: tuple[Any, ...]) -> float:
    """The part of all products of the float model that the quantized one computes as integers."""
    work = products(model, batch)
    # `folded` is the layer inside a convolution with a forward of its own
    integer = (record.where for record in linger.coverage(quantized).integer_ops if record.op not in FORMATS)
    as_integers = {where.removesuffix(".folded") for where in integer}
    done = sum(count for path, count in work.items() if path in as_integers)
    return done / max(1, sum(work.values()))


def products(model: nn.Module, batch: tuple[Any, ...]) -> dict[str, int]:
    """Products of every layer with weights, by path, in one pass."""
    found: dict[str, int] = {}
    handles = []
    for path, layer in model.named_modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.RNNBase, nn.RNNCellBase)):

            def count(layer: nn.Module, args: Any, output: Any, path: str = path) -> None:
                found[path] = found.get(path, 0) + _products_of(layer, args[0], output)

            handles.append(layer.register_forward_hook(count))
    with torch.no_grad():
        model(*batch)
    for handle in handles:
        handle.remove()
    return found


def _products_of(layer: nn.Module, x: Any, output: Any) -> int:
    weights = sum(p.numel() for name, p in layer.named_parameters() if name.startswith("weight"))
    if isinstance(layer, nn.RNNCellBase):
        return weights * x.shape[0]
    if isinstance(layer, nn.RNNBase):
        steps = x.data.shape[0] if isinstance(x, nn.utils.rnn.PackedSequence) else x.shape[:2].numel()
        return weights * int(steps)
    several = x if isinstance(layer, nn.ConvTranspose2d) else output
    return int(several.numel() * layer.weight.shape[1:].numel())  # type: ignore[union-attr, operator]
