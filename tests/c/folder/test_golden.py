"""Vectors of a folder's test: few, exact, and with ties and saturation among them."""

import numpy as np

from linger.c.exporter import FolderOptions, interface_of
from linger.c.folder.golden import GRID, golden_samples
from tests.support.c_folders import picture_network, sequence_network
from tests.support.streams import network


def test_inputs_are_the_integers_of_their_real_numbers():
    samples = golden_samples(interface_of(picture_network(), "net", FolderOptions()))
    assert len(samples) == 2
    for sample in samples:
        grid, integers = sample.inputs[0], sample.integers[0]
        assert np.array_equal(np.clip(np.floor(grid / GRID + 0.5), -128, 127), integers)
    grids = np.concatenate([sample.inputs[0] for sample in samples])
    assert (grids % GRID == GRID // 2).any()  # ties
    assert (np.abs(grids) > 128 * GRID).any()  # saturation


def test_large_networks_have_one_sample():
    model = network(lambda g, x: g.op("Identity", x), inputs="int8[1,4,100,100] x", outputs="int8[1,4,100,100] y")
    assert len(golden_samples(interface_of(model, "net", FolderOptions()))) == 1


def test_a_stream_goes_on_from_sample_to_sample():
    from linger.c.exported_folder import StreamOptions

    samples = golden_samples(interface_of(sequence_network(), "net", FolderOptions(), StreamOptions(1)))
    assert len(samples) == 4
    assert len({tuple(sample.digests) for sample in samples}) == 4
