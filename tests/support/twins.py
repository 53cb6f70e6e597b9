"""The fast twins of ops on real carriers, held against the op's body on integers."""

import numpy as np
import torch
from torch import Tensor

from linger.dialect import Op, Sample
from linger.numeric.torch_exact import plan_product, run_product
from linger.numeric.torch_kernel import carrier
from linger.numeric.torch_quantize import fake_quantize
from tests.support.samples import arrays, run_numpy


def by_name(op: Op) -> dict:
    """An op's samples for parametrize."""
    return {"argvalues": op.samples, "ids": [sample.name for sample in op.samples]}


def real_carrier(integers: np.ndarray, scale: float) -> Tensor:
    """q/scale in the float type that holds it."""
    return torch.from_numpy(np.array(integers)).to(carrier(8 * integers.itemsize)) / scale


def elementwise(twin, op: Op, inputs, attributes, *, bits, has_total=True, is_training=False) -> np.ndarray:
    """A twin of two operands, back as integers; `is_training` asks for gradients too."""
    full = op.complete(attributes)
    scales = [full["scale_x"], full["scale_y"]]
    operands = [real_carrier(q, s).requires_grad_(is_training) for q, s in zip(inputs, scales, strict=True)]
    total = twin.real_result(operands, scales, [bits, bits]) if has_total else None
    result = twin.evaluate(total, operands, full, can_saturate=True)
    return (result.detach().double() * full["scale_o"]).numpy()


def product(twin, inputs, attributes, *, is_transposed=False) -> np.ndarray:
    """A twin with weights, as an exact evaluation uses it, back as integers."""
    x, w, b = inputs
    scale = attributes["scale_x"] * attributes["scale_w"]
    group = attributes.get("group", 1)
    plan = plan_product(
        torch.from_numpy(w),
        None if b is None else torch.from_numpy(b),
        attributes["data_bits"],
        transposed_groups=group if is_transposed else None,
    )
    accumulator = run_product(
        lambda x, w, b: twin.accumulate(x, w, b, attributes),
        real_carrier(x, attributes["scale_x"]),
        real_carrier(w, attributes["scale_w"]),
        None if b is None else real_carrier(b, scale),
        plan,
        group=group,
        axis=twin.CHANNEL_AXIS,
        is_transposed=is_transposed,
    )
    result = fake_quantize(accumulator.double(), attributes["scale_o"], attributes["o_bits"])
    return (result * attributes["scale_o"]).numpy()


def reference(op: Op, sample: Sample) -> tuple[list, np.ndarray]:
    """A sample's inputs and what the body makes of them."""
    inputs = arrays(sample)
    return inputs, run_numpy(op, inputs, sample.attributes)
