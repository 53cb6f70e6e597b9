# SPDX-License-Identifier: Apache-2.0
"""The error of a quantized model at its outputs, against the float model, on data that are kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, evaluating, float_tensors, fresh, run_batch
from linger.errors import UsageError, listing
from linger.quantization.core.qtensor import unwrap
from linger.quantization.diagnosis.noise_bench import SignalNoise, decibels, mismatch


class OutputError:
    """Runs models on fixed batches and compares their outputs with the float model's, which ran once.

    Each output tensor counts alike, whatever its size and magnitude: the error is the mean over the outputs of
    Σ (f − q)²/Σ f².
    """

    def __init__(self, reference: nn.Module, batches: Sequence[Batch]) -> None:
        self.batches = [fresh(batch) for batch in batches]
        self.expected = [self._outputs(reference, batch) for batch in self.batches]
        _require_numbers(self.expected)

    @staticmethod
    def _outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
        with torch.no_grad(), evaluating(model):
            return [t.detach().clone() for t in float_tensors(unwrap(run_batch(model, fresh(batch))))]

    def __call__(self, model: nn.Module) -> float:
        """The error: 0 where nothing differs, 1 where the noise is as large as the signal.

        Raises:
            UsageError: The model's outputs have other shapes than the reference's.
        """
        errors = self.of_outputs(model)
        return sum(errors) / len(errors) if errors else 0.0

    def of_outputs(self, model: nn.Module) -> list[float]:
        """The error of each output.

        Raises:
            UsageError: The model's outputs have other shapes than the reference's.
        """
        totals: list[SignalNoise] = []
        for batch, expected in zip(self.batches, self.expected, strict=True):
            found = self._outputs(model, batch)
            problem = mismatch(expected, found)
            if problem is not None:
                raise UsageError(f"{problem}. The reference must be the float model of the quantized one.")
            totals = totals or [SignalNoise() for _ in found]
            for total, first, second in zip(totals, expected, found, strict=True):
                total.add(first, second)
        return [total.noise / total.signal if total.signal else float(total.noise > 0) for total in totals]


def _require_numbers(expected: Sequence[Sequence[Tensor]]) -> None:
    """Refuse outputs that nothing can be compared with."""
    wrong = [
        f"output {number} for batch {place}"
        for place, outputs in enumerate(expected)
        for number, output in enumerate(outputs)
        if not bool(output.isfinite().all())
    ]
    if wrong:
        raise UsageError(
            f"The float model gives NaN or infinity: {listing(wrong, limit=8)}. Leave such data out, or mend the model."
        )


def error_db(error: float) -> float:
    """An error as a signal-to-noise ratio in dB.

    >>> error_db(0.01)
    20.0
    """
    return decibels(1.0, error)


def float_copy(model: nn.Module) -> nn.Module:
    """A copy of a float model that keeps its own weights, in evaluation mode and without gradients."""
    made = copy.deepcopy(model).eval()
    return made.requires_grad_(requires_grad=False)
