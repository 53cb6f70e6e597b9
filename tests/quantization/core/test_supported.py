"""Which torch layers have an integer form."""

import pytest
from torch import nn

from tests.support.quantization import has_own_forward, op_for, supported_types


@pytest.mark.parametrize(
    ("layer", "op_name"),
    [
        (nn.Conv1d(3, 4, 3), "Conv1dInt"),
        (nn.Conv2d(3, 4, 3), "Conv2dInt"),
        (nn.ConvTranspose2d(3, 4, 3), "ConvTranspose2dInt"),
        (nn.Linear(2, 2), "LinearInt"),
        (nn.Embedding(3, 2), "Gather"),
        (nn.AvgPool2d(2), "AvgPool2dInt"),
        (nn.AdaptiveAvgPool2d(1), "AvgPool2dInt"),
        (nn.ReLU6(), "Clip"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_first_layers(layer, op_name):
    found = op_for(layer)
    assert found is not None
    assert found[0].name == op_name
    assert supported_types()[type(layer)] is found


@pytest.mark.parametrize("layer", [nn.GELU(), nn.LocalResponseNorm(3), nn.Identity(), nn.Sequential()], ids=repr)
def test_layers_without_an_integer_form(layer):
    assert op_for(layer) is None


class Nearer(nn.Linear):
    """A plain subclass of a subclass."""


class Nearest(Nearer):
    """No forward of its own."""


class Different(Nearer):
    """Computes something else."""

    def forward(self, x):
        return -super().forward(x)


def test_nearest_supported_ancestor_counts():
    assert op_for(Nearest(2, 2)) is supported_types()[nn.Linear]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(nn.Linear(2, 2), False), (Nearest(2, 2), False), (Different(2, 2), True), (nn.ReLU6(), False)],
)
def test_a_forward_of_its_own_is_seen(layer, expected):
    assert has_own_forward(layer) is expected
