# SPDX-License-Identifier: Apache-2.0
"""Check a certificate again: same file, same inputs, and everything computed anew. Torch is not needed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from linger.errors import LingerError, UsageError, VerificationError, listing
from linger.graph.network import Network, data_files
from linger.progress import progress
from linger.runtime.session import Session, checked_levels
from linger.verification.array_files import UNREADABLE, Array, arrays_in
from linger.verification.feeds import generated_feeds
from linger.verification.proof import causes
from linger.verification.proof.certificate import (
    EMBEDDED,
    EQUAL,
    GENERATED,
    describe_model,
    file_sha256,
    is_untouched,
    read_certificate,
)
from linger.verification.proof.comparison import Way, fingerprint, verify_file
from linger.verification.proof.result import Verification
from linger.verification.proof.witness import Witness, Witnesses, as_witnesses, require_same_model
from linger.verification.recording import Recording

_MOST_NAMED = 12
_WITNESS_COUNTS = ("tensors", "integers", "differing", "others", "other_differences", "missing")

Feeds = dict[str, Array]
Rows = list[dict[str, Any]]


def check_certificate(
    path: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    levels: str | Iterable[str] | None = None,
    witness: Witnesses = None,
) -> Verification:
    """Compute again, with numpy and ONNX Runtime, what a certificate says, and compare every tensor's fingerprint.

    Args:
        path: The certificate.
        model: The file it is about; None: the file of the same name beside it.
        levels: Optimization levels of ONNX Runtime; None: those of the certificate.
        witness: A witness, or several, as for `linger.verify`. The result says which of those that the certificate names were
            not asked again.

    Returns:
        The new result, which agrees with the certificate in everything.

    Raises:
        UsageError: A file is missing, or a witness was made from another file.
        VerificationError: The certificate is wrong, or belongs to another file; everything that is wrong is named.
    """
    certificate = Path(path)
    content = read_certificate(certificate)
    chosen, witnesses = None if levels is None else checked_levels(levels), as_witnesses(witness)
    file = certificate.parent / str(content["model"]["name"]) if model is None else Path(model)
    network = Network(file)
    data = data_files(network.model)
    wrong = [] if is_untouched(content) else ["it was changed after it was written (the seal does not fit)"]
    if content["verdict"] != EQUAL:
        wrong.append(f"it says itself that the computations differ ({content['summary']})")
    found_wrong = [*_model_problems(content["model"], describe_model(file, data), file)]
    if not found_wrong:
        require_same_model(witnesses, lambda: file_sha256(file), str(file))
        found_wrong += _contradictions(content)
        result = _again(content, certificate, network, (chosen, witnesses), found_wrong)
        if result is not None and not wrong and not found_wrong:
            return result
    raise VerificationError(f"{certificate}: this certificate does not hold: {'; '.join([*wrong, *found_wrong])}.")


def _model_problems(said: Mapping[str, Any], found: Mapping[str, Any], file: Path) -> Iterator[str]:
    if said["sha256"] != found["sha256"]:
        yield f"{file} is another file: its SHA-256 is {found['sha256'][:12]}…, the certificate's {said['sha256'][:12]}…"
    digests = {e["name"]: e["sha256"] for e in said["external"]}
    present = {e["name"]: e["sha256"] for e in found["external"]}
    other = sorted(name for name in digests | present if digests.get(name) != present.get(name))
    if other:
        yield f"the data files {listing(other)} are others"


def _contradictions(content: Mapping[str, Any]) -> Iterator[str]:
    """Totals that are not the sums over the rows."""
    tensors, outputs, counts = content["tensors"], content["outputs"], content["counts"]
    totals = {
        "batches": len(content["inputs"]["batches"]),
        "tensors": len(tensors),
        "integers": sum(row["values"] for row in tensors),
        "differing": sum(row["differing"] for row in tensors),
        "output_differences": sum(row["differing"] for row in outputs),
    }
    yield from (
        f"counts.{k} is {counts[k]}, the rows make {total}" for k, total in totals.items() if counts[k] != total
    )
    if content["verdict"] == EQUAL and (totals["differing"] or totals["output_differences"] or content["missing"]):
        yield "its verdict is equal, its rows are not"
    yield from _witness_contradictions(content)


def _witness_contradictions(content: Mapping[str, Any]) -> Iterator[str]:
    """Witnesses that cannot have said what the certificate reports."""
    most = {"integers": content["counts"]["integers"], "tensors": content["counts"]["tensors"]}
    for witness in content.get("witnesses", []):
        name, differences = witness["description"], witness["differing"] or witness["other_differences"]
        if content["verdict"] == EQUAL and (differences or witness["missing"] or not witness["integers"]):
            yield f"its verdict is equal, its witness {name} is not"
        yield from (
            f"the witness {name} has {witness[key]} {key}, the file {count}"
            for key, count in most.items()
            if witness[key] > count
        )


def _again(
    content: Mapping[str, Any],
    certificate: Path,
    network: Network,
    chosen: tuple[tuple[str, ...] | None, tuple[Witness, ...]],
    wrong: list[str],
) -> Verification | None:
    """Run the file on the certificate's inputs; a sentence for everything that does not agree is added to `wrong`."""
    try:
        batches = list(_inputs(content["inputs"], certificate, network))
    except _InputsError as error:
        wrong.append(str(error))
        return None
    damaged = list(_changed_inputs(content["inputs"]["batches"], batches))
    if damaged:
        wrong.append(f"the inputs are others: {listing(damaged, limit=_MOST_NAMED)}")
        return None
    levels, witnesses = chosen
    way = Way(levels or tuple(content["levels"]), content["session_options"])
    recordings = (Recording(list(feeds.values()), input_names=tuple(feeds)) for feeds in batches)
    try:
        shown = progress(recordings, "verify", len(batches))
        result = verify_file(network, shown, way=way, witnesses=witnesses, explainer=causes)
    except LingerError as error:
        wrong.append(f"it cannot be computed again on the certificate's inputs: {error}")
        return None
    if not result.ok:
        wrong.append(f"the file's own computations differ here: {result.summary()}")
    wrong += _row_problems("tensor", content["tensors"], [row.as_dict() for row in result.rows])
    wrong += _row_problems("output", content["outputs"], [row.as_dict() for row in result.outputs if row.is_output])
    wrong += _witness_problems(content, result)
    return result


