# SPDX-License-Identifier: Apache-2.0
"""A certificate: a verification as a JSON file, with the model's fingerprint, the inputs and the versions.

Inputs that were generated are given by their seeds, small ones are part of the file, large ones are stored beside it in
`<name>.inputs.npz`. `linger.verification.proof.recheck` computes everything again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from linger.errors import UsageError, VerificationError
from linger.files import is_unchanged, places_beside, write_atomically, write_together
from linger.records.reading import Count, FileName, Is, Sha256, parse_json, read, refuse_fields
from linger.runtime.session import LEVELS, has_saturating_products
from linger.verification.array_files import npz_content
from linger.version import __version__

SCHEMA, SCHEMA_VERSION = "linger-certificate", 1
GENERATOR = "pcg64-sum-of-12"
"""The method by which seeds become inputs: `linger.verification.feeds.generated_feeds`."""

EQUAL, DIFFERENT = "equal", "different"
GENERATED, EMBEDDED, STORED = "generated", "embedded", "stored"

_EMBEDDED_BYTES = 1 << 14
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _DataFile:
    """A file that holds weights of the model, by its path beside it."""

    name: str
    sha256: Sha256


@dataclass(frozen=True)
class _ModelFile:
    """The model's file, and those that hold weights."""

    name: FileName
    sha256: Sha256
    external: tuple[_DataFile, ...]


@dataclass(frozen=True)
class _Inputs:
    """The inputs: the fingerprints of each batch by name, and the seeds that generate them, or where they are."""

    batches: tuple[Mapping[str, Sha256], ...]
    kind: Literal["generated", "embedded", "stored"]
    generator: Literal["pcg64-sum-of-12"] | None = None
    seeds: tuple[Count, ...] | None = None
    npz: str | None = None
    file: FileName | None = None
    sha256: Sha256 | None = None

    def __post_init__(self) -> None:
        is_generated, place = self.kind == GENERATED, self.npz if self.kind == EMBEDDED else self.file
        seeds = self.seeds if self.generator == GENERATOR else None
        refuse_fields(
            {
                f"seeds is no list of seeds for the generator {GENERATOR}": is_generated and seeds is None,
                f"seeds are {len(seeds or ())} for {len(self.batches)} batches": (
                    is_generated and seeds is not None and len(seeds) != len(self.batches)
                ),
                "kind does not say where they are and what their SHA-256 is": (
                    not is_generated and None in (place, self.sha256)
                ),
            }
        )


@dataclass(frozen=True)
class _Counts:
    """How much was compared, and how much differs."""

    batches: int
    tensors: int
    integers: int
    differing: int
    output_differences: int


@dataclass(frozen=True)
class _OutputEntry:
    """An output; one that may differ in its last bits has no fingerprint."""

    name: str
    dtype: str
    values: int
    differing: int
    sha256: Sha256 | None


@dataclass(frozen=True)
class _TensorEntry:
    """An integer tensor."""

    name: str
    dtype: str
    values: int
    differing: int
    distinct: int
    saturated: int
    sha256: Sha256


@dataclass(frozen=True)
class _WitnessEntry:
    """A further computation, and what it was compared on."""

    description: str
    origin: Mapping[str, Any]
    tensors: int
    integers: int
    differing: int
    others: int
    other_differences: int
    missing: tuple[Any, ...]


@dataclass(frozen=True)
class _Certificate:
    """The entries that a certificate must have; others may be there."""

    date: str
    versions: Mapping[str, Any]
    cpu: Mapping[str, Any]
    model: _ModelFile
    inputs: _Inputs
    expected_by: str
    levels: Annotated[
        tuple[str, ...],
        Is(lambda levels: levels and set(levels) <= set(LEVELS), f"a list of some of {', '.join(LEVELS)}"),
    ]
    session_options: Mapping[str, Any]
    verdict: Literal["equal", "different"]
    summary: str
    counts: _Counts
    float_error: float
    missing: tuple[Any, ...]
    tensors: tuple[_TensorEntry, ...]
    outputs: tuple[_OutputEntry, ...]
    seal: str
    witnesses: tuple[_WitnessEntry, ...] = ()

    def __post_init__(self) -> None:
        kinds = (
            ("tensors", Counter(row.name for row in self.tensors)),
            ("outputs", Counter(r.name for r in self.outputs)),
        )
        refuse_fields(
            {f"{key} names {n} twice": True for key, names in kinds for n, count in names.items() if count > 1}
        )


@dataclass(frozen=True)
class Evidence:
    """The file and the inputs of a verification.

    Attributes:
        model: The file; None where the model was given in memory.
        inputs: The inputs of every batch by name; None where they were too many to keep.
        seeds: The seeds that generated them; empty where they were given.
        fingerprints: The SHA-256 of every input of every batch.
        options: Session options that were given.
        files: The model file and its data files, each with its size and times when it was loaded.
    """

    model: Path | None
    inputs: Sequence[Mapping[str, NDArray[Any]]] | None = field(repr=False)
    seeds: tuple[int, ...]
    fingerprints: Sequence[Mapping[str, str]]
    options: Mapping[str, Any]
    files: Mapping[Path, os.stat_result] = field(default_factory=dict, repr=False)


