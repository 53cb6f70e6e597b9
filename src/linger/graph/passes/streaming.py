# SPDX-License-Identifier: Apache-2.0
"""The streaming form of a network: a model of one step, whose states are inputs and outputs.

Run step by step, with every state's output given back as its input, it computes the integers that the network computes of the
whole sequence. Convolutions keep the frames that their windows still need, recurrent layers their state, and a branch that is
ahead of another one waits for it.

A layer that looks ahead (padding on the right, or no padding at all) makes its outputs late. Each output says by how many
frames (`delay`): the frames that all steps together return, without the first `delay`, are the first frames of the whole
sequence's output, integer by integer. The beginning is exact although layers make other numbers of the zeros before the
stream: frames that the whole sequence does not have are masked where a padded layer would read them, and do not touch the
state of a recurrent layer. What is missing at the end are the frames that need padding on the right. Feeding zeros gets them
exactly only if the padded layers read the model's input directly; behind a layer zeros become other numbers, and what comes
out then is not promised. With `can_flush` it is: the step has one more input, `valid`, which is 1 for the frames of the
sequence and 0 for those that are fed behind its end, and these are masked as those before its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from linger.errors import UnsupportedError, UsageError, listing, printable
from linger.graph.core.nodes import op_of, required_inputs
from linger.graph.passes.streaming_rules import Latest, Stepper, Unusable
from linger.graph.passes.streaming_states import State, StateBook, Timed, is_constant, prepared, sizes_of
from linger.graph.passes.time_axes import Shapes, find_time, is_recurrent
from linger.graph.passes.well_formed import remove_dead_code, remove_identity

Ports = set[tuple[ir.Node, str]]
"""States of recurrent layers: the node, and the name of its input or output."""

_HIDDEN = {"y": "h"}
"""The result of a recurrent layer holds its hidden states."""


@dataclass(frozen=True)
class StreamTensor:
    """An input or output of one step that is none of its states.

    Attributes:
        name: Its name, as in the whole network.
        axis: The axis that is time. None for an input that is the same in every step, and for an output that is what the
            whole sequence would give if it ended with this step (the last frame of a recurrent layer, say).
        frames: How many frames it has in one step; 0 where it has no time.
        delay: How many frames of the stream come before the first one of the whole sequence; they mean nothing.
    """

    name: str
    axis: int | None = None
    frames: int = 0
    delay: int = 0


@dataclass(frozen=True)
class Streamed:
    """A network as a model of one step.

    Attributes:
        model: One step. Inputs: those of the network with `frames` frames, then the states; outputs likewise.
        states: What the caller keeps from step to step.
        inputs: The network's own inputs.
        outputs: The network's own outputs, and how their frames relate to the whole sequence.
        valid: The input that says which frames belong to the sequence (int8, one number for each frame of the step); None
            where it was not asked for.
    """

    model: ir.Model
    states: tuple[State, ...]
    inputs: tuple[StreamTensor, ...]
    outputs: tuple[StreamTensor, ...]
    valid: str | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """The states as (input, output, type and sizes)."""
        return [(s.input, s.output, f"{s.initial.dtype}{list(s.initial.shape)}") for s in self.states]


def streamed(
    model: ir.Model,
    frames: int | None = 1,
    *,
    time: Mapping[str, int] | None = None,
    pairs: Mapping[str, str] | None = None,
    can_flush: bool = False,
) -> Streamed:
    """Make the model of one step of a network over time.

    Args:
        model: A dialect model with fixed sizes; it stays as it is.
        frames: Frames of the inputs in one step: a multiple of the product of the strides over time. None: the model is
            one step already, and only its own states are looked for.
        time: The axis of each input that is time, by name; None: found from recurrent layers and Conv1d. Inputs that are
            not named, or not found, are the same in every step.
        pairs: States that the model has itself: the input that takes what an output returns, by the name of the output.
            None: inputs that are the first state of recurrent layers, with the outputs that are the last state of the
            same layers. They are zero before the first step.
        can_flush: Whether the step has an input `valid`, so that frames behind the end of the sequence bring the last
            `delay` frames of each output out exactly. What padded layers read must have as many frames as the inputs then.

    Returns:
        The step, its states and the delay of each output.

    Raises:
        UsageError: The arguments do not fit the model.
        GraphError: A size of the model is open.
        UnsupportedError: Nodes need the whole sequence; all that were found are named.
    """
    if frames is None and can_flush:
        one_step = "a model that is one step already (frames=None) has no frames to flush"
        raise UsageError(f"can_flush: {one_step}. Leave it out.")
    if frames is not None and frames < 1:
        least = "a step has at least one frame; None is for a model that is one step already"
        raise UsageError(f"frames={frames}: {least}.")
    step = prepared(model)
    shapes = sizes_of(step)
    own = _found_pairs(step, shapes) if pairs is None else _checked_pairs(step, shapes, pairs)
    given = [str(value.name) for value in required_inputs(step) if value.name not in own.values()]
    axes = {} if frames is None else _time_axes(step, shapes, time, given)
    return _streamed(step, shapes, frames or 1, axes, own, given, can_flush=can_flush)


def _streamed(
    model: ir.Model,
    shapes: Shapes,
    frames: int,
    axes: Mapping[str, int],
    own: Mapping[str, str],
    inputs: list[str],
    *,
    can_flush: bool,
) -> Streamed:
    """Make a model that of one step, in place; `own` are the states that it has itself, which are zero at first."""
    returned = [index for index, value in enumerate(model.graph.outputs) if value.name not in own]
    stepper = Stepper(StateBook(model), shapes, frames, _length(axes, shapes), _reached(model, set(own.values())))
    valid = stepper.book.ask_for_validity(frames) if can_flush else None
    _run(stepper, axes)
    outputs = tuple(_finish(stepper, index) for index in returned)
    remove_identity(model)
    remove_dead_code(model)
    states = (*_zero_states(model, shapes, own), *stepper.book.states)
    timed = [StreamTensor(name, axes[name], frames) if name in axes else StreamTensor(name) for name in inputs]
    return Streamed(model, states, tuple(timed), outputs, valid)


def _zero_states(model: ir.Model, shapes: Shapes, pairs: Mapping[str, str]) -> list[State]:
    """The states that the model has itself; they are zero at first."""
    types = {str(value.name): value.dtype for value in model.graph.inputs}
    states = []
    for new, given in pairs.items():
        element = types[given]
        assert element is not None  # a recurrent layer reads it
        states.append(State(given, new, np.zeros(shapes[given], element.numpy())))
    return states


def _time_axes(model: ir.Model, shapes: Shapes, given: Mapping[str, int] | None, names: list[str]) -> dict[str, int]:
    """The time axes of the inputs: those that were given (refused where there are none such), or those that follow from the layers."""
    if given is None:
        known = find_time(model, shapes)
        axes = {name: known[name] for name in names if name in known}
        if not axes:
            inputs = listing(map(printable, names))
            unknown = f"no recurrent layer and no Conv1d says which axis of {inputs} is time"
            raise UsageError(f"{unknown}. Say it, as in time={{'x': 1}}.")
        return axes
    # an input that nothing reads may have open sizes, so only those that were given are looked up
    ranks = {name: len(shapes.get(name, ())) for name in given if name in names}
    wrong = [
        f"{name!r}: {axis}" for name, axis in given.items() if not -ranks.get(name, 0) <= axis < ranks.get(name, 0)
    ]
    if wrong or not given:
        sizes = listing(f"{printable(name)} {list(shapes[name])}" for name in names if name in shapes)
        raise UsageError(f"time={{{listing(wrong)}}}: expected axes of inputs that are no states: {sizes}.")
    return {name: axis % len(shapes[name]) for name, axis in given.items()}


def _length(axes: Mapping[str, int], shapes: Shapes) -> int:
    """The frames of the inputs, which have equally many, in the whole sequence; 1 where no input has time."""
    lengths = {name: shapes[name][axis] for name, axis in axes.items()}
    if len(set(lengths.values())) > 1:
        told = listing(f"{printable(name)} {count}" for name, count in lengths.items())
        raise UsageError(f"the inputs have different numbers of frames ({told}). A step takes as many frames of each.")
    return max(lengths.values(), default=1)


def _checked_pairs(model: ir.Model, shapes: Shapes, pairs: Mapping[str, str]) -> dict[str, str]:
    """The states that the model is said to have itself, as names of inputs by names of outputs, if such tensors exist."""
    outputs = [str(value.name) for value in model.graph.outputs]
    inputs = [str(value.name) for value in required_inputs(model)]
    wrong = [
        f"{new!r}: {given!r}"
        for new, given in pairs.items()
        if new not in outputs or given not in inputs or shapes[new] != shapes.get(given)
    ]
    if wrong or len(set(pairs.values())) < len(pairs):
        raise UsageError(
            f"pairs={{{listing(wrong)}}}: expected an output and an input of the same sizes each, and every input once. "
            f"Outputs: {listing(map(printable, outputs))}; inputs: {listing(map(printable, inputs))}."
        )
    return dict(pairs)


def _found_pairs(model: ir.Model, shapes: Shapes) -> dict[str, str]:
    """Inputs that are the first state of recurrent layers, and the outputs that are the last state of the same layers."""
    ends = {str(value.name): _ports_before(value) for value in model.graph.outputs}
    pairs: dict[str, str] = {}
    for value in required_inputs(model):
        ports, state = _ports_behind(value), str(value.name)
        news = _returning(ports, {new: end for new, end in ends.items() if shapes[new] == shapes[state]})
        if ports and len(news) == 1:
            pairs[news[0]] = state
    return pairs


def _returning(ports: Ports, ends: Mapping[str, Ports]) -> list[str]:
    """The outputs that return these states; the last frame of a layer's result is its last state, too."""
    hidden = {new: {(node, _HIDDEN.get(port, port)) for node, port in end} for new, end in ends.items()}
    return [new for new, end in ends.items() if end == ports] or [new for new in ends if hidden[new] == ports]


