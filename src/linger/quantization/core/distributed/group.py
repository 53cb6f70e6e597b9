# SPDX-License-Identifier: Apache-2.0
"""How the processes that train together (torch.distributed) hear each other.

Every wait ends with the time limit of their group, in one sentence. A difference between the models of the processes, or a pass that
ended in an exception, is said in one sentence by every process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linger.errors import UsageError, listing
from linger.quantization.core.stored import NotFiniteError

_SHORTEST = 4096  # numbers of a row at first. A failure and its message fit in.

HELLO = -1.0
"""In the place of a digest: the process wants to compare models."""

FUNCTION = "function"
"""Begins what is said of a range that belongs to a function."""


class GroupError(UsageError):
    """Every process knows of it: nobody waits."""


class Group:
    """The processes of the default group of torch.distributed, with connections of their own.

    So a process that has gone on to something else is waited for, instead of taking its message for a row of numbers. All models
    of a process share these connections.

    Attributes:
        length: Numbers of a row, whatever is told, the same in all processes at any time: messages of different lengths would end
            a process.
    """

    def __init__(self) -> None:
        distributed = torch.distributed
        self._limit = _time_limit(distributed.group.WORLD)
        self.rank, self.size = int(distributed.get_rank()), int(distributed.get_world_size())
        self.length = _SHORTEST
        try:
            self._group = distributed.new_group(timeout=self._limit)
        except RuntimeError as error:  # torch's errors of stores, networks and time limits
            raise GroupError(self._no_answer(error)) from error

    @classmethod
    def of_all(cls) -> Group:
        """That of the default group as it is now; a `GroupError` where a process does not answer."""
        world = torch.distributed.group.WORLD
        if world not in _GROUPS:
            _GROUPS[world] = cls()
        return _GROUPS[world]

    @staticmethod
    def device_for(own: torch.device) -> torch.device:
        """Where the group takes tensors from: the device they are on, if its backend can, else the one that it can."""
        pairs = dict(pair.split(":") for pair in str(torch.distributed.get_backend_config()).split(",") if ":" in pair)
        if own.type in pairs or not pairs:
            return own
        kind = next(iter(pairs))
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())

    def gather(self, row: Tensor, small: int) -> tuple[Tensor, Tensor]:
        """What all processes tell in their order, and so many of the first numbers on the host.

        A row is sent with `length` numbers.

        Raises:
            GroupError: A process does not answer.
        """
        return self._gather(torch.nn.functional.pad(row[: self.length], (0, max(self.length - len(row), 0))), small)

    def _gather(self, row: Tensor, small: int) -> tuple[Tensor, Tensor]:
        rows = [torch.empty_like(row) for _ in range(self.size)]
        try:
            torch.distributed.all_gather(rows, row, group=self._group)
            together = torch.stack(rows)
            return together, together[:, :small].cpu()
        except RuntimeError as error:  # torch's errors of networks, backends and time limits
            raise GroupError(self._no_answer(error)) from error

    def _no_answer(self, error: RuntimeError) -> str:
        cause, limit = str(error).strip().partition("\n")[0].rstrip("."), self._limit
        allowed = "" if limit is None else f" The time limit of the group is {limit.total_seconds():g} s."
        return (
            f"Process {self.rank} waited for what the {self.size} processes have seen in a training pass, and one did not answer "
            f"({cause}).{allowed} Every process of the default group must run every training pass of the model: look for one that has "
            "ended, hangs, has fewer batches or trains in another group, and go on from a checkpoint."
        )

    def gather_text(self, text: str, device: torch.device) -> list[str]:
        """The texts of all processes in their order; waits for those that only learn now that texts are wanted."""
        own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
        hello = torch.tensor([HELLO, 0.0, len(own)], dtype=torch.float64, device=device)
        heads: list[list[float]] = [[0.0]]
        while any(head[0] != HELLO for head in heads):
            heads = self.gather(hello, 3)[1].tolist()
        lengths = [int(length) for _, _, length in heads]
        longest = max(lengths)
        _, rows = self._gather(torch.nn.functional.pad(own, (0, longest - len(own))), longest)
        return [bytes(line[:length].tolist()).decode() for line, length in zip(rows, lengths, strict=True)]

    def lengthen(self, length: int, device: torch.device) -> None:
        """Let rows have as many numbers as the process needs that needs most; all come here after they have agreed."""
        _, told = self.gather(torch.tensor([HELLO, 0.0, length], dtype=torch.float64, device=device), 3)
        self.length = max(self.length, *map(int, told[:, 2].tolist()))


_GROUPS: WeakKeyDictionary[object, Group] = WeakKeyDictionary()
"""By torch's default group, which is one of the whole process, too, and with which an entry goes."""


