"""What 591 networks on the engines of the chips have shown: entry by entry, the minimal network.

Each is refused, or written in a form that was seen to be exact and that computes the simulation's integers (`exported` proves
it). The letters are those of the list of what was seen.
"""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.chip_networks import Joined, Said, attribute, conv, exported, judged, op_types, quantized, sample
from tests.targets.test_against_the_engine import nodes_of, refused

pytestmark = pytest.mark.needs_torch

PROVEN = ["venus", "arcs"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def kernels(file, op_type):
    return [attribute(n, "kernel_shape") for n in nodes_of(file, op_type)]


def pooled(channels):
    """A convolution and a global average pool."""
    return nn.Sequential(conv(3, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4))


class TestParameters:
    """B1."""

    def test_a_head_on_two_levels(self, path):
        head = Joined(lambda m, x: torch.cat([m.head(x).flatten(1), m.head(m.down(x)).flatten(1)], 1),
                      head=conv(8, 4), down=conv(8, 8, stride=2))  # fmt: skip
        file = exported(nn.Sequential(conv(3, 8), nn.ReLU(), head), sample(1, 3, 8, 8), path, "arcs")
        weights = [n.input[1] for n in nodes_of(file, "Conv2dInt")]
        assert len(set(weights)) == len(weights) == 4

    def test_files_without_a_chip_go_on_sharing(self, path):
        net = Joined(lambda m, x: m.a(torch.relu(m.a(x))), a=conv(8, 8))
        x = sample(1, 8, 8, 8)
        linger.onnx.export(quantized(net, x), (x,), path)
        names = [value.name for value in linger.graph.load(path).graph.initializers.values()]
        assert names == ["a.weight", "a.bias", "a.bias_1"]
        assert linger.memory(path, "venus").packer_line == "tpacker … --dma_prefetch False"

    def test_a_weight_and_a_bias_that_are_both_shared_are_exact(self, path):
        net = Joined(lambda m, x, y: m.a(x) + m.a(y), a=nn.Linear(8, 8))
        x = sample(1, 8)
        linger.onnx.export(quantized_pair(net, x), (x, x), path, form="bare")
        assert "LGR955" not in Said.of(path, "venus").errors


def quantized_pair(net, x):
    """Both inputs have one range, so both calls have one bias."""
    model = linger.init(net.eval()).eval()
    with linger.calibration():
        model(x, x)
    return model


class TestGroups:
    """B2: inputs of a group, kernel, padding, and the groups of two that the file for venus has."""

    @pytest.mark.parametrize(
        ("inputs", "kernel", "padding", "groups"),
        [
            (3, (3, 3), 1, 2), (3, (1, 5), (0, 2), 2), (3, (3, 5), (1, 2), 2), (4, (4, 4), 2, 2), (5, (5, 5), 2, 2),
            (2, (3, 3), 0, 2), (4, (5, 5), (0, 2), 2),
            (3, (4, 4), 2, 1), (3, (5, 1), (2, 0), 1), (3, (5, 3), (2, 1), 1), (3, (5, 5), 2, 1), (4, (5, 5), 2, 1),
            (4, (5, 4), 2, 1), (4, (5, 5), 1, 1),
        ],
        ids=str,
    )  # fmt: skip
    def test_inputs_reach_the_height_of_the_kernel(self, path, inputs, kernel, padding, groups):
        layer = nn.Conv2d(2 * inputs, 4, kernel, padding=padding, groups=2)
        file = exported(nn.Sequential(conv(3, 2 * inputs), layer), sample(1, 3, 8, 8), path, "venus")
        assert attribute(nodes_of(file, "Conv2dInt")[1], "group") == groups
        assert Said.of(path, "venus").errors == {}

    @pytest.mark.parametrize(("target", "groups"), [("venus", 2), ("arcs", 8)])
    def test_joined_groups_reach_it_too(self, path, target, groups):
        net = nn.Sequential(conv(3, 16), nn.Conv2d(16, 32, 5, padding=2, groups=16))
        file = exported(net, sample(1, 3, 8, 8), path, target)
        assert attribute(nodes_of(file, "Conv2dInt")[1], "group") == groups


class TestAveragePools:
    """B5, B6, B7 and B9."""

    @pytest.mark.parametrize(
        ("size", "channels", "windows"),
        [
            ((25, 5), 32, [[5, 5], [5, 1]]),
            ((25, 5), 64, [[5, 5], [5, 1]]),
            ((9, 9), 32, [[3, 9], [3, 1]]),
            ((12, 9), 8, [[6, 9], [2, 1]]),
            ((8, 8), 8, [[8, 8]]),
            ((3, 32), 12, [[3, 8], [1, 4]]),  # a stride of 16 would make it large
            ((5, 28), 12, [[5, 7], [1, 4]]),
            ((1, 13), 8, [[1, 13]]),
        ],
        ids=str,
    )
    def test_venus_divides_by_other_areas_in_two_steps(self, path, size, channels, windows):
        file = exported(pooled(channels), sample(1, 3, *size), path, "venus")
        assert kernels(file, "AvgPool2dInt") == windows
        assert attribute(nodes_of(file, "AvgPool2dInt")[-1], "strides") == [1, 1]
        assert Said.of(path, "venus").errors == {}

    def test_two_steps_are_nearly_one(self):
        """Each step rounds once, by at most half of an integer's step."""
        x = sample(8, 3, 25, 5)
        one, two = (quantized(pooled(8)[:3], x, target) for target in (None, "venus"))
        two.load_state_dict(one.state_dict())
        torch.testing.assert_close(two(x), one(x), rtol=0, atol=1.5 / 16)

    def test_training_pools_in_two_steps(self, path):
        x = sample(4, 3, 25, 5)
        model = quantized(pooled(8), x, "venus").train()
        model(x).square().mean().backward()
        assert model[0].weight.grad.abs().sum() > 0
        linger.onnx.export(model.eval(), (x[:1],), path, verify=True)

    def test_a_checkpoint_fits_with_and_without_a_chip(self):
        x = sample(1, 3, 25, 5)
        with_chip, without = quantized(pooled(8), x, "venus"), quantized(pooled(8), x)
        assert with_chip.state_dict().keys() == without.state_dict().keys()

    def test_a_large_prime_area_stays_and_is_refused(self, path):
        text = refused(pooled(256), sample(1, 3, 1, 13), path, "venus")
        assert "the engine writes 3328 bytes beyond what the packer reserves for a window of 13 pixels" in text

    @pytest.mark.parametrize(
        ("size", "channels", "count"),
        [((7, 7), 8, 2), ((7, 7), 12, 2), ((7, 7), 13, 1), ((9, 12), 26, 2), ((9, 12), 27, 1), ((5, 20), 24, 2),
         ((5, 20), 25, 1), ((5, 5), 6, 2), ((5, 5), 7, 1), ((8, 8), 4, 1), ((32, 3), 8, 2)],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("target", ["arcs", "venusA"])
    @pytest.mark.thin(every=3)
    def test_areas_beyond_four_times_the_channels_in_two_steps(self, path, target, size, channels, count):
        file = exported(pooled(channels), sample(1, 3, *size), path, target)
        assert len(nodes_of(file, "AvgPool2dInt")) == count
        assert Said.of(path, target).errors == {}

    def test_without_a_chip_one_pool_is_written_and_named(self, path):
        found = judged(pooled(8), sample(1, 3, 7, 7), path, "arcs").errors["LGR915"]
        assert (
            "a window of 49 pixels, no power of two, over 8 channels; arcs computes more than 4 for each channel"
            in found
        )
        assert "linger.init(model, target='arcs')" in found

    @pytest.mark.parametrize(
        ("target", "net", "x", "reason"),
        [
            ("venus", nn.AvgPool2d(2), (20, 64, 64), "98304 bytes of input of an average pool"),
            ("venus", nn.AvgPool2d(2), (76, 32, 32), "81920 bytes of input of an average pool"),
            ("arcs", nn.AvgPool2d(2), (20, 64, 64), "98304 bytes of input of an average pool"),
            ("arcs", nn.AvgPool2d(2), (76, 32, 32), "81920 bytes of input of an average pool"),
            ("arcs", nn.AvgPool2d(2), (24, 64, 64), "98304 bytes of input of an average pool"),
            ("arcs", nn.AvgPool2d(16), (8, 32, 32), "a kernel of 16×16; nobody has seen arcs take 16"),
        ],
        ids=["venus 20", "venus 76", "arcs 20", "arcs 76", "arcs 24", "arcs 16×16"],
    )
    def test_large_inputs_are_refused(self, path, target, net, x, reason):
        text = refused(nn.Sequential(nn.Conv2d(x[0], x[0], 1), net), sample(1, *x), path, target)
        assert f"1.AvgPool2dInt (AvgPool2dInt): {reason}" in text

    def test_inputs_of_seventy_two_kilobytes_are_taken_by_arcs(self, path):
        exported(nn.Sequential(nn.Conv2d(72, 72, 1), nn.AvgPool2d(2)), sample(1, 72, 32, 32), path, "arcs")

    def test_venus_takes_full_channels(self, path):
        exported(nn.Sequential(nn.Conv2d(24, 24, 1), nn.AvgPool2d(2)), sample(1, 24, 64, 64), path, "venus")


class TestMaxPools:
    """B8 and A2."""

    @pytest.mark.parametrize(
        ("size", "is_taken"), [((32, 64, 64), False), ((32, 56, 56), True), ((24, 64, 64), True), ((16, 64, 64), True)], ids=str
    )  # fmt: skip
    def test_large_inputs_on_venus(self, path, size, is_taken):
        net, x = nn.Sequential(nn.Conv2d(size[0], size[0], 1), nn.MaxPool2d(2)), sample(1, *size)
        if is_taken:
            exported(net, x, path, "venus")
        else:
            text = refused(net, x, path, "venus")
            assert (
                "131072 bytes of input of a max pool, in parts of 65536; venus computes parts of more than 61440"
                in text
            )

    def test_arcs_takes_them(self, path):
        exported(nn.Sequential(nn.Conv2d(32, 32, 1), nn.MaxPool2d(2)), sample(1, 32, 64, 64), path, "arcs")

    def test_kernels_beyond_twelve_are_chains_on_arcs(self, path):
        net = nn.Sequential(conv(3, 8), nn.MaxPool2d(13, 1, 6), conv(8, 4))
        assert "LGR917" in judged(net, sample(1, 3, 20, 20), path, "arcs").errors
        file = exported(
            nn.Sequential(conv(3, 8), nn.MaxPool2d(13, 1, 6), conv(8, 4)), sample(1, 3, 20, 20), path, "arcs"
        )
        assert max(max(kernel) for kernel in kernels(file, "MaxPool")) <= 12
        assert len(kernels(file, "MaxPool")) == 2
        exported(nn.Sequential(conv(3, 8), nn.MaxPool2d(12, 1, 6)), sample(1, 3, 20, 20), path, "arcs")


class TestScratch:
    """B3, B4 and C1."""

    @pytest.mark.parametrize(
        ("size", "hidden"),
        [(10, 10), (12, 12), (20, 20), (24, 24), (32, 32), (64, 64), (16, 8), (16, 24), (32, 16), (32, 48), (32, 64), (8, 4)],
        ids=str,
    )  # fmt: skip
    @pytest.mark.thin(every=3)
    def test_an_lstm_behind_a_linear_layer_needs_no_more(self, path, size, hidden):
        net = Joined(
            lambda m, x: m.lstm(m.into(x))[0], into=nn.Linear(8, size), lstm=nn.LSTM(size, hidden, batch_first=True)
        )
        file = exported(net, sample(1, size, 8), path, "venus")
        is_covered = 4 * size * size >= 40 * hidden
        assert len(nodes_of(file, "LinearInt")) == (1 if is_covered else 2)
        assert Said.of(path, "venus").errors == {}

    @pytest.mark.parametrize(
        ("size", "hidden"), [(16, 28), (16, 32), (16, 40), (8, 8), (16, 16), (16, 12)], ids=str
    )  # fmt: skip
    @pytest.mark.thin(every=2)
    def test_an_lstm_alone_gets_some(self, path, size, hidden):
        net = Joined(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(size, hidden, batch_first=True))
        file = exported(net, sample(1, size, size), path, "venus")
        reserved = [row.scratch_bytes for row in linger.memory(path, "venus").layers]
        assert op_types(file).count("LinearInt") == 1
        assert max(reserved) >= 40 * hidden > 32 * hidden
        assert Said.of(path, "venus").errors == {}

    def test_a_norm_of_a_whole_image_gets_some(self, path):
        file = exported(nn.Sequential(conv(3, 8), nn.LayerNorm([8, 4, 4])), sample(1, 3, 4, 4), path, "venus")
        assert op_types(file).count("LinearInt") == 1
        assert max(row.scratch_bytes for row in linger.memory(path, "venus").layers) >= 8 * 128
        assert Said.of(path, "venus").errors == {}

    def test_an_lstm_with_a_small_head_gets_some_and_the_cost_is_said(self, path, caplog):
        net = Joined(lambda m, x: m.out(m.lstm(x)[0]), lstm=nn.LSTM(16, 16, batch_first=True), out=nn.Linear(16, 4))
        with caplog.at_level(logging.WARNING):
            file = exported(net, sample(1, 16, 16), path, "venus")
        assert op_types(file).count("LinearInt") == 2
        said = "\n".join(record.getMessage() for record in caplog.records)
        assert "lstm.LSTMInt (LSTMInt): a product with the identity stands before it" in said
        # 16 · 16 numbers in rows of 8: 64 weights and 8 biases of 4 bytes; each number is multiplied 8 times
        assert (
            "reserves 1024 bytes of scratch (640 are written); it costs 96 bytes of parameters and 2048 multiply"
            in said
        )
        rows = {row.node: row.scratch_bytes for row in linger.memory(path, "venus").layers}
        assert rows["lstm.LSTMInt (LSTMInt)"] == 32 * 16
        assert rows["lstm.LSTMInt.scratch.LinearInt (LinearInt)"] == 1024

    def test_two_rows_behind_a_linear_layer_need_no_more(self, path):
        net = Joined(lambda m, x: m.norm(m.into(x)), into=nn.Linear(8, 32), norm=nn.LayerNorm(32))
        assert op_types(exported(net, sample(1, 2, 8), path, "venus")).count("LinearInt") == 1

    def test_one_product_serves_every_layer(self, path):
        net = Joined(
            lambda m, x: m.b(m.into(m.a(x))), a=nn.LayerNorm(24), into=nn.Linear(24, 48, bias=False), b=nn.LayerNorm(48)
        )
        x = sample(1, 1, 24)
        file = exported(Joined(lambda m, x: m.net(m.first(x)), first=nn.Linear(24, 24), net=net), x, path, "venus")
        assert sum(n.name.endswith(".scratch.LinearInt") for n in file.graph.node) == 1
        assert Said.of(path, "venus").errors == {}

    def test_a_conv1d_and_a_norm(self, path):
        net = Joined(
            lambda m, x: m.b(m.norm(m.a(x))),
            a=nn.Conv1d(4, 8, 3, padding=1),
            norm=nn.LayerNorm(48),
            b=nn.Conv1d(8, 4, 3),
        )
        exported(net, sample(1, 4, 48), path, "venus")
        assert Said.of(path, "venus").errors == {}


class TestFormsThatStop:
    """A1, A3, A4 and A5."""

    def test_a_border_of_a_signal_is_of_four_axes(self, path):
        net = Joined(lambda m, x: m.b(F.pad(m.a(x), (2, 0))), a=nn.Conv1d(4, 8, 3, padding=1), b=nn.Conv1d(8, 8, 3))
        x = sample(1, 4, 20)
        assert "LGR949" in judged(net, x, path, "venus").errors
        net = Joined(lambda m, x: m.b(F.pad(m.a(x), (2, 0))), a=nn.Conv1d(4, 8, 3, padding=1), b=nn.Conv1d(8, 8, 3))
        file = exported(net, x, path, "venus")
        assert op_types(file)[1:6] == ["Conv1dInt", "Reshape", "iqPad", "Reshape", "Conv1dInt"]
        assert Said.of(path, "venus").errors == {}

    def test_parameters_of_two_neighbors_lie_beside_the_tensors_of_arcs(self, path):
        net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))
        text = refused(net, sample(1, 512), path, "arcs")
        assert "arcs has 393216 for tensors and the parameters of two layers in turn" in text
        assert "parameters of 0.LinearInt (LinearInt) 264192, parameters of 2.LinearInt (LinearInt) 132096" in text
        exported(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)), sample(1, 512), path, "arcs")

    def test_parameters_are_counted_where_float_ends_are_too_large(self, path):
        net = nn.Sequential(
            nn.Conv2d(24, 8, 1), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(512, 512), nn.Linear(512, 256)
        )
        text = refused(net, sample(1, 24, 64, 64), path, "arcs")
        assert "where the packer keeps the float ends" in text
        assert "parameters of 4.LinearInt (LinearInt) 132096, parameters of 3.LinearInt (LinearInt) 264192" in text

    def test_long_signals_on_arcs(self, path):
        text = refused(nn.Sequential(nn.Conv1d(1, 8, 3, padding=1)), sample(1, 1, 4000), path, "arcs")
        assert "0.Conv1dInt (Conv1dInt): a signal of 4000 samples; arcs takes fewer than 4000" in text
        exported(nn.Sequential(nn.Conv1d(1, 8, 3, padding=1)), sample(1, 1, 2000), path, "arcs")

    @pytest.mark.parametrize("target", ["arcs", "venusA"])
    def test_an_lstm_stops_the_engine(self, path, target):
        net = Joined(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(16, 16, batch_first=True))
        assert f"{target}'s packer or engine stops at LSTMInt" in refused(net, sample(1, 16, 16), path, target)

    @pytest.mark.parametrize("target", ["arcs", "venusA"])
    def test_float_ops_behind_the_last_layer_stop(self, path, target):
        model = linger.init(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval(), disable_module=[nn.Tanh], target=target
        ).eval()
        x = sample(1, 8)
        with linger.calibration():
            model(x)
        with pytest.raises(linger.UnsupportedError, match="stops at a float Tanh"):
            linger.onnx.export(model, (x,), path)


