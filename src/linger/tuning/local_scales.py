# SPDX-License-Identifier: Apache-2.0
"""The scale at which a tensor alone has the smallest squared error: where a search for exponents begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from linger.analysis.attributes import evaluating
from linger.analysis.batches import Batch
from linger.analysis.trace import Trace
from linger.dialect import Op
from linger.numeric.torch.quantize import fake_quantize
from linger.ops.fast.twin import RealTwin, accumulate, functional_twin
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import Frozen
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Operands, Runtime, runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.functions.functional_layer import KEY_PREFIX
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.layers.recurrent_operands import range_suffix

_FACTORS = (1.0, 2.0, 0.5, 4.0, 8.0)
"""What scales are multiplied by; the first of equal ones is taken."""


def local_scales(model: nn.Module, batch: Batch, ranges: Mapping[str, Range]) -> dict[str, float]:
    """The scales that suit single tensors better than those they have, by the keys of their ranges.

    Known are weights, and in one pass over a batch the inputs that are rounded and what products, sums and concatenations are
    before they are.
    """
    runtime = runtime_of(model)
    assert runtime is not None  # require_pair has asked
    errors = _Errors(runtime, ranges)
    for key, found in ranges.items():
        if found.kind is Kind.WEIGHT:
            weight = _weight_of(found)
            if weight is not None:
                errors.add(key, weight)
    with evaluating(model), Trace(model) as trace:
        trace.observe(runtime.observers, errors.observe)
        trace.run(batch)
    return errors.better()


def _weight_of(found: Range) -> Tensor | None:
    layer = found.layer
    if isinstance(layer, QuantLayer):
        return layer.real_weight
    if not isinstance(layer, QuantRecurrent):
        return None  # the weight of a function in a user's own forward
    names = {
        f"{name}{range_suffix(k, back)}": f"weight_{role}{suffix}"
        for k, directions in enumerate(layer.suffixes)
        for back, suffix in enumerate(directions)
        for name, role in (("iw", "ih"), ("hw", "hh"))
    }
    return layer.get_parameter(names[found.name]).detach()


def _key(path: str, end: str) -> str:
    return f"{path}.{end}".lstrip(".")


class _Errors:
    """Squared errors of tensors at several scales."""

    def __init__(self, runtime: Runtime, ranges: Mapping[str, Range]) -> None:
        self._runtime, self._ranges = runtime, ranges
        self._sums: dict[str, list[float]] = {}

    def add(self, key: str, tensor: Tensor) -> None:
        """Round a tensor at every scale."""
        found = self._ranges.get(key)
        if found is None:
            return
        sums = self._sums.setdefault(key, [0.0] * len(_FACTORS))
        for i, factor in enumerate(_FACTORS):
            rounded = fake_quantize(tensor, found.scale * factor, found.bits)
            sums[i] += float((rounded - tensor).double().square().sum())

    def observe(
        self,
        name: str,
        op: Op,
        operands: Operands,
        attributes: Mapping[str, Any],
        result: QTensor,  # noqa: ARG002 - an observer's signature
    ) -> None:
        """An op was computed: look at what it rounds, where that is known."""
        path, last = name.rpartition(".")[0], operands[-1]
        if isinstance(last, Frozen):
            self._add_product(path, op, operands[0], last, attributes)
        elif op.name == "Quant":
            for end in ("x", "i"):
                self.add(_key(path, end), last)
        elif op.state_name is not None and self._runtime.frame is not None:
            self._add_function(op, [o for o in operands if isinstance(o, QTensor)])

    def _add_product(
        self, path: str, op: Op, x: Tensor | Frozen, frozen: Frozen, attributes: Mapping[str, Any]
    ) -> None:
        if isinstance(x, QTensor) and not op.normalizes:
            y = accumulate(op, attributes, x.content, frozen.weight, frozen.bias)
            self.add(_key(path, "o"), y.clamp_min(0) if self._is_ahead_of_relu(path) else y)

    def _add_function(self, op: Op, operands: Sequence[QTensor]) -> None:
        """A sum, a product of tensors or a concatenation, whose range is a child of the module at work."""
        frame, twin = self._runtime.frame, functional_twin(op)
        assert frame is not None  # checked by the caller
        index = frame.indices[op.name if op.has_own_counter else ""] - 1
        key = _key(frame.path, f"{KEY_PREFIX}{op.state_name}_{index}.o")
        if key not in self._ranges or isinstance(twin, RealTwin):
            return
        if twin is None:  # the op only moves its operands
            for operand in operands:
                self.add(key, operand.content)
        else:
            formats = [o.scale for o in operands], [o.bits for o in operands]
            self.add(key, twin.real_result([o.content for o in operands], *formats))

    def _is_ahead_of_relu(self, path: str) -> bool:
        found = self._ranges.get(_key(path, "o"))
        return found is not None and isinstance(found.layer, QuantLayer) and found.layer.is_ahead_of_relu

    def better(self) -> dict[str, float]:
        """The best scales, where they are not those that the ranges have; first where they take away most of the error."""
        best = {key: min(range(len(_FACTORS)), key=sums.__getitem__) for key, sums in self._sums.items()}
        moved = [key for key, i in best.items() if i]
        moved.sort(key=lambda key: self._sums[key][best[key]] / self._sums[key][0])
        return {key: self._ranges[key].scale * _FACTORS[best[key]] for key in moved}
