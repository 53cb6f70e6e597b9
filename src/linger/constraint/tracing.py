# SPDX-License-Identifier: Apache-2.0
"""trace_layers: find conv → bn (→ relu) by running the model once, join them, and report what could not be joined."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.utils import _ntuple

from linger.analysis.batches import Batch, Forward, Function, first_pass
from linger.analysis.trace import CONVOLUTIONS, Wiring, computes_like, running_functions, wiring_of
from linger.constraint.conv_bn import (
    ConvBN,
    EmptyBatchNorm,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTransposeBN1d,
    NormalizeConvTransposeBN2d,
    freeze_batch_norms,
    parts_of_pairs,
)
from linger.constraint.limits import AHEAD_RELU, FUSED, Fusion, Normalized, Types, refuse_quantized
from linger.errors import UsageError, listing
from linger.settings import chosen_switches

logger = logging.getLogger(__name__)

_FUSABLE: dict[tuple[type[nn.Module], type[nn.Module]], type[ConvBN]] = {
    (nn.Conv1d, nn.BatchNorm1d): NormalizeConvBN1d,
    (nn.Conv2d, nn.BatchNorm2d): NormalizeConvBN2d,
    (nn.ConvTranspose1d, nn.BatchNorm1d): NormalizeConvTransposeBN1d,
    (nn.ConvTranspose2d, nn.BatchNorm2d): NormalizeConvTransposeBN2d,
}
"""A convolution and a batch norm, with or without limits, and what both become."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_PRODUCTS = (*_CONVOLUTIONS, nn.Conv3d, nn.ConvTranspose3d, nn.Linear)

Pair = tuple[nn.Module, nn.Module]
"""A convolution and a batch norm."""

_BN_KEYS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def trace_layers(
    root_model: nn.Module,
    *args: object,
    target_model: nn.Module | None = None,
    fuse_bn: bool = True,
    ahead_conv_relu: bool = True,
    ahead_bn_relu: bool = True,
    ahead_linear_relu: bool = True,
    ahead_conv_sigmoid: bool = True,  # noqa: ARG001 - accepted as documented; it never changed a number
    ahead_linear_sigmoid: bool = True,  # noqa: ARG001 - the documented signature
) -> nn.Module:
    """Fuse conv+bn and mark what ReLU follows, keeping every weight.

    `trace_layers(root, target, *inputs)` runs `target` (a part of root, or root itself), which is also taken as `target_model`;
    `trace_layers(model, *inputs)` is the newer spelling. Inputs may also be one object in any form of the page "Inputs".

    A pair is fused when the batch norm is the only consumer of the convolution, in every call of both. A float
    checkpoint loads afterwards as before, strictly. Limits that `normalize_layers` set before carry over to the pair.
    A convolution with a forward of its own keeps it; the functional convolution inside becomes the pair, `conv.folded`.

    What was folded and what was not, with the reasons, goes to the log; it is a warning where a convolution or a linear
    layer feeds a batch norm that stays.

    Raises:
        UsageError: The target is no part of the root, or fails on the example input; the model is quantized already.
    """
    refuse_quantized(root_model, "trace_layers")
    target: nn.Module = root_model if target_model is None else target_model
    if target_model is None and isinstance(first := next(iter(args), None), nn.Module):
        target, args = first, args[1:]
    paths = {module: name for name, module in root_model.named_modules()}
    if target not in paths:
        raise UsageError(
            f"trace_layers: the target ({type(target).__name__}) is no part of the root ({type(root_model).__name__}). "
            "Pass the root model and one of its sub-modules, or the root twice."
        )
    if not args:
        raise UsageError("trace_layers: an example input is missing. Call trace_layers(root, target, example_input).")
    wiring = wiring_of(target, _example(target, args))
    _take_results(root_model, target, wiring)
    pairs = _fusable_pairs(target, wiring) if fuse_bn else []
    report = _report_fusion(target, wiring, pairs, paths) if fuse_bn else _FusionReport(0)
    ahead: dict[Types, bool] = {(*_CONVOLUTIONS, ConvBN): ahead_conv_relu, (nn.Linear,): ahead_linear_relu}
    _mark_relu(target, wiring, dict(pairs), ahead | {(nn.BatchNorm2d,): ahead_bn_relu})
    for conv, bn in pairs:
        path = f"{paths[conv]}.{_FOLLOWED}" if _has_own_forward(conv) else paths[conv]
        follow(root_model, [path])
        fuse(root_model, path, paths[bn], root_model.get_submodule(path), bn)
    freeze_batch_norms(root_model, is_frozen=chosen_switches().freezes_batch_norm)
    logger.info("%s", report)
    if report.surprising:
        warnings.warn(str(report), stacklevel=2)
    return root_model


