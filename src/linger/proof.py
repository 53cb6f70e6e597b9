# SPDX-License-Identifier: Apache-2.0
"""linger.verify: compare a torch model, or recordings, with a file. Torch is needed for a torch model only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from linger.errors import GraphError, UsageError
from linger.graph.network import Network, NetworkLike
from linger.progress import progress
from linger.runtime.session import Options, Session, checked_levels, make_session_options
from linger.verification.feeds import Shapes, Sizes, SizeTrials, generated_feeds, generated_shapes, given_feeds
from linger.verification.proof import causes
from linger.verification.proof.comparison import KEPT_BYTES, Way, verify_file
from linger.verification.proof.result import Verification
from linger.verification.proof.witness import Witnesses, as_witnesses
from linger.verification.recording import FileInterface, Recording, as_recordings

_EXAMPLE_SIZES = (2, 16, 64)
"""Sizes that are tried for the open axes of a file without an example: a model may need more than a few pixels."""


def verify(
    model: object,
    path: NetworkLike,
    inputs: object = None,
    *,
    levels: str | Iterable[str] = ("all",),
    session_options: Options | None = None,
    batches: int = 4,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    sizes: Sizes = 0,
    witness: Witnesses = None,
) -> Verification:
    """Prove that a file computes what a quantized model simulates: every integer, with equality.

    Three computations are compared: the torch simulation (or a recording of it), the numpy reference on the file, and stock
    ONNX Runtime at each level, once with every tensor watched and once as a user runs it. A witness is a fourth one: the same
    network as a compiled C program.

    Args:
        model: The quantized model (it stays as it was); or a `Recording`, arrays by name, an iterable of either, the
            path of an .npz file or of a folder of them; or None, which compares the file's own computations. Arrays by name
            may be some of the tensors; a recording must have all that are integers.
        path: The exported file, in any form, or a `Network` of it, which is not read again.
        inputs: For a model: what the export takes as args (a tensor, a tuple that may end in a dict of keywords, a dict),
            or an iterable of such; real numbers, also where the file takes integers. For recordings: left out, unless
            they have none. For None: arrays or an .npz file; left out, they are made up.
        levels: Optimization levels of ONNX Runtime: "disable", "basic", "extended", "all".
        session_options: More for ONNX Runtime: attributes of its SessionOptions and config entries, by name.
        batches: How many batches are made up.
        seed: The seed of the first one; the next batch has the next seed.
        kwargs: Keyword arguments of a model's forward, for every batch.
        certificate: Write a certificate of the result to this file, whatever the result is.
        sizes: Other sizes of inputs whose axes are open, {"image": [(1, 3, 48, 64), …]}: the first input, repeated or cut, or
            a random one. With a number linger chooses so many, odd and uneven; the result names sizes that the model cannot
            take.
        witness: What `linger.c.build` returns, or another object with `intermediates(feeds)`, `run(None, feeds)` and
            `description`; or a list of such. Each must show every integer of the file, and equal ones. A batch is cut into
            samples of the size that a witness takes.

    Returns:
        Counts, a row per tensor, the first divergence; `.ok` is the verdict.

    Raises:
        UsageError: The arguments do not fit together, the inputs do not fit the file, or a witness was made from another file.
        GraphError: The file is damaged, or the numpy reference cannot run it.
        LingerError: A witness crashed.
    """
    way = _way(model, levels, session_options)
    witnesses = () if witness is None else as_witnesses(witness)
    network = Network.of(path)
    _require_path(network, certificate)
    trials, file = SizeTrials(sizes), network.model
    seeds = _seeds(model, inputs, seed, batches)
    if seeds:
        recordings = _made_up(network, seeds, trials)
    elif _is_torch_model(model):
        recordings = _recorded(model, inputs, kwargs, file, trials)
    else:
        recordings = _given(model, inputs, file, sizes)
    kept_bytes = KEPT_BYTES if certificate is None else sys.maxsize
    shown = progress(recordings, "verify", len(seeds) or None)
    try:
        result = verify_file(
            network,
            shown,
            way=way,
            seeds=() if sizes else seeds,
            kept_bytes=kept_bytes,
            witnesses=witnesses,
            explainer=causes,
        )
    except GraphError as error:
        if not trials.tried:
            raise
        raise GraphError(f"at the size {trials.tried[-1]}: {error}") from error
    result.sizes, result.impossible_sizes = tuple(trials.tried), tuple(trials.skipped)
    if certificate is not None:
        result.save_certificate(Path(certificate))
    return result


def _require_path(network: Network, certificate: str | os.PathLike[str] | None) -> None:
    if certificate is not None and network.path is None:
        raise UsageError("verify: a certificate is about a file. Save the model, and give its path.")


def _way(model: object, levels: str | Iterable[str], session_options: Options | None) -> Way:
    make_session_options("all", session_options)  # complains before the work
    recorded_by = "torch" if _is_torch_model(model) else "recording"
    return Way(checked_levels(levels), dict(session_options or {}), recorded_by)


def _is_torch_model(source: object) -> bool:
    """Whether something is a torch module; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def _seeds(model: object, inputs: object, seed: int, batches: int) -> range:
    """The seeds of the inputs that are made up; none where a model or inputs are given."""
    if model is not None or inputs is not None:
        return range(0)
    if batches < 1:
        raise UsageError(f"verify: {batches} batches prove nothing. Ask for at least one.")
    return range(seed, seed + batches)


def _recorded(
    model: Any, inputs: object, kwargs: Mapping[str, Any] | None, file: ir.Model, trials: SizeTrials
) -> Iterator[Recording]:
    from linger.simulation import record  # needs torch, which the other ways do without

    if inputs is None and kwargs is None:
        raise UsageError("verify: a model needs inputs to run on. Give them as for the export.")
    return record(model, () if inputs is None else inputs, kwargs=kwargs, file=file, trials=trials)


def _given(source: object, inputs: object, file: ir.Model, sizes: Sizes) -> Iterator[Recording]:
    if sizes:
        raise UsageError("verify: recordings and arrays have the sizes they have. Leave sizes out, or give a model.")
    recordings = as_recordings(source, inputs, FileInterface.of(file))
    return recordings if source is not None else (fed for one in recordings for fed in _fed(one, file))


def _fed(given: Recording, file: ir.Model) -> Iterator[Recording]:
    """Inputs alone as the file takes them: without labels, in its types, cut to its batch size."""
    names = given.input_names
    batch = dict(zip(names, given.inputs, strict=True)) if names else tuple(given.inputs)
    for feed in given_feeds([batch], file):
        yield Recording(list(feed.values()), input_names=tuple(feed))


def _made_up(network: Network, seeds: Sequence[int], trials: SizeTrials) -> Iterator[Recording]:
    session = Session(network, as_written=True)

    def run_at(number: int, shapes: Shapes) -> Recording:
        feeds = generated_feeds(session, seeds[-1] + 1 + number, shapes)
        session.run(None, feeds)
        return Recording(list(feeds.values()), input_names=tuple(feeds))

    for seed in seeds:
        feeds = generated_feeds(session, seed)
        yield Recording(list(feeds.values()), input_names=tuple(feeds))
    if trials.wanted:
        examples = [generated_shapes(session, open_size) for open_size in _EXAMPLE_SIZES]
        yield from trials.results(run_at, network.model, *examples)
