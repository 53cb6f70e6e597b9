# SPDX-License-Identifier: Apache-2.0
"""Calibration: forward passes in real numbers that set the scales, by a method that may be changed later without data.

In a group of processes, passes inside a calibration block are local. Where it ends, all processes tell each other once what they have
counted, and raise the same sentence everywhere if that fails: a process that fails takes part, too, so that no other one waits for it
in vain. Without a group, each job counts a part of the data and saves it to a file, and one job merges the files.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linger.errors import UsageError, in_one_line, listing
from linger.files import write_atomically
from linger.numeric.torch.quantize import ZEROS
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
from linger.quantization.core.methods import Plan, apply_ranges, check_patterns, find_ranges, uncounted
from linger.quantization.core.observation import CALIBRATION, Calibration, Counter, Histogram, histograms_of
from linger.quantization.core.quantized import QuantizedBase, layers_of, quantized_ranges, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Runtime, is_in_group, required_runtime, scope_of
from linger.quantization.core.stored import Kind

Counts = list[tuple[Range, Histogram]]
"""What was counted for ranges."""

_MODEL = ""  # the label of the only model of a file

AnyPath = str | os.PathLike[str]


@contextmanager
def calibration(
    method: str | None = None,
    *,
    inputs: str | None = None,
    weights: str | None = None,
    outputs: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Forward passes inside this block set the scales of every quantized layer they reach.

    The model computes in real numbers meanwhile, so the ranges are those of the float network, for any number of batches in
    any order. Gradients are off. A second block adds to what the first one found. An error inside the block leaves all ranges
    as they were.

    In a process group (torch.distributed) each process runs its own data, and at the end of the block all of them exchange
    what was counted: every one has the ranges of all data, and rank 0 gives the warnings. Every process needs the block.

    Args:
        method: How a range follows from the numbers that were seen: "max" (nothing saturates), "percentile", "mse", "kl",
            "topk", or a method registered with `calibration_method`. An option follows a colon: "percentile:99.9". None:
            "max", or, where no method at all is given, those of the model's configuration.
        inputs: Another method for the ranges of inputs.
        weights: Another method for those of weights; what it finds is kept in the checkpoint. `max` as the method of
            everything leaves such choices alone; given here it removes them.
        outputs: Another method for those of outputs, functions included.
        layers: Methods of single layers, by path ("block.conv"), pattern ("block.*") or range ("block.conv.o").

    Warns at its end where no model ran, where data were all zero or constant, where an input left the device's format, and
    where a chip lets pass what the float network cuts (ReLU6).

    Raises:
        UsageError: A method or a layer is unknown; the data hold NaN; a process of the group has failed, had no data, has
            another model or does not come within the group's time limit.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration("mse", layers={"0.x": "percentile:99.9"}):
    ...     _ = model(torch.rand(8, 4))
    """
    is_open = all(each is None for each in (method, inputs, weights, outputs))
    method = "max" if method is None else method
    plan = Plan.read(
        "calibration", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers, is_open=is_open
    )
    is_group = is_in_group() and torch.distributed.get_world_size() > 1
    with _block(plan, _Group(plan) if is_group else None) as seen:
        yield
    for sentence in seen.findings():
        warnings.warn(sentence, stacklevel=3)


@contextmanager
def local_calibration() -> Iterator[None]:
    """`calibration()` of this process alone, whatever group it belongs to, for functions that only look at their own data."""
    with _block(Plan.read("calibration", "max", is_open=True), None) as seen:
        yield
    for sentence in seen.findings():
        warnings.warn(sentence, stacklevel=3)


@contextmanager
def collecting() -> Iterator[Calibration]:
    """`calibration()` without warnings and of this process alone, for passes that linger runs on its own account."""
    with _block(Plan.read("calibration", "max"), None) as seen:
        yield seen


