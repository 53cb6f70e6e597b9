"""Numbers worked out by hand, held against every way to compute an op."""

import importlib
from typing import Any

import numpy as np

from linger.dialect import Op
from tests.support.comparison import difference
from tests.support.samples import run_expanded, run_function, run_numpy, run_torch

WAYS = {
    "numpy": run_numpy,
    "torch": run_torch,
    "function, opset 11": lambda *case: run_function(*case, opset=11),
    "function, opset 12": lambda *case: run_function(*case, opset=12),
    "function, opset 18": lambda *case: run_function(*case, opset=18),
    "expanded, opset 12": lambda *case: run_expanded(*case, opset=12),
}


def int8(*values: Any) -> np.ndarray:
    """int8(1, 2) is a vector, int8([[1], [2]]) the matrix inside; a value that does not fit is an error."""
    return _integers(values, np.int8)


def uint8(*values: Any) -> np.ndarray:
    return _integers(values, np.uint8)


def int16(*values: Any) -> np.ndarray:
    return _integers(values, np.int16)


def int32(*values: Any) -> np.ndarray:
    return _integers(values, np.int32)


def _integers(values: tuple[Any, ...], dtype: type) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 and np.ndim(values[0]) else values, dtype=dtype)


def image(*rows: list[int], dtype: type = np.int8) -> np.ndarray:
    """Rows as a picture of one channel, [1, 1, height, width]."""
    return np.array(rows, dtype=dtype)[None, None]


def assert_gives(op: Op, inputs: list[np.ndarray | None], attributes: dict[str, Any], expected: np.ndarray) -> None:
    """Every way gives exactly the expected integers (or float32 values), in the expected type."""
    wrong = {}
    for name, way in WAYS.items():
        found = difference(way(op, inputs, attributes), expected)
        if found is not None:
            wrong[name] = found
    assert not wrong, wrong


def torch_object(name: str) -> Any:
    """What a binding's name ("torch.nn.functional.relu") stands for; fails if torch has no such thing."""
    module, *rest = name.split(".")
    found: Any = importlib.import_module(module)
    for part in rest:
        found = getattr(found, part)
    return found
