"""Places in torch's registry, and who holds them."""

import pytest
import torch

from linger.onnx.operators.operator import _RegistrySlot, _SlotOwners, _SymbolicSlot
from tests.support.custom_ops import Doubling, registry


def translation(name):
    def symbolic(g, *values):
        return name

    return symbolic


@pytest.fixture(autouse=True)
def _registry_as_before():
    before = registry()
    yield
    assert registry() == before
    assert _RegistrySlot("nolib::op").read() is None


def entries():
    return torch.onnx.utils.registration.registry.get_function_group("nolib::op")


def test_newest_claim_counts_and_the_one_before_returns():
    owners, slot = _SlotOwners(), _RegistrySlot("nolib::op")
    one, two = {9: translation("one"), 12: translation("one")}, {10: translation("two")}
    owners.take(slot, "first", one)
    owners.take(slot, "second", two)
    assert slot.read() == two
    owners.release(slot, "second")
    assert slot.read() == one
    owners.release(slot, "first")


def test_claim_that_is_not_in_front_ends_without_notice():
    owners, slot, two = _SlotOwners(), _RegistrySlot("nolib::op"), {12: translation("two")}
    owners.take(slot, "first", {9: translation("one")})
    owners.take(slot, "second", two)
    owners.release(slot, "first")
    assert slot.read() == two
    owners.release(slot, "second")
    owners.release(slot, "second")


def test_entry_that_others_made_comes_back():
    owners, slot, by_hand = _SlotOwners(), _RegistrySlot("nolib::op"), translation("by hand")
    torch.onnx.register_custom_op_symbolic("nolib::op", by_hand, 12)
    owners.take(slot, "owner", dict.fromkeys(range(9, 15), translation("claim")))
    assert entries().get(12) is not by_hand
    owners.release(slot, "owner")
    assert slot.read() == {12: by_hand}
    torch.onnx.unregister_custom_op_symbolic("nolib::op", 12)
    slot.clear({}, None)


def test_entry_made_in_the_meantime_stays():
    owners, slot, by_hand = _SlotOwners(), _RegistrySlot("nolib::op"), translation("by hand")
    owners.take(slot, "owner", dict.fromkeys(range(9, 15), translation("claim")))
    torch.onnx.register_custom_op_symbolic("nolib::op", by_hand, 12)
    owners.release(slot, "owner")
    assert slot.read() == {12: by_hand}
    torch.onnx.unregister_custom_op_symbolic("nolib::op", 12)
    slot.clear({}, None)


def test_domain_with_a_dot_has_a_place():
    owners, slot = _SlotOwners(), _RegistrySlot("com.example::op")
    owners.take(slot, "owner", {1: translation("claim")})
    assert list(slot.read()) == [1]
    owners.release(slot, "owner")
    assert slot.read() is None


def test_autograd_function_gets_its_own_method_back():
    class Own(torch.autograd.Function):
        @staticmethod
        def symbolic(g, x):
            return "own"

    owners = _SlotOwners()
    for function, method in ((Own, vars(Own)["symbolic"]), (Doubling, None)):
        slot = _SymbolicSlot(function)
        owners.take(slot, "owner", staticmethod(translation("claim")))
        assert function.symbolic(None) == "claim"
        owners.release(slot, "owner")
        assert vars(function).get("symbolic") is method
