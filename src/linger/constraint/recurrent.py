# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU whose weights, biases and output sequence stay within limits."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from linger.constraint.limits import Limits, Normalized, clamp

_Layer = TypeVar("_Layer", bound="_LimitedRecurrent")
_Sequence = TypeVar("_Sequence", Tensor, PackedSequence)
_States = tuple[Tensor, Tensor]


class _LimitedRecurrent(Normalized):
    """What both kinds share. torch's forward reads its parameters through `_flat_weights`: here they are limited.

    The returned state is what torch computes with the limited parameters; only the output sequence is limited.
    """

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [self._limited(name) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, tensors: object) -> None:
        """Ignored: torch assigns the parameters, and they are read by their names."""

    def _limited(self, name: str) -> Tensor | None:
        limit = self.normalize_bias if name.startswith("bias") else self.normalize_weight
        return clamp(getattr(self, name, None), limit)

    def _weights_have_changed(self) -> bool:
        """Always False: the parameters are read again in every pass."""
        return False

    def flatten_parameters(self) -> None:
        """Limited parameters are new tensors in every pass, so there is no point in joining them in memory."""
        if self.normalize_weight is None and self.normalize_bias is None:
            super().flatten_parameters()  # type: ignore[misc]  # the torch layer's

    @classmethod
    def from_layer(cls: type[_Layer], layer: nn.Module, chosen: Limits) -> _Layer:
        """As for every Normalize* layer, without torch's own list of parameters."""
        made = super().from_layer(layer, chosen)
        made.__dict__.pop("_flat_weights", None)
        return made

    def _limit_sequence(self, output: _Sequence) -> _Sequence:
        if isinstance(output, PackedSequence):
            return output._replace(data=clamp(output.data, self.normalize_data))
        return clamp(output, self.normalize_data)


class NormalizeFastLSTM(_LimitedRecurrent, nn.LSTM):
    """An LSTM within limits."""

    def forward(self, input: _Sequence, hx: _States | None = None) -> tuple[_Sequence, _States]:  # noqa: A002 - torch's name
        """(limited output, (h, c)) of the LSTM with limited parameters."""
        output, state = nn.LSTM.forward(self, input, hx)
        return self._limit_sequence(output), state


class NormalizeFastGRU(_LimitedRecurrent, nn.GRU):
    """A GRU within limits."""

    def forward(self, input: _Sequence, hx: Tensor | None = None) -> tuple[_Sequence, Tensor]:  # noqa: A002 - torch's name
        """(limited output, h) of the GRU with limited parameters."""
        output, state = nn.GRU.forward(self, input, hx)
        return self._limit_sequence(output), state
