"""One step of a network, run again and again, against the whole sequence: integer by integer, in the numpy reference."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import linger
from linger.errors import GraphError, UnsupportedError, UsageError
from linger.graph.passes.streaming import streamed
from linger.runtime.reference import Reference
from tests.support.onnx_text import content
from tests.support.streams import add, assert_streams, conv, dialect, differing, in_steps, network, numbers, recurrent

FRAMES = pytest.mark.parametrize("frames", [1, 2, 4])


def sizes(stream):
    """The shape of every state."""
    return [state.initial.shape for state in stream.states]


def delays(stream):
    return [output.delay for output in stream.outputs]


def causal(draw):
    def build(g, x):
        y = dialect(g, "Relu", conv(g, x, draw, (4, 4), kernel=3, pads=(2, 0)))
        return conv(g, y, draw, (4, 4), kernel=2, dilation=3, pads=(3, 0))

    return network(build)


def symmetric(draw):
    def build(g, x):
        y = conv(g, x, draw, (4, 4), kernel=5, pads=(2, 2))
        y = dialect(g, "Relu", conv(g, y, draw, (4, 4), kernel=3, dilation=2, pads=(2, 2)))
        return conv(g, y, draw, (4, 4), kernel=3, pads=(1, 1))

    return network(build)


def residual(draw):
    def build(g, x):
        for dilation in (1, 2, 4):
            reach = 2 * dilation
            y = dialect(g, "Relu", conv(g, x, draw, (4, 4), dilation=dilation, pads=(reach, 0)))
            x = add(g, x, conv(g, y, draw, (4, 4), kernel=1))
        return x

    return network(build)


@FRAMES
def test_causal_convolutions_need_their_last_columns(draw, frames):
    model = causal(draw)
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [0]
    assert sizes(stream) == [(1, 4, 2), (1, 4, 3)]
    assert [state.initial.dtype for state in stream.states] == [np.int8, np.int8]


@FRAMES
def test_dilated_network_with_residuals(draw, frames):
    model = residual(draw)
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [0]
    assert sizes(stream) == [(1, 4, 2), (1, 4, 4), (1, 4, 8)]


@FRAMES
def test_padding_on_both_sides_makes_outputs_late_and_the_beginning_stays_exact(draw, frames):
    model = symmetric(draw)
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [2 + 2 + 1]  # the paddings on the right


@FRAMES
def test_no_padding_is_late_by_what_the_window_misses_at_first(draw, frames):
    model = network(lambda g, x: conv(g, x, draw, (4, 4), dilation=2), outputs="int8[1,4,20] y")
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [4]


@pytest.mark.parametrize("opset", [9, 12, 18])
def test_versions_of_slice(draw, opset):
    model = network(lambda g, x: conv(g, x, draw, (4, 4), pads=(2, 0)), opset=opset)
    assert_streams(model, numbers(model, draw), 2)


@FRAMES
def test_a_branch_that_is_ahead_waits(draw, frames):
    def build(g, x):
        near, far = conv(g, x, draw, (4, 4), kernel=1), conv(g, x, draw, (4, 4), kernel=7, pads=(3, 3))
        joined = dialect(g, "iqCat", far, near, dim=1, scale_x_0=16.0, scale_x_1=8.0, scale_o=8.0)
        return add(g, near, far), joined

    model = network(build, outputs="int8[1,4,24] y; int8[1,8,24] z")
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [3, 3]
    assert sizes(stream) == [(1, 4, 6), (1, 4, 3)]  # both joints share the state of the branch that waits


@pytest.mark.parametrize("frames", [2, 4, 6])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("pads", [(0, 0), (1, 0), (1, 1), (4, 0)])
def test_stride_of_two(draw, frames, kernel, pads):
    length = (24 + sum(pads) - kernel) // 2 + 1
    build = lambda g, x: conv(g, x, draw, (4, 4), kernel=kernel, stride=2, pads=pads)  # noqa: E731
    model = network(build, outputs=f"int8[1,4,{length}] y")
    assert_streams(model, numbers(model, draw), frames)


def test_strides_behind_a_late_layer_keep_their_grid(draw):
    def build(g, x):
        y = conv(
            g, x, draw, (4, 4), pads=(1, 1)
        )  # late by one: the next window must begin at an even place all the same
        return conv(g, y, draw, (4, 4), kernel=4, stride=2, pads=(1, 1))

    model = network(build, outputs="int8[1,4,12] y")
    assert_streams(model, numbers(model, draw), 2)
    with pytest.raises(UsageError, match=r"moves by 2 frames and gets 3 in one step\. Choose a multiple of 2"):
        streamed(model, 3)


@pytest.mark.parametrize(("op", "settings"), [("MaxPool", {}), ("AvgPool2dInt", {"data_bits": 8, "o_bits": 8})])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1)])
def test_pools_over_time(draw, op, settings, kernel, stride):
    def build(g, x):
        y = g.Unsqueeze(conv(g, x, draw, (4, 4), pads=(2, 0)), np.array([2]))
        scales = {"scale_x": 16.0, "scale_o": 16.0} if settings else {}
        places = {"kernel_shape": [1, kernel], "strides": [1, stride], "pads": [0] * 4}
        return g.Squeeze(dialect(g, op, y, **places, **settings, **scales), np.array([2]))

    model = network(build, outputs=f"int8[1,4,{(24 - kernel) // stride + 1}] y")
    assert_streams(model, numbers(model, draw), 2)


@FRAMES
@pytest.mark.parametrize("op", ["LSTMInt", "GRUInt"])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("batch_first", [0, 1])
@pytest.mark.thin(every=5)
def test_recurrent_states_go_round_without_loss(draw, frames, op, bits, batch_first):
    shapes = ("[1,24,3]", "[1,24,5]") if batch_first else ("[24,1,3]", "[24,1,5]")

    def build(g, x):
        return recurrent(g, x, draw, (3, 5), op=op, bits=bits, batch_first=batch_first)[0]

    model = network(build, inputs=f"int8{shapes[0]} x", outputs=f"int{bits}{shapes[1]} y")
    stream = assert_streams(model, numbers(model, draw), frames)
    assert sizes(stream) == [(1, 1, 5)] * (2 if op == "LSTMInt" else 1)


@FRAMES
def test_stacked_layers_behind_a_convolution_and_their_last_states(draw, frames):
    def build(g, x):
        y = g.Transpose(conv(g, x, draw, (4, 4), pads=(2, 0)), perm=[2, 0, 1])
        y = recurrent(g, y, draw, (4, 6))[0]
        y, h, c = recurrent(g, y, draw, (6, 5))
        return y, h, c, g.Gather(y, np.array(-1), axis=0)

    outputs = "int8[24,1,5] y; float[1,1,5] h; float[1,1,5] c; int8[1,5] last"
    model = network(build, outputs=outputs)
    stream = assert_streams(model, numbers(model, draw), frames)
    assert [output.axis for output in stream.outputs] == [0, None, None, None]
    assert len(stream.states) == 1 + 2 * 2


@FRAMES
@pytest.mark.parametrize("op", ["LSTMInt", "GRUInt"])
def test_a_recurrent_layer_begins_with_the_first_frame_that_a_late_layer_gives(draw, frames, op):
    def build(g, x):
        y = conv(g, conv(g, x, draw, (4, 4), pads=(1, 1)), draw, (4, 4), kernel=5, pads=(2, 2))
        return recurrent(g, g.Transpose(y, perm=[2, 0, 1]), draw, (4, 5), op=op)[0]

    model = network(build, outputs="int8[24,1,5] y")
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [{1: 3, 2: 4, 4: 4}[frames]]  # a whole number of steps


@FRAMES
def test_padding_as_a_node_of_its_own_costs_no_time(draw, frames):
    def build(g, x):
        pads, zero = np.array([0, 0, 2, 0, 0, 0]), np.array(0, np.int8)
        y = dialect(g, "Relu", dialect(g, "iqPad", x, pads, zero))
        y = conv(g, y, draw, (4, 4))
        late = conv(g, y, draw, (4, 4), pads=(1, 1))
        return y, conv(g, dialect(g, "iqPad", late, pads, zero), draw, (4, 4))

    model = network(build, outputs="int8[1,4,24] y; int8[1,4,24] z")
    stream = assert_streams(model, numbers(model, draw), frames)
    assert delays(stream) == [0, 1]


def test_padding_that_no_convolution_takes_is_zeros_in_a_state(draw):
    def build(g, x):
        y = dialect(g, "iqPad", x, np.array([0, 0, 2, 0, 0, 0]), np.array(0, np.int8))
        return dialect(g, "iqSigmoid", y, scale_x=16.0, scale_o=128.0)

    model = network(build, outputs="int8[1,4,26] y")
    stream = assert_streams(model, numbers(model, draw), 2, time={"x": 2})
    assert sizes(stream) == [(1, 4, 2)]


def test_cutting_off_the_end_is_nothing_and_the_beginning_is_a_delay(draw):
    def build(g, x):
        y = g.Slice(conv(g, x, draw, (4, 4), pads=(2, 2)), np.array([0]), np.array([-2]), np.array([2]))
        before, after = (g.Slice(y, *map(np.array, bounds), np.array([2])) for bounds in (([0], [23]), ([1], [24])))
        return y, add(g, before, after)

    model = network(build, outputs="int8[1,4,24] y; int8[1,4,23] z")
    stream = assert_streams(model, numbers(model, draw), 2)
    assert delays(stream) == [0, 1]


def test_layers_without_time(draw):
    def build(g, x, offset):
        y = g.Transpose(conv(g, x, draw, (4, 4), pads=(2, 0)), perm=[0, 2, 1])
        scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 4.0}
        widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
        w = draw.integers(-90, 90, (6, 4)).astype(np.int8)
        y = add(g, dialect(g, "LinearInt", y, w, np.zeros(6, np.int32), **scales, **widths), offset)
        y = dialect(g, "SoftmaxInt", y, dim=-1, data_bits=8, o_bits=8, scale_x=8.0, scale_o=128.0)
        return g.Reshape(y, np.array([24, 2, 3]))

    model = network(build, inputs="int8[1,4,24] x; int8[1,1,6] offset", outputs="int8[24,2,3] y")
    stream = assert_streams(model, numbers(model, draw), 2)
    assert [given.axis for given in stream.inputs] == [2, None]
    assert [output.axis for output in stream.outputs] == [0]


def test_a_pointwise_network_has_no_states(draw):
    model = network(lambda g, x: dialect(g, "Relu", x))
    with pytest.raises(UsageError, match=r"which axis of x is time. Say it, as in time=\{'x': 1\}"):
        streamed(model)
    assert assert_streams(model, numbers(model, draw), 1, time={"x": -1}).states == ()


def test_convolutions_over_time_and_frequency(draw):
    def build(g, x):
        w = draw.integers(-90, 90, (4, 1, 3, 3)).astype(np.int8)
        places = {"kernel_shape": [3, 3], "strides": [1, 2], "dilations": [2, 1], "pads": [4, 1, 0, 1], "group": 1}
        widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
        scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 8.0}
        return dialect(g, "Conv2dInt", x, w, np.zeros(4, np.int32), **places, **widths, **scales)

    model = network(build, inputs="int8[1,1,12,8] x", outputs="int8[1,4,12,4] y")
    stream = assert_streams(model, numbers(model, draw), 2, time={"x": 2})
    assert sizes(stream) == [(1, 1, 4, 8)]


def with_states(draw, *, has_outputs=True):
    def build(g, x, h0, c0):
        y, h, c = recurrent(g, x, draw, (3, 5), states=(h0, c0), lengths=24)
        return (y, h, c) if has_outputs else y

    outputs = "int8[24,1,5] y" + ("; float[1,1,5] hn; float[1,1,5] cn" if has_outputs else "")
    return network(build, inputs="int8[24,1,3] x; float[1,1,5] h0; float[1,1,5] c0", outputs=outputs)


@pytest.mark.parametrize("pairs", [None, {"hn": "h0", "cn": "c0"}], ids=["found", "given"])
def test_states_that_the_network_has_itself(draw, pairs):
    model = with_states(draw)
    stream = assert_streams(model, numbers(model, draw), 2, pairs=pairs)
    assert [(state.input, state.output) for state in stream.states] == [("h0", "hn"), ("c0", "cn")]
    assert not any(state.initial.any() for state in stream.states)
    assert [output.name for output in stream.outputs] == ["y"]


def test_a_network_that_is_one_step_already(draw):
    model = with_states(draw)
    stream = streamed(model, None)
    assert [(state.input, state.output) for state in stream.states] == [("h0", "hn"), ("c0", "cn")]
    assert [given.axis for given in stream.inputs] == [None]
    feeds = numbers(model, draw)
    assert {n: a.tolist() for n, a in Reference(stream.model).run(feeds).items()} == {
        n: a.tolist() for n, a in Reference(model).run(feeds).items()
    }


def test_first_states_that_are_constant(draw):
    begin = [draw.integers(-40, 40, (1, 1, 5)).astype(np.float32) / 64 for _ in range(2)]
    model = network(
        lambda g, x: recurrent(g, x, draw, (3, 5), states=begin, lengths=24)[0],
        inputs="int8[24,1,3] x",
        outputs="int8[24,1,5] y",
    )
    stream = assert_streams(model, numbers(model, draw), 2)
    assert [state.initial.tolist() for state in stream.states] == [content.tolist() for content in begin]


@pytest.mark.parametrize("make", [causal, symmetric, residual], ids=lambda make: make.__name__)
def test_every_column_of_every_state_counts(draw, make):
    model = make(draw)
    feeds, stream = numbers(model, draw), streamed(model, 2)
    whole = Reference(model).run(feeds)
    assert differing(stream, whole, in_steps(stream, feeds)) == 0
    for state in stream.states:
        for column in range(state.initial.shape[2]):

            def forget(other, content, name=state.input, column=column):
                content = content.copy()
                if other.input == name:
                    content[:, :, column] = 0
                return content

            assert differing(stream, whole, in_steps(stream, feeds, damage=forget)), (state.input, column)


def test_the_zeros_before_a_late_layer_count(draw):
    model = symmetric(draw)
    feeds, stream = numbers(model, draw), streamed(model, 2)
    whole = Reference(model).run(feeds)
    masks = [state for state in stream.states if state.initial.shape[1] == 1]
    assert [mask.initial.size for mask in masks] == [2, 4]  # the delays of what the second and the third layer read
    for mask in masks:
        begun = [replace(s, initial=np.ones_like(s.initial)) if s is mask else s for s in stream.states]
        assert differing(stream, whole, in_steps(replace(stream, states=tuple(begun)), feeds))


def flushed(stream, feeds):
    """What the steps return if noise follows the sequence, long enough for every output to come out."""
    (given,) = stream.inputs
    x = feeds[given.name]
    length, count = x.shape[given.axis], max(output.delay for output in stream.outputs)
    total = -(-(length + count) // given.frames) * given.frames
    widths = [(0, total - length if axis == given.axis else 0) for axis in range(x.ndim)]
    validity = replace(given, name=stream.valid, axis=0)
    longer = {
        given.name: np.pad(x, widths, constant_values=77),
        stream.valid: np.repeat([1, 0], [length, total - length]),
    }
    longer[stream.valid] = longer[stream.valid].astype(np.int8)
    return in_steps(replace(stream, inputs=(given, validity)), longer)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("op", ["LSTMInt", "GRUInt"])
def test_frames_behind_the_end_bring_out_the_last_outputs(draw, frames, op):
    def build(g, x):
        y = conv(g, x, draw, (4, 4), kernel=5, pads=(2, 2))
        z = add(g, y, conv(g, y, draw, (4, 4), dilation=2, pads=(2, 2)))
        wide = dialect(g, "Requant", z, data_bits=8, o_bits=8, scale_x=8.0, scale_o=8.0)
        padded = dialect(g, "iqPad", wide, np.array([0, 0, 0, 0, 0, 2]), np.array(0, np.int8))
        z = conv(g, padded, draw, (4, 4))
        return z, recurrent(g, g.Transpose(z, perm=[2, 0, 1]), draw, (4, 5), op=op)[0]

    model = network(build, outputs="int8[1,4,24] z; int8[24,1,5] y")
    feeds, stream = numbers(model, draw), streamed(model, frames, can_flush=True)
    whole, found = Reference(model).run(feeds), flushed(stream, feeds)
    for output in stream.outputs:
        got = np.take(found[output.name], range(output.delay, output.delay + 24), output.axis)
        np.testing.assert_array_equal(got, whole[output.name])


def test_flushing_behind_a_stride_is_refused(draw):
    def build(g, x):
        return conv(g, conv(g, x, draw, (4, 4), kernel=2, stride=2), draw, (4, 4), pads=(1, 1))

    model = network(build, outputs="int8[1,4,12] y")
    assert_streams(model, numbers(model, draw), 2)
    with pytest.raises(UnsupportedError, match=r"Conv1dInt\): it has padding and reads fewer or more frames"):
        streamed(model, 2, can_flush=True)


def test_the_state_of_a_recurrent_layer_counts(draw):
    model = with_states(draw)
    feeds, stream = numbers(model, draw), streamed(model, 2)
    whole = Reference(model).run(feeds)
    for name in ("h0", "c0"):
        found = in_steps(stream, feeds, damage=lambda state, x, name=name: x * (state.input != name))
        assert differing(stream, whole, found)


def test_onnx_runtime_runs_the_step(draw):
    def build(g, x):
        y = conv(g, conv(g, x, draw, (4, 4), pads=(1, 1)), draw, (4, 4), pads=(1, 1))
        return recurrent(g, g.Transpose(y, perm=[2, 0, 1]), draw, (4, 5))[0]

    model = network(build, outputs="int8[24,1,5] y")
    feeds, stream = numbers(model, draw), streamed(model, 2)
    session = linger.Session(stream.model)
    names = [value.name for value in stream.model.graph.outputs]
    run = lambda parts: dict(zip(names, session.run(names, parts), strict=True))  # noqa: E731
    whole, found = Reference(model).run(feeds), in_steps(stream, feeds, run=run)
    assert differing(stream, whole, found) == 0


def test_the_step_declares_every_size_and_the_network_stays_as_it_was(draw):
    model = symmetric(draw)
    before = content(model)
    stream = streamed(model, 3)
    assert content(model) == before
    found = Reference(stream.model).intermediates(
        {value.name: np.zeros(value.shape.numpy(), value.dtype.numpy()) for value in stream.model.graph.inputs}
    )
    values = [value for node in stream.model.graph for value in node.outputs]
    assert {v.name: tuple(v.shape.numpy()) for v in values} == {v.name: found[v.name].shape for v in values}
    assert {v.name: v.dtype for v in values} == {v.name: ir.DataType.from_numpy(found[v.name].dtype) for v in values}
    assert stream.rows()[0] == ("x.state", "x.state.next", "int8[1, 4, 4]")


def soft(g, x, draw):
    return dialect(g, "SoftmaxInt", x, dim=2, data_bits=8, o_bits=8, scale_x=16.0, scale_o=128.0)


def averaged(g, x, draw):
    return dialect(g, "iqMean", x, dims=2, scale_x=16.0, scale_o=16.0)


def attention(g, x, draw):
    return dialect(g, "BmmInt", x, g.Transpose(x, perm=[0, 2, 1]), scale_x=16.0, scale_y=16.0, scale_o=1.0)


def positions(g, x, draw):
    return add(g, x, draw.integers(-9, 9, (1, 4, 24)).astype(np.int8))


def joined_in_time(g, x, draw):
    return dialect(g, "iqCat", x, x, dim=2, scale_x_0=16.0, scale_x_1=16.0, scale_o=16.0)


def backwards(g, x, draw):
    return recurrent(g, g.Transpose(x, perm=[2, 0, 1]), draw, (4, 5), go_forward=0)[0]


def short(g, x, draw):
    return recurrent(g, g.Transpose(x, perm=[2, 0, 1]), draw, (4, 5), lengths=20)[0]


def late_end(g, x, draw):
    return g.Gather(conv(g, x, draw, (4, 4), pads=(1, 1)), np.array(-1), axis=2)


def padded_pool(g, x, draw):
    return dialect(g, "MaxPool", g.Unsqueeze(x, np.array([2])), kernel_shape=[1, 3], strides=[1, 1], pads=[0, 1, 0, 1])


def end_for_all(g, x, draw):
    return add(g, x, g.Slice(x, np.array([23]), np.array([24]), np.array([2])))


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (soft, "int8[1,4,24]", r"\(SoftmaxInt\): it mixes the frames"),
        (averaged, "int8[1,4]", r"\(iqMean\): it mixes the frames .* Average in the program"),
        (attention, "int8[1,4,4]", r"\(BmmInt\): it mixes the frames .* Attention"),
        (positions, "int8[1,4,24]", r"\(iqAdd\): its operand .* has numbers of its own for each frame"),
        (joined_in_time, "int8[1,4,48]", r"\(iqCat\): it mixes the frames"),
        (lambda g, x, draw: g.Flatten(x), "int8[1,96]", r"\(Flatten\): it joins the frames"),
        (
            lambda g, x, draw: g.Exp(g.CumSum(g.Cast(x, to=1), np.array(2))),
            "float[1,4,24]",
            r"\(CumSum\): it has no str",
        ),
        (backwards, "int8[24,1,5]", r"\(LSTMInt\): it begins at the end"),
        (short, "int8[24,1,5]", r"\(LSTMInt\): it has the lengths of sequences"),
        (late_end, "int8[1,4]", r"\(Gather\): it reads the last frame"),
        (padded_pool, "int8[1,4,1,24]", r"\(MaxPool\): it is a pool with padding over time"),
        (end_for_all, "int8[1,4,24]", r"\(iqAdd\): it joins every step with a number"),
        (lambda g, x, draw: g.Gather(x, np.array(3), axis=2), "int8[1,4]", r"\(Gather\): it takes certain frames"),
    ],
)
def test_what_needs_the_whole_sequence_is_refused_by_name(draw, build, shape, message):
    model = network(lambda g, x: build(g, conv(g, x, draw, (4, 4), pads=(2, 0)), draw), outputs=f"{shape} y")
    with pytest.raises(UnsupportedError, match=message):
        streamed(model)


def test_all_offenders_are_named(draw):
    def build(g, x):
        x = conv(g, x, draw, (4, 4), pads=(2, 0))
        return soft(g, x, draw), averaged(g, x, draw)

    with pytest.raises(UnsupportedError, match=r"SoftmaxInt.*iqMean"):
        streamed(network(build, outputs="int8[1,4,24] y; int8[1,4] z"))


def test_wrong_calls(draw):
    model, owned = causal(draw), with_states(draw, has_outputs=False)
    with pytest.raises(UsageError, match="frames=0: a step has at least one frame"):
        streamed(model, 0)
    with pytest.raises(UsageError, match="can_flush: a model that is one step already"):
        streamed(model, None, can_flush=True)
    with pytest.raises(
        UsageError, match=r"time=\{'z': 1\}: expected axes of inputs that are no states: x \[1, 4, 24\]"
    ):
        streamed(model, time={"z": 1})
    with pytest.raises(UsageError, match=r"pairs=\{'y': 'x0'\}: expected an output and an input of the same sizes"):
        streamed(model, pairs={"y": "x0"})
    with pytest.raises(UnsupportedError, match="its first state is h0, and the model does not return its last state"):
        streamed(owned)
    opened = network(lambda g, x: conv(g, x, draw, (4, 4)), inputs="int8[1,4,t] x", outputs="int8[1,4,u] y")
    with pytest.raises(GraphError, match="sizes are open or not known"):
        streamed(opened)


def test_a_recurrent_layer_of_unknown_sizes_is_named(draw):
    model = network(
        lambda g, x: recurrent(g, x, draw, (4, 5))[:2], inputs="int8[8,1,4] x", outputs="int8[8,1,5] y; float[1,1,5] h"
    )
    model.graph.inputs[0].shape = None
    with pytest.raises(GraphError, match=r"x, .*: sizes are open or not known"):
        streamed(model)


def random_layers(draw, length):
    """Layers as (kind, settings), and how many frames and frames per step they leave."""
    layers, rate = [], 1
    for kind in draw.choice(["conv", "conv", "residual", "relu", "pad", "cut", "wide"], draw.integers(2, 7)):
        kernel, dilation = int(draw.integers(1, 5)), int(draw.integers(1, 4))
        reach = (kernel - 1) * dilation
        left = int(draw.integers(0, reach + 2))
        if kind == "conv":
            stride, right = (int(n) for n in draw.integers([1, 0], [3 if rate < 4 else 2, reach + 1]))
            length, rate = (length + left + right - reach - 1) // stride + 1, rate * stride
            layers.append((kind, {"kernel": kernel, "dilation": dilation, "stride": stride, "pads": (left, right)}))
        elif kind == "residual":
            layers.append(
                (kind, {"kernel": kernel, "dilation": dilation, "pads": (min(left, reach), reach - min(left, reach))})
            )
        else:
            length += {"pad": left, "cut": -1}.get(kind, 0)
            layers.append((kind, left))
    return layers, length, rate


def put(g, x, draw, layer):
    kind, settings = layer
    if kind in ("conv", "residual"):
        y = conv(g, x, draw, (4, 4), **settings)
        return y if kind == "conv" else add(g, x, y)
    if kind == "relu":
        return dialect(g, "Relu", x)
    if kind == "pad":
        return dialect(g, "iqPad", x, np.array([0, 0, settings, 0, 0, 0]), np.array(0, np.int8))
    if kind == "cut":
        return g.Slice(x, np.array([1]), np.array([1 << 30]), np.array([2]))
    wide = dialect(g, "Requant", x, data_bits=8, o_bits=16, scale_x=16.0, scale_o=512.0)
    wide = dialect(g, "iqPad", wide, np.array([0, 0, 0, 0, 0, 0]), np.array(0, np.int16))
    return dialect(g, "Requant", wide, data_bits=16, o_bits=8, scale_x=512.0, scale_o=16.0)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.thin
def test_random_networks(seed):
    draw = np.random.default_rng(seed)
    layers, length, rate = random_layers(draw, 96)

    def build(g, x):
        x = conv(g, x, draw, (4, 4), kernel=1)
        for layer in layers:
            x = put(g, x, draw, layer)
        return x

    model = network(build, inputs="int8[1,4,96] x", outputs=f"int8[1,4,{length}] y")
    assert_streams(model, numbers(model, draw), rate * int(draw.integers(1, 3)))


def test_an_input_that_nothing_reads_may_have_open_sizes(draw):
    model = with_states(draw)
    spare = ir.Value(name="spare", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    model.graph.inputs.append(spare)
    stream = streamed(model, 2, time={"x": 0}, pairs={"hn": "h0", "cn": "c0"})
    assert [(given.name, given.axis) for given in stream.inputs] == [("x", 0), ("spare", None)]
    with pytest.raises(UsageError, match="time="):
        streamed(model, 2, time={"spare": 0}, pairs={"hn": "h0", "cn": "c0"})


@FRAMES
def test_unsigned_frames_with_a_shift_for_each_channel(draw, frames):
    """Padding on both sides: what comes before the stream is masked, also where it is above 127."""

    def build(g, x):
        y = conv(g, x, draw, (4, 4), kernel=5, pads=(2, 2), exponents_w=[0, 2, 1, 4], o_unsigned=1)
        y = conv(g, dialect(g, "Relu", y), draw, (4, 4), pads=(1, 1), exponents_w=[3, 0, 0, 1], o_unsigned=1)
        return conv(g, y, draw, (4, 4), pads=(1, 1))

    model = network(build)
    feeds = numbers(model, draw)
    assert_streams(model, feeds, frames)
    large = [a for a in Reference(model).intermediates(feeds).values() if a.dtype == np.uint8]
    assert len(large) == 3
    assert (np.concatenate([each.reshape(-1) for each in large]) > 127).any()
