# SPDX-License-Identifier: Apache-2.0
"""Tensors as files: the documented names and texts, one number per line, and an .npz with shapes and types beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linger.dialect import Op
from linger.files import Writer, write_together
from linger.quantization.core.frozen import Frozen
from linger.quantization.core.qtensor import QTensor

Array = NDArray[Any]

_LINES = 1 << 14
_NUMPY_KNOWS = frozenset(
    {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
)


def as_array(tensor: Tensor) -> Array:
    """A copy of a tensor in its own type; types that numpy does not have become float32, which holds them exactly."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_quantized:
        plain = plain.dequantize()
    plain = plain.cpu().resolve_conj().resolve_neg()
    known = plain if plain.dtype in _NUMPY_KNOWS else plain.float()
    return np.array(known.numpy())


def op_tensors(op: Op, operands: Sequence[Tensor | Frozen], result: QTensor) -> dict[str, Array]:
    """The tensors of one op by their documented names, as real numbers and as integers (`q_…`).

    `input` (or `input1`, `input2` …), `weights`, `bias`, `outputs`. The input of Quant has no integers.
    """
    data, _ = _without_constants(op, operands)
    real: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    inputs = [operand for operand in data if isinstance(operand, Tensor)]
    for number, operand in enumerate(inputs, start=1):
        key = "input" if len(inputs) == 1 else f"input{number}"
        if isinstance(operand, QTensor):
            real[key], whole[key] = operand.content, operand.integers()
        else:
            real[key] = operand
    for frozen in data:
        if isinstance(frozen, Frozen):
            real["weights"], whole["weights"] = frozen.weight, frozen.weight_integers
            if frozen.bias is not None and frozen.bias_integers is not None:
                real["bias"], whole["bias"] = frozen.bias, frozen.bias_integers
    real["outputs"], whole["outputs"] = result.content, result.integers()
    return {key: as_array(t) for key, t in real.items()} | {f"q_{key}": as_array(t) for key, t in whole.items()}


def op_settings(
    op: Op, operands: Sequence[Tensor | Frozen], attributes: Mapping[str, Any], result: QTensor
) -> dict[str, Any]:
    """The attributes of one op's node, its integer constants (`q_low`), and scale and bits where the node has none.

    `data_bits` of an op with several operands is a list.
    """
    data, constants = _without_constants(op, operands)
    quantised = [operand for operand in data if isinstance(operand, QTensor)]
    found = {key: value for key, value in op.complete(attributes).items() if value is not None}
    found |= {f"q_{name}": as_array(c.integers()) for name, c in constants.items() if isinstance(c, QTensor)}
    if len(quantised) == 1:
        found = {"scale_x": quantised[0].scale, "data_bits": quantised[0].bits} | found
    elif quantised:
        found = {"data_bits": [operand.bits for operand in quantised]} | found
    return {"scale_o": result.scale, "o_bits": result.bits} | found


def _without_constants(
    op: Op, operands: Sequence[Tensor | Frozen]
) -> tuple[Sequence[Tensor | Frozen], dict[str, Tensor | Frozen]]:
    """What is computed with, and what the op's settings have become."""
    count = len(operands) - len(op.constant_names)
    names = op.inputs[len(op.inputs) - len(op.constant_names) :]
    return operands[:count], dict(zip(names, operands[count:], strict=True))


def write_tensors(folder: Path, stem: str, texts: Mapping[str, Sequence[Array]], arrays: Mapping[str, Any]) -> None:
    """Write `<stem><suffix>` for every suffix of `texts`, and `<stem>.npz`; all of them or none.

    A text is every number of its arrays as `%.6f`, one per line; a complex number is two.

    Raises:
        UsageError: A file cannot be written.
    """
    writers: dict[Path, Writer] = {
        folder / f"{stem}{suffix}": partial(_write_lines, parts) for suffix, parts in texts.items()
    }
    writers[folder / f"{stem}.npz"] = partial(_write_npz, arrays)
    write_together(writers)


def _write_lines(arrays: Sequence[Array], file: IO[bytes]) -> None:
    for array in arrays:
        flat = array.reshape(-1)
        if np.iscomplexobj(flat):
            flat = flat.view(flat.real.dtype)
        for start in range(0, flat.size, _LINES):
            numbers = flat[start : start + _LINES].tolist()
            file.write(("%.6f\n" * len(numbers) % tuple(numbers)).encode())


def _write_npz(arrays: Mapping[str, Any], file: IO[bytes]) -> None:
    np.savez(file, **arrays)
