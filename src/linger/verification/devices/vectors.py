# SPDX-License-Identifier: Apache-2.0
"""linger.write_vectors: write the inputs, every intermediate integer and the outputs of a file, to bring up a device with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linger.errors import UsageError, VerificationError, listing
from linger.files import require_free_folder, write_folder
from linger.graph.core.walking import required_inputs
from linger.graph.files.model_io import ModelLike
from linger.graph.network import Network
from linger.progress import progress
from linger.runtime.reference import Reference
from linger.runtime.session import Session
from linger.verification.array_files import Array
from linger.verification.devices.file_runner import TensorFact, constants_of, label_of, tensor_facts
from linger.verification.devices.vector_files import FORMATS, Vector, is_vector_folder, write_vector_files
from linger.verification.feeds import Feed, given_feeds, spread_feeds
from linger.verification.proof.verify import verify_file
from linger.verification.recording import Recording
from linger.version import __version__

_INTEGERS = (np.int8, np.int16, np.int32)
HEADER_LIMIT = 1024


@dataclass(frozen=True)
class WrittenVectors:
    """The test vectors that were written.

    Attributes:
        folder: The folder.
        batches: How many batches.
        tensors: How many tensors each of them has.
        left_out: Intermediate tensors that hold no quantised integers.
    """

    folder: Path
    batches: int
    tensors: int
    left_out: tuple[str, ...]

    def summary(self) -> str:
        """The folder and the counts, in a sentence or two."""
        text = f"{self.folder}: {self.tensors} tensors, {self.batches} batch{'es' if self.batches != 1 else ''}."
        if self.left_out:
            text += f" Left out, since they are no quantised integers: {listing(self.left_out, limit=5)}."
        return text


def write_vectors(
    model: ModelLike,
    folder: str | os.PathLike[str],
    inputs: object = None,
    *,
    batches: int = 1,
    seed: int = 0,
    formats: str | Sequence[str] = FORMATS,
    header_limit: int | None = None,
    force: bool = False,
) -> WrittenVectors:
    """Write a folder with the inputs, every intermediate integer and the outputs of a file.

    The numbers are those of the numpy reference. ONNX Runtime must compute the same, else nothing is written.

    Args:
        model: A dialect, bare or standard ONNX file.
        folder: The folder to write; it must not exist.
        inputs: An .npz file, an array, a mapping from names to arrays, or a list of such feeds. None: random ones.
        batches: How many random feeds.
        seed: Their seed.
        formats: Any of "npz", "bin" (raw, little endian) and "text".
        header_limit: Also write `vectors.h`, with arrays of at most this many numbers. None: no header.
        force: Replace a folder that was written by this function before.

    Raises:
        UsageError: The folder exists, inputs do not fit, a format is unknown, or the file has no quantised tensors.
        VerificationError: ONNX Runtime computes something else.
    """
    chosen = (formats,) if isinstance(formats, str) else tuple(formats)
    _require_sensible(chosen, batches, header_limit)
    target = Path(folder)
    _refuse_early(target, force=force)
    run = _Run(model)
    is_random = inputs is None
    feeds = spread_feeds(run.model, seed=seed, batches=batches) if is_random else given_feeds(inputs, run.model)
    run.verify(feeds)

    def about() -> dict[str, Any]:
        return {
            "model": Path(model).name if isinstance(model, (str, os.PathLike)) else "a model in memory",
            "linger": __version__,
            "seed": seed if is_random else None,
            "left_out": list(run.left_out),
        }

    numbered = progress(list(enumerate(feeds)), "vectors")
    made = (run.vectors(number, feed) for number, feed in numbered)
    fill = partial(write_vector_files, batches=made, formats=chosen, header_limit=header_limit, about=about)
    write_folder(target, fill, is_own=is_vector_folder if force else None)
    return WrittenVectors(target, len(feeds), run.tensors, tuple(run.left_out))


def _require_sensible(formats: Sequence[str], batches: int, header_limit: int | None) -> None:
    unknown = [form for form in formats if form not in FORMATS]
    if unknown or not formats:
        raise UsageError(f"formats {listing(map(repr, unknown)) or 'are empty'}: choose among {listing(FORMATS)}.")
    if batches < 1:
        raise UsageError(f"batches {batches}: at least one is needed.")
    if header_limit is not None and header_limit < 1:
        raise UsageError(f"header_limit {header_limit}: at least 1, or None for no header.")


def _refuse_early(target: Path, *, force: bool) -> None:
    """Refuse a folder that may not be replaced, before the work."""
    require_free_folder(target, lambda _: True)
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not force:
        raise UsageError(f"{target}: the folder exists. Choose another one, or replace it with force.")
    if not is_vector_folder(target):
        raise UsageError(f"{target}: the folder holds something else than vectors. Choose another one.")


class _Run:
    def __init__(self, model: ModelLike) -> None:
        network = Network.of(model)
        self._label, self.model = label_of(model) or "the given model", Session(network, as_written=True).model
        self._written = Network(self.model, is_checked=True)
        self._compute = Reference(self._written).intermediates
        self._facts = tensor_facts(self.model)
        self._constants = constants_of(self.model)
        self._outputs = {value.name for value in self.model.graph.outputs}
        self.left_out: dict[str, None] = {}
        self.tensors = 0

    def vectors(self, batch: int, feed: Feed) -> list[Vector]:
        """The tensors of a batch, in the order of execution."""
        computed = {**feed, **self._compute(feed)}
        found = []
        for fact in self._facts.values():
            kind = self._kind(fact, computed)
            if kind is not None:
                array = np.asarray(computed[fact.name])
                found.append(
                    Vector(fact.name, fact.node, fact.op_type, kind, fact.order, batch, fact.scale, fact.bits, array)
                )
            elif fact.name in computed and fact.name not in self._constants:
                self.left_out[fact.name] = None
        self.tensors = len(found)
        return found

    def verify(self, feeds: Sequence[Feed]) -> None:
        """Compare the numpy reference and ONNX Runtime on every feed.

        Raises:
            UsageError: There is nothing quantised in the file.
            VerificationError: They differ.
        """
        names = [value.name or "" for value in required_inputs(self.model)]
        recordings = (Recording(inputs=[feed[n] for n in names]) for feed in feeds)
        result = verify_file(self._written, recordings)
        if not result.integers:
            raise UsageError(f"{self._label}: there is no quantised tensor in it. Give a quantised file.")
        if not result.ok:
            raise VerificationError(f"{self._label}: {result.summary()} No vectors are written.")

    def _kind(self, fact: TensorFact, computed: dict[str, Array]) -> str | None:
        if fact.name not in computed:
            return None
        if fact.op_type == "Input":
            return "input"
        if fact.name in self._outputs:
            return "output"
        is_integer = computed[fact.name].dtype in _INTEGERS and fact.name not in self._constants
        return "intermediate" if is_integer else None
