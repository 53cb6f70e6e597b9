# SPDX-License-Identifier: Apache-2.0
"""What a report says of one run: plain data, written as JSON, read back with every key checked.

A run is one quantized network: its file, what was proven about it, what it costs and where it loses. What nobody measured is
None or empty, and the report leaves it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from linger.errors import UsageError, refuse_if
from linger.records.reading import Real, parse_json, read
from linger.records.table import finite

FORMAT, FORMAT_VERSION = "linger-report", 1
"""Keys may be added; one that is removed or changes its meaning raises the version."""

HELD_OUT, TEST, SEEN = "held-out data", "test data", "data that tuning has seen"
"""Data that figures of quality are about."""
GAP = "tuning gains "
"""How a caution begins that says that tuning gained less on data by which nothing was chosen."""
METRIC_DATA = "the metric's own data"
UNSEEN = (HELD_OUT, TEST)
"""Those of them that no step has seen."""

_DECISION = "decision"
"""The key of the verdict, which follows from the facts and is not read back."""


@dataclass(frozen=True)
class Bins:
    """A histogram of real values.

    Attributes:
        low: The left edge of the first bin.
        width: Of each bin.
        counts: How many values each bin has.
    """

    low: Real
    width: Real
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of the file, over all samples that ran.

    Attributes:
        name: Its name in the file.
        layer: The number of the layer that makes it; None for an input of the network and for weights.
        role: `input`, `weight`, `bias`, `activation` or `output`.
        shape: Its sizes as text, `1×8×6×6`.
        dtype: Its element type, `int8`.
        bits: Its width; None where it holds real numbers.
        scale: An integer q stands for (q - zero)/scale; None where it is not known or the tensor holds real numbers.
        q_format: Bits before and behind the binary point, sign left out, `Q2.5`; empty without a scale.
        low, high: The smallest and the largest real value that was seen.
        distinct: How many different values were seen.
        clipped: The share of values at the ends of the range, 0 to 1.
        sqnr_db: Signal to noise against the float model, in dB; infinite where nothing differs.
        values: Histogram of what the file computes, as real values.
        reference: Histogram of the same tensor in the float model, in the same bins where that is possible.
        zero: The integer that stands for 0.
    """

    name: str
    layer: int | None = None
    role: str = "activation"
    shape: str = ""
    dtype: str = ""
    bits: int | None = None
    scale: Real | None = None
    q_format: str = ""
    low: Real | None = None
    high: Real | None = None
    distinct: int | None = None
    clipped: Real | None = None
    sqnr_db: Real | None = None
    values: Bins | None = None
    reference: Bins | None = None
    zero: int = 0


@dataclass(frozen=True)
class LayerFacts:
    """One node of the file, in the order of execution; its number is its place in `Run.layers`.

    Attributes:
        name: The node's name.
        path: The module that it comes from, `block1.conv`; empty where that is not known.
        op: The node's type.
        runs_as: `integer`, `float`, or `moves` for what only moves numbers.
        inputs, outputs: Names of the tensors that it reads (weights included) and makes.
        shape: The shapes of its outputs as text.
        bits: Widths of input/weights/output, `8/8/8`, or of the output alone, `8`.
        x_format, w_format, o_format: Q formats of the first input, the weights and the first output.
        sqnr_db: Signal to noise of its output against the float model, in dB.
        born_db: The same for the error that the layer makes itself.
        passed_db: The same for the error that it hands on.
        verdict: `born`, `passed`, `both`, `none`, or empty where it was not measured.
        clipped: The share of its output values at the ends of the range, 0 to 1.
        macs, weight_bytes, live_bytes: Multiply-accumulates, bytes of its weights, bytes of tensors alive while it runs.
        noise_share: Its part of the noise at the output of the network, 0 to 1, from a ranking by sensitivity.
        float_reason: Why it stayed float.
        advice: Sentences on what helps.
    """

    name: str
    path: str = ""
    op: str = ""
    runs_as: str = "integer"
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    shape: str = ""
    bits: str = ""
    x_format: str = ""
    w_format: str = ""
    o_format: str = ""
    sqnr_db: Real | None = None
    born_db: Real | None = None
    passed_db: Real | None = None
    verdict: str = ""
    clipped: Real | None = None
    macs: int = 0
    weight_bytes: int = 0
    live_bytes: int = 0
    noise_share: Real | None = None
    float_reason: str = ""
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quality:
    """One figure of how good the network is, before and after.

    Attributes:
        name: What was measured, `accuracy`, `agreement with the float model`, `signal to noise at the output`.
        after: The figure of the quantized network.
        before: That of the float network; None where the float network is the yardstick itself.
        plain: That of plain 8-bit calibration, where tuning was compared with it.
        unit: `%`, `dB` or empty.
        samples: On how many samples; None where that is not known.
        data: On which data: `held-out data`, `the inputs given`, `random inputs`.
        output: The output that it is about; empty for all of them together.
        seen: The same figure on data that tuning has seen; None where it was not measured.
        chance: By how much the two may differ by chance, with so many samples of each; None where that is not known.
    """

    name: str
    after: Real
    before: Real | None = None
    plain: Real | None = None
    unit: str = ""
    samples: int | None = None
    data: str = ""
    output: str = ""
    seen: Real | None = None
    chance: Real | None = None