def _ports_behind(value: ir.Value) -> Ports:
    """The recurrent layers, and which of their states, that a tensor leads to."""
    ports, waiting, known = set(), [value], {value}
    for current in waiting:  # the list grows while it is walked
        for node, index in current.uses():
            if is_recurrent(node):
                ports.add((node, op_of(node).form(len(node.inputs))[index]))
            else:
                waiting += [output for output in node.outputs if output not in known]
                known.update(node.outputs)
    return ports


def _ports_before(value: ir.Value) -> Ports:
    """The recurrent layers, and which of their states, that a tensor comes from."""
    ports, waiting, known = set(), [value], {value}
    for current in waiting:  # the list grows while it is walked
        node = current.producer()
        if node is not None and is_recurrent(node):
            ports.add((node, op_of(node).outputs[node.outputs.index(current)]))
        elif node is not None:
            inputs = set(filter(None, node.inputs))
            waiting += inputs - known
            known |= inputs
    return ports


def _reached(model: ir.Model, names: set[str]) -> set[ir.Value]:
    """The inputs of these names and every tensor that is computed of them alone, up to recurrent layers."""
    found = {value for value in model.graph.inputs if value.name in names}
    for node in model.graph:
        values = {value for value in node.inputs if value is not None and not is_constant(value)}
        if values and values <= found and not is_recurrent(node):
            found.update(node.outputs)
    return found