def choose_ranges(
    model: nn.Module,
    method: str | None = None,
    *,
    inputs: str | None = None,
    weights: str | None = None,
    outputs: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> None:
    """Find the ranges of a calibrated model by another method, from what calibration has counted: no data are needed.

    The arguments are those of `calibration`; what no method is given for stays as it is. Scales that follow from several
    ranges are those of the next pass.

    Args:
        model: The model, quantized and calibrated in this process: a checkpoint holds ranges, but no counts.
        method: The method of all ranges.
        inputs: That of inputs.
        weights: That of weights, which needs no calibration.
        outputs: That of outputs.
        layers: Those of single layers.

    Raises:
        UsageError: The model is not quantized, a method or a layer is unknown, nothing was counted for a range; the model
            is as it was.
    """
    plan = Plan.read("choose_ranges", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers)
    ranges = quantized_ranges(model, "choose_ranges")
    check_patterns(plan.where, plan.layers, ranges)
    if missing := uncounted(ranges, plan):
        raise UsageError(
            f"choose_ranges: {listing(missing)}: nothing was counted for these ranges, because they come from a checkpoint or "
            "from training. Calibrate the model again in this process."
        )
    apply_ranges(ranges, find_ranges(ranges, plan, is_settled=False))


# one block
@contextmanager
def _block(plan: Plan, group: _Group | None) -> Iterator[Calibration]:
    around = CALIBRATION.get()
    backup = _Backup(first_seen=None if group is None else group.begin)
    block = Calibration(begin=backup.keep)
    try:
        with nullcontext() if group is None else group.told():
            token = CALIBRATION.set(block)
            try:
                with torch.no_grad():
                    yield block
            finally:
                CALIBRATION.reset(token)
                if around is not None:
                    around.passes += block.passes
            counts = _counts(block, backup)
            parts = None if group is None else group.collect(block, counts)
        if group is not None and parts is not None:
            counts = group.merge(block, parts)
        _settle(block, plan, backup, counts)
    except BaseException:
        backup.restore()
        raise


def _counts(seen: Calibration, backup: _Backup) -> Counts:
    """What was counted in the block, with the ranges before it; NaN or infinity in it is a `UsageError`."""
    counted: list[tuple[Range, Counter]] = seen.counted
    histograms = histograms_of([counter for _, counter in counted])
    if wrong := [f"{r.layer.path}.{r.name}" for (r, _), h in zip(counted, histograms, strict=True) if not h.is_finite]:
        raise UsageError(
            f"calibration: {listing(wrong)}: the data or the weights hold NaN or infinity, so no scale can be chosen. "
            "Check both; all ranges are as they were."
        )
    earlier = backup.ranges_before([range_ for range_, _ in counted])
    known = zip(counted, histograms, earlier, strict=True)
    return [(range_, replace(histogram, earlier=before)) for (range_, _), histogram, before in known]


def _settle(seen: Calibration, plan: Plan, backup: _Backup, counts: Counts) -> None:
    """Keep what was counted with the layers, and find the ranges by their methods."""
    for range_, histogram in counts:
        before = range_.histogram
        if range_.kind is Kind.WEIGHT:
            range_.histogram = replace(histogram, earlier=0.0)  # of all of them
        else:  # what an earlier block has counted says more than the range that it left
            range_.histogram = histogram if before is None else before.merged(replace(histogram, earlier=0.0))
    for range_, _ in counts:  # before anything looks at the ranges, which follow their parameters again
        range_.restart_learning()
    ranges: dict[str, Range] = {}
    for model in backup.models:
        ranges |= ranges_of(model)
    if seen.passes:
        check_patterns(plan.where, plan.layers, ranges)
    apply_ranges(ranges, find_ranges(ranges, plan, is_settled=True))


def real_copy(model: nn.Module) -> nn.Module:
    """A copy of a quantized model that computes in real numbers, in evaluation mode: the model's own float reference.

    Batch norms are folded and the limits of the constraint stage kept, nothing is rounded, no range is needed or changed.
    The modules and their paths are those of the model.

    Raises:
        UsageError: The model is not quantized.
    """
    required_runtime(model, "real_copy")
    reference = copy.deepcopy(model).eval()
    required_runtime(reference, "real_copy").stays_real = True
    return reference


# ranges as they were, so that a calibration that fails changes nothing
_OF_LAYER = ("input_range", "beyond", "floor")
_OF_RANGE = ("histogram", "width", "bound", "method")  # what a pass changes beside buffers


@dataclass(frozen=True)
class _Before:
    buffers: dict[str, Tensor | None]
    attributes: dict[str, Any]
    ranges: dict[Range, dict[str, Any]]
    learned: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, layer: QuantizedBase) -> _Before:
        """A copy of what a pass may change in a layer."""
        buffers = {name: None if b is None else b.detach().clone() for name, b in layer._buffers.items()}  # noqa: SLF001 - by name, with None
        attributes = {name: layer.__dict__[name] for name in _OF_LAYER if name in layer.__dict__}
        ranges = {each: {name: getattr(each, name) for name in _OF_RANGE} for each in layer.ranges.values()}
        parameters = [each.learned.parameter for each in layer.learned_ranges]
        return cls(buffers, attributes, ranges, [(p, p.detach().clone()) for p in parameters])

    def restore(self, layer: QuantizedBase) -> None:
        """Undo what passes have changed."""
        layer.put_buffers(self.buffers, {})
        for name in _OF_LAYER:
            layer.__dict__.pop(name, None)
        layer.__dict__.update(self.attributes)
        for each, attributes in self.ranges.items():
            each.__dict__.update(attributes)
        for parameter, value in self.learned:
            parameter.detach().copy_(value)  # in place: an optimizer may hold it


