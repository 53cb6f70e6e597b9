"""The documented setters: names, defaults, and that each changes its own switch only, for later models only."""

import contextvars
import copy
import threading

import pytest
import torch

import linger
from linger import Switches
from linger.errors import UsageError
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.supported import SETTERS
from linger.quantization.setup.initialize import init
from linger.settings import chosen_switches
from tests.support.wired import Wired, image


def apart(function):
    """Run in a context of its own, as a test must not choose for the next."""
    return contextvars.copy_context().run(function)


@pytest.mark.parametrize(("field", "setter"), SETTERS.items(), ids=SETTERS.values())
def test_a_setter_turns_its_switch_off_and_on_again(field, setter):
    def both():
        getattr(linger, setter)(False)
        off = chosen_switches()
        getattr(linger, setter)(True)
        return off, chosen_switches()

    assert apart(both) == (Switches(**{field: False}), Switches())


def test_batch_norms_are_frozen_by_default_of_the_setter():
    def both():
        linger.SetBnMomentumUpdate()
        frozen = chosen_switches()
        linger.SetBnMomentumUpdate(disable=False)
        return frozen, chosen_switches()

    assert apart(both) == (Switches(freezes_batch_norm=True), Switches())


def test_there_is_one_platform():
    linger.SetPlatFormQuant()
    linger.SetPlatFormQuant(linger.PlatFormQuant.luna_quant)
    linger.SetPlatFormQuant("luna_quant")
    assert [member.value for member in linger.PlatFormQuant] == [1]
    with pytest.raises(UsageError, match=r"unknown platform 'mars_quant'"):
        linger.SetPlatFormQuant("mars_quant")


@pytest.mark.parametrize("name", ["SetIQCat2AddZero", "SetCastorBiasInt16"])
def test_what_never_had_an_effect_says_so(name):
    before = chosen_switches()
    with pytest.warns(UserWarning, match=f"linger.{name} has no effect"):
        getattr(linger, name)()
    with pytest.warns(UserWarning, match="has no effect"):
        getattr(linger, name)(False)
    assert chosen_switches() == before


def make():
    return Wired(lambda m, x: m.conv(x) + 1.0)


def float_ops(model):
    model.eval()
    with linger.calibration():
        model(image())
    return [o.op for o in linger.coverage(model).float_ops]


def test_a_model_keeps_what_it_was_initialized_with():
    def both():
        before = init(make())
        linger.SetIQTensorAdd(False)
        after = init(make())
        linger.SetIQTensorAdd(True)
        return before, after

    before, after = apart(both)
    assert float_ops(before) == []
    assert float_ops(after) == ["add"]
    assert float_ops(init(make())) == []  # nothing is left of the choice


def test_a_copy_of_a_model_keeps_its_switches():
    model = copy.deepcopy(init(make(), switches=Switches(add=False)))
    assert float_ops(model) == ["add"]


def test_another_thread_makes_models_of_its_own():
    made = []

    def both():
        linger.SetIQTensorAdd(False)
        thread = threading.Thread(target=lambda: made.append(init(make())))
        thread.start()
        thread.join()
        made.append(init(make()))

    apart(both)
    assert [runtime_of(model).switches.add for model in made] == [True, False]


def test_the_keyword_wins_over_the_setters():
    def both():
        linger.SetIQTensorAdd(False)
        linger.SetIQTensorMul(False)
        return init(make(), switches=Switches(var=False))

    assert runtime_of(apart(both)).switches == Switches(var=False)


def test_the_keyword_is_no_dictionary():
    with pytest.raises(UsageError, match=r"Use linger.Switches\(add=False"):
        init(make(), switches={"add": False})


def test_the_public_init_hands_the_keyword_on():
    linger.init(model := make(), switches=linger.Switches(add=False))
    try:
        assert float_ops(model) == ["add"]
    finally:
        linger.restore()
    assert torch.equal(model(image()), model(image()))
