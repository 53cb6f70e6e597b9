"""Vectors of a folder's test: few, exact, and with ties and saturation among them."""

import numpy as np

from linger.c.exporter import _FolderOptions, interface_of
from linger.c.source_files import GRID, golden_samples
from tests.support.c_folders import image_network, sequence_network
from tests.support.streams import dialect, network


def test_inputs_are_the_integers_of_their_real_numbers():
    samples = list(golden_samples(interface_of(image_network(), "net", _FolderOptions())))
    assert len(samples) == 2
    for sample in samples:
        grid, integers = sample.inputs[0], sample.integers[0]
        assert np.array_equal(np.clip(np.floor(grid / GRID + 0.5), -128, 127), integers)
    grids = np.concatenate([sample.inputs[0] for sample in samples])
    assert (grids % GRID == GRID // 2).any()  # ties
    assert (np.abs(grids) > 128 * GRID).any()  # saturation


def test_one_input_in_twenty_saturates():
    def build(g, x):
        return dialect(g, "Quant", x, data_bits=8, scale_x=16.0)

    model = network(build, inputs="float[1,1,90,90] x", outputs="int8[1,1,90,90] y")
    grids = np.concatenate([s.inputs[0] for s in golden_samples(interface_of(model, "net", _FolderOptions()))])
    # the range ends at two deviations, beyond which are 4.55 %; of 16,200 numbers give or take 0.16 %
    assert 0.04 < (np.abs(grids) > 128 * GRID).mean() < 0.05


def test_large_networks_have_one_sample():
    model = network(lambda g, x: g.op("Identity", x), inputs="int8[1,4,100,100] x", outputs="int8[1,4,100,100] y")
    assert len(list(golden_samples(interface_of(model, "net", _FolderOptions())))) == 1


def test_a_stream_goes_on_from_sample_to_sample():
    from linger.c.exported_folder import StreamOptions

    samples = list(golden_samples(interface_of(sequence_network(), "net", _FolderOptions(), StreamOptions(1))))
    assert len(samples) == 4
    assert len({tuple(sample.digests) for sample in samples}) == 4
