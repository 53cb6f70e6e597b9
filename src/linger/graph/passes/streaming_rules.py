# SPDX-License-Identifier: Apache-2.0
"""How each node of a network becomes its part of one step: what it remembers, and how late its frames come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.errors import UnsupportedError, UsageError, printable
from linger.graph.conversion.node_rewriter import content_of, replace_inputs
from linger.graph.core.nodes import attributes_of, describe, inner_graphs, inputs_within, is_dialect, op_of
from linger.graph.core.rewiring import become_identity
from linger.graph.passes.streaming_states import StateBook, Timed
from linger.graph.passes.time_axes import WINDOWS, Shapes, carried_axis, find_rule, whole_numbers

_FIRST_SPATIAL = 2
_CELL_SCALE = 128.0
"""The cell of an LSTM has 7 bits behind the point (`linger.ops.lstm`)."""

_WIDEST_STATE = 16
_PAD_INPUTS = 3
"""Data, paddings, value; with a fourth input Pad names the axes that it pads."""

_KEEP_ZERO = frozenset(
    {"Quant", "Dequant", "Requant", "Relu", "iqLeakyRelu", "iqAbs", "ShuffleChannel", "Transpose", "Unsqueeze",
     "Squeeze", "Identity", "Cast"}
)  # fmt: skip
"""Ops of one operand that make zeros of zeros, so that padding in front of them may be left to a layer behind them."""

_REMEDIES = {
    "GroupNormInt": "Normalize each step by itself: LayerNorm over the channels, or BatchNorm.",
    "BmmInt": "Attention needs the whole sequence; run the network without streaming, or replace it by a recurrent layer.",
    "iqMean": "Average in the program that calls the step, or use a recurrent layer.",
    "AvgPool2dInt": "Average in the program that calls the step, or use a recurrent layer.",
    "Flatten": "Apply the layer behind it to each step, as a convolution over time.",
    "Reshape": "Apply the layer behind it to each step, as a convolution over time.",
}
_REMEDY = "Leave it out of the streaming part of the network, or run the network without streaming."


@dataclass(frozen=True)
class Latest:
    """A tensor without time: what the whole sequence would give if it ended with the newest frame."""


@dataclass(frozen=True)
class Unusable:
    """A tensor that cannot be had in a stream."""

    reason: str


Kind = Timed | Latest | Unusable


@dataclass
class Stepper:
    """Rewrites the nodes of a model, one by one in the order of computation, into those of one step.

    Attributes:
        book: Where states are made.
        shapes: The sizes of every tensor of the whole sequence, by name.
        frames: The frames of the model's inputs in one step.
        length: The frames of the model's inputs in the whole sequence.
        own_states: Tensors that hold states which the model already takes as inputs.
        kinds: What is known about tensors that depend on time; the others are the same in every step.
    """

    book: StateBook
    shapes: Shapes
    frames: int
    length: int
    own_states: set[ir.Value]
    kinds: dict[ir.Value, Kind] = field(default_factory=dict)

    def take(self, node: ir.Node) -> None:
        """Make a node the node of one step; it is refused where it needs the whole sequence, or another number of frames."""
        kinds = [self.kinds[value] for value in inputs_within(node) if value in self.kinds]
        types = set(map(type, kinds))
        for kind in kinds:
            if isinstance(kind, Unusable):
                raise UnsupportedError(f"{describe(node)}: {kind.reason}. {_REMEDY}")
        if Timed not in types:  # it stays as it is
            self.kinds |= dict.fromkeys(node.outputs, Latest()) if kinds else {}
            for value in node.outputs:
                self.resize(value)
        elif inner_graphs(node) or find_rule(node) is None:
            raise self.refusal(node, "it has no streaming form")
        elif Latest in types:
            raise self.refusal(node, "it joins every step with a number that is only known at the end of the sequence")
        else:
            _SPECIAL.get((is_dialect(node), node.op_type), _carry)(self, node)

    @staticmethod
    def refusal(node: ir.Node, reason: str) -> UnsupportedError:
        """The error for a node that cannot stream."""
        return UnsupportedError(f"{describe(node)}: {reason}. {_REMEDIES.get(node.op_type, _REMEDY)}")

    def data(self, node: ir.Node) -> tuple[ir.Value, Timed]:
        """The first input of a node, which alone may have time."""
        timed = [i for i, value in enumerate(node.inputs) if value in self.kinds]
        if timed != [0]:
            raise self.refusal(node, "what it is told to do depends on time")
        value = node.inputs[0]
        kind = None if value is None else self.kinds[value]
        assert value is not None
        assert isinstance(kind, Timed)  # `take` has refused the others
        return value, kind

    def set(self, node: ir.Node, timed: Timed) -> None:
        """Note how the outputs of a node lie in time, and their sizes in one step."""
        for value in node.outputs:
            self.kinds[value] = timed
            self.resize(value)

    def resize(self, value: ir.Value) -> None:
        """Declare the sizes that a tensor has in one step."""
        if str(value.name) not in self.shapes:
            return  # nobody reads it
        timed, sizes = self.kinds.get(value), list(self.shapes[str(value.name)])
        if isinstance(timed, Timed):
            sizes[timed.axis] = timed.frames
        value.shape = ir.Shape(sizes)

    def settled(self, before: ir.Node | None, value: ir.Value, timed: Timed) -> tuple[ir.Value, Timed]:
        """The tensor with the zeros of padding in front that no layer has taken."""
        return self.book.delayed(before, value, timed, max(0, -timed.delay))

    def masked(self, node: ir.Node, value: ir.Value, timed: Timed) -> ir.Value:
        """The tensor with zeros in the place of frames that the whole sequence does not have.

        Where the caller says how long the sequence is, a tensor that ends elsewhere is refused.
        """
        has_own_end = timed.frames != self.frames or self.shapes[str(value.name)][timed.axis] != self.length
        if self.book.valid is not None and has_own_end:
            other_frames = "it has padding and reads fewer or more frames than the model"
            raise self.refusal(node, f"{other_frames}, so it cannot be flushed")
        return self.book.masked(node, value, timed)

    def ends_with_newest(self, value: ir.Value, timed: Timed) -> bool:
        """Whether the last frame of the whole tensor is the newest one of the stream."""
        whole = self.shapes[str(value.name)][timed.axis]
        return timed.delay == 0 and whole == Fraction(self.length, self.frames) * timed.frames

    def latest(self, node: ir.Node, value: ir.Value, timed: Timed) -> None:
        """Note that a node reads the last frame of a tensor; refuse it where that frame needs padding behind the sequence."""
        if not self.ends_with_newest(value, timed):
            late = "it reads the last frame, which a layer before it only has after the end of the sequence"
            raise self.refusal(node, late)
        self.kinds[node.outputs[0]] = Latest()
        self.resize(node.outputs[0])


Operands = dict[int, tuple[ir.Value, Timed]]
"""The inputs of a node that have time, by their place."""


def _carry(step: Stepper, node: ir.Node) -> None:
    """A node that treats every frame by itself; operands that come earlier than others wait for them."""
    operands = _operands(step, node)
    axis, *others = {carried_axis(node, index, timed.axis, step.shapes) for index, (_, timed) in operands.items()}
    if axis is None or others:
        raise step.refusal(node, "it mixes the frames of the sequence")
    _refuse_varying(step, node, axis)
    if len(operands) > 1 or node.op_type not in _KEEP_ZERO:
        operands = {index: step.settled(node, *operand) for index, operand in operands.items()}
    frames = {timed.frames for _, timed in operands.values()}
    if len(frames) > 1:
        raise step.refusal(node, "its operands have different numbers of frames in one step")
    last = max(timed.delay for _, timed in operands.values())
    for index, (value, timed) in operands.items():
        node.replace_input_with(index, step.book.delayed(node, value, timed, last - timed.delay)[0])
    step.set(node, Timed(axis, frames.pop(), last))


def _refuse_varying(step: Stepper, node: ir.Node, axis: int) -> None:
    """Refuse an operand that is the same in every sequence, but has another number for each frame."""
    for index, value in enumerate(node.inputs):
        if value is None or value in step.kinds:
            continue
        sizes = step.shapes.get(str(value.name), ())
        if any(n > 1 and carried_axis(node, index, i, step.shapes) == axis for i, n in enumerate(sizes)):
            name = printable(str(value.name))
            raise step.refusal(node, f"its operand {name} has numbers of its own for each frame of the whole sequence")


def _operands(step: Stepper, node: ir.Node) -> Operands:
    kinds = [(index, value, step.kinds.get(value)) for index, value in enumerate(node.inputs) if value is not None]
    return {index: (value, kind) for index, value, kind in kinds if isinstance(kind, Timed)}


@dataclass(frozen=True)
class _Window:
    """The window of a convolution or a pool along time."""

    reach: int
    """Frames from its first to its last place."""
    stride: int
    padding: int
    """Zeros in front of the sequence."""
    padding_behind: int

    def placed(self, delay: int) -> tuple[int, int]:
        """The frames of the past that a step needs, and the delay of the result, for an input of a delay.

        The first window of a step begins so many frames before it that windows lie as in the whole sequence: their
        distance to its first frame is a multiple of the stride.
        """
        extra = 0
        while True:
            lowest = self.reach - self.stride
            history = lowest + (self.padding - delay - extra - lowest) % self.stride
            late = history + extra + delay - self.padding
            if history >= 0 and late >= 0:
                return history + extra, late // self.stride
            extra += 1


def _slide(step: Stepper, node: ir.Node) -> None:
    """A convolution or a pool: over time it reads frames that earlier steps have kept, and no padding."""
    x, timed = step.data(node)
    place = timed.axis - _FIRST_SPATIAL
    if place < 0:
        return _carry(step, node)
    window = _window_of(step, node, place)
    if timed.frames % window.stride:
        needed = Fraction(timed.frames, step.frames)
        multiple = (needed.denominator * window.stride) // math.gcd(needed.numerator, window.stride)
        moves = f"{describe(node)} moves by {window.stride} frames and gets {timed.frames} in one step"
        raise UsageError(f"frames={step.frames}: {moves}. Choose a multiple of {multiple}.")
    history, delay = window.placed(timed.delay)
    if (timed.delay > 0 and window.padding) or (step.book.valid is not None and window.padding_behind):
        x = step.masked(node, x, timed)
    count = timed.frames // window.stride
    joined = step.book.with_history(node, x, timed, history)
    read = window.reach + (count - 1) * window.stride
    if read < history + timed.frames:
        joined = step.book.cut(node, joined, timed.axis, (0, read), f"{node.outputs[0].name}.read")
    node.replace_input_with(0, joined)
    if "pads" in node.attributes:  # no padding along time
        pads = list(node.attributes["pads"].as_ints())
        pads[place] = pads[place + len(pads) // 2] = 0
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return step.set(node, Timed(timed.axis, count, delay))


def _window_of(step: Stepper, node: ir.Node, place: int) -> _Window:
    settings = attributes_of(node, op_of(node))
    kernel, stride = settings["kernel_shape"][place], settings["strides"][place]
    axes = len(settings["kernel_shape"])
    begin, end = settings["pads"][place], settings["pads"][place + axes]
    if op_of(node).weight_axes is None and (begin or end):
        raise step.refusal(node, "it is a pool with padding over time, which no frame of a stream can stand for")
    dilation = settings.get("dilations", (1,) * axes)[place]
    return _Window((kernel - 1) * dilation + 1, stride, begin, end)


def _recur(step: Stepper, node: ir.Node) -> None:
    """A recurrent layer: it begins with the state that it left behind in the step before."""
    op, settings = op_of(node), attributes_of(node, op_of(node))
    x, timed = step.data(node)
    if not settings["go_forward"]:
        raise step.refusal(node, "it begins at the end of the sequence (a bidirectional layer, perhaps)")
    given = dict(zip(op.form(len(node.inputs)), node.inputs, strict=True))
    _require_whole_lengths(step, node, given.get("lengths"), step.shapes[str(x.name)][timed.axis])
    batch = step.shapes[str(x.name)][1 - timed.axis]
    zeros = np.zeros((1, batch, settings["hidden_size"]), np.float32)
    initial = {letter: _initial_state(step, node, given.get(letter), zeros) for letter in op.real_inputs}
    x, timed = step.settled(node, x, timed)
    # a step has either no frame of the sequence or nothing but such frames, so that its state is cleared or kept as a whole
    x, timed = step.book.delayed(node, x, timed, -timed.delay % timed.frames)
    if timed.delay:
        _require_zero_states(step, node, initial)
    lengths = step.book.constant(np.full(batch, timed.frames, np.int64), f"{node.name}.lengths")
    states = {name: step.book.add(v, f"{node.name}.{name}") for name, v in initial.items() if v is not None}
    replace_inputs(node, [{**given, "x": x, "lengths": lengths, **states}[name] for name in op.forms[-1]])
    _renew_states(step, node, initial, timed)
    y, *ends = node.outputs
    late = f"it reads the last state of {describe(node)}, which the stream only has after the end of the sequence"
    step.kinds.update(dict.fromkeys(ends, Latest() if step.ends_with_newest(y, timed) else Unusable(late)))
    step.kinds[y] = timed
    step.resize(y)


def _require_zero_states(step: Stepper, node: ir.Node, initial: dict[str, Any]) -> None:
    """Refuse a layer whose frames come late and whose state is not zero before them, or too wide to be cleared."""
    if any(content is None or content.any() for content in initial.values()):
        raise step.refusal(node, "its first state is given, but its frames come late (a layer before it looks ahead)")
    if attributes_of(node, op_of(node))["o_bits"] > _WIDEST_STATE:
        raise step.refusal(node, "its state has 32 bits, and its frames come late (a layer before it looks ahead)")


def _require_whole_lengths(step: Stepper, node: ir.Node, lengths: ir.Value | None, count: int) -> None:
    content = content_of(lengths)
    if lengths is not None and (content is None or (content != count).any()):
        end = "a stream ends when no more steps are run, so export without them"
        raise step.refusal(node, f"it has the lengths of sequences as an input; {end}")


def _initial_state(step: Stepper, node: ir.Node, given: ir.Value | None, zeros: Any) -> Any:
    """The content before the first step; None where the state is an input of the model already."""
    if given is None:
        return zeros
    if given in step.own_states:
        return None
    content = content_of(given)
    if content is None:
        last = "the model does not return its last state, or `pairs` does not name both"
        raise step.refusal(node, f"its first state is {printable(str(given.name))}, and {last}")
    return content.astype(np.float32)


def _renew_states(step: Stepper, node: ir.Node, initial: dict[str, Any], timed: Timed) -> None:
    """Return the state that a recurrent layer leaves behind; it stays zero while no frame of the sequence has come."""
    book, mask = step.book, _begun(step, node, timed) if timed.delay else None
    node.resize_outputs(1 + len(initial))
    for output, (letter, content) in zip(node.outputs[1:], initial.items(), strict=True):
        output.name = output.name or book.name(f"{node.outputs[0].name}.{letter}")
        output.type = ir.TensorType(ir.DataType.FLOAT)
        if content is None:
            continue
        output.shape = ir.Shape(content.shape)
        scale = _CELL_SCALE if letter == "c" else attributes_of(node, op_of(node))["scale_h"]
        state = node.inputs[op_of(node).forms[-1].index(letter)]
        assert state is not None
        book.renew(state, output if mask is None else book.cleared(None, output, mask, scale), content)


def _begun(step: Stepper, node: ir.Node, timed: Timed) -> ir.Value:
    """One number for a step: 1 if its frames belong to the sequence, 0 if they come before it or behind it."""
    if step.book.valid is not None and timed.frames != step.frames:
        raise step.refusal(node, "it comes late and has fewer frames than the model, so it cannot be flushed")
    like = ir.Value(name=f"{node.name}.begun", type=ir.TensorType(ir.DataType.INT16), shape=ir.Shape([1, 1, 1]))
    return step.book.cut(node, step.book.mask(node, timed, like), timed.axis, (0, 1), f"{node.name}.begun")


def _pad(step: Stepper, node: ir.Node) -> None:
    """Padding: zeros in front make the frames of the stream early, zeros behind come after its end."""
    x, timed = step.data(node)
    pads = _pads(step, node, len(step.shapes[str(x.name)]))
    begin, end = pads[timed.axis], pads[timed.axis + len(pads) // 2]
    if (begin or end) and not _pads_with_zeros(node):
        raise step.refusal(node, "it pads time with other numbers than zero")
    if (timed.delay > 0 and begin > 0) or (step.book.valid is not None and end > 0):
        if x.dtype is None or not x.dtype.is_integer():
            raise step.refusal(node, "it pads real numbers that come late (a layer before it looks ahead)")
        x = step.masked(node, x, timed)
    pads[timed.axis] = pads[timed.axis + len(pads) // 2] = 0
    node.replace_input_with(0, x)
    _write_pads(step, node, x, pads)
    step.set(node, Timed(timed.axis, timed.frames, timed.delay - begin))


def _pads(step: Stepper, node: ir.Node, rank: int) -> list[int]:
    pads = whole_numbers(node, "pads", 1)
    if pads is None or len(pads) != 2 * rank or len(node.inputs) > _PAD_INPUTS:
        raise step.refusal(node, "how far it pads is not constant, or said for some axes only")
    return pads


def _write_pads(step: Stepper, node: ir.Node, x: ir.Value, pads: list[int]) -> None:
    if not any(pads):
        become_identity(node, x)
    elif "pads" in node.attributes:
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    else:
        node.replace_input_with(1, step.book.constant(np.array(pads, np.int64), f"{node.outputs[0].name}.pads"))


def _pads_with_zeros(node: ir.Node) -> bool:
    mode, value = node.attributes.get("mode"), node.attributes.get("value")
    given = node.inputs[2] if len(node.inputs) > 2 else None
    content = np.zeros(1) if given is None else content_of(given)
    is_zero = content is not None and not content.any() and (value is None or not value.value)
    return is_zero and (mode is None or mode.value == "constant")


def _slice(step: Stepper, node: ir.Node) -> None:
    """Leaving out the first frames makes the stream late; the last frames are left out by running fewer steps.

    A Slice that takes the last frame of the sequence takes the newest one of the step.
    """
    x, timed = step.data(node)
    size, cuts = step.shapes[str(x.name)][timed.axis], _cuts(step, node)
    start, stop, stride = cuts.pop(timed.axis, (0, size, 1))
    places = range(size)[start:stop:stride]
    if size > 1 and list(places) == [size - 1]:
        step.latest(node, x, timed)
        return _write_slice(step, node, {**cuts, timed.axis: (timed.frames - 1, timed.frames, 1)})
    if stride != 1 or not places:
        raise step.refusal(node, "it takes only some frames of the sequence")
    _write_slice(step, node, cuts)
    return step.set(node, Timed(timed.axis, timed.frames, timed.delay + places[0]))


Cuts = dict[int, tuple[int, int, int]]
"""Start, end and step of a Slice, by axis."""


def _cuts(step: Stepper, node: ir.Node) -> Cuts:
    starts, ends = whole_numbers(node, "starts", 1), whole_numbers(node, "ends", 2)
    if starts is None or ends is None:
        raise step.refusal(node, "what it takes is not constant")
    axes = whole_numbers(node, "axes", 3) or list(range(len(starts)))
    strides = whole_numbers(node, "steps", 4) or [1] * len(axes)
    x, _ = step.data(node)
    rank = len(step.shapes[str(x.name)])
    cuts = zip(starts, ends, strides, strict=True)
    return {axis % rank: cut for axis, cut in zip(axes, cuts, strict=True)}


def _write_slice(step: Stepper, node: ir.Node, cuts: Cuts) -> None:
    """Let a Slice cut these axes; one that cuts none becomes an Identity."""
    x, title = step.data(node)[0], node.outputs[0].name
    if not cuts:
        return become_identity(node, x)
    starts, ends, strides = ([cut[i] for cut in cuts.values()] for i in range(3))
    columns = {"starts": starts, "ends": ends, "axes": list(cuts), "steps": strides}
    if "starts" in node.attributes:
        for name in ("starts", "ends", "axes"):
            node.attributes[name] = ir.AttrInt64s(name, columns[name])
        return None
    bounds = [step.book.constant(np.array(numbers, np.int64), f"{title}.{key}") for key, numbers in columns.items()]
    return replace_inputs(node, [x, *bounds])


def _select(step: Stepper, node: ir.Node) -> None:
    """Gather of the standard: the last frame of the sequence is the newest one of the step; other frames are gone."""
    x, timed = step.data(node)
    axis = node.attributes.get_int("axis", 0) % len(step.shapes[str(x.name)])
    if axis != timed.axis:
        return _carry(step, node)
    places, size = content_of(node.inputs[1]), step.shapes[str(x.name)][axis]
    if places is None or places.size != 1 or int(places.reshape(-1)[0]) % size != size - 1:
        raise step.refusal(node, "it takes certain frames of the sequence")
    newest = np.full(places.shape, timed.frames - 1, places.dtype)
    step.latest(node, x, timed)
    return node.replace_input_with(1, step.book.constant(newest, f"{node.outputs[0].name}.newest"))


def _reshape(step: Stepper, node: ir.Node) -> None:
    """A Reshape, a Flatten, or a Squeeze of every axis of size 1: the new sizes are said one by one."""
    if node.op_type == "Squeeze" and whole_numbers(node, "axes", 1) is not None:
        return _carry(step, node)
    x, timed = step.settled(node, *step.data(node))
    axis = carried_axis(node, 0, timed.axis, step.shapes)
    if axis is None:
        raise step.refusal(node, "it joins the frames of the sequence with another axis")
    step.set(node, Timed(axis, timed.frames, timed.delay))
    sizes = node.outputs[0].shape
    assert sizes is not None  # just set
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, x)
    shape = step.book.constant(np.array(sizes.numpy(), np.int64), f"{node.outputs[0].name}.shape")
    return node.replace_input_with(1, shape)


_SPECIAL: dict[tuple[bool, str], Callable[[Stepper, ir.Node], None]] = {
    **{(True, name): _slide for name in WINDOWS},
    **{(True, name): _recur for name in ("LSTMInt", "GRUInt")},
    **{(False, name): _reshape for name in ("Reshape", "Flatten", "Squeeze")},
    (True, "iqPad"): _pad,
    (False, "Pad"): _pad,
    (False, "Slice"): _slice,
    (False, "Gather"): _select,
}
"""The rules of nodes that do more than treat every frame by itself, by whether they are of the dialect, and their type."""
