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
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from linger.errors import UsageError, VerificationError
from linger.files import is_unchanged, places_beside, write_atomically, write_together
from linger.runtime.saturation import has_saturating_products
from linger.runtime.session import LEVELS
from linger.verification.array_files import npz_content
from linger.version import __version__

SCHEMA, SCHEMA_VERSION = "linger-certificate", 1
GENERATOR = "pcg64-sum-of-12"
"""The method by which seeds become inputs: `linger.verification.feeds.generated_feeds`."""

EQUAL, DIFFERENT = "equal", "different"
GENERATED, EMBEDDED, STORED = "generated", "embedded", "stored"

_EMBEDDED_BYTES = 1 << 14
_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNTS = ("batches", "tensors", "integers", "differing", "output_differences")
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "date": str,
    "versions": dict,
    "cpu": dict,
    "model": dict,
    "inputs": dict,
    "expected_by": str,
    "levels": list,
    "session_options": dict,
    "verdict": str,
    "summary": str,
    "counts": dict,
    "float_error": (int, float),
    "missing": list,
    "tensors": list,
    "outputs": list,
    "seal": str,
}
_ROW = {"name": str, "dtype": str, "values": int, "differing": int}
_TENSOR = {**_ROW, "distinct": int, "saturated": int}
_WITNESS: Mapping[str, type] = {
    "description": str,
    "origin": dict,
    "tensors": int,
    "integers": int,
    "differing": int,
    "others": int,
    "other_differences": int,
    "missing": list,
}


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
    """Write a certificate, and the inputs beside it where they are large; all or nothing.

    Args:
        path: The file.
        evidence: The file and the inputs that were verified.
        findings: The entries of the certificate that say what was found.

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
        content = json.loads(path.read_bytes().decode())
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()  # no NaN, no half of a character
    except (ValueError, RecursionError, OSError) as error:
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
    wrong = list(_problems(content))
    if wrong:
        raise VerificationError(f"{path}: its entries are damaged: {'; '.join(wrong)}. Verify the model again.")
    return content


def is_untouched(content: Mapping[str, Any]) -> bool:
    """Whether the seal fits the content."""
    return bool(sealed(content)["seal"] == content["seal"])


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    broken = [key for key, kind in _KINDS.items() if not _is(content.get(key), kind)]
    yield from (f"{key} is missing or of another kind" for key in broken)
    yield from _witness_problems(content.get("witnesses", []))  # a certificate without witnesses has no such entry
    checks: dict[str, Callable[[Any], Iterator[str]]] = {
        "model": _model_problems,
        "inputs": _input_problems,
        "levels": _level_problems,
        "verdict": _verdict_problems,
        "counts": _count_problems,
        "tensors": lambda rows: _row_problems("tensors", rows, _TENSOR),
        "outputs": lambda rows: _row_problems("outputs", rows, _ROW),
    }
    for key, check in checks.items():
        if key not in broken:
            yield from check(content[key])


def _is(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_plain_name(name: object) -> bool:
    """Whether this names a file beside the certificate, not somewhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _model_problems(model: Mapping[str, Any]) -> Iterator[str]:
    if not _is_plain_name(model.get("name")):
        yield "model.name is no name of a file"
    if not _is_sha256(model.get("sha256")):
        yield "model.sha256 is no SHA-256"
    external = model.get("external")
    if not isinstance(external, list) or not all(
        isinstance(e, dict) and isinstance(e.get("name"), str) and _is_sha256(e.get("sha256")) for e in external
    ):
        yield "model.external is no list of names and SHA-256"


def _input_problems(inputs: Mapping[str, Any]) -> Iterator[str]:
    batches, kind = inputs.get("batches"), inputs.get("kind")
    are_digests = isinstance(batches, list) and all(
        isinstance(b, dict) and all(map(_is_sha256, b.values())) for b in batches
    )
    if not are_digests:
        yield "inputs.batches is no list of SHA-256 by name"
    if kind == GENERATED:
        yield from _seed_problems(inputs, len(inputs["batches"]) if are_digests else None)
    elif kind not in (EMBEDDED, STORED):
        yield f"inputs.kind is {kind!r}, not {GENERATED}, {EMBEDDED} or {STORED}"
    elif not _is_sha256(inputs.get("sha256")) or not _has_place(inputs):
        yield "inputs does not say where they are and what their SHA-256 is"


def _has_place(inputs: Mapping[str, Any]) -> bool:
    return isinstance(inputs.get("npz"), str) if inputs["kind"] == EMBEDDED else _is_plain_name(inputs.get("file"))


def _seed_problems(inputs: Mapping[str, Any], batches: int | None) -> Iterator[str]:
    seeds = inputs.get("seeds")
    are_seeds = isinstance(seeds, list) and all(_is(s, int) and s >= 0 for s in seeds)
    if inputs.get("generator") != GENERATOR or not are_seeds:
        yield f"inputs.seeds is no list of seeds for the generator {GENERATOR}"
    elif batches not in (None, len(inputs["seeds"])):
        yield f"inputs has {len(inputs['seeds'])} seeds for {batches} batches"


def _level_problems(levels: list[Any]) -> Iterator[str]:
    unknown = [str(level) for level in levels if not isinstance(level, str) or level not in LEVELS]
    if unknown or not levels:
        yield f"levels has {', '.join(unknown) or 'nothing'}, not some of {', '.join(LEVELS)}"


def _verdict_problems(verdict: str) -> Iterator[str]:
    if verdict not in (EQUAL, DIFFERENT):
        yield f"verdict is {verdict!r}, not {EQUAL} or {DIFFERENT}"


def _count_problems(counts: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"counts.{key} is no number" for key in _COUNTS if not _is(counts.get(key), int))


def _witness_problems(witnesses: object) -> Iterator[str]:
    if not isinstance(witnesses, list):
        yield "witnesses is of another kind"
        return
    for number, witness in enumerate(witnesses):
        found = witness if isinstance(witness, dict) else {}
        wrong = [key for key, kind in _WITNESS.items() if not _is(found.get(key), kind)]
        if wrong:
            yield f"witnesses[{number}] lacks {', '.join(wrong)}"


def _row_problems(key: str, rows: list[Any], form: Mapping[str, type]) -> Iterator[str]:
    for number, row in enumerate(rows):
        wrong = _row_gaps(key, row if isinstance(row, dict) else {}, form)
        if wrong:
            yield f"{key}[{number}] lacks {', '.join(wrong)}"
    names = Counter(str(row.get("name")) for row in rows if isinstance(row, dict))
    yield from (f"{key} names {name} twice" for name, count in names.items() if count > 1)


def _row_gaps(key: str, row: Mapping[str, Any], form: Mapping[str, type]) -> list[str]:
    """The fields that a row lacks; outputs that may differ in their last bits have no fingerprint."""
    wrong = [name for name, kind in form.items() if not _is(row.get(name), kind)]
    has_digest = _is_sha256(row.get("sha256")) or (key == "outputs" and row.get("sha256", "") is None)
    return wrong if has_digest else [*wrong, "sha256"]