def _run(stepper: Stepper, axes: Mapping[str, int]) -> None:
    """Turn every node into that of one step, or refuse all that need the whole sequence; what is behind one is not looked at."""
    model = stepper.book.model
    for value in model.graph.inputs:
        axis = axes.get(str(value.name))
        if axis is not None:
            stepper.kinds[value] = Timed(axis, stepper.frames)
        stepper.resize(value)
    problems: list[str] = []
    broken: set[ir.Value | None] = set()
    for node in list(model.graph):
        if broken.isdisjoint(node.inputs):
            try:
                stepper.take(node)
                continue
            except UnsupportedError as error:
                problems.append(str(error))
        broken.update(node.outputs)
    if problems:
        raise UnsupportedError(" ".join(problems))


def _finish(stepper: Stepper, index: int) -> StreamTensor:
    """How an output of the model relates to that of the whole sequence."""
    outputs = stepper.book.model.graph.outputs
    value = outputs[index]
    kind, name = stepper.kinds.get(value, Latest()), str(value.name)
    if isinstance(kind, Unusable):
        raise UnsupportedError(f"output {printable(name)}: {kind.reason}. Leave it out, or name it in `pairs`.")
    if isinstance(kind, Latest):
        return StreamTensor(name)
    settled, timed = stepper.settled(None, value, kind)
    if settled is not value:
        value.name = stepper.book.name(f"{name}.early")
        settled.name, settled.type = name, value.type
        outputs[index] = settled
    return StreamTensor(name, timed.axis, timed.frames, timed.delay)
