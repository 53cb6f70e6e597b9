# SPDX-License-Identifier: Apache-2.0
"""What trace_layers did to the batch norms of a model: how many were folded, which were not, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.matcher import Wiring, computes_like
from linger.constraint.conv_bn import ConvBN
from linger.constraint.limits import Normalized
from linger.errors import listing

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_PRODUCTS = (*_CONVOLUTIONS, nn.Conv3d, nn.ConvTranspose3d, nn.Linear)


@dataclass
class FusionReport:
    """The batch norms that a trace met.

    Attributes:
        folded: How many became part of their convolution.
        left: Path of each other one, with the reason.
        surprising: Those among them that a convolution or a linear layer feeds, so that one expects them to be folded.
    """

    folded: int
    left: dict[str, str] = field(default_factory=dict)
    surprising: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        total = self.folded + len(self.left)
        done = f"trace_layers: {self.folded} of {total} batch norms were folded into their convolutions"
        by_reason: dict[str, list[str]] = defaultdict(list)
        for path, reason in self.left.items():
            by_reason[reason].append(path)
        parts = [f"{listing(paths, limit=8)}: {reason}" for reason, paths in by_reason.items()]
        return f"{done}. Layers of their own stay {'; '.join(parts)}." if parts else f"{done}."


def report_fusion(
    target: nn.Module, wiring: Wiring, pairs: Collection[tuple[nn.Module, nn.Module]], paths: Mapping[nn.Module, str]
) -> FusionReport:
    """What became of every batch norm of a model, judged before anything is replaced."""
    report = FusionReport(len(pairs))
    done = {bn for _, bn in pairs} | {m.bn for m in target.modules() if isinstance(m, ConvBN)}
    makers = {id(result): layer for layer, results in wiring.results.items() for result in results if _is_leaf(layer)}
    for bn in target.modules():
        if not isinstance(bn, _BatchNorm) or bn in done:
            continue
        sources = {makers.get(id(x)) for x in wiring.inputs.get(bn, ())}
        source = next(iter(sources)) if len(sources) == 1 else None
        report.left[paths[bn]] = _reason(bn, source, sources, wiring)
        if isinstance(source, _PRODUCTS):
            report.surprising.add(paths[bn])
    return report


def _is_leaf(layer: nn.Module) -> bool:
    return isinstance(layer, (*_PRODUCTS, ConvBN)) or not any(layer.children())


def _has_own_forward(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    known = next((kind for kind in kinds if isinstance(layer, kind)), None)
    return known is not None and not isinstance(layer, Normalized) and not computes_like(layer, known)


def _reason(bn: Any, source: Any, sources: Collection[nn.Module | None], wiring: Wiring) -> str:
    if not sources:
        return "the example input does not reach it"
    if len(sources) > 1:
        return "several layers feed it"
    if not isinstance(source, _CONVOLUTIONS):
        return "no layer feeds it directly" if source is None else f"a {type(source).__name__} feeds it, no convolution"
    if _has_own_forward(source, _CONVOLUTIONS):
        return f"its convolution is a {type(source).__name__} with a forward of its own"
    if _has_own_forward(bn, _BATCH_NORMS):
        return f"it is a {type(bn).__name__} with a forward of its own"
    if source.padding_mode != "zeros":
        return f"its convolution pads by padding_mode={source.padding_mode!r}"
    if bn.running_mean is None:
        return "it keeps no statistics"
    if any(wiring.feeds_only_batch_norm(result) is not bn for result in wiring.results[source]):
        return "the result of its convolution is used elsewhere too"
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in (source, bn)):  # noqa: SLF001 - no public name
        return "hooks look at what goes between it and its convolution"
    return f"a {type(bn).__name__} after a {type(source).__name__} has no fused form"
