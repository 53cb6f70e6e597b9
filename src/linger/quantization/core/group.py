# SPDX-License-Identifier: Apache-2.0
"""The group of processes that train together (torch.distributed): whether there is one, and how its processes hear each other.

Every wait ends with the time limit of the group, in one sentence. A difference between the models of the processes, or a pass that
ended in an exception, is said in one sentence by every process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linger.errors import UsageError, listing
from linger.numeric.torch.scale import Scale, largest_of, smallest


def is_shared() -> bool:
    """Whether this process belongs to a group. A group of one follows the same rules as any other."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


class NotFiniteError(UsageError):
    """A tensor of this process holds NaN or infinity; the other processes will say so too."""


class Ends(NamedTuple):
    """What a pass has seen of one range: lowest and highest number, and whether the range was never seen before."""

    low: Scale
    high: Scale
    is_new: Any


class Batch(NamedTuple):
    """Numbers per channel that a batch norm has seen in a call, their mean and their (unbiased) variance."""

    size: int
    mean: Tensor
    var: Tensor


@dataclass
class Seen:
    """What a layer has seen in the pass at work, and keeps until all processes exchange it."""

    ends: dict[str, Ends] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def add(self, name: str, low: Scale, high: Scale, is_new: Any) -> None:
        """One more tensor of a range."""
        before = self.ends.get(name)
        if before is not None:
            low, high = smallest([low, before.low]), largest_of([high, before.high])
            is_new = before.is_new
        self.ends[name] = Ends(low, high, is_new)

    def clear(self) -> None:
        """Forget the pass."""
        self.ends.clear()
        self.batches.clear()


# what processes tell each other
def rank() -> int:
    """The number of this process."""
    return int(torch.distributed.get_rank())


def device_for(own: torch.device) -> torch.device:
    """Where the group takes tensors from: the device they are on, if its backend can, else the one that it can."""
    pairs = dict(pair.split(":") for pair in str(torch.distributed.get_backend_config()).split(",") if ":" in pair)
    if own.type in pairs or not pairs:
        return own
    kind = "cpu" if "cpu" in pairs else next(iter(pairs))
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


def gather(row: Tensor) -> Tensor:
    """The rows of all processes in their order; every process gives one of the same length."""
    distributed = torch.distributed
    rows = [torch.empty_like(row) for _ in range(distributed.get_world_size())]
    distributed.all_gather(rows, row)
    return torch.stack(rows)


def gather_text(text: str, device: torch.device) -> list[str]:
    """The texts of all processes in their order."""
    own = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(device)
    lengths = gather(torch.tensor([len(own)], device=device)).flatten().tolist()
    padded = torch.nn.functional.pad(own, (0, max(lengths) - len(own)))
    rows = gather(padded).cpu().numpy()
    return [bytes(line[:length]).decode() for line, length in zip(rows, lengths, strict=True)]


@contextmanager
def awaited(what: str) -> Iterator[None]:
    """Say in one sentence what was waited for where a collective inside the block fails or takes longer than the group allows.

    Raises:
        UsageError: So it is.
    """
    try:
        yield
    except RuntimeError as error:  # torch's errors of networks, backends and time limits
        count, limit = torch.distributed.get_world_size(), _time_limit()
        allowed = (
            "" if math.isinf(limit) else f" The group's time limit is {limit:g} s (init_process_group(timeout=…))."
        )
        cause = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"Process {rank()} waited for {what} of all {count} processes, which did not come: {cause}.{allowed} Every process must "
            "run every training pass of the model, with the same number of batches. Look for a process that has ended, or that "
            "skips a pass, and start again from a checkpoint."
        ) from error


def _time_limit() -> float:
    """Seconds that a collective may take; ∞ where torch does not tell."""
    backend_of = getattr(torch.distributed.group.WORLD, "_get_backend", None)
    options = None
    for device in ("cpu", "cuda"):
        try:
            options = options or (backend_of and backend_of(torch.device(device)).options)
        except (
            RuntimeError,
            AttributeError,
        ):  # the group has no backend for this device, or an older one without options
            continue
    limit = getattr(options, "_timeout", None)
    return math.inf if limit is None else float(limit.total_seconds())


# how a pass ended
@dataclass(frozen=True)
class Failure:
    """How the pass of a process ended: in an exception, or in numbers that are none."""

    text: str
    is_not_finite: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What the other processes are told of an exception."""
        is_not_finite = isinstance(error, NotFiniteError)
        return cls(str(error) if is_not_finite else f"{type(error).__name__}: {error}", is_not_finite)


def refuse_failures(failures: Mapping[int, Failure], own: BaseException | None) -> None:
    """Raise one sentence where the pass of a process has failed; an exception of this process goes on by itself.

    Raises:
        UsageError: One has.
    """
    if not failures:
        return
    of_numbers = [f"Process {n}: {f.text}" for n, f in failures.items() if f.is_not_finite]
    stopped = [
        f"Process {n} has stopped in this training pass ({f.text})." for n, f in failures.items() if not f.is_not_finite
    ]
    sentence = " ".join([*of_numbers, *stopped])
    if isinstance(own, NotFiniteError):
        own.args = (sentence,)  # that of all processes
    raise UsageError(sentence)


# whether all processes have one model
def agree(
    layers: Mapping[str, str], failure: Failure | None, own: BaseException | None, device: torch.device
) -> set[str]:
    """Compare the models of all processes; returns the functions that some have not called yet and this one lacks.

    `layers` says of each layer what it is. What begins with `FUNCTION` may be missing elsewhere: a process makes it when it
    first calls the function.

    Raises:
        UsageError: The models differ, or the pass of a process has failed.
    """
    ended = None if failure is None else [failure.text, failure.is_not_finite]
    told = [json.loads(text) for text in gather_text(json.dumps([dict(layers), ended]), device)]
    refuse_failures({n: Failure(*ended) for n, (_, ended) in enumerate(told) if ended is not None}, own)
    models: list[dict[str, str]] = [model for model, _ in told]
    paths = sorted({path for model in models for path in model})
    found = {path: [model.get(path) for model in models] for path in paths}
    missing = {path for path, kinds in found.items() if all(k is None or k.startswith(FUNCTION) for k in kinds)}
    different = [
        _difference(path, kinds) for path, kinds in found.items() if path not in missing and len(set(kinds)) > 1
    ]
    if different:
        raise UsageError(
            f"The processes do not train one model: {listing(different)}. Build the same model, with the same types and versions, "
            "in every process."
        )
    return missing - set(layers)


FUNCTION = "function"
"""Begins what is said of a range that belongs to a function."""


def _difference(path: str, kinds: Sequence[str | None]) -> str:
    """Which processes have which kind of a layer."""
    by_kind: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        by_kind.setdefault("missing" if kind is None else kind, []).append(number)
    return f"{path} is {' and '.join(f'{kind} in {_processes(numbers)}' for kind, numbers in by_kind.items())}"


def _processes(numbers: Iterable[int]) -> str:
    names = [str(n) for n in numbers]
    return f"process {names[0]}" if len(names) == 1 else f"processes {listing(names, limit=8)}"
