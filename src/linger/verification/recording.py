# SPDX-License-Identifier: Apache-2.0
"""What one forward pass computed, as arrays: the meeting point of the torch side and the deployment side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass
class Recording:
    """Inputs and outputs in order, integer tensors by name in the order of execution.

    Attributes:
        inputs: What went in.
        outputs: What came out; empty where nobody kept it.
        integers: Tensors in between by name. Floats may stand among them, too.
        input_names: Names of the inputs; empty: they are in the order of the file.
        output_names: Names of the outputs; empty: all of them, in the order of the file.
        floats: What each quantised tensor was made of, by the name of that tensor, as far as it is known.
        is_complete: Whether every integer tensor of the file ought to be there; one that is not is then a difference.
    """

    inputs: list[NDArray[Any]] = field(default_factory=list)
    outputs: list[NDArray[Any]] = field(default_factory=list)
    integers: dict[str, NDArray[Any]] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    is_complete: bool = True
    floats: dict[str, NDArray[Any]] = field(default_factory=dict)
