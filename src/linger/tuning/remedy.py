# SPDX-License-Identifier: Apache-2.0
"""What every remedy shares: data and models checked before anything changes, the error at the outputs, and a result with figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, as_batches, evaluating, float_tensors, fresh, run_batch, values_of
from linger.constraint.limits import QUANTIZED
from linger.errors import LingerError, UsageError, listing, no_module
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import runtime_of
from linger.quantization.diagnosis.call_watch import SignalNoise, as_real, decibels, mismatch
from linger.records.table import Column, Result


class OutputError:
    """Runs models on fixed batches and compares their outputs with the float model's, which ran once.

    Each output tensor counts alike, whatever its size and magnitude: the error is the mean over the outputs of
    Σ (f − q)²/Σ f².
    """

    def __init__(self, reference: nn.Module, batches: Sequence[Batch]) -> None:
        self.batches = [fresh(batch) for batch in batches]
        self.expected = [self.outputs(reference, batch) for batch in self.batches]
        wrong = [
            f"output {number} for batch {place}"
            for place, outputs in enumerate(self.expected)
            for number, output in enumerate(outputs)
            if not bool(output.isfinite().all())
        ]
        if wrong:
            raise UsageError(
                f"The float model gives NaN or infinity: {listing(wrong, limit=8)}. Leave such data out, or mend the model."
            )

    @staticmethod
    def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
        """The outputs of a model that hold real numbers, in evaluation mode."""
        with torch.no_grad(), evaluating(model):
            return [t.detach().clone() for t in float_tensors(unwrap(run_batch(model, fresh(batch))))]

    def __call__(self, model: nn.Module) -> float:
        """The error: 0 where nothing differs, 1 where the noise is as large as the signal."""
        errors = self.of_outputs(model)
        return sum(errors) / len(errors) if errors else 0.0

    def of_samples(self, model: nn.Module) -> Tensor:
        """Each sample's part of the error, so that their mean is the error; a sample is a row where outputs have those of the inputs.

        Two models are then compared sample by sample: what samples have in common, such as a picture that is hard for both, is
        no noise of the difference.
        """
        powers: list[Tensor] = []  # of every batch: outputs × samples × (signal, noise)
        for batch, expected in zip(self.batches, self.expected, strict=True):
            outputs = self.outputs(model, batch)
            self.require_alike(expected, outputs)
            sizes = {len(t) if t.dim() else 0 for t in (*float_tensors(values_of(batch)), *expected)}
            rows = max(sizes) if len(sizes) == 1 and sizes != {0} else 1
            pairs = [[as_real(t).reshape(rows, -1) for t in pair] for pair in zip(expected, outputs, strict=True)]
            sums = [torch.stack(((f**2).sum(1), ((f - q) ** 2).sum(1)), 1) for f, q in pairs]
            powers.append(torch.stack(sums) if sums else torch.zeros(1, rows, 2))
        signal, noise = torch.cat(powers, 1).unbind(2)
        mean = signal.mean(1, keepdim=True)
        return torch.where(mean > 0, noise / mean, (noise > 0).double()).mean(0)

    def of_outputs(self, model: nn.Module) -> list[float]:
        """The error of each output; other shapes than the reference's are refused."""
        totals: list[SignalNoise] = []
        for batch, expected in zip(self.batches, self.expected, strict=True):
            outputs = self.outputs(model, batch)
            self.require_alike(expected, outputs)
            totals = totals or [SignalNoise() for _ in outputs]
            for total, first, second in zip(totals, expected, outputs, strict=True):
                total.add(first, second)
        return [total.noise / total.signal if total.signal else float(total.noise > 0) for total in totals]

    @staticmethod
    def require_alike(expected: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Refuse outputs of other shapes than the reference's."""
        problem = mismatch(expected, outputs)
        if problem is not None:
            raise UsageError(f"{problem}. The reference must be the float model of the quantized one.")


def error_db(error: float) -> float:
    """An error as a signal-to-noise ratio in dB.

    >>> error_db(0.01)
    20.0
    """
    return decibels(1.0, error)


_COLUMNS = (
    Column("name", "tensor"),
    Column("what", "change"),
    Column("before", "before", "{:.4g}"),
    Column("after", "after", "{:.4g}"),
)


@dataclass(frozen=True)
class Change:
    """One thing that a remedy changed.

    Attributes:
        name: Path of the layer, or key of the range (`block.conv.o`).
        what: What was changed, in a few words.
        before, after: A figure of it that a reader can compare, if there is one.
    """

    name: str
    what: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Remedy(Result):
    """What a remedy did to a model.

    Attributes:
        name: The remedy.
        before_db, after_db: Signal to noise at the model's outputs, on the data given, as `OutputError` counts it.
        changes: What was changed, in the order of the layers.
        trials: Models that were measured on the way; 0 where nothing was searched.
    """

    name: str
    before_db: float
    after_db: float
    changes: tuple[Change, ...] = ()
    trials: int = 0

    _columns, _row_type, _rows_name = _COLUMNS, Change, "changes"

    def summary(self) -> str:
        """The result in one line."""
        trials = f" after {self.trials} trials" if self.trials else ""
        return f"{self.name}: {self.before_db:.1f} dB before, {self.after_db:.1f} dB after, {len(self.changes)} changes{trials}"

    def __repr__(self) -> str:
        return f"Remedy({self.name}, {self.before_db:.1f} → {self.after_db:.1f} dB)"


def checked_data(where: str, model: object, data: object) -> list[Batch]:
    """The batches of data for a model, all in memory; no data, NaN and infinity are refused."""
    batches = list(as_batches(model, data, where))
    if not batches:
        raise UsageError(f"{where}: the data are empty. Give at least one batch of typical inputs.")
    wrong = [i for i, batch in enumerate(batches) if not all(bool(t.isfinite().all()) for t in float_tensors(batch))]
    if wrong:
        raise UsageError(f"{where}: batch {listing(map(str, wrong))} holds NaN or infinity. Leave such data out.")
    return batches


def require_float(where: str, model: object) -> None:
    """Refuse what is no module, or quantized."""
    if not isinstance(model, nn.Module):
        raise no_module(where, model)
    if any(QUANTIZED.of(module) for module in model.modules()):
        raise UsageError(
            f"{where}: {type(model).__name__} is quantized already. Give the float model, before linger.init."
        )


def require_pair(where: str, model: object, reference: object) -> None:
    """Refuse a model that is not quantized and calibrated, or whose reference is not its float model; every layer is named."""
    if not isinstance(model, nn.Module) or runtime_of(model) is None:
        raise UsageError(f"{where}: the model is not quantized. Call linger.init and calibrate it first.")
    runtime = runtime_of(reference) if isinstance(reference, nn.Module) else None
    if runtime is None or not runtime.stays_real:  # a quantized model in real numbers is its own reference
        require_float(f"{where}, reference", reference)
    _require_layers(where, model, cast(nn.Module, reference))


def _require_layers(where: str, model: nn.Module, reference: nn.Module) -> None:
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, QuantizedBase)}
    missing = [path for path, layer in layers.items() if layer.lacks_scale]
    if missing:
        raise UsageError(f"{where}: {listing(missing)} has no scale yet. Calibrate the model first.")
    theirs = dict(reference.named_modules())
    wrong = [path for path, layer in layers.items() if layer.is_layer and not _fits(layer, theirs.get(path))]
    if wrong:
        raise UsageError(
            f"{where}: the reference has no layer {listing(wrong)} of that shape. Give the float model that was quantized, "
            "a copy taken before linger.init."
        )


def _fits(layer: nn.Module, other: nn.Module | None) -> bool:
    """Whether a float layer has the weights of a quantized one, as far as shapes tell."""
    if other is None:
        return False
    shapes = {name: p.shape for name, p in other.named_parameters()}
    own = {name: p.shape for name, p in layer.named_parameters(recurse=False) if name.startswith("weight")}
    return all(shapes.get(name, shapes.get(f"conv.{name}")) == shape for name, shape in own.items())


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's parameters and buffers."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


@contextmanager
def undone_on_error(where: str, model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Put parameters and buffers, which it gives, back where a remedy fails or is interrupted; other errors become a cause."""
    before = state_of(model)
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield before
    except BaseException as error:
        with torch.no_grad():
            model.load_state_dict(before)
        if isinstance(error, (LingerError, KeyboardInterrupt, SystemExit)):
            raise
        raise UsageError(f"{where}: {type(error).__name__}: {error}. The model is as it was.") from error
    finally:
        for module, mode in modes:
            module.training = mode
