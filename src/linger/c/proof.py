# SPDX-License-Identifier: Apache-2.0
"""linger.c.prove: every tensor of a compiled program against the numpy reference of its file.

The reference runs twice: on the file as it is, and on the network as it was prepared for C. Tensors that only the
preparation makes are compared with the second run, all others with the first one, so that a fault of the preparation shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.exporter import stream_of
from linger.c.integer_part import cut_to
from linger.c.network import FixedNetwork, load_network, value_names
from linger.c.program import Program
from linger.errors import UsageError, counted, listing, printable
from linger.graph.core.nodes import required_inputs
from linger.graph.network import Network, NetworkLike, with_one_batch
from linger.graph.passes.streaming import Streamed, StreamTensor
from linger.runtime.reference import Reference
from linger.verification.feeds import Inputs, given_feeds, spread_feeds

Array = NDArray[Any]
Arrays = Mapping[str, Array]

_SAMPLES = 4
_STEP_SAMPLES = 16
"""Steps of a file that is one step itself."""


@dataclass(frozen=True)
class TensorProof:
    """What comparing one tensor has found.

    Attributes:
        name: Its name in the file; with a note where another interface was asked.
        elements: How many elements were compared, over all samples.
        differing: How many of them differ; all of them where type or shape differ.
        first: Where the first one differs: sample, index, and both numbers, as text; empty where none does.
    """

    name: str
    elements: int
    differing: int
    first: str = ""


@dataclass(frozen=True, repr=False)
class CProof:
    """What comparing a compiled program with the numpy reference has found.

    Attributes:
        witness: What was compiled, with what, and for what.
        samples: How many inputs were run, or steps of a stream.
        rows: The tensors, in the order of computation, then the outputs of the build without proof (of its integer
            interface, if it has one), and for a stream the outputs of the whole sequence.
        missing: Tensors of the file that the program did not show.
    """

    witness: str
    samples: int
    rows: tuple[TensorProof, ...]
    missing: tuple[str, ...] = ()

    @property
    def tensors(self) -> int:
        """How many tensors were compared."""
        return len(self.rows)

    @property
    def elements(self) -> int:
        """How many numbers were compared."""
        return sum(row.elements for row in self.rows)

    @property
    def differing(self) -> int:
        """How many of them differ."""
        return sum(row.differing for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether every tensor was seen, and nothing differs."""
        return bool(self.rows) and not self.missing and not self.differing

    def summary(self) -> str:
        """The result in one sentence."""
        text = (
            f"{self.witness}: {counted(self.tensors, 'tensor')}, {self.elements:,} numbers of "
            f"{counted(self.samples, 'sample')} compared with the numpy reference, {self.differing:,} differ"
        )
        wrong = next((row for row in self.rows if row.differing), None)
        if wrong is not None:
            text += f", first in {printable(wrong.name)} ({wrong.first})"
        if self.missing:
            text += f"; the program did not show {listing(map(printable, self.missing))}"
        return f"{text}."

    def __repr__(self) -> str:
        return f"CProof({counted(self.tensors, 'tensor')}, {self.elements:,} numbers, {self.differing:,} differ)"

    def __str__(self) -> str:
        return self.summary()


@dataclass
class _Rows:
    """Collects what was compared, tensor by tensor."""

    found: dict[str, TensorProof] = field(default_factory=dict)

    def compare(self, sample: int, name: str, got: Array, want: Array) -> None:
        """Compare a tensor of one sample."""
        differing, first = _differences(got, want)
        before = self.found.get(name, TensorProof(name, 0, 0))
        where = before.first or (f"sample {sample}, {first}" if first else "")
        self.found[name] = TensorProof(name, before.elements + want.size, before.differing + differing, where)


@dataclass(frozen=True)
class _Wanted:
    """What a program must compute.

    Attributes:
        prepared: The reference of the network that the program was written from.
        original: The reference of what that network was prepared from, or of the file that it is a part of.
        inputs: What the network takes.
    """

    prepared: Reference
    original: Reference
    inputs: Sequence[str]

    def tensors(self, feed: Arrays) -> dict[str, Array]:
        """Every tensor by name: as the original has it, or, where it does not, as the prepared network has it."""
        known = {**feed, **self.original.intermediates(feed)}
        return {**self.prepared.intermediates({name: known[name] for name in self.inputs}), **known}


