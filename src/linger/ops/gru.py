# SPDX-License-Identifier: Apache-2.0
"""GRUInt: one layer of a GRU in one direction, all gates in fixed point.

PyTorch's equation in the formats of LSTMInt: the reset gate multiplies the product of the hidden state and its weights.
(Engines disagree on it; some reset the state before the product, which is another network.) The node has 5 inputs, 6 with
lengths, 7 with lengths and state, which is real at the edges of the node (h = q/scale_h). Gates in PyTorch's order: r, z,
n. `scale_o` repeats `scale_h`; `num_layers` is 1 and `dropout` 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from linger.dialect import Newer, no_settings, op, recurrent_layer
from linger.numeric import blocks
from linger.numeric.curves import Q7, GateKit, StateKit, largest_gate
from linger.numeric.kernel import Ints, Kernel, Sample, T

_WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")
_STATES = dict.fromkeys(("scale_c", "has_hidden", "has_cell"))


@op(
    "GRUInt",
    forms=(("x", *_WEIGHTS), ("x", "lengths", *_WEIGHTS), ("x", "lengths", "h", *_WEIGHTS)),
    outputs=("y", "h"),
    form_names=("GRUInt", "GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32"),
    newer=(Newer("QGRU", inputs=("x", "h", *_WEIGHTS), own=_STATES),),
    real_inputs=("h",),
    weight_axes=2,
    keeps_open_sizes=False,
    chip_limits=("recurrent",),
)
def gru_int(
    k: Kernel[T],
    x: T,
    lengths: T | None,
    h: T | None,
    w_ih: T,
    w_hh: T,
    b_ih: T,
    b_hh: T,
    *,
    input_size: int,
    hidden_size: int,
    batch_first: int,
    go_forward: int,
    scale_i: float,
    scale_h: float,
    scale_iw: float,
    scale_hw: float,
    scale_o: float,
    data_bits: int,
    parameter_bits: int,
    o_bits: int,
    num_layers: int = 1,
    dropout: float = 0.0,
    exponents_iw: Ints = (),
    exponents_hw: Ints = (),
) -> tuple[T, T]:
    """N = tanh(sat16(i_n + ⌊r·h_n/2^7⌉)); h' = sat(⌊(n·2^7 + z·(⌊h·2^7/scale_h⌉ − n))·scale_h/2^14⌉).

    i = ⌊x·w_ihᵀ + b_ih⌉ and h = ⌊h·w_hhᵀ + b_hh⌉ in Q11; r, z = sigmoid(sat16(i + h)) and n in Q7; ⌊·⌉ rounds half up.
    """
    kit = StateKit(k, o_bits=o_bits, scale_h=scale_h)
    from_input = k.div(k.scalar(2.0**11), k.mul(k.scalar(scale_i), k.scalar(scale_iw)))
    from_input = blocks.scaled_rows(k, from_input, exponents_iw)
    of_input = k.rounded_product(w_ih, b_ih, from_input, axes=3)
    steps = of_input(k.narrow(k.to_steps(x, lengths, batch_first=batch_first, go_forward=go_forward)))
    from_state = blocks.scaled_rows(k, kit.to_gates(scale_hw), exponents_hw)

    def prepare() -> Callable[[tuple[T, ...], T], tuple[T, ...]]:
        gates = GateKit(k, ("sigmoid", "sigmoid", "sigmoid"), b_hh)
        of_state = k.rounded_product(w_hh, b_hh, from_state, axes=2)
        to_output = k.narrow(k.div(kit.scale_h, k.scalar(Q7)))
        to_q7 = k.narrow(k.div(k.scalar(Q7), kit.scale_h))

        def step(states: tuple[T, ...], of_step: T) -> tuple[T, ...]:
            (h,) = states
            of_h = of_state(h)
            r, z, _ = gates.activated(k.add(of_step, of_h))  # the third is no sigmoid; it is cheaper to let it be one
            i_n, h_n = k.split(of_step, 3, -1)[2], k.split(of_h, 3, -1)[2]
            n = gates.tanh(k.add(i_n, kit.rounded(k.mul(r, h_n))))  # r and z are factors
            before = kit.rounded(k.mul(h, to_q7))
            after = k.add(n, k.mul(z, k.sub(before, n)))  # Q7
            return (k.clip(kit.rounded(k.mul(after, to_output)), *kit.state_ends),)

        return step

    first = k.zero_state(steps, w_hh) if h is None else kit.quantized(k.squeeze_first(h), kit.scale_h, kit.state_ends)
    cell = kit.cell("GRU", w_hh, b_hh, from_state)
    (last,), (stack,) = k.recurrence(cell, prepare, (first,), steps, stacked=1)
    if lengths is not None:
        last = k.at_end(stack, lengths)
    y = k.from_steps(stack, lengths, batch_first=batch_first, go_forward=go_forward)
    return k.store(y, o_bits), k.real(k.unsqueeze_first(k.div(k.wide(last), kit.scale_h)))


gru_int.layer("torch.nn.GRU")(recurrent_layer)
gru_int.layer("torch.nn.GRUCell")(no_settings)  # a cell is one step of the layer


@gru_int.narrow
def float32_suffices(inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    """Whether products and sums stay exact: r·h_n below 2^24, so |h_n| < 2^17; z·(h − n) below 2^24, so |h| < 2^16 in Q7.

    An output scale beyond 2^20 would shift the result out of float32.
    """
    a = attributes
    input_scale, state_scale = a["scale_i"] * a["scale_iw"], a["scale_h"] * a["scale_hw"]
    of_input = largest_gate(inputs["w_ih"], inputs["b_ih"], a["data_bits"], input_scale, a.get("exponents_iw", ()))
    of_state = largest_gate(inputs["w_hh"], inputs["b_hh"], a["o_bits"], state_scale, a.get("exponents_hw", ()))
    state = 2.0 ** (a["o_bits"] - 1) * Q7 / a["scale_h"]
    return of_input < 2.0**22 and of_state < 2.0**17 and state < 2.0**16 and a["scale_h"] <= 2.0**20


gru_int.samples = Sample.recurrent(3, (0.5,))