def _example(target: nn.Module, args: Batch) -> Batch:
    """The arguments of the pass: each an argument of its own, or all of them as one object in any form of inputs."""
    forward = Forward.of(target)
    if len(args) == 1:
        try:
            return forward.bound(*first_pass(target, args[0], "trace_layers"))
        except UsageError:
            if not isinstance(args[0], tuple) or not isinstance(next(iter(args[0]), None), Tensor):
                raise
            return args  # a tuple of tensors as the one argument
    return forward.bound(*first_pass(target, args, "trace_layers"))


def _mark_relu(
    target: nn.Module, wiring: Wiring, pairs: Mapping[nn.Module, nn.Module], ahead: dict[Types, bool]
) -> None:
    for layer in target.modules():
        results = wiring.results.get(pairs.get(layer, layer), [])
        is_ahead = any(isinstance(layer, kinds) and is_marked for kinds, is_marked in ahead.items())
        if is_ahead and results and all(map(wiring.feeds_only_relu, results)):
            setattr(layer, AHEAD_RELU, True)


def fuse(root: nn.Module, conv_path: str, bn_path: str, conv: nn.Module, bn: nn.Module) -> None:
    """Replace a convolution and its batch norm, for which `fused_kind` has a class, by the pair."""
    kind = fused_kind(conv, bn)
    assert kind is not None  # as for every fusable pair
    fused, empty = kind.join(conv, bn), EmptyBatchNorm()
    fused.training, empty.training = conv.training, bn.training  # not train(): a frozen batch norm stays frozen
    setattr(fused, AHEAD_RELU, getattr(conv, AHEAD_RELU, False))
    together = Fusion()
    for part in (fused, empty):
        FUSED.put(part, together)
    replace_everywhere(root, {conv: fused, bn: empty})
    # every module that holds both, the root ('') first
    names = zip(conv_path.split(".")[:-1], bn_path.split(".")[:-1], strict=False)
    shared = [name for name, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], names)]
    for depth in range(len(shared) + 1):
        ancestor = ".".join(shared[:depth])
        skip = len(ancestor) + 1 if ancestor else 0
        root.get_submodule(ancestor).register_load_state_dict_pre_hook(
            partial(_move_bn_keys, conv_path[skip:], bn_path[skip:])
        )


_FOLLOWED = "folded"
"""Name of the layer inside a convolution with a forward of its own."""

_GEOMETRY = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}


def _unlike(conv: nn.Module, arguments: Mapping[str, Any]) -> list[str]:
    """The arguments of a functional convolution that are not what the attributes of its module say."""
    wide = _ntuple(len(cast(Any, conv).kernel_size))
    return [n for n, usual in _GEOMETRY.items() if wide(arguments.get(n, usual)) != wide(getattr(conv, n))]


def _plain_layer(conv: nn.Module) -> nn.Module:
    """The functional convolution inside a forward of its own, as torch's layer with the same parameters; others as they are."""
    if not _has_own_forward(conv):
        return conv
    kind: type[nn.Module] = next(k for k in _CONVOLUTIONS if isinstance(conv, k))
    plain = kind.__new__(kind)
    own = {name: conv._parameters.get(name) for name in ("weight", "bias")}  # noqa: SLF001 - an attribute may be computed
    plain.__dict__.update(vars(conv) | {"_parameters": own, "_buffers": {}, "_modules": {}})
    plain.__dict__.pop("forward", None)
    return plain


