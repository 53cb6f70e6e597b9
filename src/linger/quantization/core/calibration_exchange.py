# SPDX-License-Identifier: Apache-2.0
"""Calibration in parts: between the processes of a group at the end of a block, and between jobs by files.

In a group, passes inside the block are local. Where it ends, all processes tell each other once what they have counted, and raise the
same sentence everywhere if that fails: a process that fails takes part, too, so that no other one waits for it in vain. Without a
group, each job counts a part of the data and saves it to a file, and one job merges the files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linger.errors import UsageError, in_one_line, listing
from linger.files import write_atomically
from linger.quantization.core.calibration_parts import (
    Description,
    Parts,
    UnreadableError,
    collect_part,
    decode,
    describe,
    differences,
    encode,
    install_part,
    merge_parts,
)
from linger.quantization.core.methods import Plan, apply_ranges, find_ranges
from linger.quantization.core.observation import Calibration, Histogram
from linger.quantization.core.quantized import Backup, QuantizedBase, quantized_ranges, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Runtime, scope_of

Counts = list[tuple[Range, Histogram]]
"""What was counted for ranges."""


@dataclass
class _Begun:
    """A module whose forward began a pass, as it was before."""

    label: str
    runtime: Runtime
    path: str
    module: nn.Module
    description: Description
    counted: str


@dataclass
class Group:
    """The processes that calibrate together, as one of them sees its block.

    Attributes:
        plan: The methods of the block.
    """

    plan: Plan
    _begun: list[_Begun] = field(default_factory=list)

    @classmethod
    def around(cls, plan: Plan) -> Group | None:
        """The group of this process; None where it is alone."""
        distributed = torch.distributed
        is_there = distributed.is_available() and distributed.is_initialized()
        return cls(plan) if is_there and distributed.get_world_size() > 1 else None

    def begin(self, module: nn.Module) -> None:
        """A module begins its first pass in the block."""
        scope = scope_of(module)
        assert scope is not None  # a pass begins in a module of a quantized model
        known = list(dict.fromkeys(id(begun.runtime) for begun in self._begun))
        number = known.index(id(scope.runtime)) if id(scope.runtime) in known else len(known)
        label = f"{number}:{scope.path}"
        self._begun.append(_Begun(label, scope.runtime, scope.path, module, describe(module), _counted_before(module)))

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell the other processes of an error inside; it goes on in this one."""
        try:
            yield
        except Exception as error:
            with suppress(UsageError):  # the error itself says more than that the others have failed as well
                _exchange(Parts({}, {"failed": f"{type(error).__name__}: {in_one_line(error)}"}))
            raise

    def collect(self, seen: Calibration, counts: Counts) -> Parts:
        """What this process has to say."""
        own, roots = dict(counts), self._roots()
        parts = {root.label: (root.description, collect_part(root.module, own.get)) for root in roots}
        facts = {
            "passes": seen.passes,
            "plan": self.plan.written,
            "before": [root.counted for root in roots],
            "inputs": seen.input_ends(),
            "sentences": seen.sentences,
        }
        return Parts(parts, facts)

    def merge(self, seen: Calibration, own: Parts) -> Counts:
        """Leave in the models what all processes have seen; returns what all of them have counted.

        Raises:
            UsageError: A process has failed, had no data, or calibrates another model or by other methods; the same one in
                every process.
        """
        everybody = _exchange(own)
        _check(everybody)
        seen.join([each.facts["inputs"] for each in everybody], [each.facts["sentences"] for each in everybody])
        seen.is_silent = torch.distributed.get_rank() > 0
        found: Counts = []
        for root in self._roots():
            found += install_part(root.module, merge_parts(each.models[root.label][1] for each in everybody))
        return found

    def _roots(self) -> list[_Begun]:
        """The modules that began a pass, but for those inside another one."""
        return [begun for begun in self._begun if not any(_is_inside(begun, other) for other in self._begun)]


def _is_inside(one: _Begun, other: _Begun) -> bool:
    if one is other or one.runtime is not other.runtime:
        return False
    return not other.path or one.path.startswith(f"{other.path}.")


def _counted_before(model: nn.Module) -> str:
    """A digest of what was counted in a model before."""
    found = hashlib.sha256()
    for path, layer in model.named_modules():
        for name, h in _histograms(layer):
            found.update(f"{path}.{name} {h.low!r} {h.high!r} {h.earlier!r} {h.method}\n".encode())
            found.update(h.places.numpy().tobytes() + h.counts.contiguous().numpy().tobytes())
    return found.hexdigest()


