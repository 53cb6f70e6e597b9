# SPDX-License-Identifier: Apache-2.0
"""Sequences, states and names of recurrent layers: what stays the same whichever cell runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linger.errors import UsageError
from linger.numeric.torch.kernel import beside
from linger.numeric.torch.scale import largest_of, smallest
from linger.quantization.core.qtensor import QTensor

_USUAL_BITS = 8
_SEQUENCE_AXES = 3


@dataclass(frozen=True)
class Sequences:
    """What a layer's nodes work on: [time, batch, …] or [batch, time, …], with lengths if they differ."""

    x: QTensor
    lengths: Tensor | None
    is_batch_first: bool


@dataclass(frozen=True)
class LayerResult:
    """One layer's output and last states: h [directions, batch, hidden] in the carrier of the output, real h and c."""

    out: QTensor
    h: Tensor
    real_h: Tensor | None
    c: Tensor | None


def check_shapes(
    where: str,
    x: tuple[int, ...],
    states: Sequence[tuple[int, ...]] | None,
    *,
    sizes: tuple[int, int, int],
    is_batch_first: bool,
    state_names: Sequence[str],
) -> None:
    """Refuse sequences and states that do not fit the layer; `sizes` are input size, states per sequence, hidden size.

    Raises:
        UsageError: All that is wrong.
    """
    width, rows, hidden = sizes
    wrong = []
    if len(x) != _SEQUENCE_AXES or x[-1] != width:
        order = "batch, time" if is_batch_first else "time, batch"
        wrong.append(f"the input has shape {list(x)}; expected [{order}, {width}]")
    elif states is not None and len(states) != len(state_names):
        wrong.append(f"{len(states)} states are given; expected {' and '.join(state_names)}")
    elif states is not None:
        expected = (rows, x[0 if is_batch_first else 1], hidden)
        pairs = [(name, state) for name, state in zip(state_names, states, strict=True) if state != expected]
        wrong += [f"the state {name} has shape {list(state)}; expected {list(expected)}" for name, state in pairs]
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}. Give the shapes that the float layer takes.")


def range_suffix(layer: int, back: int) -> str:
    """Keys of the first layer have none: such checkpoints are the documented ones."""
    return (f"_l{layer}" if layer else "") + ("_reverse" if back else "")


def each(states: Any, change: Any) -> Any:
    """Both states of an LSTM, or the one of a GRU, changed alike."""
    return tuple(change(s) for s in states) if isinstance(states, tuple) else change(states)


def have_one_scale(outs: Sequence[QTensor]) -> bool:
    """Whether the outputs of a stack share their scale; this much must be read from a device, for it decides what follows."""
    scales = [out.scale for out in outs]
    if len(scales) > 1 and any(isinstance(s, Tensor) for s in scales):
        return bool(smallest(scales) == largest_of(scales))
    return len(set(scales)) == 1


def ordered(state: Any, order: Tensor | None) -> Any:
    """A state with its sequences in another order."""
    return state if order is None else state.index_select(1, order)


def joining(parts: Sequence[QTensor]) -> dict[str, Any]:
    """Attributes of the iqCat that joins both directions."""
    scales = {f"scale_x_{i}": part.scale for i, part in enumerate(parts)}
    return {
        **scales,
        "scale_o": parts[0].scale,
        "dim": 2,
        **({} if parts[0].bits == _USUAL_BITS else {"o_bits": parts[0].bits}),
    }


def full_lengths(sequences: Sequences) -> Tensor:
    """All steps of every sequence, as lengths."""
    shape = sequences.x.content.shape
    rows, steps = (shape[0], shape[1]) if sequences.is_batch_first else (shape[1], shape[0])
    return torch.zeros(rows, dtype=torch.int64, device=sequences.x.content.device) + steps


def at_end(out: Tensor, sequences: Sequences, back: int) -> Tensor:
    """The state after the last step [batch, hidden], from the output sequence."""
    time_first = out.transpose(0, 1) if sequences.is_batch_first else out
    if back:
        return time_first[0]
    if sequences.lengths is None:
        return time_first[-1]
    rows = torch.arange(sequences.lengths.shape[0], device=out.device)
    return time_first[beside(sequences.lengths, out) - 1, rows]