@dataclass
class _Backup:
    """The ranges of every model that ran in a block, as they were before.

    Attributes:
        models: These models, or the modules of them whose forward began a pass.
        first_seen: Called with each of them before its first pass.
    """

    models: list[nn.Module] = field(default_factory=list)
    first_seen: Callable[[nn.Module], None] | None = None
    _layers: dict[nn.Module, _Before] = field(default_factory=dict)

    def keep(self, model: nn.Module) -> None:
        """Copy what a pass of this model may change."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        if self.first_seen is not None:
            self.first_seen(model)
        for layer in layers_of(model).values():
            self._layers.setdefault(layer, _Before.of(layer))

    def restore(self) -> None:
        """Undo what passes have changed; layers of functions that they made are removed."""
        for model in self.models:
            for path, layer in layers_of(model).items():
                if layer in self._layers:
                    self._layers[layer].restore(layer)
                else:
                    parent, _, name = path.rpartition(".")
                    delattr(model.get_submodule(parent), name)

    def ranges_before(self, ranges: list[Range]) -> list[float]:
        """Ranges as they were; 0 where there was none. A device is asked once."""
        before = [self._layers[r.layer].buffers.get(r.running.key) if r.layer in self._layers else None for r in ranges]
        filled = [r.running.buffer.new_zeros(1) if b is None else b for r, b in zip(ranges, before, strict=True)]
        numbers = torch.cat([buffer.to(filled[0].device) for buffer in filled]).tolist() if filled else []
        return [number if math.isfinite(number) and number > ZEROS else 0.0 for number in numbers]


# the processes of a group
@dataclass
class _Begun:
    """A module whose forward began a pass, as it was before."""

    label: str
    runtime: Runtime
    path: str
    module: nn.Module
    description: Description
    counted: str

    def is_inside(self, other: _Begun) -> bool:
        """Whether the other one is around it."""
        is_other = self is not other and self.runtime is other.runtime
        return is_other and (not other.path or self.path.startswith(f"{other.path}."))


@dataclass
class _Group:
    """The processes that calibrate together, as one of them sees its block, and the methods of the block."""

    plan: Plan
    _begun: list[_Begun] = field(default_factory=list)

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
            "inputs": seen.input_ranges(),
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
        counts: Counts = []
        for root in self._roots():
            counts += install_part(root.module, merge_parts(each.models[root.label][1] for each in everybody))
        return counts

    def _roots(self) -> list[_Begun]:
        """The modules that began a pass, but for those inside another one."""
        return [begun for begun in self._begun if not any(begun.is_inside(other) for other in self._begun)]


def _counted_before(model: nn.Module) -> str:
    """A digest of what was counted in a model before."""
    digest = hashlib.sha256()
    for path, layer in model.named_modules():
        for each in layer.ranges.values() if isinstance(layer, QuantizedBase) else ():
            if (h := each.histogram) is not None:
                digest.update(f"{path}.{each.name} {h.low!r} {h.high!r} {h.earlier!r} {h.method}\n".encode())
                digest.update(h.places.numpy().tobytes() + h.counts.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _exchange(own: Parts) -> list[Parts]:
    """What every process says, by its rank; a `UsageError` where one has ended, is late, or has another linger."""
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
    each = [differences(description, other.models[label][0]) for label, (description, _) in own.models.items()]
    return [f"has another model than rank 0: its model {' and '.join(told)}" for told in each if told]


def _refuse(wrong: Sequence[str], remedy: str) -> None:
    if wrong:
        raise UsageError(f"calibration: {listing(wrong)}. All ranges are as they were. {remedy}")


# files
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
    parts = Parts({_MODEL: (describe(model), collect_part(model, lambda range_: range_.histogram))})
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
    parts = _read_all(model, [paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
    backup = _Backup()
    backup.keep(model)
    try:
        for range_, histogram in install_part(model, merge_parts(each.models[_MODEL][1] for each in parts)):
            range_.histogram = histogram
            range_.restart_learning()
        ranges = ranges_of(model)
        check_patterns(plan.where, plan.layers, ranges)
        apply_ranges(ranges, find_ranges(ranges, plan, is_settled=True))
    except BaseException:
        backup.restore()
        raise


def _read_all(model: nn.Module, paths: Sequence[AnyPath]) -> list[Parts]:
    """The content of all files, in an order of their own; a `UsageError` names those that cannot be merged."""
    if not paths:
        raise UsageError("merge_statistics: no file was given. Give the files that save_statistics has written.")
    own, wrong = describe(model), []
    files: dict[str, tuple[str, Parts]] = {}  # path and content by identity
    for path in [os.fspath(path) for path in paths]:
        try:
            parts = _read(path)
            _check_model(own, parts)
            _check_ranges(model, parts)
            if parts.identity in files:
                raise UnreadableError(f"holds the same counts as {files[parts.identity][0]}")
            files[parts.identity] = path, parts
        except UnreadableError as fault:
            wrong.append(f"{path} {fault}")
    if wrong:
        raise UsageError(
            f"merge_statistics: {'; '.join(wrong)}. Give each shard of this model once, as save_statistics has written it; "
            "the model is as it was."
        )
    return [parts for _, (_, parts) in sorted(files.items(), key=lambda entry: entry[0])]


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
    if different := differences(own, description):
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
    for path, layer in parts.models[_MODEL][1].items():
        if path not in modules:
            continue
        buffers = dict(modules[path].named_buffers(recurse=False))
        keys = {name: f"running_{name}" for name in layer.ranges} | {name: name for name in layer.constants}
        unknown = next((name for name, key in keys.items() if key not in buffers), None)
        if unknown is not None:
            raise UnreadableError(f"is damaged: it has {f'{path}.{unknown}'.lstrip('.')!r}, which the model does not")
