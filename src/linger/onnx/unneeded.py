# SPDX-License-Identifier: Apache-2.0
"""Results that a model computes and nobody uses: tried out by computing them differently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from linger.errors import LingerError
from linger.onnx.call import Call, run_once
from linger.onnx.file_fitting import as_array
from linger.onnx.preserve import preserved
from linger.quantization.core.qtensor import QTensor
from linger.verification.recording import Recording

_OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (torch.zeros_like, torch.neg)
"""What is put in place of a result: a zero, and the same with the other sign; one of them is another number."""


def unneeded_results(model: nn.Module, call: Call, made: Recording, file: ir.Model) -> list[str]:
    """Recorded results that the file does not have and that no output of the model depends on.

    The file leaves out what its outputs do not need. That alone does not show that the model needs it neither: a forward
    that goes through numpy loses what it computes there. So the model runs again, with these results replaced: where every
    output stays the same, nobody uses them.
    """
    present = {output.name for node in file.graph for output in node.outputs}
    absent = [name for name in made.integers if name not in present]
    if not absent or not made.outputs:
        return []
    if _is_unneeded(model, call, absent):
        return absent
    return [name for name in absent if len(absent) > 1 and _is_unneeded(model, call, [name])]


def _is_unneeded(model: nn.Module, call: Call, names: Collection[str]) -> bool:
    expected = _outputs(model, call, (), torch.neg)
    return all(_are_equal(_outputs(model, call, names, other), expected) for other in _OTHERS)


def _outputs(
    model: nn.Module, call: Call, names: Collection[str], other: Callable[[Tensor], Tensor]
) -> list[Any] | None:
    """The outputs with some results replaced; None where the model no longer runs."""

    def replace(name: str, _op: Any, _operands: Any, _attributes: Any, x: QTensor) -> None:
        if name in names:
            x.overwrite(x.like(other(x.content)))

    with preserved(model) as runtime:
        assert runtime is not None  # it was recorded
        runtime.observers.append(replace)
        try:
            output = run_once(model, call)
            return [as_array(t) for t in tree_leaves(output) if isinstance(t, Tensor)]
        except LingerError:  # also that of a view whose tensor was replaced: somebody uses it
            return None
        finally:
            runtime.observers.remove(replace)


def _are_equal(found: Sequence[Any] | None, expected: Sequence[Any] | None) -> bool:
    if found is None or expected is None or len(found) != len(expected):
        return False
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(found, expected, strict=True))
