# SPDX-License-Identifier: Apache-2.0
"""What the gates of a recurrent layer sum up on average, W_ih·x + b_ih + W_hh·h + b_hh, in float and in integers.

The sums are computed here from what went in and came out, not inside the cell; the biases then take back their shift. In a GRU
the third gate is W_in·x + b_in + r·(W_hn·h + b_hn), with r from the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core.packing import unpack
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.layers.recurrent import QuantCell, QuantRecurrent
from linger.quantization.layers.recurrent_operands import ordered
from linger.tuning.bias_correction.channel_means import ChannelMeans

_GATES_OF_GRU = 3
_CELLS = (nn.RNNCellBase, QuantCell)
_WITHOUT_BATCH = 2
"""Axes of a sequence that is no batch."""


@dataclass(frozen=True)
class Weights:
    """Parameters of one direction, as real numbers."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None

    def sums(self, x: Tensor, h: Tensor) -> Tensor:
        """The sums of all gates, from inputs […, in] and the states before them […, hidden]."""
        given, own = F.linear(x, self.w_ih, self.b_ih), F.linear(h, self.w_hh, self.b_hh)
        size = self.w_hh.shape[1]
        if len(self.w_hh) != _GATES_OF_GRU * size:
            return given + own
        both = given[..., : 2 * size] + own[..., : 2 * size]
        reset = both[..., :size].sigmoid()
        return torch.cat([both, given[..., 2 * size :] + reset * own[..., 2 * size :]], -1)


@dataclass(frozen=True)
class Start:
    """How a call of a recurrent layer begins: [time, batch, …] with lengths if they differ, and states if there are any."""

    x: Tensor
    lengths: Tensor | None
    h: Tensor | None = None
    """[layers · directions, batch, hidden]."""
    c: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Start:
        """Read the arguments of a call, in any of the forms that torch takes."""
        given = dict(zip(("input", "hx"), args, strict=False)) | dict(kwargs)
        x, states = given["input"], _states_of(given.get("hx"))
        if isinstance(x, PackedSequence):
            padded, lengths = unpack(x)
            return cls(unwrap(padded), lengths, *(ordered(s, x.sorted_indices) for s in states))
        x = unwrap(x)
        if isinstance(module, _CELLS):
            rows = (t.reshape(1, -1, t.shape[-1]) for t in (x, *states))  # one step, maybe without a batch
            return cls(next(rows), None, *rows)
        is_batch_first = bool(module.batch_first)
        if x.dim() == _WITHOUT_BATCH:
            x, states = x.unsqueeze(0 if is_batch_first else 1), [s.unsqueeze(1) for s in states]
        return cls(x.transpose(0, 1) if is_batch_first else x, None, *states)

    def states_before(self, out: Tensor, row: int, *, is_backward: bool) -> Tensor:
        """The state before each step [time, batch, hidden] of one direction, from what that direction returned."""
        first = torch.zeros_like(out[0]) if self.h is None else self.h[row].to(out)
        if not is_backward:
            return torch.cat([first[None], out[:-1]])
        before = torch.cat([out[1:], first[None]])
        if self.lengths is None:
            return before
        before[self.lengths.to(out.device) - 1, torch.arange(out.shape[1], device=out.device)] = first
        return before

    def means(self, sums: Tensor) -> ChannelMeans:
        """Of the sums [time, batch, gates], over the steps that sequences have."""
        if self.lengths is None:
            return ChannelMeans.of(sums, -1)
        is_inside = torch.arange(len(sums), device=sums.device)[:, None] < self.lengths.to(sums.device)[None]
        return ChannelMeans.of(sums[is_inside], -1)


def _states_of(hx: Tensor | tuple[Tensor, ...] | None) -> list[Tensor]:
    """No states, h, or h and c."""
    return [] if hx is None else [unwrap(s) for s in (hx if isinstance(hx, tuple) else (hx,))]


def float_gates(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, ChannelMeans]]:
    """The keys of the input's biases of a layer in real numbers, and the means of the sums that they are part of."""
    start = Start.of(module, args, kwargs)
    if isinstance(module, _CELLS):
        before = start.states_before(start.x.new_zeros(1, start.x.shape[1], module.hidden_size), 0, is_backward=False)
        yield "bias_ih", start.means(_weights_of(module, "").sums(start.x, before))
        return
    x, count = start.x, 2 if module.bidirectional else 1
    for layer in range(module.num_layers):
        ends = [f"_l{layer}{back}" for back in ("", "_reverse")[:count]]
        out = _run_one_layer(module, ends, x, start, layer * count)
        for back, (end, part) in enumerate(zip(ends, out.chunk(count, -1), strict=True)):
            before = start.states_before(part, layer * count + back, is_backward=bool(back))
            yield f"bias_ih{end}", start.means(_weights_of(module, end).sums(x, before))
        x = out


def _weights_of(module: nn.Module, end: str) -> Weights:
    w_ih, w_hh = (module.get_parameter(f"weight_{role}{end}") for role in ("ih", "hh"))
    b_ih, b_hh = (getattr(module, f"bias_{role}{end}", None) for role in ("ih", "hh"))
    return Weights(w_ih, w_hh, b_ih, b_hh)


def _run_one_layer(module: Any, ends: list[str], x: Tensor, start: Start, row: int) -> Tensor:
    """The output [time, batch, directions · hidden] of one layer of a float stack."""
    is_gru = len(getattr(module, f"weight_hh{ends[0]}")) == _GATES_OF_GRU * module.hidden_size
    kind = nn.GRU if is_gru else nn.LSTM
    one = kind(x.shape[-1], module.hidden_size, bias=module.bias, bidirectional=len(ends) > 1, device=x.device)
    for end, name in zip(ends, ("_l0", "_l0_reverse"), strict=False):
        for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if module.bias else 2]:
            one.get_parameter(role + name).copy_(getattr(module, role + end))
    states = [None if s is None else s[row : row + len(ends)].contiguous() for s in (start.h, start.c)]
    hx: Any = None if states[0] is None else tuple(states) if kind is nn.LSTM else states[0]
    if start.lengths is None:
        out: Tensor = one(x, hx)[0]
        return out
    packed, _ = one(pack_padded_sequence(x, start.lengths.cpu()), hx)
    return pad_packed_sequence(packed, total_length=len(x))[0]


def quantized_gates(
    module: QuantRecurrent, start: Start, number: int, x: QTensor, out: QTensor, attributes: Mapping[str, Any]
) -> tuple[str, ChannelMeans]:
    """The same of one node of a quantized layer: the `number`th of its call, its input and output, and its attributes."""
    count = len(module.suffixes[0])
    layer, back = divmod(number, count)
    rounded = module.rounded_weights(layer, attributes["scale_i"], attributes["scale_h"])
    b_ih, b_hh = (None if b is None else b[back].float() for b in (rounded.b_ih, rounded.b_hh))
    weights = Weights(rounded.w_ih[back].float(), rounded.w_hh[back].float(), b_ih, b_hh)
    values, states = x.content.float(), out.content.float()
    if attributes["batch_first"]:
        values, states = values.transpose(0, 1), states.transpose(0, 1)
    h = None if start.h is None else fake_quantize(start.h.float(), out.scale, out.bits)
    before = replace(start, h=h).states_before(states, number, is_backward=bool(back))
    return f"bias_ih{module.suffixes[layer][back]}", start.means(weights.sums(values, before))
