# SPDX-License-Identifier: Apache-2.0
"""The result of a verification: a row per tensor, the first difference, and the reasons that were found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import counted
from linger.records.table import Column, Shown, picked
from linger.verification.proof.certificate import DIFFERENT, EQUAL, Evidence, write_certificate
from linger.verification.proof.witness import WitnessRow

PLAIN = ", run plainly"
"""Appended to the name of a run that returns the outputs only, as a user runs the file."""

NARROW = 16
"""A tensor with fewer distinct values than this proves little, and is listed."""


@dataclass(frozen=True)
class Divergence:
    """The first place where two computations differ, in the order of computation.

    Attributes:
        tensor: The tensor.
        batch: The batch, counted from 0.
        index: Where in the tensor; empty where types or shapes differ.
        expected_by: The computation whose value was expected: "torch", "recording" or "numpy".
        expected: Its value there; type and shape where those differ.
        found_by: The computation that has another value.
        found: That value.
        node: Name and type of the node that computes the tensor.
        op_type: That type alone.
        inputs: Whether each input of the node agrees; None where that is not known.
        inside: The first difference inside the node's body, where it has one and the body could be run on its own.
        unit: What `batch` counts; inside a body these are iterations.
    """

    tensor: str
    batch: int
    index: tuple[int, ...]
    expected_by: str
    expected: Any
    found_by: str
    found: Any
    node: str = ""
    op_type: str = ""
    inputs: Mapping[str, bool | None] = field(default_factory=dict)
    inside: Divergence | None = None
    unit: str = "batch"

    @property
    def inputs_agree(self) -> bool | None:
        """Whether all inputs of the node agree, so that the node itself causes the difference; None: not known."""
        if any(agrees is False for agrees in self.inputs.values()):
            return False
        return None if None in self.inputs.values() else True

    def __str__(self) -> str:
        place = f"{list(self.index)}" if self.index else ""
        text = f"{self.tensor}{place} of {self.unit} {self.batch}: "
        text += f"{self.expected_by} has {self.expected}, {self.found_by} has {self.found}"
        if self.node:
            text += f"; made by {self.node}, {self._verdict()}"
        return f"{text}; inside it, {self.inside}" if self.inside is not None else text

    def as_dict(self) -> dict[str, Any]:
        """The place as a certificate has it; values are part of the text, because JSON has no NaN."""
        place = {"tensor": self.tensor, "batch": self.batch, "index": list(self.index), "node": self.node}
        return {**place, "text": str(self)}

    def _verdict(self) -> str:
        if self.inputs_agree:
            return "its inputs agree, so it is this node"
        wrong = [name for name, agrees in self.inputs.items() if agrees is False]
        unknown = [name for name, agrees in self.inputs.items() if agrees is None]
        return (
            f"its input {', '.join(wrong)} differs already" if wrong else f"its input {', '.join(unknown)} is not known"
        )


@dataclass
class TensorRow:
    """One tensor over all batches; `seen` are the different values, `digest` is over the expected values of all batches."""

    name: str
    dtype: str = ""
    values: int = 0
    differing: int = 0
    saturated: int = 0
    seen: NDArray[Any] = field(default_factory=partial(np.zeros, 0, np.int64), repr=False)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256, repr=False, compare=False)

    @property
    def distinct(self) -> int:
        """How many different values occurred."""
        return int(self.seen.size)

    @property
    def sha256(self) -> str:
        """The fingerprint of the expected values of all batches."""
        return self.digest.hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """The row as a certificate has it."""
        return picked(self, "name dtype values distinct saturated differing sha256")


@dataclass
class FloatRow:
    """One output, or one recorded tensor of floats, over all batches.

    With `is_exact` the values must be equal, because integers determine every bit of them. Otherwise they may differ by a
    thousandth of the largest one; `error` is the largest difference.
    """

    name: str
    is_exact: bool
    is_output: bool = True
    dtype: str = ""
    values: int = 0
    differing: int = 0
    error: float = 0.0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The row as a certificate has it; floats that may differ in their last bits have no fingerprint."""
        sha256 = self.digest.hexdigest() if self.is_exact else None
        return {**picked(self, "name dtype values differing"), "sha256": sha256}