@dataclass(frozen=True)
class Proof:
    """What was compared, integer by integer.

    Attributes:
        is_exact: Whether every integer is equal.
        summary: The verdict in a few sentences.
        compared: What was compared with the file: `torch`, `numpy`, `recording`, names of witnesses.
        integers, differing: How many integers were compared, and how many differ.
        tensors, batches: How many of each.
        first: The first difference as a sentence; empty without one.
        digests: SHA-256 by name: the file, its data files, the inputs, the certificate.
        versions: Of linger, onnx, onnxruntime, numpy, torch.
        cpu: The CPU's name and features that matter.
        certificate: Name of the certificate's file; empty without one.
    """

    is_exact: bool
    summary: str
    compared: tuple[str, ...] = ()
    integers: int = 0
    differing: int = 0
    tensors: int = 0
    batches: int = 0
    first: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    cpu: str = ""
    certificate: str = ""


@dataclass(frozen=True)
class TriedStep:
    """One step that tuning tried.

    Attributes:
        name: The step with its arguments.
        branch: The line of attempts that it belongs to.
        before_db, after_db: Signal to noise at the outputs on the data that choose; after is None where it did not end.
        before_metric, after_metric: The user's metric.
        seconds: CPU time.
        is_kept: Whether the network has it.
        why: Why it was kept or dropped.
    """

    name: str
    branch: str = ""
    before_db: Real | None = None
    after_db: Real | None = None
    before_metric: Real | None = None
    after_metric: Real | None = None
    seconds: Real = 0.0
    is_kept: bool = False
    why: str = ""


