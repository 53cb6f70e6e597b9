# SPDX-License-Identifier: Apache-2.0
"""A file that can be run for every tensor of its main graph, with what the file says of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.graph.files.model_io import ModelLike, load_own
from linger.graph.forms.normal_form import bring_to_normal_form
from linger.runtime.reference import Reference
from linger.runtime.session import Feeds, Session
from linger.verification.tensor_facts import inner_tensor_count, inputs_of, tensor_facts

Array = NDArray[Any]

ENGINES = ("onnxruntime", "numpy")


class FileRunner:
    """One side of a comparison.

    Args:
        model: The file.
        label: What messages call it, where it has no path.
        engine: "onnxruntime", or "numpy" for the reference.
    """

    def __init__(self, model: ModelLike, label: str, engine: str = "onnxruntime") -> None:
        if engine not in ENGINES:
            raise UsageError(f"engine {engine!r} is none of {listing(ENGINES)}.")
        self.label = str(Path(model)) if isinstance(model, (str, os.PathLike)) else label
        self._computed: Callable[[Feeds], dict[str, Array]]
        if engine == "onnxruntime":
            session = Session(model)
            self.model, self._computed = session.model, session.intermediates
        else:
            self.model = load_own(model)
            bring_to_normal_form(self.model)
            self._computed = Reference(self.model).intermediates
        self.facts = tensor_facts(self.model)
        self.inputs = [value.name or "" for value in inputs_of(self.model)]
        self.outputs = [value.name or "" for value in self.model.graph.outputs]
        self.constants = {o.name for node in self.model.graph if node.op_type == "Constant" for o in node.outputs}

    def run(self, feed: dict[str, Array]) -> dict[str, Array]:
        """Every array that a node of the main graph computes, by name, in the order of execution."""
        found = self._computed(feed)
        return {
            name: array
            for name in self.facts
            if isinstance(array := found.get(name), np.ndarray)
            and name not in self.constants
            and name not in self.inputs
        }

    def notes(self) -> list[str]:
        """What a comparison of the main graph does not see."""
        inner = inner_tensor_count(self.model)
        if not inner:
            return []
        return [f"{self.label}: {inner} tensors inside branches and loops are not compared, only what these return."]
