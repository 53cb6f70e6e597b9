"""Which axis of an output holds the scores of classes."""

import pytest
import torch
from torch import nn

from tests.support.analysis import class_axis, read_goal
from tests.support.quantization import OutputError

pytestmark = pytest.mark.needs_torch

SCORES = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("outputs", "axis"),
    [
        ([SCORES[:, :, 0]], -1),
        ([SCORES[:, :1, 0]], None),
        ([SCORES], None),
        ([SCORES.softmax(1)], 1),
        ([SCORES.log_softmax(-1)], -1),
        ([SCORES[:, :, 0], SCORES], None),
        ([], None),
        ([SCORES[:, :, 0].to(torch.complex64)], None),
        ([SCORES[0, 0]], None),
        ([SCORES[:0, :, 0]], None),
    ],
    ids=[
        *("scores", "one-number", "signal", "probabilities", "logarithms", "several", "nothing", "complex", "one-axis"),
        "no-sample",
    ],
)
def test_scores_have_an_axis_of_classes(outputs, axis):
    assert class_axis(outputs) == axis


class Fixed(nn.Module):
    """Returns the same whatever it is given."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


def test_a_search_decides_along_the_same_axis():
    reference, other = SCORES.softmax(1), SCORES.softmax(1)
    other[:, :, 0] = reference[:, :, 0].flip(1)  # of five decisions along axis 1 one may change
    shares = (reference.argmax(1) == other.argmax(1)).double().mean()
    model, batches = Fixed(reference), [(torch.zeros(2, 4),)]
    measured = read_goal("x", "99 %", None, model, batches, OutputError(model, batches)).measure(Fixed(other))
    assert measured == pytest.approx(100 * float(shares))
    assert shares != (reference.argmax(-1) == other.argmax(-1)).double().mean()
