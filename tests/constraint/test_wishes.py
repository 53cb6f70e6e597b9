"""Wishes live on the modules; a quantised model takes no more of them."""

import copy

import pytest
from torch import nn

from linger.constraint.limits import Limits
from linger.constraint.wishes import QUANTIZED, keep_wish, refuse_quantized, wish_of
from linger.errors import UsageError
from linger.quantization.setup.initialize import init


def test_a_wish_stays_on_its_module_until_a_later_one_replaces_it():
    module = nn.Linear(2, 2)
    assert wish_of(module) is None
    keep_wish(module, Limits(weight=1.0))
    keep_wish(module, Limits())
    assert wish_of(module) == Limits()
    assert wish_of(nn.Linear(2, 2)) is None


def test_a_wish_is_no_state_and_survives_a_copy():
    module = nn.Linear(2, 2)
    keep_wish(module, Limits(output=2.0))
    assert list(module.state_dict()) == ["weight", "bias"]
    assert wish_of(copy.deepcopy(module)) == Limits(output=2.0)


def test_a_float_model_is_not_refused():
    refuse_quantized(nn.Sequential(nn.Linear(2, 2)), "here")


@pytest.mark.parametrize("pick", [lambda m: m, lambda m: m[0], lambda m: m[1], nn.Sequential])
def test_a_quantised_model_and_every_part_of_it_is_refused(pick):
    model = pick(init(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))))
    with pytest.raises(UsageError, match=r"^here: \w+ is quantised already.*trace_layers, then normalize_layers, then"):
        refuse_quantized(model, "here")
    assert all(QUANTIZED in m.__dict__ for m in init(nn.Sequential(nn.Linear(2, 2))).modules())
