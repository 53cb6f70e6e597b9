# SPDX-License-Identifier: Apache-2.0
"""trace_layers: find conv → bn (→ relu) by running the model once, and join them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from linger.analysis.matcher import Wiring, watch
from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm, freeze_batch_norms
from linger.constraint.fusion import FusionReport, fusable_pairs, fused_kind, report_fusion
from linger.constraint.limits import AHEAD_RELU
from linger.constraint.marks import refuse_quantized
from linger.errors import UsageError
from linger.settings import chosen_switches

logger = logging.getLogger(__name__)

_BN_KEYS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def trace_layers(
    root_model: nn.Module,
    *args: object,
    fuse_bn: bool = True,
    ahead_conv_relu: bool = True,
    ahead_bn_relu: bool = True,
    ahead_linear_relu: bool = True,
    ahead_conv_sigmoid: bool = True,  # noqa: ARG001 - accepted as documented; it never changed a number
    ahead_linear_sigmoid: bool = True,  # noqa: ARG001
) -> nn.Module:
    """Fuse conv+bn and mark what ReLU follows, keeping every weight.

    `trace_layers(root, target, *inputs)` runs `target` (a part of root, or root itself);
    `trace_layers(model, *inputs)` is the newer spelling.

    A pair is fused when the batch norm is the only consumer of the convolution, in every call of both. A float
    checkpoint loads afterwards as before, strictly. Limits that `normalize_layers` set before carry over to the pair.

    What was folded and what was not, with the reasons, goes to the log; it is a warning where a convolution or a linear
    layer feeds a batch norm that stays.

    Raises:
        UsageError: The target is no part of the root, or fails on the example input; the model is quantised already.
    """
    refuse_quantized(root_model, "trace_layers")
    target: nn.Module = root_model
    if args and isinstance(args[0], nn.Module):
        target, args = args[0], args[1:]
    paths = {module: name for name, module in root_model.named_modules()}
    if target not in paths:
        raise UsageError(
            f"trace_layers: the target ({type(target).__name__}) is no part of the root ({type(root_model).__name__}). "
            "Pass the root model and one of its sub-modules, or the root twice."
        )
    if not args:
        raise UsageError("trace_layers: an example input is missing. Call trace_layers(root, target, example_input).")
    wiring = watch(target, args)
    pairs = fusable_pairs(target, wiring) if fuse_bn else []
    report = report_fusion(target, wiring, pairs, paths) if fuse_bn else FusionReport(0)
    _mark_relu(target, wiring, dict(pairs), conv=ahead_conv_relu, bn=ahead_bn_relu, linear=ahead_linear_relu)
    for conv, bn in pairs:
        _fuse(root_model, paths[conv], paths[bn], conv, bn)
    freeze_batch_norms(root_model, is_frozen=chosen_switches().freezes_batch_norm)
    logger.info("%s", report)
    if report.surprising:
        warnings.warn(str(report), stacklevel=2)
    return root_model


def _mark_relu(
    target: nn.Module, wiring: Wiring, pairs: dict[nn.Module, nn.Module], *, conv: bool, bn: bool, linear: bool
) -> None:
    kinds = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d, ConvBN)
    convolutions = dict.fromkeys(kinds, conv)
    wanted: dict[type[nn.Module], bool] = convolutions | {nn.Linear: linear, nn.BatchNorm2d: bn}
    for layer in target.modules():
        if not any(isinstance(layer, kind) and is_wanted for kind, is_wanted in wanted.items()):
            continue
        last = pairs.get(layer, layer)
        results = wiring.results.get(last, [])
        if results and all(wiring.feeds_only_relu(r) for r in results):
            setattr(layer, AHEAD_RELU, True)


def _fuse(root: nn.Module, conv_path: str, bn_path: str, conv: nn.Module, bn: nn.Module) -> None:
    kind = fused_kind(conv, bn)
    assert kind is not None  # as for every fusable pair
    fused, empty = kind.join(conv, bn), EmptyBatchNorm()
    fused.training, empty.training = conv.training, bn.training  # not train(): a frozen batch norm stays frozen
    setattr(fused, AHEAD_RELU, getattr(conv, AHEAD_RELU, False))
    replace_everywhere(root, {conv: fused, bn: empty})
    shared = _common_ancestors(conv_path, bn_path)
    for ancestor in shared:
        skip = len(ancestor) + 1 if ancestor else 0
        root.get_submodule(ancestor).register_load_state_dict_pre_hook(
            partial(_move_bn_keys, conv_path[skip:], bn_path[skip:])
        )


def replace_everywhere(root: nn.Module, replacements: dict[nn.Module, nn.Module]) -> None:
    """Replace modules under every name they have: a shared module stays shared."""
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):  # noqa: SLF001 - named_children would hide a second name
            if child in replacements:
                parent._modules[name] = replacements[child]  # noqa: SLF001


def _common_ancestors(first: str, second: str) -> list[str]:
    """Paths of the modules that hold both, the root ('') first."""
    ancestors = [""]
    for a, b in zip(first.split(".")[:-1], second.split(".")[:-1], strict=False):
        if a != b:
            break
        ancestors.append(f"{ancestors[-1]}.{a}".lstrip("."))
    return ancestors


def _move_bn_keys(
    conv_path: str, bn_path: str, module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Sequence[Any]
) -> None:  # a pickled model must find this hook again, so it is a module-level function
    """A checkpoint of the float model has the statistics under the batch norm's own name."""
    del module, rest
    for key in _BN_KEYS:
        old = f"{prefix}{bn_path}.{key}"
        if old in state_dict:
            state_dict[f"{prefix}{conv_path}.bn.{key}"] = state_dict.pop(old)
