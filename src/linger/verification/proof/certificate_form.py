# SPDX-License-Identifier: Apache-2.0
"""The form of a certificate: which entries it must have, of which kind. All that is wrong is found at once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from linger.errors import UsageError, VerificationError
from linger.runtime.session import LEVELS
from linger.verification.proof.certificate import (
    DIFFERENT,
    EMBEDDED,
    EQUAL,
    GENERATED,
    GENERATOR,
    SCHEMA,
    SCHEMA_VERSION,
    STORED,
    sealed,
)

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


def read_certificate(path: Path) -> dict[str, Any]:
    """The content of a certificate whose form is right.

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
    """Whether the seal fits."""
    return bool(sealed(content)["seal"] == content["seal"])


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    broken = [key for key, kind in _KINDS.items() if not _is(content.get(key), kind)]
    yield from (f"{key} is missing or of another kind" for key in broken)
    checks: dict[str, Callable[[Any], Iterator[str]]] = {
        "model": _model,
        "inputs": _inputs,
        "levels": _levels,
        "verdict": _verdict,
        "counts": _counts,
    }
    for key, check in checks.items():
        if key not in broken:
            yield from check(content[key])
    for key, form in (("tensors", _TENSOR), ("outputs", _ROW)):
        if key not in broken:
            yield from _rows(key, content[key], form)


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _model(model: Mapping[str, Any]) -> Iterator[str]:
    if not _is_plain_name(model.get("name")):
        yield "model.name is no name of a file"
    if not _is_sha256(model.get("sha256")):
        yield "model.sha256 is no SHA-256"
    external = model.get("external")
    if not isinstance(external, list) or not all(
        isinstance(e, dict) and isinstance(e.get("name"), str) and _is_sha256(e.get("sha256")) for e in external
    ):
        yield "model.external is no list of names and SHA-256"


def _is_plain_name(name: Any) -> bool:
    """A file beside the certificate, not somewhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _inputs(inputs: Mapping[str, Any]) -> Iterator[str]:
    batches = inputs.get("batches")
    if not isinstance(batches, list) or not all(
        isinstance(b, dict) and all(_is_sha256(digest) for digest in b.values()) for b in batches
    ):
        yield "inputs.batches is no list of SHA-256 by name"
        batches = None
    kind = inputs.get("kind")
    if kind == GENERATED:
        yield from _seeds(inputs, None if batches is None else len(batches))
    elif kind in (EMBEDDED, STORED):
        place = inputs.get("npz" if kind == EMBEDDED else "file")
        if not _is_sha256(inputs.get("sha256")) or not (
            isinstance(place, str) if kind == EMBEDDED else _is_plain_name(place)
        ):
            yield "inputs does not say where they are and what their SHA-256 is"
    else:
        yield f"inputs.kind is {kind!r}, not {GENERATED}, {EMBEDDED} or {STORED}"


def _seeds(inputs: Mapping[str, Any], batches: int | None) -> Iterator[str]:
    seeds = inputs.get("seeds")
    if (
        inputs.get("generator") != GENERATOR
        or not isinstance(seeds, list)
        or any(not _is(s, int) or s < 0 for s in seeds)
    ):
        yield f"inputs.seeds is no list of seeds for the generator {GENERATOR}"
    elif batches not in (None, len(seeds)):
        yield f"inputs has {len(seeds)} seeds for {batches} batches"


def _levels(levels: list[Any]) -> Iterator[str]:
    unknown = [str(level) for level in levels if not isinstance(level, str) or level not in LEVELS]
    if unknown or not levels:
        yield f"levels has {', '.join(unknown) or 'nothing'}, not some of {', '.join(LEVELS)}"


def _verdict(verdict: str) -> Iterator[str]:
    if verdict not in (EQUAL, DIFFERENT):
        yield f"verdict is {verdict!r}, not {EQUAL} or {DIFFERENT}"


def _counts(counts: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"counts.{key} is no number" for key in _COUNTS if not _is(counts.get(key), int))


def _rows(key: str, rows: list[Any], form: Mapping[str, type]) -> Iterator[str]:
    for number, row in enumerate(rows):
        fields = row if isinstance(row, dict) else {}
        wrong = [name for name, kind in form.items() if not _is(fields.get(name), kind)]
        if not _is_sha256(fields.get("sha256")) and (key == "tensors" or fields.get("sha256", "") is not None):
            wrong.append("sha256")
        if wrong:
            yield f"{key}[{number}] lacks {', '.join(wrong)}"
    names = Counter(str(row.get("name")) for row in rows if isinstance(row, dict))
    yield from (f"{key} names {name} twice" for name, count in names.items() if count > 1)