class _FollowedConvolution(nn.Module):
    """A convolution with a forward of its own: the forward stays, and the layer `folded` computes the convolution in it.

    The layer has weight and bias; other parameters, buffers and modules stay where they were. The convolution itself is no
    module of the model any more. What stands for its weight there is NaN, and can only be passed on.
    """

    folded: nn.Module
    followed: nn.Module

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        layer, names = _plain_layer(conv), ("_parameters", "_buffers", "_modules", "training")
        self.__dict__.update({name: conv.__dict__[name] for name in names}, followed=conv)
        for name, own in layer._parameters.items():  # noqa: SLF001 - also one that is None
            self._parameters.pop(name, None)
            conv.__dict__[name] = None if own is None else torch.full((), torch.nan).to(own.detach()).expand(own.shape)
        self.folded = layer

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The forward of the convolution."""
        self.followed.training = self.training
        with running_functions(self._answer):
            return self.followed.forward(*inputs, **options)

    def _answer(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> Any:
        given = dict(zip(CONVOLUTIONS.get(func, ()), args, strict=False)) | kwargs
        if func not in CONVOLUTIONS or given.get("weight") is not self.followed.weight:
            return func(*args, **kwargs)
        if wrong := _unlike(self.followed, given):
            name = f"{type(self.followed).__name__}: its {', '.join(wrong)}"
            raise UsageError(f"{name} is not what trace_layers saw. Trace the model with fuse_bn=False.")
        return self.folded(given["input"])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
        # a checkpoint of the float model knows no .folded
        for name in ("weight", "bias"):
            if prefix + name in state_dict:
                state_dict[f"{prefix}{_FOLLOWED}.{name}"] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def follow(root: nn.Module, paths: Iterable[str]) -> dict[nn.Module, _FollowedConvolution]:
    """Make the layers with these paths that compute for a forward of its own; returns what took the place of which module."""
    modules = dict(root.named_modules())
    own = [modules.get(path.removesuffix(f".{_FOLLOWED}")) or root for path in paths if path not in modules]
    made = {conv: _FollowedConvolution(conv) for conv in own if conv is not root and _has_own_forward(conv)}
    replace_everywhere(root, made)
    return made


def unfollow(root: nn.Module, made: Mapping[nn.Module, _FollowedConvolution]) -> None:
    """Undo what `follow` did, while the layers inside are as they were."""
    for conv, outer in made.items():
        own = outer.folded._parameters  # noqa: SLF001 - also one that is None
        del outer.folded
        for name in own:
            del conv.__dict__[name]
        conv._parameters.update(own)  # noqa: SLF001 - as above
    replace_everywhere(root, {outer: conv for conv, outer in made.items()})


def replace_everywhere(root: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Replace modules under every name they have: a shared module stays shared."""
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):  # noqa: SLF001 - named_children would hide a second name
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]  # noqa: SLF001


def _move_bn_keys(
    conv_path: str, bn_path: str, module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Sequence[Any]
) -> None:  # a pickled model must find this hook again, so it is a module-level function
    """A checkpoint of the float model has the statistics under the batch norm's own name."""
    del module, rest
    for key in _BN_KEYS:
        old = f"{prefix}{bn_path}.{key}"
        if old in state_dict:
            state_dict[f"{prefix}{conv_path}.bn.{key}"] = state_dict.pop(old)


def fused_kind(conv: nn.Module, bn: nn.Module) -> type[ConvBN] | None:
    """The class that a convolution and a batch norm become; None where one of them computes something else."""
    return next((made for parts, made in _FUSABLE.items() if _is(conv, parts[0]) and _is(bn, parts[1])), None)


