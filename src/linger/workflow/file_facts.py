# SPDX-License-Identifier: Apache-2.0
"""What a file tells of itself, as data for a report: its layers, what they cost, what its tensors hold, whether it is exact.

Needs no torch. What cannot be measured becomes a sentence in the notes, never an error; wrong arguments are errors.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.memory_use import ArenaUse
from linger.c.memory_use import memory as arena_of
from linger.checks.check import CheckResult, check
from linger.checks.memory_use import MemoryUse, memory
from linger.errors import LingerError, UsageError, counted, printable
from linger.files import is_unchanged
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of
from linger.graph.core.nodes import describe, required_inputs
from linger.graph.formats.tensor_formats import UNKNOWN
from linger.graph.network import Lifetime, Network, data_files
from linger.progress import progress
from linger.proof import verify
from linger.reporting.facts import Block, FindingFacts, LayerFacts, MemoryFacts, Proof, Run, TensorFacts, encodable
from linger.runtime.reference import Reference
from linger.runtime.session import Session, has_saturating_products
from linger.targets import Target
from linger.verification.feeds import spread_feeds
from linger.verification.proof.certificate import EQUAL, describe_model, is_untouched, read_certificate, used_versions
from linger.verification.proof.result import Verification
from linger.workflow.file_layers import FLOAT, MOST_BINS, STANDARD, FileLayers, Grid, Tally, read_array


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
    """Refuse a verification of another file, or of what the file was before it changed."""
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

    One that is missing, incomplete, changed by hand or about another file is refused.
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
        compared=(*_computations(content["expected_by"]), *(w["description"] for w in content.get("witnesses", []))),
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
    digests = {str(entry["name"]): str(entry["sha256"]) for entry in (described, *described["external"])}
    if batches:
        text = "\n".join(f"{name} {digest}" for batch in batches for name, digest in batch.items())
        digests["inputs"] = hashlib.sha256(text.encode()).hexdigest()
    return digests


def _cpu_text(machine: str, *, saturates: bool) -> str:
    return f"{machine}; its products of unsigned and signed bytes {'saturate' if saturates else 'do not saturate'}"


Feeds = Mapping[str, NDArray[Any]]

MOST_BATCHES = 8
"""Batches that the figures of layers and the proof are taken from; more of them say hardly anything else."""

RANDOM = "random inputs"
_RANDOM_BATCHES, _SEED = 2, 0
_MOST_BYTES = 1 << 31
"""Tensors of one batch that may be in memory at once."""

_MOST_LETTERS, _SHOWN_LETTERS = 1000, 200
"""A longer text is cut to this length."""

_ALL_BINS = 256_000
"""Bins of all histograms together, so that the data of a large network stay small."""


@dataclass
class FileFacts:
    """What is found of one file, step by step: what it needs, what `linger.check` says, its layers, and by tensor what was counted."""

    path: Path
    network: Network
    use: MemoryUse
    checked: CheckResult
    layers: FileLayers
    tallies: dict[str, Tally] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def model(self) -> ir.Model:
        """The file's graph."""
        return self.network.model

    @classmethod
    def of(cls, file: Path | Network, target: Target | None) -> FileFacts:
        """Read a file, or take one that was loaded; what is no complete ONNX model is refused."""
        network = Network.of(file)
        if network.path is None:
            raise UsageError("report: a report is about a file. Save the model, and give its path.")
        use = memory(network, target)
        return cls(network.path, network, use, check(network, target), FileLayers(network, use))

    def count(self, feeds: Iterable[Feeds]) -> None:
        """Run the file on these inputs, and count the values of every tensor."""
        is_dialect = has_nodes_of(self.model, OLDER) or has_nodes_of(self.model, NEWER)
        try:  # numpy runs a dialect's file, which it need not translate; ONNX Runtime runs other files
            runner = Reference(self.network) if is_dialect else Session(self.network, as_written=True)
            for feed in progress(feeds, "measure"):
                for name, array in {**runner.intermediates(feed), **feed}.items():
                    if name not in self.layers.weights:
                        self._tally(name).add(array)
        except LingerError as error:
            self.notes.append(f"What the tensors hold is not known: {error}")

    def _tally(self, name: str) -> Tally:
        if name not in self.tallies:
            count = len(self.layers.rows) + len(self.layers.weights)
            self.tallies[name] = Tally(self.grid(name), max(min(MOST_BINS, _ALL_BINS // max(count, 1)), 8))
        return self.tallies[name]

    def count_weights(self) -> None:
        """Count the values of the constants."""
        if self.layers.form == STANDARD:
            self.notes.append(
                "The file is of standard ONNX operators, which state no scales: its tensors are shown as integers."
            )
        for name, tensor in self.layers.weights.items():
            array = read_array(tensor)
            if array is not None:
                self._tally(name).add(array)

    def grid(self, tensor: str) -> Grid:
        """The grid of a tensor; of real numbers where it has none."""
        return self.layers.grids.get(tensor, Grid())

    def run(self, name: str) -> Run:
        """Everything that was found."""
        layers = tuple(map(self._with_clipping, self.layers.layers()))
        macs = sum(layer.macs for layer in layers)
        in_float = sum(layer.macs for layer in layers if layer.runs_as == FLOAT)
        return Run(
            name=name,
            file=self.path.name,
            file_bytes=sum(file.stat().st_size for file in (self.path, *data_files(self.model))),
            form=self.layers.form,
            target=self.use.target or "",
            layers=layers,
            tensors=tuple(self._tensors()),
            macs=macs,
            is_lower_bound=not self.use.has_all_macs,
            weight_bytes=self.use.weight_bytes,
            float_weight_bytes=self.layers.float_weight_bytes(),
            integer_share=_integer_share(layers, macs, in_float),
            findings=tuple(self._findings()),
            memory=memory_facts(self.network, self.use),
            notes=tuple(map(printable, dict.fromkeys([*self.layers.notes, *self.notes]))),
        )

    def _with_clipping(self, layer: LayerFacts) -> LayerFacts:
        tally = self.tallies.get(layer.outputs[0]) if layer.outputs else None
        return layer if tally is None else replace(layer, clipped=tally.clipped)

    def _tensors(self) -> Iterable[TensorFacts]:
        outputs = {value.name for value in self.model.graph.outputs}
        for value in required_inputs(self.model):
            yield self._tensor(value.name or "", "input", None, value)
        for number, (node, _) in enumerate(self.layers.rows):
            for value in node.outputs:
                if value.name:
                    role = "output" if value.name in outputs else "activation"
                    yield self._tensor(value.name, role, number, value)
        for name, tensor in self.layers.weights.items():
            shape = tuple(tensor.shape.numpy())
            made = self._tensor(name, "weight" if len(shape) > 1 else "bias", None, None)
            yield replace(made, shape=_shape_text(shape), dtype=_type_text(tensor.dtype))

    def _tensor(self, name: str, role: str, layer: int | None, value: ir.Value | None) -> TensorFacts:
        grid, tally = self.grid(name), self.tallies.get(name)
        made = TensorFacts(
            name=name,
            layer=layer,
            role=role,
            shape="" if value is None or value.shape is None else _shape_text(tuple(value.shape)),
            dtype="" if value is None else _type_text(value.dtype or self.layers.facts.get(value, UNKNOWN).element),
            bits=grid.bits,
            scale=grid.scale,
            q_format=grid.q_format,
            zero=grid.zero,
        )
        if tally is None:
            return made
        low, high, distinct, clipped = tally.low, tally.high, tally.distinct, tally.clipped
        return replace(made, low=low, high=high, distinct=distinct, clipped=clipped, values=tally.bins())

    def _findings(self) -> Iterable[FindingFacts]:
        numbers: dict[str, int] = {}
        for number, (node, _) in enumerate(self.layers.rows):
            numbers.setdefault(describe(node), number)
        for one in self.checked.findings:
            layer = numbers.get(one.node, self.layers.maker_numbers.get(one.tensor))
            yield FindingFacts(one.severity, one.rule, layer, one.node or one.tensor, one.reason, one.remedy)


def complete_run(
    facts: FileFacts,
    name: str | None = None,
    feeds: Sequence[Feeds] | None = None,
    verification: Verification | str | os.PathLike[str] | None = None,
) -> Run:
    """Verify a file that was read, run it, and put everything together.

    Args:
        facts: The file.
        name: How the run is called; None: the file's name without its ending.
        feeds: What it runs on; None: the inputs of the verification, or random ones.
        verification: What `linger.verify` returned, or the path of a certificate, of this file; None: the file is verified here,
            ONNX Runtime against the numpy reference.
    """
    files, proof = data_files(facts.model), None
    if feeds is None and not isinstance(verification, Verification):
        feeds = _random_feeds(facts)
    if isinstance(verification, (str, os.PathLike)):
        proof = proof_of_certificate(Path(verification), facts.path, files)
    elif verification is not None:
        require_verification(verification)
        require_same_file(verification, facts.path)
    else:
        verification = None if feeds is None else _verified(facts, feeds[:MOST_BATCHES])
    if isinstance(verification, Verification):
        proof = proof_of(verification, facts.path, files)
        if proof is None:
            facts.notes.append("Nothing is proven: the file has no integer tensors, or was not run.")
    facts.count_weights()
    _count(facts, feeds, verification if isinstance(verification, Verification) else None)
    return bounded(replace(facts.run(facts.path.stem if name is None else name), proof=proof))


def bounded(run: Run) -> Run:
    """The same with long names cut, and without letters that no file can hold.

    No reader needs a thousand letters, and a file may have millions in one name. The name of a file may be no UTF-8.
    """
    return cast(Run, _bounded(run))


def _bounded(part: Any) -> Any:
    if isinstance(part, str):
        text = encodable(part)
        if len(text) <= _MOST_LETTERS:
            return text
        return f"{text[:_SHOWN_LETTERS]}…{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if isinstance(part, Mapping):
        return {_bounded(key): _bounded(value) for key, value in part.items()}
    if isinstance(part, tuple):
        return part if isinstance(next(iter(part), None), int) else tuple(map(_bounded, part))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: _bounded(getattr(part, f.name)) for f in fields(part)})
    return part


def require_verification(given: object) -> None:
    """Refuse what is no result of a verification."""
    if not isinstance(given, Verification):
        raise UsageError(
            f"report: verification is a {type(given).__name__}. Give what linger.verify returned, or the path of a certificate."
        )


def _verified(facts: FileFacts, feeds: Sequence[Feeds]) -> Verification | None:
    """The file's own computations held against each other; None, with a note, where it cannot run."""
    try:
        return verify(None, facts.network, list(feeds))
    except LingerError as error:
        facts.notes.append(f"The file could not be verified: {error}")
        return None


def _count(facts: FileFacts, feeds: Sequence[Feeds] | None, verification: Verification | None) -> None:
    """Run the file on the inputs given, else on those of the verification, else on random ones."""
    evidence = None if verification is None else verification.evidence
    if feeds is None and evidence is not None and evidence.inputs:
        feeds = evidence.inputs
    if feeds is None:
        feeds = _random_feeds(facts)
    if feeds is not None:
        if len(feeds) > MOST_BATCHES:
            facts.notes.append(
                f"What the tensors hold is of the first {counted(MOST_BATCHES, 'batch')} of {len(feeds)}."
            )
        facts.count(feeds[:MOST_BATCHES])


def _random_feeds(facts: FileFacts) -> list[Feeds] | None:
    """Inputs that spread over the range of each Quant; None, with a note, where none can be made up."""
    if sum(lifetime.bytes or 0 for lifetime in facts.use.lifetimes) > _MOST_BYTES:
        facts.notes.append("The file was not run: its tensors take more memory than a report spends on random inputs.")
        return None
    try:
        made: list[Feeds] = list(spread_feeds(facts.model, seed=_SEED, batches=_RANDOM_BATCHES))
    except UsageError as error:
        facts.notes.append(f"The file was not run: {error}")
        return None
    facts.notes.append(
        f"What the tensors hold, clipping and histograms are of {RANDOM}: give typical inputs for figures that mean more."
    )
    return made


def memory_facts(network: Network, use: MemoryUse) -> MemoryFacts:
    """The arena over the steps of the program in C; for a chip, and where there is no C, the tensors alive over the layers."""
    arena, note = _arena(network)
    if arena is not None and use.target is None:
        return MemoryFacts(
            is_arena=True,
            steps=tuple(step.title for step in arena.steps),
            blocks=tuple(Block(b.name, b.bytes, b.first, b.last, b.offset, b.kind) for b in arena.blocks),
            peak_bytes=arena.least_bytes,
            arena_bytes=arena.arena_bytes,
            note=note,
        )
    totals = _by_name(use.summary(), network.path) if use.is_lower_bound or use.batch_axes else ""
    return MemoryFacts(
        steps=tuple(layer.node for layer in use.layers),
        blocks=tuple(_block(lifetime) for lifetime in use.lifetimes),
        peak_bytes=use.peak_bytes,
        arena_bytes=None if arena is None else arena.arena_bytes,
        limit_bytes=use.tensor_bytes,
        note=f"{note} {totals}".strip(),
    )


def _arena(network: Network) -> tuple[ArenaUse | None, str]:
    """What the program in C needs, or the sentence that says why there is none."""
    try:
        return arena_of(network), ""
    except LingerError as error:
        return None, _by_name(printable(f"There is no program in C: {error}"), network.path)


def _by_name(text: str, path: Path | None) -> str:
    """A text with the file's name alone: a page is read elsewhere, and the folder may be a temporary one."""
    return text if path is None else text.replace(printable(str(path)), printable(path.name))


def _block(lifetime: Lifetime) -> Block:
    kind = "input" if lifetime.is_input else "output" if lifetime.is_output else "tensor"
    return Block(lifetime.tensor, lifetime.bytes or 0, lifetime.first, lifetime.last, kind=kind)


def _integer_share(layers: Sequence[LayerFacts], macs: int, in_float: int) -> float:
    """The share of the multiplications that run as integers; without any, that of the layers that compute."""
    if macs:
        return 1.0 - in_float / macs
    computing = [layer for layer in layers if layer.runs_as != "moves"]
    return sum(layer.runs_as != FLOAT for layer in computing) / len(computing) if computing else 1.0


def _shape_text(shape: Sequence[object]) -> str:
    return "×".join(str(size) if isinstance(size, int) else "?" for size in shape) or "1"


def _type_text(element: ir.DataType | None) -> str:
    if element is None:
        return ""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(element.name, element.name.lower())
