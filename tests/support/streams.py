"""Networks over time: built from random integers, run whole and step by step."""

import numpy as np

from linger.graph import new_model
from linger.graph.passes.streaming import streamed
from linger.runtime.reference import Reference


def conv(g, x, draw, channels, *, kernel=3, stride=1, dilation=1, pads=(0, 0), group=1, **extensions):
    """A Conv1dInt of 8 bits whose results use their range; the bias makes other numbers of zeros."""
    before, after = channels
    w = draw.integers(-90, 90, (after, before // group, kernel)).astype(np.int8)
    b = draw.integers(-9000, 9000, after).astype(np.int32)
    shift = 2.0 ** -int(np.log2(40 * np.sqrt(before // group * kernel)))
    settings = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation], "pads": list(pads)}
    widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
    scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 1024.0 * shift}
    return dialect(g, "Conv1dInt", x, w, b, group=group, **settings, **widths, **scales, **extensions)


def recurrent(g, x, draw, sizes, *, op="LSTMInt", batch_first=0, states=(), lengths=None, go_forward=1, bits=8, **more):
    """A recurrent layer; with a length of `lengths`, and perhaps states."""
    size, hidden = sizes
    rows = (4 if op == "LSTMInt" else 3) * hidden
    weights = [draw.integers(-100, 100, (rows, n)).astype(np.int8) for n in (size, hidden)]
    biases = [draw.integers(-3000, 3000, rows).astype(np.int32) for _ in range(2)]
    given = [np.array([lengths], np.int64), *states] if lengths is not None else []
    scale = 2.0 ** (bits - 1)
    settings = {
        "input_size": size,
        "hidden_size": hidden,
        "batch_first": batch_first,
        "go_forward": go_forward,
        "scale_i": 32.0,
        "scale_h": scale,
        "scale_iw": 64.0,
        "scale_hw": 64.0,
        "scale_o": scale,
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": bits,
        **more,
    }
    return dialect(g, op, x, *given, *weights, *biases, _outputs=3 if op == "LSTMInt" else 2, **settings)


def dialect(g, op, *inputs, **settings):
    """A node of the dialect."""
    return g.op(op, *inputs, _domain="thinker", **settings)


def add(g, x, y):
    """An iqAdd at one scale."""
    return dialect(g, "iqAdd", x, y, scale_x=16.0, scale_y=16.0, scale_o=8.0)


def network(build, *, inputs="int8[1,4,24] x", outputs="int8[1,4,24] y", opset=13):
    """A model from `build(g, *inputs)`; inputs and outputs as in ONNX text."""
    kinds = [dict(reversed(part.split()) for part in text.split("; ")) for text in (inputs, outputs)]
    return new_model(*kinds, build, opset={"": opset, "thinker": 1})


def numbers(model, draw):
    """Random content for every input of a model: bytes, or real states that are zero."""
    found = {}
    for value in model.graph.inputs:
        shape = value.shape.numpy()
        is_whole = value.dtype.is_integer()
        found[value.name] = draw.integers(-128, 128, shape).astype(np.int8) if is_whole else np.zeros(shape, np.float32)
    return found


def in_steps(stream, feeds, *, damage=None, run=None):
    """What the steps return, joined along time; `damage(state, content)` may change what is given back."""
    run = run or Reference(stream.model).run
    states = {state.input: state.initial for state in stream.states}
    timed = [given for given in stream.inputs if given.axis is not None]
    steps = feeds[timed[0].name].shape[timed[0].axis] // timed[0].frames
    found = {output.name: [] for output in stream.outputs}
    for step in range(steps):
        parts = {i.name: feeds[i.name] for i in stream.inputs if i.axis is None}
        parts |= {i.name: _part(feeds[i.name], i.axis, step * i.frames, (step + 1) * i.frames) for i in timed}
        results = run({**parts, **states})
        states = {state.input: results[state.output] for state in stream.states}
        if damage is not None:
            states = {s.input: damage(s, states[s.input]) for s in stream.states}
        for name, pieces in found.items():
            pieces.append(results[name])
    axes = {output.name: output.axis for output in stream.outputs}
    return {n: p[-1] if axes[n] is None else np.concatenate(p, axes[n]) for n, p in found.items()}


def _part(array, axis, start, end):
    return np.take(array, range(start, end), axis)


def promised(stream, whole, found):
    """For each output the frames that are promised: of the whole sequence, and of the steps."""
    for output in stream.outputs:
        expected, got = whole[output.name], found[output.name]
        if output.axis is not None:
            count = got.shape[output.axis] - output.delay
            expected = _part(expected, output.axis, 0, count)
            got = _part(got, output.axis, output.delay, output.delay + count)
        yield output.name, expected, got


def differing(stream, whole, found):
    """How many numbers of the promised frames differ."""
    return sum(int((expected != got).sum()) for _, expected, got in promised(stream, whole, found))


def assert_streams(model, feeds, frames=1, **options):
    """The steps give what the whole sequence gives, integer by integer; returns the stream."""
    stream = streamed(model, frames, **options)
    whole, found = Reference(model).run(feeds), in_steps(stream, feeds)
    for name, expected, got in promised(stream, whole, found):
        assert expected.size, f"{name}: nothing is promised"
        np.testing.assert_array_equal(got, expected, err_msg=name)
        assert got.dtype == expected.dtype
    return stream