def _time_limit(group: object) -> timedelta | None:
    """How long a collective of a group may take; None where torch does not tell: then it has the one of new groups."""
    for device in ("cpu", "cuda"):
        try:
            limit: timedelta = group._get_backend(torch.device(device)).options._timeout  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public one
        except (RuntimeError, AttributeError):  # no backend for this device
            continue
        return limit
    return None


# how a pass ended
def failure_of(error: BaseException) -> tuple[str, bool]:
    """What the other processes are told of an exception, and whether a tensor held NaN or infinity."""
    is_not_finite = isinstance(error, NotFiniteError)
    return str(error) if is_not_finite else f"{type(error).__name__}: {error}", is_not_finite


def refuse_failures(failures: Mapping[int, tuple[str, bool]], own: BaseException | None) -> None:
    """Raise one `GroupError` where passes of processes have failed; an exception of this process goes on by itself."""
    if not failures:
        return
    of_numbers = [f"Process {n}: {text}" for n, (text, is_not_finite) in failures.items() if is_not_finite]
    stopped = {n: text for n, (text, is_not_finite) in failures.items() if not is_not_finite}
    told = [f"Process {n} has stopped in this training pass ({text})." for n, text in stopped.items()]
    sentence = " ".join([*of_numbers, *told])
    if isinstance(own, NotFiniteError):
        own.args = (sentence,)  # that of all processes
    raise GroupError(sentence)


# whether all processes have one model
def agree(group: Group, layers: Mapping[str, str], own: BaseException | None, device: torch.device) -> set[str]:
    """Compare the models of all processes; returns the functions that some have not called yet and this one lacks.

    `layers` says of each layer what it is, `own` how the pass of this process ended. What begins with `FUNCTION` may be missing
    elsewhere: a process makes it when it first calls the function.

    Raises:
        GroupError: The models differ, or the pass of a process has failed.
    """
    ended = None if own is None else failure_of(own)
    told = [json.loads(text) for text in group.gather_text(json.dumps([dict(layers), ended]), device)]
    refuse_failures({n: ended for n, (_, ended) in enumerate(told) if ended is not None}, own)
    return _shared_functions([model for model, _ in told]) - set(layers)


def _shared_functions(models: Sequence[Mapping[str, str]]) -> set[str]:
    """The functions of models that have the same layers; a `GroupError` where they do not."""
    kinds_at = {path: [model.get(path, "missing") for model in models] for path in sorted(set().union(*models))}
    functions = {path for path, kinds in kinds_at.items() if _is_function(kinds)}
    others = [(path, kinds) for path, kinds in kinds_at.items() if path not in functions]
    different = [_difference(path, kinds) for path, kinds in others if len({*kinds}) > 1]
    if different:
        raise GroupError(
            f"The processes do not train one model: {listing(different)}. Build the same model, with the same types, widths and "
            "versions, in every process."
        )
    return functions


def _is_function(kinds: Sequence[str]) -> bool:
    """Whether only functions are at a path, in the processes that have called them."""
    return all(kind == "missing" or kind.startswith(FUNCTION) for kind in kinds)


def _difference(path: str, kinds: Sequence[str]) -> str:
    """Which processes have which kind of a layer."""
    by_kind: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(number)
    names = {kind: listing(map(str, numbers), limit=8) for kind, numbers in by_kind.items()}
    told = [f"{kind} in process{'es' if len(by_kind[kind]) > 1 else ''} {names[kind]}" for kind in by_kind]
    return f"{path} is {' and '.join(told)}"