class TestLetThrough:
    """C2 to C5."""

    @pytest.mark.parametrize("target", [*PROVEN, "venusA"])
    def test_what_float_ends_alone_make_too_large_is_a_warning(self, path, target):
        exported(nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32)), sample(1, 32, 64, 64), path, target)
        found = Said.of(path, target)
        assert (found.errors, list(found.warnings)) == ({}, ["LGR951"])
        assert "Pack without keeping the float ends, as the packer does by default" in found.warnings["LGR951"]
        assert linger.memory(path, target).ok

    @pytest.mark.parametrize(("target", "bits"), [("venus", 16), ("venus", 32), ("arcs", 32), ("venusA", 16)])
    def test_wide_results_of_a_linear_layer_are_a_warning(self, path, target, bits):
        net = nn.Sequential(nn.Linear(16, 8))
        linger.quant_module(net, out_bits=bits)
        exported(net, sample(1, 16), path, target)
        found = Said.of(path, target)
        assert (found.errors, list(found.warnings)) == ({}, ["LGR950"])

    @pytest.mark.parametrize("target", PROVEN)
    def test_squeeze_and_excitation(self, path, target):
        net = Joined(
            lambda m, x: m.out(m.a(x) * torch.sigmoid(m.up(F.relu(m.down(F.adaptive_avg_pool2d(m.a(x), 1)))))),
            a=conv(3, 16), down=nn.Conv2d(16, 8, 1), up=nn.Conv2d(8, 16, 1), out=conv(16, 4),
        )  # fmt: skip
        exported(net, sample(1, 3, 8, 8), path, target)
        assert Said.of(path, target).errors == {}

    @pytest.mark.parametrize("target", PROVEN)
    def test_one_number_for_each_channel(self, path, target):
        net = Joined(lambda m, x: m.out(m.a(x) * m.factor), a=conv(3, 16), out=conv(16, 4))
        net.factor = nn.Parameter(sample(1, 16, 1, 1))
        exported(net, sample(1, 3, 8, 8), path, target)
        assert Said.of(path, target).errors == {}

    def test_a_transpose_of_the_float_input_is_a_warning_for_kept_ends(self, path):
        net = Joined(lambda m, x: m.a(x.permute(0, 3, 1, 2)), a=conv(3, 8))
        exported(net, sample(1, 8, 8, 3), path, "venus")
        found = Said.of(path, "venus")
        assert found.errors == {}
        assert "something else for a float Transpose where the packer keeps the float ends" in found.warnings["LGR907"]

    @pytest.mark.parametrize(
        ("target", "order", "size", "is_taken"),
        [
            ("venus", (1, 0, 2), (300, 300), True),
            ("arcs", (1, 0, 2), (300, 300), True),
            ("venus", (0, 1, 3, 2), (16, 80, 70), True),
            ("venus", (0, 2, 1, 3), (16, 66, 66), True),
            ("venus", (0, 2, 3, 1), (16, 66, 66), False),
            ("arcs", (0, 2, 1), (260, 260), True),
            ("venus", (0, 2, 1), (260, 260), False),
        ],
        ids=str,
    )
    def test_transposes(self, path, target, order, size, is_taken):
        layer = nn.Conv2d(size[0], size[0], 1, groups=size[0]) if len(size) == 3 else nn.Conv1d(size[0], size[0], 1)
        net, x = Joined(lambda m, x: m.a(x).permute(*order), a=layer), sample(1, *size)
        if is_taken:
            exported(net, x, path, target)
            assert Said.of(path, target).errors == {}
        else:
            assert "Cut the tensor into parts, turn each, and join them." in refused(net, x, path, target)