def _differences(got: Array, want: Array) -> tuple[int, str]:
    if got.dtype != want.dtype or got.shape != want.shape:
        return max(want.size, 1), f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    wrong = got != want
    if want.dtype.kind == "f":
        wrong = (wrong | (np.signbit(got) != np.signbit(want))) & ~(np.isnan(got) & np.isnan(want))
    count = int(np.count_nonzero(wrong))
    if not count:
        return 0, ""
    index = tuple(int(i[0]) for i in np.nonzero(wrong))
    return count, f"index {list(index)}: {got[index]} instead of {want[index]}"


def prove(
    program: Program, model: NetworkLike, inputs: Inputs | None = None, *, samples: int | None = None, seed: int = 0
) -> CProof:
    """Run a program and the numpy reference on the same inputs, and compare every tensor by equality.

    A streaming program is run over the whole sequence, and its steps are compared with those of the reference, tensor by
    tensor, and with what the reference computes of the whole sequence. States that are inputs of the file are at their
    initial value then, whatever the inputs say, because a stream begins there.

    Args:
        program: The program, from `linger.c.build`.
        model: The file that it was exported from, or the model.
        inputs: Inputs of the file, as `linger.verify` takes them; None: random ones.
        samples: How many random inputs; None: 4.
        seed: Their seed.

    Raises:
        UsageError: The inputs are not those of the model, or the program is another network's.
        LingerError: The program crashed.
    """
    if samples is not None and (type(samples) is not int or samples < 1):
        raise UsageError(f"prove: samples={samples!r} is no number of inputs. Give 1 or more.")
    if program.folder.stream is not None:
        return _prove_stream(program, Network.of(model), inputs, samples, seed)
    given, cut = Network.of(model), program.folder.cut
    whole = with_one_batch(given.model)
    network = load_network(given if cut is None else cut_to(given, cut))
    feeds = _feeds(network.model if cut is None else whole, inputs, samples or _SAMPLES, seed)
    _require_same(program, network)
    wanted = list(map(_Wanted(network.reference, Reference(whole), network.inputs).tensors, feeds))
    rows = _Rows()
    _compare(program, network, [[{n: want[n] for n in network.inputs} for want in wanted]], [wanted], rows)
    return CProof(program.description, len(feeds), tuple(rows.found.values()), _missing(network, rows))


def _feeds(model: ir.Model, inputs: Inputs | None, samples: int, seed: int) -> list[dict[str, Array]]:
    return spread_feeds(model, seed=seed, batches=samples) if inputs is None else given_feeds(inputs, model)


def _require_same(program: Program, network: FixedNetwork, states: Iterable[str] = ()) -> None:
    """Refuse a program whose inputs and outputs have other names than those of the model."""
    hidden = set(states)
    names = [name for name in (*network.inputs, *network.outputs) if name not in hidden]
    found = [edge.name for edge in (*program.folder.inputs, *program.folder.outputs)]
    if sorted(names) != sorted(found):
        raise UsageError(
            f"prove: the program has {listing(map(printable, found))}, the model {listing(map(printable, names))}. "
            "Give the file that the folder was exported from."
        )


def _missing(network: FixedNetwork, rows: _Rows, stream: Streamed | None = None) -> tuple[str, ...]:
    """Tensors that nobody has compared. What becomes a state may be converted on the way; the next step shows it."""
    made = [name for node in network.nodes for name in value_names(node.outputs)]
    carried = {state.output for state in stream.states} if stream is not None else set[str]()
    return tuple(name for name in made if name not in rows.found and name not in carried)


def _compare(
    program: Program,
    network: FixedNetwork,
    streams: Sequence[Sequence[Arrays]],
    wanted: Sequence[Sequence[Arrays]],
    rows: _Rows,
) -> list[list[dict[str, Array]]]:
    """Compare every tensor of a proof build, and the outputs of the program as it is; the tensors are returned."""
    outputs = []
    for feeds, wants in zip(streams, wanted, strict=True):
        shown = program.intermediates_many(feeds)
        outputs.append(shown)
        for sample, (got, want) in enumerate(zip(shown, wants, strict=True)):
            for name in sorted(got, key=list(network.tensors).index):
                rows.compare(sample, name, got[name], want[name])
        for row in _plain_outputs(program, wants):
            rows.compare(*row)
    return outputs


def _plain_outputs(program: Program, wants: Sequence[Arrays]) -> Iterator[tuple[int, str, Array, Array]]:
    """The outputs of the build that is no proof build, of the integer interface if there is one, and what they must be."""
    folder = program.folder
    quantized = any(edge.tensor is not None for edge in (*folder.inputs, *folder.outputs))
    note = "integers" if quantized else "without proof"
    given = [{e.name: want[e.tensor or e.name] for e in folder.inputs} for want in wants]
    for sample, got in enumerate(program.run_many(given, quantized=quantized)):
        for edge in folder.outputs:
            yield sample, f"{edge.name} ({note})", got[edge.name], wants[sample][edge.tensor or edge.name]


