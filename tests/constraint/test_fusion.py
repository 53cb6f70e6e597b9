"""trace_layers says what became of every batch norm."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linger import trace_layers
from tests.support.wired import Wired, image


class Standardized(nn.Conv2d):
    """A convolution that computes its weight, as some model zoos have it."""

    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias, padding=1)


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


def block(conv, bn):
    return nn.Sequential(conv, bn, nn.ReLU())


def test_subclasses_with_a_forward_of_their_own_are_counted_and_named():
    blocks = [block(Standardized(3, 3, 3), nn.BatchNorm2d(3)) for _ in range(10)]
    model = nn.Sequential(*blocks, block(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    with pytest.warns(UserWarning, match="^trace_layers: 1 of 11 batch norms were folded") as said:
        assert trace_layers(model, model, image()) is model
    assert said[0].filename == __file__
    text = str(said[0].message)
    assert (
        "0.1, 1.1, 2.1, 3.1, 4.1, 5.1, 6.1, 7.1 and 2 more: its convolution is a Standardized with a forward of its own, "
        in text
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            block(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4)),
            "pads by padding_mode='reflect'",
        ),
        (block(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), "it keeps no statistics"),
        (block(nn.Conv2d(3, 4, 3), OwnNorm(4)), "it is a OwnNorm with a forward of its own"),
        (Wired(lambda m, x: (lambda h: m.bn(h) + h)(m.conv(x))), "the result of its convolution is used elsewhere too"),
        (Wired(lambda m, x: m.bn(m.conv(x)) + m.conv2(m.bn(m.conv2(m.conv(x))))), None),
    ],
    ids=["padding", "no statistics", "own norm", "two consumers", "several layers"],
)
def test_reasons(model, reason, caplog):
    if reason is None:  # no single convolution feeds it: told in the log
        with caplog.at_level(logging.INFO, logger="linger.constraint.tracing"):
            trace_layers(model, model, image())
        assert "bn: several layers feed it" in caplog.text
        return
    with pytest.warns(UserWarning, match=reason):
        trace_layers(model, model, image())


def test_linear_layers_are_not_folded_and_that_is_said():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.warns(UserWarning, match="0 of 1 batch norms.* 1: a Linear feeds it, no convolution"):
        trace_layers(model, torch.randn(2, 4))


def test_hooks_between_the_two_are_a_reason():
    model = block(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="hooks look at what goes between"):
        trace_layers(model, image())


def test_batch_norms_that_nobody_expects_to_fold_are_only_logged(caplog):
    model = Wired(lambda m, x: m.conv2(m.bn(F.relu(m.conv(x)))))
    with caplog.at_level(logging.INFO, logger="linger.constraint.tracing"):
        trace_layers(model, image())
    assert "0 of 2 batch norms were folded" in caplog.text
    assert "bn: no layer feeds it directly; bn2: the example input does not reach it" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="linger.constraint.tracing"):
        trace_layers(Wired(lambda m, x: m.bn2(m.conv2(m.bn(m.conv(x))))), image())
    assert "trace_layers: 2 of 2 batch norms were folded into their convolutions." in caplog.text
