# SPDX-License-Identifier: Apache-2.0
"""What the processes of a group tell each other when a calibration block ends: once, and the same sentence everywhere if it fails.

Passes inside the block are local. A process that fails takes part, too, so that no other one waits for it in vain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from linger.errors import UsageError, in_one_line, listing
from linger.quantization.core.histogram import Histogram
from linger.quantization.core.method_plan import Plan
from linger.quantization.core.observation import Calibration
from linger.quantization.core.runtime import Runtime, scope_of
from linger.quantization.core.sharding.coding import Parts, UnreadableError, decode, encode
from linger.quantization.core.sharding.description import Description, describe, differences
from linger.quantization.core.sharding.partial import collect_part, install_part, merge_parts
from linger.quantization.core.statistics import QuantizedBase

Counts = list[tuple[QuantizedBase, str, Histogram]]
"""What was counted for ranges of layers."""


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
        assert scope is not None  # a pass begins in a module of a quantised model
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
        own = {(id(layer), name): histogram for layer, name, histogram in counts}
        roots = self._roots()
        parts = {
            root.label: (root.description, collect_part(root.module, lambda layer, name: own.get((id(layer), name))))
            for root in roots
        }
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
        for name, h in layer.histograms.items() if isinstance(layer, QuantizedBase) else ():
            found.update(f"{path}.{name} {h.low!r} {h.high!r} {h.earlier!r} {h.method}\n".encode())
            found.update(h.places.numpy().tobytes() + h.counts.contiguous().numpy().tobytes())
    return found.hexdigest()


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
    facts = [each.facts for each in everybody]
    failed = [
        f"rank {rank} failed inside the block ({said['failed']})" for rank, said in enumerate(facts) if "failed" in said
    ]
    _refuse(failed, "Look at what it says.")
    if not any(said["passes"] for said in facts):
        return  # one process alone warns of it
    idle = [
        f"rank {rank} ran no quantised model inside the block" for rank, said in enumerate(facts) if not said["passes"]
    ]
    _refuse(idle, "Give every process a part of the data.")
    first = facts[0]
    methods = [
        f"rank {rank} has other methods than rank 0" for rank, said in enumerate(facts) if said["plan"] != first["plan"]
    ]
    _refuse(methods, "Call calibration with the same arguments in every process.")
    models = [f"rank {rank} {told}" for rank, each in enumerate(everybody) for told in _different(everybody[0], each)]
    _refuse(models, "Load the same model in every process.")
    before = [
        f"rank {rank} had counted other data than rank 0"
        for rank, said in enumerate(facts)
        if said["before"] != first["before"]
    ]
    _refuse(before, "Load the same checkpoint in every process before the block; that forgets what was counted.")


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