def write_certificate(path: Path, evidence: Evidence | None, findings: Mapping[str, Any]) -> None:
    """Write a certificate with the entries that say what was found, and the inputs beside it where they are large; all or nothing.

    Raises:
        UsageError: The model was no file or has changed, the inputs were too many, or a file cannot be written.
    """
    if evidence is None or evidence.model is None:
        raise UsageError(f"{path}: a certificate is about a file. Save the model, and verify its path.")
    if not all(is_unchanged(file, before) for file, before in evidence.files.items()):
        raise UsageError(f"{path}: {evidence.model} has changed since it was verified. Verify it again.")
    if evidence.inputs is None and not evidence.seeds:
        raise UsageError(f"{path}: the inputs were too many to be kept for a certificate. Verify fewer batches.")
    beside = f"{Path(os.path.realpath(path)).stem}.inputs.npz"
    inputs, stored = _inputs_entry(evidence, beside)
    model = describe_model(evidence.model, [file for file in evidence.files if file != evidence.model])
    content = sealed(
        {**_header(with_torch=findings["expected_by"] == "torch"), "model": model, "inputs": inputs, **findings}
    )
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if stored is None:
        write_atomically(path, text.encode())
        return
    place, inputs_file = places_beside(path, lambda _: beside)
    write_together({inputs_file: lambda file: file.write(stored), place: lambda file: file.write(text.encode())})


def describe_model(path: Path, data_files: Sequence[Path]) -> dict[str, Any]:
    """The names and the fingerprints of a model's files."""
    external = [{"name": f.relative_to(path.parent).as_posix(), "sha256": file_sha256(f)} for f in data_files]
    return {"name": path.name, "sha256": file_sha256(path), "external": external}


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, read piece by piece.

    Raises:
        UsageError: The file cannot be read.
    """
    made = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                made.update(chunk)
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read ({error.strerror or error}).") from error
    return made.hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a fingerprint of everything in it: it shows accidental changes, it is no signature."""
    rest = {key: value for key, value in content.items() if key != "seal"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return {**rest, "seal": hashlib.sha256(text.encode()).hexdigest()}


def used_versions(*, with_torch: bool) -> dict[str, str]:
    """The versions of what computes, by name."""
    modules = {"onnx": onnx, "onnx_ir": ir, "onnxruntime": ort, "numpy": np}
    if with_torch:
        modules["torch"] = sys.modules["torch"]
    found = {name: str(module.__version__) for name, module in modules.items()}
    return {"linger": __version__, **found, "python": platform.python_version()}


def _header(*, with_torch: bool) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": used_versions(with_torch=with_torch),
        "cpu": {
            "system": platform.system(),
            "machine": platform.machine(),
            "u8s8_saturates": has_saturating_products(),
        },
    }


def _inputs_entry(evidence: Evidence, beside: str) -> tuple[dict[str, Any], bytes | None]:
    """The entry on inputs, and the content of the file beside the certificate, where there is one."""
    entry: dict[str, Any] = {"batches": [dict(batch) for batch in evidence.fingerprints]}
    if evidence.seeds:
        return {"kind": GENERATED, "generator": GENERATOR, "seeds": list(evidence.seeds), **entry}, None
    assert evidence.inputs is not None  # write_certificate refuses this
    numbered = enumerate(evidence.inputs)
    content = npz_content({f"{number}/{name}": array for number, feeds in numbered for name, array in feeds.items()})
    digest = hashlib.sha256(content).hexdigest()
    if len(content) <= _EMBEDDED_BYTES:
        return {"kind": EMBEDDED, "npz": base64.b64encode(content).decode(), "sha256": digest, **entry}, None
    return {"kind": STORED, "file": beside, "sha256": digest, **entry}, content


def read_certificate(path: Path) -> dict[str, Any]:
    """The content of a certificate that has every entry it must have, each of the right kind.

    Raises:
        UsageError: There is no such file.
        VerificationError: It is no certificate, is cut off, has another version, or lacks entries; all are named.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file. Give a certificate that linger verify has written.")
    try:
        content = parse_json(path.read_bytes().decode())
    except (ValueError, OSError) as error:
        raise VerificationError(
            f"{path}: this is not a complete certificate ({error}). Copy it again whole, or verify the model again."
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise VerificationError(f"{path}: this is no certificate: it does not say schema {SCHEMA!r}.")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise VerificationError(
            f"{path}: it has schema version {content.get('schema_version')!r}; this linger knows {SCHEMA_VERSION}. Check "
            "it with the linger that wrote it, or verify the model again."
        )
    where = f"{path}: its entries are damaged"
    read(_Certificate, content, where, "Verify the model again.", error=VerificationError, is_open=True)
    return content


def is_untouched(content: Mapping[str, Any]) -> bool:
    """Whether the seal fits the content."""
    return bool(sealed(content)["seal"] == content["seal"])