@dataclass(frozen=True)
class Cause:
    """Saturating kernels as a possible reason why the computations differ, and whether a run without them agrees.

    Attributes:
        nodes: Products of unsigned and signed bytes before the first difference, in which this CPU may saturate.
        switch: The session option with which the differences vanish; empty where they stay with every one.
    """

    nodes: tuple[str, ...]
    switch: str

    def __str__(self) -> str:
        listed = ", ".join(self.nodes[:3]) + (f" and {len(self.nodes) - 3} more" if len(self.nodes) > 3 else "")
        cpu = f"This CPU's integer kernels saturate sums of products u8×s8, and {listed} may run in them"
        if self.switch:
            return (
                f"{cpu}: with {self.switch}=1 the differences vanish, so that is the cause. Set this session option, or "
                "write the file in the dialect, standard or zero-point QDQ form."
            )
        return (
            f"{cpu}; but the differences stay with every session option that avoids those kernels, so look elsewhere."
        )


@dataclass(frozen=True)
class Flip:
    """Integers that differ by 1 because float ops before them differ in their last bits.

    Attributes:
        tensor: The quantized tensor.
        node: Name and type of the Quant that makes it.
        float_ops: Name and type of the float ops before it, in the order of computation.
        values: How many values flip, in all batches together.
    """

    tensor: str
    node: str
    float_ops: tuple[str, ...]
    values: int

    def __str__(self) -> str:
        listed = ", ".join(self.float_ops[-3:])
        if len(self.float_ops) > 3:
            listed = f"{len(self.float_ops)} float ops ending with {listed}"
        return f"{counted(self.values, 'value')} of {self.tensor}, behind {listed}"


COLUMNS = (
    Column("name", "tensor"),
    Column("dtype", "type"),
    *(Column(name, name, "{:,}") for name in ("values", "distinct", "saturated")),
    Column("differing", "differ", "{:,}"),
)


