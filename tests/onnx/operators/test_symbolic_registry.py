"""Places in torch's registry, and who holds them."""

import pytest
import torch

from linger.onnx.operators.symbolic_registry import Claims, RegistryPlace, SymbolicMethod
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
    assert RegistryPlace("nolib::op").read() is None


def entries():
    return torch.onnx.utils.registration.registry.get_function_group("nolib::op")


def test_newest_claim_counts_and_the_one_before_returns():
    claims, place = Claims(), RegistryPlace("nolib::op")
    one, two = {9: translation("one"), 12: translation("one")}, {10: translation("two")}
    claims.take(place, "first", one)
    claims.take(place, "second", two)
    assert place.read() == two
    claims.release(place, "second")
    assert place.read() == one
    claims.release(place, "first")


def test_claim_that_is_not_in_front_ends_without_notice():
    claims, place, two = Claims(), RegistryPlace("nolib::op"), {12: translation("two")}
    claims.take(place, "first", {9: translation("one")})
    claims.take(place, "second", two)
    claims.release(place, "first")
    assert place.read() == two
    claims.release(place, "second")
    claims.release(place, "second")


def test_entry_that_others_made_comes_back():
    claims, place, by_hand = Claims(), RegistryPlace("nolib::op"), translation("by hand")
    torch.onnx.register_custom_op_symbolic("nolib::op", by_hand, 12)
    claims.take(place, "owner", dict.fromkeys(range(9, 15), translation("claim")))
    assert entries().get(12) is not by_hand
    claims.release(place, "owner")
    assert place.read() == {12: by_hand}
    torch.onnx.unregister_custom_op_symbolic("nolib::op", 12)
    place.clear({}, None)


def test_entry_made_in_the_meantime_stays():
    claims, place, by_hand = Claims(), RegistryPlace("nolib::op"), translation("by hand")
    claims.take(place, "owner", dict.fromkeys(range(9, 15), translation("claim")))
    torch.onnx.register_custom_op_symbolic("nolib::op", by_hand, 12)
    claims.release(place, "owner")
    assert place.read() == {12: by_hand}
    torch.onnx.unregister_custom_op_symbolic("nolib::op", 12)
    place.clear({}, None)


def test_domain_with_a_dot_has_a_place():
    claims, place = Claims(), RegistryPlace("com.example::op")
    claims.take(place, "owner", {1: translation("claim")})
    assert list(place.read()) == [1]
    claims.release(place, "owner")
    assert place.read() is None


def test_autograd_function_gets_its_own_method_back():
    class Own(torch.autograd.Function):
        @staticmethod
        def symbolic(g, x):
            return "own"

    claims = Claims()
    for function, method in ((Own, vars(Own)["symbolic"]), (Doubling, None)):
        place = SymbolicMethod(function)
        claims.take(place, "owner", staticmethod(translation("claim")))
        assert function.symbolic(None) == "claim"
        claims.release(place, "owner")
        assert vars(function).get("symbolic") is method
