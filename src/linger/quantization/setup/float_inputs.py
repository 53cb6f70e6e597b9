# SPDX-License-Identifier: Apache-2.0
"""Float tensors at the edge of a quantised model: no quantised tensor is there yet whose functions could be noticed.

`EdgeMode` notices products of a float tensor with a parameter; a model has it only where modules of its own hold such
parameters. `InputQuantizer` hands a layer with a forward of its own (and an attention layer) its inputs as integers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.functions.constants import is_state
from linger.quantization.functions.functional_layer import INPUT_KEY, functional_layer
from linger.quantization.functions.products import (
    MATRIX_PRODUCTS,
    PRODUCTS,
    Product,
    as_linear,
    compute_product,
    read_product,
)


class EdgeMode(TorchFunctionMode):
    """Computes a float tensor times a parameter as integers; the tensor is quantised first."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Products of float tensors here, everything else as it is."""
        kwargs = kwargs or {}
        if func in PRODUCTS or func in MATRIX_PRODUCTS:
            product = self._product(func, args, kwargs)
            if product is not None:
                return compute_product(product, self._runtime)
        return func(*args, **kwargs)

    def _product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
        runtime = self._runtime
        if runtime.frame is None or isinstance(runtime.frame.module, QuantizedBase):
            return None  # outside the model, or a layer's own arithmetic
        if any(isinstance(value, QTensor) for value in (*args, *kwargs.values())):
            return None  # noticed by the quantised tensor
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return None
        if func in MATRIX_PRODUCTS:
            matrix = as_linear(func, args, kwargs, runtime)
            return matrix if isinstance(matrix, Product) else None
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if not is_state(weight, runtime) or is_state(x, runtime):
            return None  # the product of two parameters is a computed one
        found = read_product(func, args, kwargs, runtime)
        return found if isinstance(found, Product) else None


class InputQuantizer:
    """A forward pre-hook: the first `count` arguments of a module as quantised tensors."""

    def __init__(self, runtime: Runtime, names: tuple[str, ...]) -> None:
        self.runtime, self.names = runtime, names

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Quantise what is float; one tensor that is given twice stays one tensor."""
        made: dict[int, QTensor] = {}
        count = len(self.names)
        positional = [self._quantized(v, n, module, made) for v, n in zip(args, self.names, strict=False)]
        named = {k: self._quantized(v, k, module, made) if k in self.names else v for k, v in kwargs.items()}
        return (*positional, *args[count:]), named

    def _quantized(self, value: Any, name: str, module: nn.Module, made: dict[int, QTensor]) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if isinstance(value, QTensor) and value.scale is not None:
            return value
        if id(value) not in made:
            runtime, policy = self.runtime, self.runtime.products
            frame = runtime.frame
            assert frame is not None  # the scope's hook came first
            assert policy is not None  # init made both
            where = f"{frame.path}.{name}".lstrip(".")
            layer = functional_layer(frame, f"{INPUT_KEY}{name}", where, value.device)
            real = value.dequantize() if isinstance(value, QTensor) else value
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - whoever watches the model's functions sees none here
                made[id(value)] = layer.quantize(real, policy.widths_in(module).data, runtime, frame.path)
        return made[id(value)]