def _histograms(layer: nn.Module) -> list[tuple[str, Histogram]]:
    ranges = layer.ranges.values() if isinstance(layer, QuantizedBase) else ()
    return [(each.name, each.histogram) for each in ranges if each.histogram is not None]


def _exchange(own: Parts) -> list[Parts]:
    """What every process says, by its rank; the group's time limit holds.

    Raises:
        UsageError: A process has ended, does not come in time, or has another linger.
    """
    distributed = torch.distributed
    said: list[Any] = [None] * distributed.get_world_size()
    try:
        distributed.all_gather_object(said, encode(own))
    except (RuntimeError, EOFError) as error:
        raise UsageError(
            "calibration: another process of the group has ended, or did not come to the end of the block within the group's "
            f"time limit ({in_one_line(error)}). All ranges are as they were; run the same blocks in every process."
        ) from error
    parts: list[Parts] = []
    wrong = []
    for rank, content in enumerate(said):
        try:
            parts.append(decode(content))
            if parts[-1].version != parts[0].version:
                raise UnreadableError(f"has linger {parts[-1].version}, and rank 0 has {parts[0].version}")
        except UnreadableError as fault:
            wrong.append(f"rank {rank} {fault}")
    _refuse(wrong, "Install the same linger in every process.")
    return parts


def _check(everybody: Sequence[Parts]) -> None:
    """Refuse what cannot be merged: by what all processes know, so that all raise the same."""
    ranks = list(enumerate(each.facts for each in everybody))
    failed = [f"rank {rank} failed inside the block ({said['failed']})" for rank, said in ranks if "failed" in said]
    _refuse(failed, "Look at what it says.")
    idle = [f"rank {rank} ran no quantized model inside the block" for rank, said in ranks if not said["passes"]]
    if len(idle) == len(ranks):
        return  # one process alone warns of it
    _refuse(idle, "Give every process a part of the data.")
    methods = _unlike_first(everybody, "plan", "has other methods than rank 0")
    _refuse(methods, "Call calibration with the same arguments in every process.")
    models = [f"rank {rank} {told}" for rank, each in enumerate(everybody) for told in _different(everybody[0], each)]
    _refuse(models, "Load the same model in every process.")
    before = _unlike_first(everybody, "before", "had counted other data than rank 0")
    _refuse(before, "Load the same checkpoint in every process before the block; that forgets what was counted.")


def _unlike_first(everybody: Sequence[Parts], fact: str, what: str) -> list[str]:
    first = everybody[0].facts[fact]
    return [f"rank {rank} {what}" for rank, each in enumerate(everybody) if each.facts[fact] != first]


def _different(own: Parts, other: Parts) -> list[str]:
    if set(own.models) != set(other.models):
        names = [[label.partition(":")[2] or "the whole model" for label in parts.models] for parts in (other, own)]
        return [f"ran {listing(names[0])}, and rank 0 {listing(names[1])}"]
    found: list[str] = []
    for label, (description, _) in own.models.items():
        told = differences(description, other.models[label][0])
        if told:
            found.append(f"has another model than rank 0: its model {' and '.join(told)}")
    return found


def _refuse(wrong: Sequence[str], remedy: str) -> None:
    if wrong:
        raise UsageError(f"calibration: {listing(wrong)}. All ranges are as they were. {remedy}")


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
        UsageError: The model is not quantized, nothing was counted in it, or the file cannot be written.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration():
    ...     _ = model(torch.rand(8, 4))
    >>> linger.save_statistics(model, "part0.stat")  # doctest: +SKIP
    """
    quantized_ranges(model, "save_statistics")
    parts = Parts({_MODEL: (describe(model), collect_part(model, lambda found: found.histogram))})
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
        UsageError: The model is not quantized; a file is missing, damaged, foreign, of another format, of another model or
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
        for found_range, histogram in install_part(model, merge_parts(parts.models[_MODEL][1] for parts in ordered)):
            found_range.histogram = histogram
            found_range.restart_learning()
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
            _check_ranges(model, parts)
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


def _check_ranges(model: nn.Module, parts: Parts) -> None:
    """Refuse ranges and constants that a layer of the model does not have; a function may still get its layer."""
    modules = dict(model.named_modules())
    for path, found in parts.models[_MODEL][1].items():
        layer = modules.get(path)
        if layer is None:
            continue
        buffers = dict(layer.named_buffers(recurse=False))
        unknown = [name for name in found.ranges if f"running_{name}" not in buffers]
        unknown += [name for name in found.constants if name not in buffers]
        if unknown:
            raise UnreadableError(
                f"is damaged: it has {f'{path}.{unknown[0]}'.lstrip('.')!r}, which the model does not"
            )