@dataclass(frozen=True)
class Tuning:
    """What tuning tried and kept.

    Attributes:
        summary: In one line.
        steps: In their order.
        notes: Sentences that a reader should know.
    """

    summary: str
    steps: tuple[TriedStep, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SensitivityFacts:
    """One row of the ranking: a layer that is quantized while everything else is float.

    Attributes:
        name: The layer.
        op: Its type.
        bits: Its widths.
        sqnr_db: Signal to noise at the output of the network, in dB.
        noise_share: Its part of the noise at the output of the network, 0 to 1.
        what: What of it was quantized.
    """

    name: str
    op: str = ""
    bits: str = ""
    sqnr_db: Real | None = None
    noise_share: Real = 0.0
    what: str = ""


@dataclass(frozen=True)
class FindingFacts:
    """One thing that `linger check` found.

    Attributes:
        severity: `error`, `warning` or `note`.
        rule: The rule's id; empty where there is none.
        layer: The number of the layer; None for the network as a whole.
        where: Name and type of the node, or the tensor.
        reason, remedy: What is wrong, and what to do.
    """

    severity: str
    rule: str = ""
    layer: int | None = None
    where: str = ""
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Block:
    """A piece of memory, and from which step to which it is needed.

    Attributes:
        name: The tensor, or what it is for.
        bytes: Its size.
        first, last: The first and the last step that need it, counted from 0.
        offset: Its place in the arena; None where no plan has placed it.
        kind: `input`, `output`, `tensor` or `scratch`.
    """

    name: str
    bytes: int
    first: int
    last: int
    offset: int | None = None
    kind: str = "tensor"


@dataclass(frozen=True)
class MemoryFacts:
    """Memory over time: of the program in C where there is one, else of the layers of the file.

    Attributes:
        is_arena: Whether the blocks are those of the program in C.
        steps: Names of the steps, in order.
        blocks: The pieces.
        peak_bytes: The most bytes alive at one step.
        arena_bytes: The arena of the program in C; None where there is none.
        limit_bytes: What the chip has room for; None where that is not known or no chip was asked.
        note: What there is to say, such as why there is no program in C.
    """

    is_arena: bool = False
    steps: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    peak_bytes: int = 0
    arena_bytes: int | None = None
    limit_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Run:
    """Everything that a report says of one network.

    Attributes:
        name: How the run is called, such as the file's name without its ending.
        file: The file's name.
        file_bytes: Its size, data files included.
        form: Its form, `dialect`, `standard`, …
        target: The chip that was asked; empty for none.
        layers: The nodes, in the order of execution.
        tensors: Tensors with figures, in the order of execution.
        quality: How good it is; the most telling figure first.
        proof: What was proven; None where nothing was compared.
        macs, weight_bytes: Multiply-accumulates and bytes of weights of the whole network.
        float_weight_bytes: What the weights take in float32; None where that is not known.
        integer_share: The share of the multiply-accumulates that run as integers, 0 to 1.
        tuning: What tuning tried.
        sensitivity: The ranking, most damaging first.
        findings: What `linger check` found, the worst first.
        memory: Memory over time.
        command: The line that makes the same run again; empty without one.
        config: The settings file as text; empty without one.
        notes: Sentences that a reader should know, such as what could not be measured and why.
        goal: What the quality must reach, `99 %` or `30 dB`; empty where nobody said so.
        is_goal_met: Whether it does; None without a goal, or where the figure for it was not measured.
        float_ops: What the model computes in floating point without a layer of its own in the file, with the reason.
        is_lower_bound: Whether a layer's multiply-accumulates could not be counted, so that there are at least so many.
        cautions: What makes the figures of quality doubtful, `the data are all zeros`.
        offer: What a few tensors at 16 bits would give and cost, where 8 bits are not enough and that was measured.
    """

    name: str
    file: str = ""
    file_bytes: int = 0
    form: str = ""
    target: str = ""
    layers: tuple[LayerFacts, ...] = ()
    tensors: tuple[TensorFacts, ...] = ()
    quality: tuple[Quality, ...] = ()
    proof: Proof | None = None
    macs: int = 0
    weight_bytes: int = 0
    float_weight_bytes: int | None = None
    integer_share: Real = 1.0
    tuning: Tuning | None = None
    sensitivity: tuple[SensitivityFacts, ...] = ()
    findings: tuple[FindingFacts, ...] = ()
    memory: MemoryFacts | None = None
    command: str = ""
    config: str = ""
    notes: tuple[str, ...] = ()
    goal: str = ""
    is_goal_met: bool | None = None
    float_ops: tuple[str, ...] = ()
    is_lower_bound: bool = False
    cautions: tuple[str, ...] = ()
    offer: str = ""

    @property
    def float_layers(self) -> tuple[LayerFacts, ...]:
        """What stayed float."""
        return tuple(layer for layer in self.layers if layer.runs_as == "float")

    def to_json(self, decision: object = None) -> str:
        """The run as JSON text, with its verdict where that is given, which is not read back.

        JSON has no infinity and no NaN: they are the texts "inf", "-inf" and "nan".
        """
        content = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        content |= {} if decision is None else {_DECISION: decision}
        return json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_run(text: str, where: str) -> Run:
    """Read the run that `to_json` wrote; refuse another format or version, and name every wrong key; `where` names the file."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: this is no JSON ({error}). Give a file that linger quantize or linger report wrote."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{where}: this is no report data. Give a file that linger quantize or linger report wrote.")
    refuse_if(
        content.get("version") != FORMAT_VERSION,
        f"{where}: version {content.get('version')!r} of report data; this linger reads {FORMAT_VERSION}. "
        "Make it again with this linger.",
    )
    own = {key: value for key, value in content.items() if key not in ("format", "version", _DECISION)}
    return read(Run, own, f"{where}: report data with wrong entries", "Make it again.")


def encodable(text: str) -> str:
    """A text with a question mark in place of each letter that no file can hold, as half a pair of UTF-16 is."""
    return text.encode(errors="replace").decode()
