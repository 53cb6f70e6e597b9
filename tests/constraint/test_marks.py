"""Marks live on the modules; a quantized model takes no more of them."""

import copy
import pickle

import pytest
import torch
from torch import nn

from linger import init, trace_layers
from linger.errors import UsageError
from tests.support.constraint import FUSED, LIMITS, QUANTIZED, Fusion, checked_types, refuse_quantized
from tests.support.models import settle
from tests.support.quantization import QUANTIZATION, Limits, QuantChoice, Widths


def test_a_mark_stays_on_its_module_until_a_later_one_replaces_it():
    module = nn.Linear(2, 2)
    assert LIMITS.of(module) is None
    LIMITS.put(module, Limits(weight=1.0))
    LIMITS.put(module, Limits())
    assert LIMITS.of(module) == Limits()
    assert QUANTIZATION.of(module) is None
    assert LIMITS.of(nn.Linear(2, 2)) is None


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_mark_is_no_state_and_survives_a_copy(clone):
    module = nn.Linear(2, 2)
    LIMITS.put(module, Limits(output=2.0))
    QUANTIZATION.put(module, QuantChoice(widths=Widths(16, 8, 8)))
    assert list(module.state_dict()) == ["weight", "bias"]
    assert LIMITS.of(clone(module)) == Limits(output=2.0)
    assert QUANTIZATION.of(clone(module)) == QuantChoice(widths=Widths(16, 8, 8))


def traced_pairs():
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    return trace_layers(settle(nn.Sequential(*layers)).eval(), torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copy_of_a_traced_model_knows_its_own_pairs(clone):
    model = traced_pairs()
    made = clone(model)
    marks = [FUSED.of(made[i]) for i in (0, 1, 3, 4)]
    assert marks[0] is marks[1] is not None
    assert marks[2] is marks[3] is not None
    assert marks[0] is not marks[2]
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(made(x), model(x))


def test_models_that_were_saved_as_a_whole_find_the_class_of_their_marks():
    assert isinstance(FUSED.of(traced_pairs()[0]), Fusion)
    assert pickle.loads(b"clinger.constraint.limits\nFusion\n.") is Fusion


def test_marks_have_the_attributes_of_every_version():
    module = nn.Linear(2, 2)
    before = set(vars(module))
    LIMITS.put(module, Limits())
    QUANTIZATION.put(module, QuantChoice(is_disabled=True))
    QUANTIZED.put(module, value=True)
    assert set(vars(module)) - before == {"_linger_normalize_wish", "_linger_quant_mark", "_linger_is_quantized"}


def test_named_types_are_one_or_several_and_every_wrong_one_is_named():
    assert checked_types("f", nn.Linear, (nn.Module,), (), "") == (nn.Linear,)
    assert checked_types("f", [nn.Linear, nn.ReLU], (nn.Module,), (), "") == (nn.Linear, nn.ReLU)
    with pytest.raises(UsageError, match=r"^f: ReLU, 3 is wrong\. Supported types: Linear\.$"):
        checked_types("f", [nn.ReLU, nn.Linear, 3], (nn.Linear,), (nn.Linear,), "is wrong")


def test_a_float_model_is_not_refused():
    refuse_quantized(nn.Sequential(nn.Linear(2, 2)), "here")


@pytest.mark.parametrize("pick", [lambda m: m, lambda m: m[0], lambda m: m[1], nn.Sequential])
def test_a_quantized_model_and_every_part_of_it_is_refused(pick):
    model = pick(init(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))))
    with pytest.raises(UsageError, match=r"^here: \w+ is quantized already.*trace_layers, then normalize_layers, then"):
        refuse_quantized(model, "here")
    assert all(QUANTIZED.of(m) for m in init(nn.Sequential(nn.Linear(2, 2))).modules())
