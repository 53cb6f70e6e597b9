# SPDX-License-Identifier: Apache-2.0
"""A verification as a JSON file: what was proved, of which file, with which inputs, by which versions.

Inputs that were made up are named by their seeds, small ones are part of the file, others lie beside it in
`<name>.inputs.npz`. `linger.verification.proof.recheck` reads what is written here.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError
from linger.files import places_beside, write_atomically, write_together
from linger.graph.files.external_data import external_tensors
from linger.graph.files.model_io import load
from linger.runtime.saturation import has_saturating_products
from linger.verification.digest import file_sha256
from linger.verification.proof.result import Divergence, Evidence, FloatRow, TensorRow, Verification
from linger.verification.recording_files import npz_content

SCHEMA, SCHEMA_VERSION = "linger-certificate", 1
GENERATOR = "pcg64-sum-of-12"
"""How seeds become inputs: `linger.runtime.generated`."""

EQUAL, DIFFERENT = "equal", "different"
GENERATED, EMBEDDED, STORED = "generated", "embedded", "stored"

_EMBEDDED_BYTES = 1 << 14
_ALWAYS_USED = ("linger", "onnx", "onnx_ir", "onnxruntime", "numpy")


def write_certificate(result: Verification, path: Path) -> Path:
    """Write a certificate, and the inputs beside it where they are large; all or nothing.

    Raises:
        UsageError: The model was no file or has changed, the inputs were too many, or a file cannot be written.
    """
    evidence = result.evidence
    if evidence is None or evidence.model is None:
        raise UsageError(f"{path}: a certificate is about a file. Save the model, and verify its path.")
    if evidence.stamp != stamp(evidence.model, load(evidence.model)):
        raise UsageError(f"{path}: {evidence.model} has changed since it was verified. Verify it again.")
    if evidence.inputs is None and not evidence.seeds:
        raise UsageError(f"{path}: the inputs were too many to be kept for a certificate. Verify fewer batches.")
    beside = f"{Path(os.path.realpath(path)).stem}.inputs.npz"
    inputs, stored = _inputs(evidence, beside)
    content = sealed(
        {**_header(result), "model": describe_model(evidence.model), "inputs": inputs, **_findings(result)}
    )
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if stored is None:
        write_atomically(path, text.encode())
        return path
    place, inputs_file = places_beside(path, lambda _: beside)
    write_together({inputs_file: lambda file: file.write(stored), place: lambda file: file.write(text.encode())})
    return path


def stamp(path: Path, model: ir.Model) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a model's files: whether they are still those that ran."""
    return tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in [path, *_external_files(model)])


def _external_files(model: ir.Model) -> list[Path]:
    return sorted({Path(tensor.path) for tensor in external_tensors(model)})


def describe_model(path: Path) -> dict[str, Any]:
    """The name and the fingerprints of a model's files."""
    files = _external_files(load(path))
    external = [{"name": f.relative_to(path.parent).as_posix(), "sha256": file_sha256(f)} for f in files]
    return {"name": path.name, "sha256": file_sha256(path), "external": external}


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the fingerprint of everything in it: a slip shows; it is no signature."""
    rest = {key: value for key, value in content.items() if key != "seal"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return {**rest, "seal": hashlib.sha256(text.encode()).hexdigest()}


def tensor_entry(row: TensorRow) -> dict[str, Any]:
    """What a certificate says of an integer tensor."""
    return {
        "name": row.name,
        "dtype": row.dtype,
        "values": row.values,
        "distinct": row.distinct,
        "saturated": row.saturated,
        "differing": row.differing,
        "sha256": row.sha256,
    }


def output_entry(row: FloatRow) -> dict[str, Any]:
    """What a certificate says of an output; floats that may differ in their last bits have no fingerprint."""
    return {
        "name": row.name,
        "dtype": row.dtype,
        "values": row.values,
        "differing": row.differing,
        "sha256": row.sha256 if row.is_exact else None,
    }


def _header(result: Verification) -> dict[str, Any]:
    used = _ALWAYS_USED + (("torch",) if result.expected_by == "torch" else ())
    versions = {name: str(_module(name).__version__) for name in used}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {**versions, "python": platform.python_version()},
        "cpu": {
            "system": platform.system(),
            "machine": platform.machine(),
            "u8s8_saturates": has_saturating_products(),
        },
    }


def _module(name: str) -> Any:
    return sys.modules.get(name) or importlib.import_module(name)


def _findings(result: Verification) -> dict[str, Any]:
    assert result.evidence is not None  # asked before
    return {
        "expected_by": result.expected_by,
        "levels": list(result.levels),
        "session_options": dict(result.evidence.options),
        "verdict": EQUAL if result.ok else DIFFERENT,
        "summary": result.summary(),
        "counts": {
            "batches": result.batches,
            "tensors": len(result.rows),
            "integers": result.integers,
            "differing": result.differing,
            "output_differences": result.output_differences,
        },
        "float_error": result.float_error,
        "missing": list(result.missing),
        "first": None if result.first is None else _first(result.first),
        "tensors": [tensor_entry(row) for row in result.rows],
        "outputs": [output_entry(row) for row in result.outputs if row.is_output],
    }


def _first(first: Divergence) -> dict[str, Any]:
    place = {"tensor": first.tensor, "batch": first.batch, "index": list(first.index), "node": first.node}
    return {**place, "text": str(first)}  # values as text: JSON has no NaN


def _inputs(evidence: Evidence, beside: str) -> tuple[dict[str, Any], bytes | None]:
    """The section on inputs, and the content of the file beside the certificate where there is one."""
    said: dict[str, Any] = {"batches": [dict(batch) for batch in evidence.fingerprints]}
    if evidence.seeds:
        return {"kind": GENERATED, "generator": GENERATOR, "seeds": list(evidence.seeds), **said}, None
    assert evidence.inputs is not None  # asked before
    content = npz_content(_numbered(evidence.inputs))
    digest = hashlib.sha256(content).hexdigest()
    if len(content) <= _EMBEDDED_BYTES:
        return {"kind": EMBEDDED, "npz": base64.b64encode(content).decode(), "sha256": digest, **said}, None
    return {"kind": STORED, "file": beside, "sha256": digest, **said}, content


def _numbered(batches: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {f"{number}/{name}": array for number, batch in enumerate(batches) for name, array in batch.items()}