@dataclass(repr=False)
class Verification(Shown):
    """The result of comparing every integer of every batch with equality.

    Attributes:
        rows: The integer tensors.
        batches: How many batches ran.
        first: The first difference, in the order of computation.
        missing: Tensors that only one side has.
        output_differences: How many output values differ; `float_error` is the largest difference of outputs that a
            float op computes: those may differ by a thousandth of the largest value, beyond that they count.
        levels: Optimization levels of ONNX Runtime at which the file ran.
        outputs: The outputs.
        cause: Whether saturating kernels explain the differences.
        expected_by: The computation that the file was compared with: "torch", "recording" or "numpy".
        flips: The values that flip, where the last bits of float ops explain every difference. Otherwise empty: then an
            integer is computed wrongly wherever something differs.
        sizes: Other sizes at which the file was also tried.
        impossible_sizes: Sizes that the model, or the file, could not take.
        evidence: The file and the inputs, which a certificate needs.
        witnesses: The witnesses, and what each was compared on.
        not_asked: Witnesses that a certificate names and that were not asked again.
    """

    rows: list[TensorRow]
    batches: int
    first: Divergence | None
    missing: tuple[str, ...]
    output_differences: int
    float_error: float
    levels: tuple[str, ...] = ("all",)
    outputs: list[FloatRow] = field(default_factory=list)
    cause: Cause | None = None
    expected_by: str = "numpy"
    flips: tuple[Flip, ...] = ()
    evidence: Evidence | None = None
    sizes: tuple[str, ...] = ()
    impossible_sizes: tuple[str, ...] = ()
    witnesses: list[WitnessRow] = field(default_factory=list)
    not_asked: tuple[str, ...] = ()

    _columns = COLUMNS

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else "not ok"
        differ = f"{self.differing} of {self.integers} integers differ"
        witnesses = f", witnesses: {'; '.join(map(str, self.witnesses))}" if self.witnesses else ""
        return f"Verification({verdict}, {counted(len(self.rows), 'tensor')}, {differ}{witnesses})"

    @property
    def integers(self) -> int:
        """How many integers were compared."""
        return sum(row.values for row in self.rows)

    @property
    def differing(self) -> int:
        """How many of them differ in any of the computations."""
        return sum(row.differing for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether everything agrees, and something was compared."""
        is_equal = self.integers > 0 and not self.differing and not self.missing and not self.output_differences
        return is_equal and all(witness.ok for witness in self.witnesses)

    @property
    def narrow(self) -> list[TensorRow]:
        """Tensors with too few distinct values to prove much."""
        return [row for row in self.rows if row.distinct < NARROW]

    def summary(self) -> str:
        """The verdict in a few sentences."""
        text = f"{self.differing} of {self.integers} integers differ ({counted(len(self.rows), 'tensor')}, {counted(self.batches, 'batch')})."
        if not self.integers:
            text += (
                f" Nothing is proved: {'the file has no integer tensors' if self.batches else 'there was no input'}."
            )
        if self.missing:
            text += f" Only one side has {', '.join(self.missing)}."
        if self.output_differences:
            text += f" {self.output_differences} output values differ."
        if self.first is not None:
            text += f" First: {self.first}."
        if self.cause is not None:
            text += f" {self.cause}"
        return text + self._about_witnesses() + self._about_sizes() + self._about_flips()

    def _about_witnesses(self) -> str:
        name = "Witness" if len(self.witnesses) == 1 else "Witnesses"
        text = f" {name}: {'; '.join(map(str, self.witnesses))}." if self.witnesses else ""
        if self.not_asked:
            text += f" Not asked again, though the certificate names it: {'; '.join(self.not_asked)}."
        return text

    def _about_sizes(self) -> str:
        text = f" Other sizes that were tried: {'; '.join(self.sizes)}." if self.sizes else ""
        if self.impossible_sizes:
            text += f" Sizes that could not be tried: {'; '.join(self.impossible_sizes)}."
        return text

    def _about_flips(self) -> str:
        if not self.flips:
            is_behind_floats = self.first is not None and self.first.op_type == "Quant" and not self.first.inputs_agree
            return " That is more than the rounding of float ops explains." if is_behind_floats else ""
        return (
            " No integer is computed wrongly: what differs follows from float ops that differ in their last bits, so that "
            f"values between two integers become one here and the other there ({'; '.join(map(str, self.flips))}). With "
            f"the integers of {self.expected_by} in these places everything else is equal. Quantize these float ops "
            "(linger.coverage says why they are float), or take other inputs, to have every integer equal."
        )

    def save_certificate(self, path: str | os.PathLike[str]) -> Path:
        """Write a certificate, which `linger verify --certificate` checks again elsewhere.

        Returns:
            The file.

        Raises:
            UsageError: The model was no file, the inputs were too many to keep, or the file cannot be written.
        """
        write_certificate(Path(path), self.evidence, self._findings())
        return Path(path)

    def _findings(self) -> dict[str, Any]:
        """The entries of a certificate that say what was found."""
        return {
            "expected_by": self.expected_by,
            "levels": list(self.levels),
            "session_options": {} if self.evidence is None else dict(self.evidence.options),
            "verdict": EQUAL if self.ok else DIFFERENT,
            "summary": self.summary(),
            "counts": {
                "batches": self.batches,
                "tensors": len(self.rows),
                **picked(self, "integers differing output_differences"),
            },
            "float_error": self.float_error,
            "missing": list(self.missing),
            "first": None if self.first is None else self.first.as_dict(),
            "tensors": [row.as_dict() for row in self.rows],
            "outputs": [row.as_dict() for row in self.outputs if row.is_output],
            **({"witnesses": [row.as_dict() for row in self.witnesses]} if self.witnesses else {}),
        }