def _is(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is of a torch type and computes as that type does, or as the same layer within limits."""
    known = [k for k in type(layer).__mro__ if k is kind or k.__module__.startswith("linger.constraint.")]
    return isinstance(layer, kind) and any(computes_like(layer, k) for k in known)


def _take_results(root: nn.Module, target: nn.Module, wiring: Wiring) -> None:
    """Where a forward of its own can be followed, the convolution's results are those of the function inside."""
    for conv in target.modules():
        if conv is not root and _has_own_forward(conv) and not any(_unfollowed(conv, wiring)):
            wiring.results[conv] = [result for _, result in wiring.convolved[conv]]


def _fusable_pairs(target: nn.Module, wiring: Wiring) -> list[Pair]:
    """(conv, bn) where every result of conv goes into bn alone, every input of bn comes from conv, and both can be joined."""
    pairs = []
    for conv in target.modules():
        results = wiring.results.get(conv, [])
        consumers = {wiring.feeds_only_batch_norm(result) for result in results}
        bn = consumers.pop() if len(consumers) == 1 else None
        is_alone = bn is not None and {id(x) for x in wiring.inputs[bn]} == {id(result) for result in results}
        if bn is not None and is_alone and not any(_obstacles(conv, bn, wiring)):
            pairs.append((conv, bn))
    return pairs


def _obstacles(conv: nn.Module, bn: nn.Module, wiring: Wiring) -> Iterator[str]:
    """Why a batch norm cannot be joined with the convolution that feeds it, the first reason first."""
    yield from _unfollowed(conv, wiring)
    if _has_own_forward(bn, _BATCH_NORMS):
        yield f"it is a {type(bn).__name__} with a forward of its own"
    padding_mode = getattr(conv, "padding_mode", "zeros")
    if padding_mode != "zeros":
        yield f"its convolution pads by padding_mode={padding_mode!r}"
    if getattr(bn, "running_mean", None) is None:
        yield "it keeps no statistics"
    if any(wiring.feeds_only_batch_norm(result) is not bn for result in wiring.results[conv]):
        yield "the result of its convolution is used elsewhere too"
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in (conv, bn)):  # noqa: SLF001 - no public name
        yield "hooks look at what goes between it and its convolution"
    if fused_kind(_plain_layer(conv), bn) is None:
        yield f"a {type(bn).__name__} after a {type(conv).__name__} has no fused form"


def _unfollowed(conv: nn.Module, wiring: Wiring) -> Iterator[str]:
    """Why no layer can compute for a forward of its own: what it does with weight, bias, attributes and result."""
    if not _has_own_forward(conv):
        return
    calls, runs = wiring.convolved[conv], len(wiring.inputs[conv])
    others = sorted({name for given, _ in calls for name in _unlike(conv, given)})
    readers = {wiring.feeds_only_batch_norm(y) for _, y in calls}
    reasons = {
        f"which does not convolve with its {name} as it is, or uses it elsewhere too": not _passes(conv, name, wiring)
        for name in ("weight", "bias")
    } | {
        f"which convolves {len(calls)} times in {runs} calls": len(calls) != runs,
        f"which convolves with another {listing(others)} than its attributes say": bool(others),
        "and not its batch norm alone reads what it convolves": None in readers,
    }
    for reason in (reason for reason, is_so in reasons.items() if is_so):
        yield f"its convolution is a {type(conv).__name__} with a forward of its own, {reason}"


def _passes(conv: nn.Module, name: str, wiring: Wiring) -> bool:
    """Whether the functional convolutions of a forward take a parameter as it is, and nothing else does."""
    own, calls = conv._parameters.get(name), wiring.convolved[conv]  # noqa: SLF001 - an attribute may be computed
    return all(given.get(name) is own for given, _ in calls) and len(wiring.uses[id(own)]) <= len(calls)


def _has_own_forward(layer: nn.Module, kinds: Types = _CONVOLUTIONS) -> bool:
    known = next((kind for kind in kinds if isinstance(layer, kind)), None)
    return known is not None and not isinstance(layer, Normalized) and not computes_like(layer, known)


@dataclass
class _FusionReport:
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


def _report_fusion(
    target: nn.Module, wiring: Wiring, pairs: Sequence[Pair], paths: Mapping[nn.Module, str]
) -> _FusionReport:
    """What became of every batch norm of a model, found out before anything is replaced."""
    report = _FusionReport(len(pairs))
    done = {*dict(pairs).values(), *parts_of_pairs(target)}
    makers = {id(t): layer for layer, results in wiring.results.items() for t in results if _is_leaf(layer)}
    for bn in target.modules():
        if not isinstance(bn, _BatchNorm) or bn in done:
            continue
        sources = {makers.get(id(x)) for x in wiring.inputs.get(bn, ())}
        report.left[paths[bn]] = _reason(bn, sources, wiring)
        if isinstance(sources.pop() if len(sources) == 1 else None, _PRODUCTS):
            report.surprising.add(paths[bn])
    return report


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