def _prove_stream(program: Program, given: Network, inputs: Inputs | None, samples: int | None, seed: int) -> CProof:
    """The same for a program that is called step by step."""
    options = program.folder.stream
    assert options is not None  # prove has looked
    stream, whole = stream_of(given, options), with_one_batch(given.model)
    network, is_step = load_network(stream.model), options.frames == 0
    carried = {name for state in stream.states for name in (state.input, state.output)}
    _require_same(program, network, carried)
    wanted = _Wanted(network.reference, Reference(whole if is_step else stream.model), network.inputs)
    model, count = (network.model, _STEP_SAMPLES) if is_step else (whole, 1)
    feeds = _feeds(model, _with_states(inputs, stream, model), samples or count, seed)
    if is_step:
        sequences = [[{name: feed[name] for name in feed if name not in carried} for feed in feeds]]
    else:
        feeds = [{**feed, **_initial_states(stream, whole)} for feed in feeds]
        sequences = [_cut(stream, feed) for feed in feeds]
    rows = _Rows()
    steps = [_steps(wanted, stream, sequence) for sequence in sequences]
    outputs = _compare(program, network, sequences, steps, rows)
    if not is_step:
        _compare_sequences(whole, stream, feeds, outputs, rows)
    return CProof(
        program.description, sum(map(len, sequences)), tuple(rows.found.values()), _missing(network, rows, stream)
    )


def _compare_sequences(
    whole: ir.Model, stream: Streamed, feeds: Sequence[Arrays], outputs: Sequence[Sequence[Arrays]], rows: _Rows
) -> None:
    """Compare the outputs of all steps with what the reference of the file computes of the whole sequence."""
    reference = Reference(whole)
    for number, (feed, steps) in enumerate(zip(feeds, outputs, strict=True)):
        want = reference.run(feed)
        for tensor in stream.outputs:
            rows.compare(number, f"{tensor.name} (whole sequence)", *_joined(tensor, steps, want[tensor.name]))


def _initial_states(stream: Streamed, model: ir.Model) -> dict[str, Array]:
    """What the states that are inputs of a model hold before the first step."""
    names = {value.name for value in required_inputs(model)}
    return {state.input: state.initial for state in stream.states if state.input in names}


def _with_states(inputs: Inputs | None, stream: Streamed, model: ir.Model) -> Inputs | None:
    """The inputs with the states, which nobody needs to give: a stream begins at its own, and each step takes the last one's."""
    if not isinstance(inputs, (list, tuple, Mapping)):
        return inputs
    initial = _initial_states(stream, model)
    feeds = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    return [initial | dict(feed) if isinstance(feed, Mapping) else feed for feed in feeds]


def _steps(wanted: _Wanted, stream: Streamed, feeds: Sequence[Arrays]) -> list[dict[str, Array]]:
    """What the reference computes step by step."""
    states: dict[str, Array] = {state.input: state.initial for state in stream.states}
    found = []
    for feed in feeds:
        found.append(wanted.tensors({**feed, **states}))
        states = {state.input: found[-1][state.output] for state in stream.states}
    return found


def _cut(stream: Streamed, feed: Arrays) -> list[dict[str, Array]]:
    """The inputs of each step, from those of the whole sequence."""
    timed = [tensor for tensor in stream.inputs if tensor.axis is not None]
    counts = {feed[t.name].shape[t.axis] // t.frames for t in timed if t.axis is not None}
    steps = counts.pop() if counts else 1

    def part(tensor: StreamTensor, step: int) -> Array:
        array = feed[tensor.name]
        if tensor.axis is None:
            return array
        return np.take(array, range(step * tensor.frames, (step + 1) * tensor.frames), tensor.axis)

    return [{tensor.name: part(tensor, step) for tensor in stream.inputs} for step in range(steps)]


def _joined(tensor: StreamTensor, steps: Sequence[Arrays], want: Array) -> tuple[Array, Array]:
    """An output of all steps without its first frames, which are only delay, and the part of the whole sequence's output it must equal."""
    if tensor.axis is None:
        return steps[-1][tensor.name], want
    joined = np.concatenate([step[tensor.name] for step in steps], tensor.axis)
    got = np.take(joined, range(min(tensor.delay, joined.shape[tensor.axis]), joined.shape[tensor.axis]), tensor.axis)
    common = min(got.shape[tensor.axis], want.shape[tensor.axis])
    return np.take(got, range(common), tensor.axis), np.take(want, range(common), tensor.axis)
