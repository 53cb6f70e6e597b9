"""The fast paths of ops on real carriers, held against the op's body on integers."""

import numpy as np
import torch
from torch import Tensor

from linger.dialect import Op
from linger.numeric.fixed import limits
from linger.numeric.kernel import Sample
from linger.numeric.torch.kernel import SplitPlan, carrier, plan_product, run_product
from linger.numeric.torch.quantize import fake_quantize, per_weight
from linger.ops.fast.fast_path import (
    ExactFastPath,
    RealFastPath,
    functional_fast_path,
    product_fast_path,
    recurrent_fast_path,
)
from tests.support.samples import arrays, run_numpy

__all__ = ["ExactFastPath", "RealFastPath", "functional_fast_path", "product_fast_path", "recurrent_fast_path"]


def by_name(op: Op) -> dict:
    """An op's samples for parametrize."""
    return {"argvalues": op.samples, "ids": [sample.name for sample in op.samples]}


def real_carrier(integers: np.ndarray, scale: float) -> Tensor:
    """q/scale in the float type that holds it."""
    return torch.from_numpy(np.array(integers)).to(carrier(8 * integers.itemsize)) / scale


def elementwise(fast, op: Op, inputs, attributes, *, bits, has_total=True, is_training=False) -> np.ndarray:
    """A fast path of two operands, back as integers; `is_training` asks for gradients too.

    Unsigned numbers are those of one bit more that are not negative, as functions use such a path.
    """
    full = op.complete(attributes)
    room = full["o_bits"] + full.get("o_unsigned", 0)
    widths = [bits + (q.dtype == np.uint8) for q in inputs]
    scales = [full["scale_x"], full["scale_y"]]
    operands = [real_carrier(q, s).requires_grad_(is_training) for q, s in zip(inputs, scales, strict=True)]
    total = fast.real_result(operands, scales, widths) if has_total else None
    result = fast.evaluate(total, operands, full | {"o_bits": max(room, *widths)}, can_saturate=True)
    low, high = limits(room)
    result = result.clamp(0 if full.get("o_unsigned") else low / full["scale_o"], high / full["scale_o"])
    return (result.detach().double() * full["scale_o"]).numpy()


def product(fast, inputs, attributes, *, is_transposed=False) -> np.ndarray:
    """A fast path with weights, as an exact evaluation uses it, back as integers."""
    x, w, b = inputs
    group = attributes.get("group", 1)
    groups = group if is_transposed else None
    is_unsigned = attributes.get("o_unsigned", 0)
    own = attributes["scale_w"] * 2.0 ** torch.tensor(attributes.get("exponents_w") or [0.0]).double()
    several = per_weight(own, torch.from_numpy(w), groups) if attributes.get("exponents_w") else own
    plan = plan_product(
        torch.from_numpy(w),
        None if b is None else torch.from_numpy(b),
        attributes["data_bits"] + (x.dtype == np.uint8),
        transposed_groups=groups,
    )
    accumulator = run_product(
        lambda x, w, b: fast.accumulate(x, w, b, attributes),
        real_carrier(x, attributes["scale_x"]),
        (real_carrier(w, 1.0) / several).float(),
        None if b is None else real_carrier(b, 1.0) / (attributes["scale_x"] * own),
        plan,
        group=group,
        axis=fast.channel_axis,
        is_transposed=is_transposed,
    )
    room = attributes["o_bits"] + is_unsigned
    result = fake_quantize(accumulator.double(), attributes["scale_o"], room, is_relu=bool(is_unsigned))
    return (result * attributes["scale_o"]).numpy()


def run_split(fast, operands, geometry, *, parts, is_bias_apart, is_transposed=False) -> Tensor:
    """The sums of a fast path with its weights split into so many parts; 0: in float64."""
    return run_product(
        lambda x, w, b: fast.accumulate(x, w, b, geometry),
        *operands,
        SplitPlan(parts, is_bias_apart=is_bias_apart),
        group=geometry.get("group", 1),
        axis=fast.channel_axis,
        is_transposed=is_transposed,
    )


def reference(op: Op, sample: Sample) -> tuple[list, np.ndarray]:
    """A sample's inputs and what the body makes of them."""
    inputs = arrays(sample)
    return inputs, run_numpy(op, inputs, sample.attributes)


# (scale_x, scale_y, scale_o): the output is never finer than an operand
SUM_SCALES = {
    "equal": (16.0, 16.0, 16.0),
    "one finer": (64.0, 16.0, 16.0),
    "other finer": (16.0, 64.0, 16.0),
    "both finer": (64.0, 32.0, 16.0),
    "both finer, equal": (64.0, 64.0, 16.0),
    "far apart": (2.0**20, 2.0, 2.0),
    "both finer, far apart": (2.0**20, 2.0, 1.0),
    "both finer, far apart, mirrored": (2.0, 2.0**20, 1.0),
    "one finer, its ties beside large steps": (2.0, 2.0**12, 2.0),
    "one finer, mirrored": (2.0**12, 2.0, 2.0),
    "ties of twelve bits beside large steps": (2.0, 2.0**12, 1.0),
    "the same, mirrored": (2.0**12, 2.0, 1.0),
    "very far apart": (2.0**30, 2.0**-10, 2.0**-10),
    "both far finer": (2.0**22, 2.0**22, 1.0),
}


def all_pairs(bits, draw):
    """Every pair of 4-bit integers; for wider ones the extremes, their neighbors and random ones, each with each."""
    low, high = limits(bits)
    if bits == 4:
        chosen = np.arange(low, high + 1)
    else:
        edges = [low, low + 1, -2, -1, 0, 1, 2, high - 1, high]
        # 1024 and 2048 are ties after a shift by eleven and twelve
        ties = [odd * tie + step for tie in (1024, 2048) for odd in (-3, -1, 1, 3) for step in (-1, 0, 1)]
        ties = ties if bits == 16 else []
        chosen = np.concatenate([edges, ties, draw.integers(low, high + 1, 80)])
    x, y = np.meshgrid(chosen, chosen)
    kind = np.int16 if bits == 16 else np.int8
    return [x.astype(kind), y.astype(kind)]
