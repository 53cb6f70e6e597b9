# SPDX-License-Identifier: Apache-2.0
"""The recurrent ops of the standard domain for `Reference`: lengths, activations and limits as their attributes say.

onnx's reference evaluator runs over the end of short sequences and knows the usual activations only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]
Weights = tuple[Any, ...]
"""W, R, both halves of the bias, and the peepholes (or None) of one direction."""

Functions = list[Callable[[Array], Array]]
Step = Callable[..., list[Array]]
"""The new states, from one input and the states before it."""


def _sigmoid(x: Array) -> Array:
    # e^−|x| never overflows
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1).astype(x.dtype) / (1 + small))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "softsign": lambda x: np.asarray(x / (1 + np.abs(x))),
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
}
"""Those that take neither alpha nor beta."""


class _Recurrent(OpRun):
    """Directions, lengths and layout, which all three share; a subclass has its gates, activations, states and step."""

    gates: int
    usual: tuple[str, ...]
    states: int
    _step: Callable[[Weights, Functions, dict[str, Any]], Step]

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        *more: Any,
        **settings: Any,
    ) -> tuple[Array, ...]:
        is_batch_first = bool(settings.get("layout"))
        given = (*more, None, None, None)
        states, peepholes = given[: self.states], given[self.states]
        if is_batch_first:
            x, states = np.swapaxes(x, 0, 1), tuple(s if s is None else np.swapaxes(s, 0, 1) for s in states)
        hidden, directions = r.shape[-1], w.shape[0]
        b = np.zeros((directions, 2 * self.gates * hidden), x.dtype) if b is None else b
        lengths = np.full(x.shape[1], x.shape[0]) if lengths is None else lengths
        zeros = np.zeros((x.shape[1], hidden), x.dtype)
        results = []
        for d, functions in enumerate(self._functions(settings, directions)):
            weights = (w[d], r[d], *np.split(b[d], 2), None if peepholes is None else peepholes[d])
            is_reverse = settings.get("direction") == "reverse" or d == 1
            start = [zeros if s is None else s[d] for s in states]
            results.append(
                _over_time(self._step(weights, functions, settings), x, start, lengths, is_reverse=is_reverse)
            )
        return _joined(results, is_batch_first=is_batch_first)[: len(self.onnx_node.output)]

    def _functions(self, settings: dict[str, Any], directions: int) -> list[Functions]:
        """The activations of each direction; each one clips its argument to the limit `clip` first."""
        names = [n.lower() for n in settings.get("activations") or [*self.usual] * directions]
        unknown = [name for name in names if name not in _ACTIVATIONS]
        if unknown or settings.get("activation_alpha") or settings.get("activation_beta"):
            raise NotImplementedError(f"activations {', '.join(names)} with alpha or beta are not computed")
        limit = settings.get("clip")
        made = [_limited(_ACTIVATIONS[name], limit) for name in names]
        return [made[i * len(self.usual) : (i + 1) * len(self.usual)] for i in range(directions)]


def _joined(results: list[tuple[Array, list[Array]]], *, is_batch_first: bool) -> tuple[Array, ...]:
    """The sequences and the last states of all directions."""
    sequence = np.stack([part for part, _ in results], axis=1)
    ends = [np.stack(states) for states in zip(*(states for _, states in results), strict=True)]
    if is_batch_first:
        sequence, ends = sequence.transpose(2, 0, 1, 3), [np.swapaxes(e, 0, 1) for e in ends]
    return (sequence, *ends)


def _limited(function: Callable[[Array], Array], limit: float | None) -> Callable[[Array], Array]:
    return function if not limit else lambda x: function(np.clip(x, x.dtype.type(-limit), x.dtype.type(limit)))


def _over_time(
    step: Step, x: Array, states: list[Array], lengths: Array, *, is_reverse: bool
) -> tuple[Array, list[Array]]:
    """Every hidden state, zero behind the end of a sequence, and the states at its end."""
    sequence = np.zeros((x.shape[0], *states[0].shape), x.dtype)
    times = range(x.shape[0])
    for t in reversed(times) if is_reverse else times:
        runs = (t < lengths)[:, np.newaxis]
        states = [np.where(runs, new, old) for new, old in zip(step(x[t], *states), states, strict=True)]
        sequence[t] = np.where(runs, states[0], 0)
    return sequence, states


def _rnn_step(weights: Weights, functions: Functions, _settings: dict[str, Any]) -> Step:
    """h = f(x·Wᵀ + h·Rᵀ + b)."""
    w, r, wb, rb, _ = weights
    return lambda x, h: [functions[0](x @ w.T + h @ r.T + wb + rb)]


def _gru_step(weights: Weights, functions: Functions, settings: dict[str, Any]) -> Step:
    """Gates z, r, h: h ← (1 − z)·h̃ + z·h."""
    (wz, wr, wh), (rz, rr, rh), (wbz, wbr, wbh), (rbz, rbr, rbh) = (np.split(part, 3) for part in weights[:4])
    f, g = functions
    is_linear_first = bool(settings.get("linear_before_reset"))

    def step(x: Array, h: Array) -> list[Array]:
        z, reset = f(x @ wz.T + h @ rz.T + wbz + rbz), f(x @ wr.T + h @ rr.T + wbr + rbr)
        kept = reset * (h @ rh.T + rbh) if is_linear_first else (reset * h) @ rh.T + rbh
        return [(1 - z) * g(x @ wh.T + kept + wbh) + z * h]

    return step


def _lstm_step(weights: Weights, functions: Functions, settings: dict[str, Any]) -> Step:
    """Gates i, o, f, c: c ← f·c + i·c̃, h = o·tanh(c); peepholes look at c."""
    w, r, wb, rb, peepholes = weights
    pi, po, pf = (0, 0, 0) if peepholes is None else np.split(peepholes, 3)
    f, g, end = functions
    is_coupled = bool(settings.get("input_forget"))

    def step(x: Array, h: Array, c: Array) -> list[Array]:
        i, o, forget, new = np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=-1)
        opened = f(i + pi * c)
        kept = 1 - opened if is_coupled else f(forget + pf * c)
        c = kept * c + opened * g(new)
        return [f(o + po * c) * end(c), c]

    return step


def _op(name: str, step: Callable[..., Step], gates: int, usual: tuple[str, ...], states: int = 1) -> type[OpRun]:
    return type(name, (_Recurrent,), {"_step": staticmethod(step), "gates": gates, "usual": usual, "states": states})


RECURRENT_OPS: tuple[type[OpRun], ...] = (
    _op("GRU", _gru_step, 3, ("Sigmoid", "Tanh")),
    _op("LSTM", _lstm_step, 4, ("Sigmoid", "Tanh", "Tanh"), states=2),
    _op("RNN", _rnn_step, 1, ("Tanh",)),
)
