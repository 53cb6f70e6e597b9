# SPDX-License-Identifier: Apache-2.0
"""What a verification found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.verification.digest import Fingerprint

NARROW = 16
"""A tensor with fewer distinct values than this proves little, and is listed."""


@dataclass(frozen=True)
class Divergence:
    """The first place where two computations differ, in the order of computation.

    Attributes:
        tensor: The tensor.
        batch: The batch, counted from 0.
        index: Where in the tensor; empty where types or shapes differ.
        expected_by: Who expected: "torch", "recording" or "numpy".
        expected: The value there; type and shape where those differ.
        found_by: Who found something else.
        found: What it found.
        node: Name and type of the node that makes the tensor.
        op_type: That type alone.
        inputs: Whether each tensor that goes into the node agrees; None where that is not known.
        inside: The first difference inside the body of the node, where it has one and could be followed.
        unit: What `batch` counts: inside a body its iterations.
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
        """Whether everything that goes into the node agrees, so that it is this node; None: not known."""
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
    """One tensor over all batches."""

    name: str
    dtype: str = ""
    values: int = 0
    differing: int = 0
    saturated: int = 0
    seen: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    _fingerprint: Fingerprint = field(default_factory=Fingerprint, repr=False, compare=False)

    @property
    def distinct(self) -> int:
        """How many different values the tensor took."""
        return int(self.seen.size)

    @property
    def sha256(self) -> str:
        """The fingerprint of what was expected of the tensor, batch after batch."""
        return self._fingerprint.hexdigest()

    def add(self, array: NDArray[Any]) -> None:
        """Count one batch."""
        self.dtype = str(array.dtype)
        self.values += array.size
        self._fingerprint.add(array)
        if array.dtype.kind in "iu":
            ends = np.iinfo(array.dtype)
            is_at_the_end = array == ends.max
            if array.dtype.kind == "i":  # the least unsigned number is zero, which is nothing special
                is_at_the_end |= array == ends.min
            self.saturated += int(np.count_nonzero(is_at_the_end))
            self.seen = np.union1d(self.seen, array)


@dataclass
class FloatRow:
    """One output, or one recorded tensor of floats, over all batches.

    `is_exact`: equality is asked for, because the integers behind it decide every bit. Else values may differ by a
    thousandth of the largest one; `error` is the largest difference.
    """

    name: str
    is_exact: bool
    is_output: bool = True
    dtype: str = ""
    values: int = 0
    differing: int = 0
    error: float = 0.0
    _fingerprint: Fingerprint = field(default_factory=Fingerprint, repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """The fingerprint of what was expected."""
        return self._fingerprint.hexdigest()

    def add(self, array: NDArray[Any]) -> None:
        """Count one batch."""
        self.dtype = str(array.dtype)
        self.values += array.size
        self._fingerprint.add(array)


@dataclass(frozen=True)
class Cause:
    """Why the computations differ, as far as that was tried out.

    Attributes:
        nodes: Products of unsigned and signed bytes before the first difference, which this CPU may get wrong.
        switch: The session option with which the differences vanish; empty: with none of those tried.
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
        tensor: The quantised tensor.
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
        return f"{_count(self.values, 'value')} of {self.tensor}, behind {listed}"


@dataclass
class Verification:
    """Every integer of every batch, compared with equality.

    Attributes:
        rows: The integer tensors.
        batches: How many batches ran.
        first: The first difference, in the order of computation.
        missing: Tensors that only one side has.
        output_differences: How many output values differ; `float_error` is the largest difference of outputs that a
            float op computes: those may differ by a thousandth of the largest value, beyond that they count.
        levels: Optimisation levels of ONNX Runtime at which the file ran.
        outputs: The outputs.
        cause: Whether saturating kernels explain the differences.
        expected_by: Who was held against the file: "torch", "recording" or "numpy".
        flips: Where the last bits of float ops explain every difference: the values that flip. Else empty, and an integer
            is wrong wherever something differs.
        sizes: Other sizes at which the file was tried, too.
        impossible_sizes: Those that the model, or the file, could not take.
        evidence: What a certificate needs: see `linger.verification.proof.certificate`.
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
        return self.integers > 0 and not self.differing and not self.missing and not self.output_differences

    @property
    def narrow(self) -> list[TensorRow]:
        """Tensors that took too few values to prove much."""
        return [row for row in self.rows if row.distinct < NARROW]

    def summary(self) -> str:
        """The verdict in a few sentences."""
        text = f"{self.differing} of {self.integers} integers differ ({_count(len(self.rows), 'tensor')}, {_count(self.batches, 'batch')})."
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
        return text + self._about_sizes() + self._about_flips()

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
            f"the integers of {self.expected_by} in these places everything else is equal. Quantise these float ops "
            "(linger.coverage says why they are float), or take other inputs, to have every integer equal."
        )

    def save_certificate(self, path: str | os.PathLike[str]) -> Path:
        """Write what was proved, for `linger verify --certificate` to check again elsewhere.

        Returns:
            The file.

        Raises:
            UsageError: The model was no file, the inputs were too many to keep, or the file cannot be written.
        """
        from linger.verification.proof.certificate import write_certificate  # it knows this class

        return write_certificate(self, Path(path))


@dataclass(frozen=True)
class Evidence:
    """What was proved of which file with which inputs.

    Attributes:
        model: The file; None where the model was given in memory.
        inputs: The inputs of every batch by name; None where they were too many to keep.
        seeds: The seeds they were made with; empty where they were given.
        fingerprints: The SHA-256 of every input of every batch.
        options: Session options that were given.
        stamp: Names, sizes and times of the model's files when they were loaded.
    """

    model: Path | None
    inputs: Sequence[Mapping[str, NDArray[Any]]] | None
    seeds: tuple[int, ...]
    fingerprints: Sequence[Mapping[str, str]]
    options: Mapping[str, Any]
    stamp: tuple[tuple[str, int, int], ...] = ()


def _count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> _count(1, "batch"), _count(3, "batch"), _count(2, "tensor")
    ('1 batch', '3 batches', '2 tensors')
    """
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
