"""Parameters as integers, kept from one evaluation to the next."""

import pytest
import torch

from tests.support.quantization import PARTS, Watchman, checksum, kept, make_frozen, make_ready, round_bias, views_of
from tests.support.wired import after


def everything(t):
    """The checksums of all parts of a tensor."""
    return tuple(map(checksum, views_of(t)))


def test_one_of_the_next_passes_sees_an_edit_behind_torchs_back():
    weight = torch.randn(8, 4096)
    watchman = Watchman()
    assert watchman.has_changed([weight], is_thorough=False)
    assert not any(watchman.has_changed([weight], is_thorough=False) for _ in range(8))
    weight.data[3, 5] += 1e-3
    assert sum(watchman.has_changed([weight], is_thorough=False) for _ in range(PARTS)) == 1
    weight.data[3, 4000] += 1e-3
    assert watchman.has_changed([weight], is_thorough=True)
    weight.data.mul_(2)
    assert watchman.has_changed([weight], is_thorough=False)
    with torch.no_grad():
        weight[0, 0] = 7.0
    assert watchman.has_changed([weight], is_thorough=False)
    watchman.forget()
    assert watchman.has_changed([weight], is_thorough=False)


def test_kept_tensors_have_no_graph_and_can_be_saved_for_backward():
    weight = torch.ones(2, requires_grad=True)
    with torch.inference_mode(), kept():
        made = weight * 2
    assert not made.requires_grad
    assert not made.is_inference()
    x = torch.ones(2, requires_grad=True)
    (x * made).sum().backward()  # saves `made`
    assert x.grad.tolist() == [2.0, 2.0]


def test_gradients_are_as_before_afterwards():
    with kept():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        with kept():
            pass
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("bias", "scale", "expected"),
    [
        (0.5, 4.0, 2),
        (0.125, 4.0, 1),  # a tie goes up
        (-0.125, 4.0, 0),
        (1.0, 2.0**31, 2**31 - 1),
        (-1.0, 2.0**31, -(2**31)),
        (-1.5, 2.0**31, -(2**31)),
        (16777217 / 2**24, 2.0**24, 16777217),  # 25 bits: float32 could not hold it
    ],
)
def test_bias_is_rounded_and_saturated_at_32_bits(bias, scale, expected):
    found = round_bias(torch.tensor([bias], dtype=torch.float64), scale)
    assert found.dtype == torch.float64
    assert found.item() * scale == expected


def test_frozen_parameters_are_the_file_s_integers():
    model = after(lambda h: h)
    with torch.no_grad():
        frozen = model.conv.freeze(model.conv.read("scale_x"))
        again = model.conv.freeze(model.conv.read("scale_x"))
    assert again is frozen  # kept while nothing changes
    assert frozen.weight_integers.dtype == torch.int8
    assert frozen.bias_integers.dtype == torch.int32
    assert torch.equal(frozen.weight * frozen.scale_w, frozen.weight_integers.float())
    scale = model.conv.read("scale_x") * frozen.scale_w
    assert torch.equal(frozen.bias * scale, frozen.bias_integers.double())


@pytest.mark.parametrize("count", [1, 7, 8], ids=["one", "odd", "even"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16], ids=str)
def test_checksum_changes_with_any_single_element(dtype, count):
    t = torch.arange(count).to(dtype) + 1
    before = everything(t)
    assert everything(t.clone()) == before
    for i in range(count):
        changed = t.clone()
        changed[i] += 1 if dtype == torch.int64 else torch.finfo(dtype).eps * t[i]
        assert not torch.equal(changed, t)
        assert everything(changed) != before


def test_checksum_reads_what_a_view_shows():
    t = torch.randn(4, 6)
    assert everything(t[1:, 1::2]) == everything(t[1:, 1::2].clone())
    assert everything(t.T) == everything(t.T.contiguous())
    assert everything(torch.zeros(0)) == everything(torch.zeros(0))


def test_frozen_parameters_are_real_carriers_and_stored_integers():
    # scale_x·scale_w = 8·4 = 32: 0.5·32 = 16; −0.046875·32 = −1½ → −1
    frozen = make_frozen(torch.tensor([[3.0], [-8.0]]), torch.tensor([0.5, -0.046875]), 8.0, 4.0, 8)
    assert frozen.weight.tolist() == [[0.75], [-2.0]]
    assert (frozen.weight_integers.tolist(), frozen.weight_integers.dtype) == ([[3], [-8]], torch.int8)
    assert (frozen.bias_integers.tolist(), frozen.bias_integers.dtype) == ([16, -1], torch.int32)
    assert frozen.bias.tolist() == [0.5, -1 / 32]
    assert make_frozen(torch.ones(1, 1), None, 8.0, 4.0, 16).bias_integers is None


def test_rounding_is_folded_into_one_number_per_output_channel():
    # [in = 4, out/groups = 3]: 6 outputs in two groups
    frozen = make_frozen(torch.ones(4, 3, 1, 1), None, 8.0, 4.0, 8)
    settings = {"is_nonnegative": False, "transposed_groups": 2}
    ready = make_ready(frozen, 8.0, 4.0, 8, 8, **settings)
    assert ready.is_rounding_folded
    assert ready.bias.tolist() == [0.5] * 6
    assert make_ready(frozen, 8.0, 4.0, 8, 8, is_nonnegative=False).bias.tolist() == [0.5] * 4


def test_memory_that_others_write_is_watched_whole_and_stays_resizable():
    memory = torch.zeros(128 * 64)
    weight = torch.nn.Parameter(memory.as_strided((64, 128), (128, 1)))  # as FSDP gathers its parameters
    watchman = Watchman()
    assert watchman.has_changed([weight], is_thorough=False)
    for column in (5, 40, 70, 120):  # each in another part of the weight
        assert not watchman.has_changed([weight], is_thorough=False)
        memory[column] = 1.0
        assert watchman.has_changed([weight], is_thorough=False)
    small = torch.nn.Parameter(memory[:8])
    watchman.has_changed([small], is_thorough=False)
    assert memory.untyped_storage().resizable()
