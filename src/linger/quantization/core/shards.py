# SPDX-License-Identifier: Apache-2.0
"""Calibration in shards: each job counts a part of the data and saves it to a file, and one job merges the files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import nn

from linger.errors import UsageError, in_one_line
from linger.files import write_atomically
from linger.quantization.core.calibrate import quantized_ranges
from linger.quantization.core.method_plan import Plan, apply_ranges, find_ranges
from linger.quantization.core.ranges import ranges_of
from linger.quantization.core.sharding.backup import Backup
from linger.quantization.core.sharding.coding import Parts, UnreadableError, decode, encode
from linger.quantization.core.sharding.description import describe, differences
from linger.quantization.core.sharding.partial import collect_part, install_part, merge_parts

_MODEL = ""
"""The label of the only model of a file."""

AnyPath = str | os.PathLike[str]


def save_statistics(model: nn.Module, path: AnyPath) -> None:
    """Write what calibration has counted in a model to a file, for `merge_statistics` in another process.

    The file holds counts and what the passes decided, no data and no weights. It says of which model it is: structure, widths
    and weights must be the same where it is merged.

    Args:
        model: The model that `init` returned, calibrated in this process on a part of the data, by any method.
        path: The file, replaced if it exists; it is there whole or not at all.

    Raises:
        UsageError: The model is not quantised, nothing was counted in it, or the file cannot be written.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration():
    ...     _ = model(torch.rand(8, 4))
    >>> linger.save_statistics(model, "part0.stat")  # doctest: +SKIP
    """
    quantized_ranges(model, "save_statistics")
    parts = Parts({_MODEL: (describe(model), collect_part(model, lambda layer, name: layer.histograms.get(name)))})
    if not any(histogram.count for _, histogram in parts.histograms()):
        raise UsageError(
            "save_statistics: nothing was counted in this model: it was not calibrated in this process, or was trained or "
            "loaded since. Run data through it inside `with linger.calibration():` first."
        )
    write_atomically(Path(path), encode(parts))


def merge_statistics(
    model: nn.Module,
    paths: AnyPath | Iterable[AnyPath],
    method: str = "max",
    *,
    inputs: str | None = None,
    weights: str | None = None,
    outputs: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> None:
    """Calibrate a model by what other processes have counted: the ranges are those of one calibration on all their data.

    Neither the order of the files nor the division of the data matters, and the methods by which the parts were calibrated do
    not either. What the files say replaces what was counted in the model before; to add that, save it as one more file. What
    no file has seen stays as it is. `choose_ranges` can change the method later.

    Args:
        model: The model that `init` returned, with the structure, widths and weights of those that were calibrated.
        paths: The files of `save_statistics`, or one.
        method: How a range follows from the numbers that were seen, as for `calibration`; so are the other arguments.
        inputs: Another method for the ranges of inputs.
        weights: Another method for those of weights.
        outputs: Another method for those of outputs.
        layers: Methods of single layers.

    Raises:
        UsageError: The model is not quantised; a file is missing, damaged, foreign, of another format, of another model or
            of other weights; nothing was counted in it; two files hold the same counts; there is no file; a method or a layer
            is unknown. The message names every file concerned, and the model is as it was.
    """
    plan = Plan.read("merge_statistics", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers)
    quantized_ranges(model, "merge_statistics")
    found = _read_all(model, [paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
    # in an order of their own, so that nothing depends on the caller's
    ordered = sorted(found, key=lambda parts: parts.identity)
    backup = Backup()
    backup.keep(model)
    try:
        for layer, name, histogram in install_part(model, merge_parts(parts.models[_MODEL][1] for parts in ordered)):
            layer.histograms[name] = histogram
            layer.restart_learning(name)
        ranges = ranges_of(model)
        plan.check_patterns(ranges)
        apply_ranges(ranges, find_ranges(ranges, plan, is_settled=True))
    except BaseException:
        backup.restore()
        raise


def _read_all(model: nn.Module, paths: Sequence[AnyPath]) -> list[Parts]:
    """The content of all files.

    Raises:
        UsageError: There is none, or some cannot be merged: all of them.
    """
    if not paths:
        raise UsageError("merge_statistics: no file was given. Give the files that save_statistics has written.")
    own, found, wrong = describe(model), dict[str, Parts](), []
    names: dict[str, str] = {}
    for path in [os.fspath(path) for path in paths]:
        try:
            parts = _read(path)
            _check_model(own, parts)
            if parts.identity in names:
                raise UnreadableError(f"holds the same counts as {names[parts.identity]}")
        except UnreadableError as fault:
            wrong.append(f"{path} {fault}")
            continue
        names[parts.identity] = path
        found[parts.identity] = parts
    if wrong:
        raise UsageError(
            f"merge_statistics: {'; '.join(wrong)}. Give each shard of this model once, as save_statistics has written it; "
            "the model is as it was."
        )
    return list(found.values())


def _read(path: str) -> Parts:
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or in_one_line(error)
        raise UnreadableError(f"cannot be read ({reason})") from error
    parts = decode(content)
    if list(parts.models) != [_MODEL]:
        raise UnreadableError("is damaged: it is not of one model")
    return parts


def _check_model(own: Mapping[str, tuple[str, str]], parts: Parts) -> None:
    description, part = parts.models[_MODEL]
    different = differences(own, description)
    if different:
        raise UnreadableError(f"is of another model, which {' and '.join(different)}")
    if not any(histogram.count for _, histogram in parts.histograms()):
        raise UnreadableError("holds nothing: no number was counted")
    # what is no module of the model is the range of a function in one
    unknown = [path for path in part if path not in own and path.rpartition(".")[0] not in own]
    if unknown:
        raise UnreadableError(f"is damaged: it has ranges of {unknown[0]!r}")