def _witness_problems(content: Mapping[str, Any], result: Verification) -> Iterator[str]:
    """Where witnesses that were asked again were compared on other tensors; the result gets the names of the others."""
    now = [row.as_dict() for row in result.witnesses]
    not_asked = []
    for said in content.get("witnesses", []):
        # the same description, made in the same way
        same = (row for row in now if (row["description"], row["origin"]) == (said["description"], said["origin"]))
        again = next(same, None)
        if again is None:
            not_asked.append(str(said["description"]))
            continue
        keys = [key for key in _WITNESS_COUNTS if said[key] != again[key]]
        if keys:
            shown = [f"{key} {said[key]} instead of {again[key]}" for key in keys]
            yield f"the witness {said['description']} is not as it says: {', '.join(shown)}"
    result.not_asked = tuple(not_asked)


def _changed_inputs(said: list[dict[str, str]], batches: list[Feeds]) -> Iterator[str]:
    for number, (digests, feeds) in enumerate(zip(said, batches, strict=True)):
        for name in digests | feeds:
            if name not in digests or name not in feeds or digests[name] != fingerprint(feeds[name]):
                yield f"{name} of batch {number}"


class _InputsError(Exception):
    """The certificate's inputs cannot be read or generated any more."""


def _inputs(said: Mapping[str, Any], certificate: Path, network: Network) -> Iterator[Feeds]:
    if said["kind"] == GENERATED:
        session = Session(network, as_written=True)
        yield from (generated_feeds(session, seed) for seed in said["seeds"])
        return
    arrays = _arrays(_stored(said, certificate))
    batches: list[Feeds] = [{} for _ in said["batches"]]
    for key, array in arrays.items():
        number, _, name = key.partition("/")
        if not number.isdecimal() or int(number) >= len(batches):
            raise _InputsError(f"the stored inputs have an entry {key!r} that is of no batch")
        batches[int(number)][name] = array
    yield from batches


def _stored(said: Mapping[str, Any], certificate: Path) -> bytes:
    if said["kind"] == EMBEDDED:
        try:
            content: bytes = base64.b64decode(said["npz"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise _InputsError(f"the embedded inputs are damaged ({error})") from error
        if hashlib.sha256(content).hexdigest() != said["sha256"]:
            raise _InputsError("the embedded inputs are damaged (their SHA-256 is another)")
        return content
    place = certificate.parent / str(said["file"])
    if not place.is_file():
        raise UsageError(f"{place}: the certificate's inputs are missing. Keep this file beside the certificate.")
    if file_sha256(place) != said["sha256"]:
        raise _InputsError(f"the inputs in {place} are damaged (their SHA-256 is another)")
    return place.read_bytes()


def _arrays(content: bytes) -> Feeds:
    try:
        return arrays_in(io.BytesIO(content))
    except UNREADABLE as error:
        raise _InputsError(f"the stored inputs cannot be read ({str(error)[:100]})") from error


def _row_problems(kind: str, said: Rows, found: Rows) -> Iterator[str]:
    """Where the certificate's rows and the rows of the new result differ, tensor by tensor."""
    before, now = {row["name"]: row for row in said}, {row["name"]: row for row in found}
    changes = map(_changes, said, (now.get(row["name"], row) for row in said))
    problems = {
        f"the file has no {kind}": [name for name in before if name not in now],
        f"the certificate lacks {kind}": [name for name in now if name not in before],
        f"{kind}s are not as it says:": list(filter(None, changes)),
    }
    yield from (f"{text} {listing(names, limit=_MOST_NAMED)}" for text, names in problems.items() if names)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What changed in a row; empty where nothing did."""
    keys = [key for key, value in now.items() if before.get(key) != value]
    shown = [f"{key} {before.get(key)} instead of {now[key]}" for key in keys if key != "sha256"]
    shown += ["other values"] if "sha256" in keys else []
    return f"{now['name']} ({', '.join(shown)})" if shown else ""
