# SPDX-License-Identifier: Apache-2.0
"""Which convolutions and batch norms `trace_layers` can join, and a report on the batch norms that it cannot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.matcher import Wiring, computes_like
from linger.constraint.batch_norm import NormalizeBatchNorm1d, NormalizeBatchNorm2d
from linger.constraint.conv_bn import (
    ConvBN,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTransposeBN1d,
    NormalizeConvTransposeBN2d,
    parts_of_pairs,
)
from linger.constraint.limits import Normalized
from linger.constraint.normalized import NormalizeConv1d, NormalizeConv2d, NormalizeConvTranspose2d
from linger.errors import listing

_Kinds = tuple[type[nn.Module], ...]
_FUSABLE: tuple[tuple[_Kinds, _Kinds, type[ConvBN]], ...] = (
    ((nn.Conv1d, NormalizeConv1d), (nn.BatchNorm1d, NormalizeBatchNorm1d), NormalizeConvBN1d),
    ((nn.Conv2d, NormalizeConv2d), (nn.BatchNorm2d, NormalizeBatchNorm2d), NormalizeConvBN2d),
    (
        (nn.ConvTranspose2d, NormalizeConvTranspose2d),
        (nn.BatchNorm2d, NormalizeBatchNorm2d),
        NormalizeConvTransposeBN2d,
    ),
    ((nn.ConvTranspose1d,), (nn.BatchNorm1d, NormalizeBatchNorm1d), NormalizeConvTransposeBN1d),
)
"""Kinds of convolution, kinds of batch norm that may follow, and what both become."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_PRODUCTS = (*_CONVOLUTIONS, nn.Conv3d, nn.ConvTranspose3d, nn.Linear)

Pair = tuple[nn.Module, nn.Module]
"""A convolution and a batch norm."""


def fused_kind(conv: nn.Module, bn: nn.Module) -> type[ConvBN] | None:
    """The class that a convolution and a batch norm become; None where one of them computes something else."""
    kinds = next((k for k in _FUSABLE if isinstance(conv, k[0]) and isinstance(bn, k[1])), None)
    if kinds is None:
        return None
    is_known = all(any(computes_like(layer, k) for k in of) for layer, of in zip((conv, bn), kinds[:2], strict=True))
    return kinds[2] if is_known else None


def fusable_pairs(target: nn.Module, wiring: Wiring) -> list[Pair]:
    """(conv, bn) where every result of conv goes into bn alone, every input of bn comes from conv, and both can be joined."""
    found = []
    for conv in target.modules():
        results = wiring.results.get(conv, [])
        consumers = {wiring.feeds_only_batch_norm(result) for result in results}
        bn = consumers.pop() if len(consumers) == 1 else None
        if bn is None or {id(x) for x in wiring.inputs[bn]} != {id(result) for result in results}:
            continue
        if not any(_obstacles(conv, bn, wiring)):
            found.append((conv, bn))
    return found


def _obstacles(conv: nn.Module, bn: nn.Module, wiring: Wiring) -> Iterator[str]:
    """Why a batch norm cannot be joined with the convolution that feeds it, the first reason first."""
    if _has_own_forward(conv, _CONVOLUTIONS):
        yield f"its convolution is a {type(conv).__name__} with a forward of its own"
    if _has_own_forward(bn, _BATCH_NORMS):
        yield f"it is a {type(bn).__name__} with a forward of its own"
    padding_mode = getattr(conv, "padding_mode", "zeros")
    if padding_mode != "zeros":
        yield f"its convolution pads by padding_mode={padding_mode!r}"
    if getattr(bn, "running_mean", None) is None:
        yield "it keeps no statistics"
    if any(wiring.feeds_only_batch_norm(result) is not bn for result in wiring.results[conv]):
        yield "the result of its convolution is used elsewhere too"
    if _has_hooks(conv) or _has_hooks(bn):
        yield "hooks look at what goes between it and its convolution"
    if fused_kind(conv, bn) is None:
        yield f"a {type(bn).__name__} after a {type(conv).__name__} has no fused form"


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)  # noqa: SLF001 - torch has no public name


def _has_own_forward(layer: nn.Module, kinds: _Kinds) -> bool:
    known = next((kind for kind in kinds if isinstance(layer, kind)), None)
    return known is not None and not isinstance(layer, Normalized) and not computes_like(layer, known)


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

    @property
    def total(self) -> int:
        """How many batch norms there were."""
        return self.folded + len(self.left)

    def __repr__(self) -> str:
        return f"FusionReport({self.folded} of {self.total} batch norms folded)"

    def __str__(self) -> str:
        done = f"trace_layers: {self.folded} of {self.total} batch norms were folded into their convolutions"
        by_reason: dict[str, list[str]] = defaultdict(list)
        for path, reason in self.left.items():
            by_reason[reason].append(path)
        parts = [f"{listing(paths, limit=8)}: {reason}" for reason, paths in by_reason.items()]
        return f"{done}. Layers of their own stay {'; '.join(parts)}." if parts else f"{done}."


def report_fusion(
    target: nn.Module, wiring: Wiring, pairs: Sequence[Pair], paths: Mapping[nn.Module, str]
) -> FusionReport:
    """What became of every batch norm of a model, found out before anything is replaced."""
    report = FusionReport(len(pairs))
    done = {bn for _, bn in pairs} | parts_of_pairs(target)
    makers = _makers(wiring)
    for bn in target.modules():
        if not isinstance(bn, _BatchNorm) or bn in done:
            continue
        sources = {makers.get(id(x)) for x in wiring.inputs.get(bn, ())}
        report.left[paths[bn]] = _reason(bn, sources, wiring)
        if len(sources) == 1 and isinstance(next(iter(sources)), _PRODUCTS):
            report.surprising.add(paths[bn])
    return report


def _makers(wiring: Wiring) -> dict[int, nn.Module]:
    """The layer that returned each tensor, by the tensor's id."""
    return {id(result): layer for layer, results in wiring.results.items() for result in results if _is_leaf(layer)}


def _is_leaf(layer: nn.Module) -> bool:
    return isinstance(layer, (*_PRODUCTS, ConvBN)) or not any(layer.children())


def _reason(bn: nn.Module, sources: Collection[nn.Module | None], wiring: Wiring) -> str:
    if not sources:
        return "the example input does not reach it"
    if len(sources) > 1:
        return "several layers feed it"
    (source,) = sources
    if source is None:
        return "no layer feeds it directly"
    if not isinstance(source, _CONVOLUTIONS):
        return f"a {type(source).__name__} feeds it, no convolution"
    return next(_obstacles(source, bn, wiring))
