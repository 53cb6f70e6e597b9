# SPDX-License-Identifier: Apache-2.0
"""A quantised LSTMCell or GRUCell: one step of the same node, its state carried by the caller."""

from __future__ import annotations

from typing import Any

from linger.constraint.marks import Widths
from linger.dialect import Op
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.runtime import Runtime
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.layers.recurrent_state import each


class QuantCell(QuantRecurrent):
    """One step: what it returns is the state of the next call, without loss."""

    def __init__(self, op: Op, source: Any, widths: Widths, runtime: Runtime) -> None:
        self.set_up(op, source, widths, runtime, layers=1, directions=1, suffix=lambda _layer, _back: "")
        self.batch_first, self.dropout, self.bidirectional = False, 0.0, False
        self.train(source.training)

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name, as a caller may write it
        """The new state: h, or h and c."""
        if input.dim() == 1:  # without a batch
            states = None if hx is None else each(hx, lambda s: s.unsqueeze(0))
            return each(self.forward(input.unsqueeze(0), states), lambda s: s.squeeze(0))
        states = None if hx is None else each(hx, lambda s: unwrap(s).unsqueeze(0))
        out, last = self.run_layers(input.unsqueeze(0), None, states, is_batch_first=False)
        real = last[0] if isinstance(last, tuple) else last
        h = out.like(out.content.squeeze(0))
        if isinstance(real, QTensor) and real.is_integer:
            h.preset_real(real.dequantize().squeeze(0))
        return (h, last[1].squeeze(0)) if isinstance(last, tuple) else h