class TestVenusA:
    """Only what was seen to be exact passes."""

    def test_a_network_of_convolutions_passes(self, path):
        net = Joined(lambda m, x: m.out(F.adaptive_avg_pool2d(m.b(F.relu(m.a(x))) + m.a(x), 1).flatten(1)),
                     a=conv(3, 16), b=conv(16, 16), out=nn.Linear(16, 4))  # fmt: skip
        exported(net, sample(1, 3, 8, 8), path, "venusA")
        assert Said.of(path, "venusA") == Said({}, {})

    @pytest.mark.parametrize(
        ("net", "x", "reason"),
        [
            (nn.Sequential(nn.Conv1d(4, 8, 3)), (4, 8), "venusA runs Conv1dInt and was seen to compute something else"),
            (nn.Sequential(nn.Linear(8, 8)), (3, 8), "3 rows; venusA was seen to compute more than 1 otherwise"),
            (nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()), (8,), "venusA runs iqSigmoid and was seen to compute"),
            (nn.Sequential(conv(3, 8), nn.Upsample(scale_factor=2)), (3, 8, 8), "not tried: nobody has compared"),
            (nn.Sequential(conv(3, 8), nn.PixelShuffle(2)), (3, 8, 8), "exchanges axes of a tensor of 6 axes"),
        ],
        ids=["Conv1d", "rows", "sigmoid", "upsampling", "pixel shuffle"],
    )  # fmt: skip
    def test_everything_else_is_an_error(self, path, net, x, reason):
        assert reason in refused(net, sample(1, *x), path, "venusA")

    @pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 1), nn.Linear(8, 8)], ids=["Conv2d", "Linear"])
    def test_widths_that_nobody_has_tried_are_refused(self, path, layer):
        x = sample(1, 8, 4, 4) if isinstance(layer, nn.Conv2d) else sample(1, 8)
        net = nn.Sequential(layer)
        linger.quant_module(net, parameter_bits=4)
        assert "4-bit weights; venusA has 8, and nobody has tried another" in refused(net, x, path, "venusA")

    @pytest.mark.parametrize(
        ("net", "reason"),
        [
            (nn.Sequential(conv(3, 8), nn.AvgPool2d(16)), "nobody has seen venusA take 16"),
            (nn.Sequential(conv(3, 32), nn.AvgPool2d(2)), "131072 bytes of input of an average pool"),
        ],
        ids=["kernel", "size"],
    )
    def test_pools_beyond_those_of_arcs_are_refused(self, path, net, reason):
        assert reason in refused(net, sample(1, 3, 64, 64), path, "venusA")

    def test_large_max_pools_are_chains(self, path):
        file = exported(nn.Sequential(conv(3, 8), nn.MaxPool2d(13, 1, 6)), sample(1, 3, 20, 20), path, "venusA")
        assert [max(kernel) for kernel in kernels(file, "MaxPool")] == [2, 12]

    def test_joins_at_different_scales_are_refused(self, path):
        net = Joined(lambda m, x: torch.cat([m.a(x), 9 * m.b(x)], 1), a=conv(3, 8), b=conv(3, 8))
        assert "joins tensors of different scales" in refused(net, sample(1, 3, 8, 8), path, "venusA")
