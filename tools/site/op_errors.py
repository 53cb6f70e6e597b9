# SPDX-License-Identifier: Apache-2.0
"""How far an op's integers are from the float function that it stands for, in steps of its output, and an image of that."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from linger.dialect import Op
from linger.numeric.fixed import limits, storage_bits
from linger.numeric.kernel import Draw, DrawReal, Sample
from linger.numeric.numpy_kernel import NumpyKernel
from tools.site.op_floats import float_result, has_float, real_inputs

_ROUNDS = 24
"""Draws of a sample, where not every input can be tried."""
_USUAL_BITS = 8
_GREY, _BLUE = "#808890", "#5c7cfa"
_STYLE = {
    "svg.hashsalt": "linger",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _GREY,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


@dataclass(frozen=True)
class Errors:
    """What was measured.

    Attributes:
        steps: The errors, in steps of the output.
        at: The real input of each, if the op is a function of one number; else None.
        how: Which inputs were tried, in words.
    """

    steps: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any] | None
    how: str


def measure(op: Op) -> Errors | None:
    """The errors of an op; None where no float function corresponds to it.

    Results that the output's width cannot hold are left out: there the difference is saturation, not rounding.
    """
    if not has_float(op):
        return None
    usual = sorted(filter(_is_usual, op.samples), key=lambda s: abs(_bits(s) - (op.input_bits or _USUAL_BITS)))
    sample = next((s for s in usual if _steps(op, _drawn(s, 0), s)[0].any()), usual[0])
    if op.is_pointwise:
        return _swept(op, sample)
    parts = [_steps(op, _drawn(sample, seed), sample)[0] for seed in range(_ROUNDS)]
    return Errors(np.concatenate(parts), None, f"for random inputs like those of the sample “{sample.name}”")


def _is_usual(sample: Sample) -> bool:
    """Whether there is something to draw from, and nothing that the float function has no name for."""
    is_full = all(np.prod(getattr(x, "shape", (2,))) > 0 for x in sample.inputs)
    return is_full and not any(isinstance(x, tuple) for x in sample.inputs) and sample.name != "one element"


def _bits(sample: Sample) -> int:
    return int(getattr(sample.inputs[0], "bits", _USUAL_BITS))


def _swept(op: Op, sample: Sample) -> Errors:
    """Every integer of 8 bits, or as many evenly spaced ones of a wider input."""
    low, high = limits(sample.inputs[0].bits)
    x = np.unique(np.linspace(low, high, 1 + min(high - low, 1023)).round())
    given = [x.astype(f"int{storage_bits(sample.inputs[0].bits)}")]
    steps, is_held = _steps(op, given, sample)
    return Errors(steps, (x / sample.attributes["scale_x"])[is_held], f"for {len(x)} inputs from {low} to {high}")


def _drawn(sample: Sample, seed: int) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [None if x is None else _array(x, draw) for x in sample.inputs]


def _array(x: Any, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    if isinstance(x, tuple):
        return np.asarray(x, np.int64)
    if isinstance(x, DrawReal):
        return draw.normal(0, x.spread, x.shape).astype(np.float32)
    assert isinstance(x, Draw)
    low, high = limits(x.bits)
    low, high = (low if x.low is None else x.low), (high if x.high is None else x.high)
    return np.asarray(draw.integers(low, high + 1, x.shape)).astype(f"int{storage_bits(x.bits)}")


def _steps(op: Op, given: list[Any], sample: Sample) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The errors where the output holds the float result, and where that is."""
    attributes = op.complete(sample.attributes)
    arranged = op.arrange(given)
    result = op.body(NumpyKernel(), *arranged, **attributes)
    integers = result[0] if isinstance(result, tuple) else result
    scale = attributes["scale_x"] if op.name == "Quant" else attributes["scale_o"]
    reals = real_inputs(op, dict(zip(op.inputs, arranged, strict=False)), attributes)
    wanted = float_result(op, reals, attributes).numpy() * scale
    low, high = limits(attributes.get(op.output_bits or "o_bits", 8))
    is_held = (wanted >= low - 0.5) & (wanted <= high + 0.5)
    return (integers.astype(np.float64) - wanted)[is_held], is_held


def image(op: Op, errors: Errors) -> str:
    """The errors as SVG: over the input for a function of one number, else how often each occurs."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 2.6))
        axes = figure.add_axes((0.1, 0.2, 0.88, 0.76))
        if errors.at is None:
            spread = max(0.75, float(np.quantile(np.abs(errors.steps), 0.998)))
            axes.stairs(*np.histogram(errors.steps, bins=61, range=(-spread, spread)), fill=True, color=_BLUE)
            axes.set(xlabel="error in steps of the output (LSB)", ylabel="results")
        else:
            axes.axhline(0.0, color=_GREY, linewidth=0.6)
            axes.plot(errors.at, errors.steps, color=_BLUE, linewidth=0.8)
            axes.set(xlabel="x", ylabel="error in steps (LSB)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.patch.set_visible(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Title": f"{op.name}: error"})
    return written.getvalue()
