"""Checkpoint files by hand: what a library would not write, and what must not be run."""

import json
import os
from pathlib import Path

import torch
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def write_safetensors(path: Path, tensors: dict[str, Tensor], *, padding: int = 0, names: dict = NAMES) -> Path:
    """A safetensors file; `padding` blanks behind the table move the numbers to odd places."""
    table, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        place = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data + raw)],
        }
        table[name], data = place, data + raw
    header = json.dumps(table).encode() + b" " * padding
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


class MakesFolder:
    """Who unpickles this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
