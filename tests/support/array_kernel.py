"""The torch kernel on numpy integers, so that the interpreter of whole graphs can run it too."""

from typing import Any

import numpy as np
import torch

from linger.numeric.numpy_kernel import integer_dtype
from linger.numeric.torch.kernel import TorchKernel, carrier

_KEEPS_TYPE = frozenset({"relu", "clamp", "max_pool2d", "concat", "rows", "per_channel", "pad", "shuffle"})


class TorchOnArrays:
    """Turns arrays into carriers on the way in, and what an op returns into arrays on the way out."""

    def __init__(self, kernel: TorchKernel | None = None) -> None:
        self._kernel = kernel or TorchKernel(is_exact=True)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kernel, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            result = method(*map(_to_torch, arguments), **settings)
            if name == "store":
                return _to_array(result, integer_dtype(arguments[1]))
            if name == "real":
                return result.numpy()
            if name in _KEEPS_TYPE:
                first = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
                return _to_array(result, first.dtype) if isinstance(first, np.ndarray) else result
            return result

        return call


def _to_torch(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_torch(v) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(np.array(value))
    return tensor if tensor.is_floating_point() else tensor.to(carrier(8 * value.itemsize))


def _to_array(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    made = tensor.numpy().astype(dtype)
    assert np.array_equal(made, tensor.numpy())  # a carrier holds integers that fit
    return made
