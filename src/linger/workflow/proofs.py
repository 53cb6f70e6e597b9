# SPDX-License-Identifier: Apache-2.0
"""What a report says about a proof: of a verification that has just run, or of a certificate that one wrote."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linger.errors import UsageError
from linger.files import is_unchanged
from linger.reporting.facts import Proof
from linger.runtime.saturation import has_saturating_products
from linger.verification.proof.certificate import (
    EQUAL,
    describe_model,
    is_untouched,
    read_certificate,
    used_versions,
)
from linger.verification.proof.result import Verification


def proof_of(verification: Verification, path: Path, data_files: Sequence[Path]) -> Proof | None:
    """A verification as a report shows it; None where there were no integers, so that nothing was proven."""
    is_silent = not (verification.missing or verification.output_differences or verification.witnesses)
    if not verification.integers and is_silent:
        return None
    described = describe_model(path, data_files)
    evidence = verification.evidence
    return Proof(
        is_exact=verification.ok,
        summary=verification.summary(),
        compared=(*_computations(verification.expected_by), *(str(w) for w in verification.witnesses)),
        integers=verification.integers,
        differing=verification.differing,
        tensors=len(verification.rows),
        batches=verification.batches,
        first="" if verification.first is None else str(verification.first),
        digests=_digests(described, [] if evidence is None else evidence.fingerprints),
        versions=used_versions(with_torch=verification.expected_by == "torch"),
        cpu=_cpu_text(platform.machine(), saturates=has_saturating_products()),
    )


def require_same_file(verification: Verification, path: Path) -> None:
    """Refuse a verification of another file, or of what the file was before it changed.

    Raises:
        UsageError: It is about something else.
    """
    evidence = verification.evidence
    if evidence is None or evidence.model is None:
        raise UsageError(
            f"{path}: the verification is of a model in memory. Verify the file: linger.verify(model, {path.name!r}, …)."
        )
    if evidence.model.resolve() != path.resolve():
        raise UsageError(f"{path}: the verification is about {evidence.model}. Give the one of this file.")
    if not all(is_unchanged(file, before) for file, before in evidence.files.items()):
        raise UsageError(f"{path}: the file has changed since it was verified. Verify it again.")


def proof_of_certificate(certificate: Path, path: Path, data_files: Sequence[Path]) -> Proof | None:
    """A certificate as a report shows it, nothing is computed again; None where nothing was proven.

    Raises:
        UsageError: There is no such certificate, it was changed by hand, or it is about another file.
        VerificationError: It is no complete certificate.
    """
    content = read_certificate(certificate)
    if not is_untouched(content):
        raise UsageError(f"{certificate}: its seal does not fit its content. Verify the file again.")
    described, stated = describe_model(path, data_files), content["model"]
    if described["sha256"] != stated["sha256"]:
        raise UsageError(
            f"{certificate}: it is about {stated['name']} with the SHA-256 {stated['sha256'][:16]}…; {path} has "
            f"{described['sha256'][:16]}…. Give the certificate of this file, or verify it again."
        )
    counts, cpu = content["counts"], content["cpu"]
    if not counts["integers"] and not counts["output_differences"] and not content["missing"]:
        return None
    first = content.get("first")
    return Proof(
        is_exact=content["verdict"] == EQUAL,
        summary=content["summary"],
        compared=(
            *_computations(content["expected_by"]),
            *(witness["description"] for witness in content.get("witnesses", [])),
        ),
        integers=counts["integers"],
        differing=counts["differing"],
        tensors=counts["tensors"],
        batches=counts["batches"],
        first=str(first["text"]) if isinstance(first, Mapping) and "text" in first else "",
        digests={
            **_digests(described, content["inputs"]["batches"]),
            certificate.name: hashlib.sha256(certificate.read_bytes()).hexdigest(),
        },
        versions={str(name): str(version) for name, version in content["versions"].items()},
        cpu=_cpu_text(str(cpu.get("machine", "")), saturates=bool(cpu.get("u8s8_saturates"))),
        certificate=certificate.name,
    )


def _computations(expected_by: str) -> tuple[str, ...]:
    """What was held against the file as ONNX Runtime runs it."""
    return tuple(dict.fromkeys((expected_by, "numpy", "ONNX Runtime")))


def _digests(described: Mapping[str, Any], batches: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """SHA-256 by name: the file, its data files, and all inputs together."""
    found = {str(described["name"]): str(described["sha256"])}
    found |= {str(entry["name"]): str(entry["sha256"]) for entry in described["external"]}
    if batches:
        text = "\n".join(f"{name} {digest}" for batch in batches for name, digest in batch.items())
        found["inputs"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def _cpu_text(machine: str, *, saturates: bool) -> str:
    return f"{machine}; its products of unsigned and signed bytes {'saturate' if saturates else 'do not saturate'}"
