# SPDX-License-Identifier: Apache-2.0
"""LSTMInt: one layer of an LSTM in one direction, all gates in fixed point.

The file's node has 5 inputs, 6 with lengths, 8 with lengths and state; several layers and directions are several nodes.
States are real numbers at the edges of the node (h = q/scale_h, c = q/128), so what one call returns the next one takes
without loss. Gates in PyTorch's order: i, f, g, o. `scale_o` repeats `scale_h`; `num_layers` is 1 and `dropout` 0.
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
    "LSTMInt",
    forms=(("x", *_WEIGHTS), ("x", "lengths", *_WEIGHTS), ("x", "lengths", "h", "c", *_WEIGHTS)),
    outputs=("y", "h", "c"),
    aliases=("LSTMInt_Is8_Is64", "LSTMInt_Is8_Is64_If32_If32"),
    newer=(Newer("QLSTM", inputs=("x", "h", "c", *_WEIGHTS), own=_STATES),),
    real_inputs=("h", "c"),
    weight_axes=2,
    keeps_open_sizes=False,
    chip_limits=("recurrent",),
)
def lstm_int(
    k: Kernel[T],
    x: T,
    lengths: T | None,
    h: T | None,
    c: T | None,
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
) -> tuple[T, T, T]:
    """Gates = sat16(⌊x·w_ihᵀ + b_ih⌉ + ⌊h·w_hhᵀ + b_hh⌉) in Q11; s = f·c + i·g; c' = sat16(⌊s/2^7⌉); h' = sat(⌊o·tanh(sat16(⌊s/2^3⌉))·scale_h/2^14⌉).

    i, f, o: sigmoid, g: tanh, in Q7; ⌊·⌉ rounds half up.
    """
    kit = StateKit(k, o_bits=o_bits, scale_h=scale_h)
    from_input = k.div(k.scalar(2.0**11), k.mul(k.scalar(scale_i), k.scalar(scale_iw)))
    from_input = blocks.scaled_rows(k, from_input, exponents_iw)
    of_input = k.rounded_product(w_ih, b_ih, from_input, axes=3)
    steps = of_input(k.narrow(k.to_steps(x, lengths, batch_first=batch_first, go_forward=go_forward)))
    from_state = blocks.scaled_rows(k, kit.to_gates(scale_hw), exponents_hw)

    def prepare() -> Callable[[tuple[T, ...], T], tuple[T, ...]]:
        gates = GateKit(k, ("sigmoid", "sigmoid", "tanh", "sigmoid"), b_hh)
        of_state = k.rounded_product(w_hh, b_hh, from_state, axes=2)
        to_output, to_q11 = k.narrow(k.div(kit.scale_h, k.scalar(Q7))), kit.number(16.0)

        def step(states: tuple[T, ...], of_step: T) -> tuple[T, ...]:
            h, c = states
            i, f, g, o = gates.activated(k.add(of_step, of_state(h)))
            s = k.add(k.mul(f, c), k.mul(i, g))  # Q7: f and i are factors
            inner = k.mul(gates.tanh(k.mul(s, to_q11)), to_output)
            h = k.clip(kit.rounded(k.mul(o, inner)), *kit.state_ends)
            return h, k.clip(kit.rounded(s), *kit.cell_ends)

        return step

    first = (
        k.zero_state(steps, w_hh) if h is None else kit.quantized(k.squeeze_first(h), kit.scale_h, kit.state_ends),
        k.zero_state(steps, w_hh) if c is None else kit.quantized(k.squeeze_first(c), k.scalar(Q7), kit.cell_ends),
    )
    cell = kit.cell("LSTM", w_hh, b_hh, from_state)
    last, stacks = k.recurrence(cell, prepare, first, steps, stacked=1 if lengths is None else 2)
    if lengths is not None:
        last = tuple(k.at_end(stack, lengths) for stack in stacks)
    y = k.from_steps(stacks[0], lengths, batch_first=batch_first, go_forward=go_forward)
    h_end, c_end = k.div(k.wide(last[0]), kit.scale_h), k.div(k.wide(last[1]), k.scalar(Q7))
    return k.store(y, o_bits), k.real(k.unsqueeze_first(h_end)), k.real(k.unsqueeze_first(c_end))


lstm_int.layer("torch.nn.LSTM")(recurrent_layer)
lstm_int.layer("torch.nn.LSTMCell")(no_settings)  # a cell is one step of the layer


@lstm_int.narrow
def float32_suffices(inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    """Whether products, places in tables and sums stay exact. The rest is small: f·c < 2^22, o·tanh < 2^14.

    |gates| of the input are below 2^22, those of the state below 2^18: a table as wide as these can reach has 2^20
    numbers. An output scale beyond 2^20 would shift o·tanh out of float32.
    """
    a = attributes
    input_scale, state_scale = a["scale_i"] * a["scale_iw"], a["scale_h"] * a["scale_hw"]
    of_input = largest_gate(inputs["w_ih"], inputs["b_ih"], a["data_bits"], input_scale, a.get("exponents_iw", ()))
    of_state = largest_gate(inputs["w_hh"], inputs["b_hh"], a["o_bits"], state_scale, a.get("exponents_hw", ()))
    return of_input < 2.0**22 and of_state < 2.0**18 and a["scale_h"] <= 2.0**20


lstm_int.samples = Sample.recurrent(4, (0.5, 1.5))
