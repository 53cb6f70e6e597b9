"""Float tensors that meet integers: quantized by themselves, with a range of their own, in every stage of a model."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.quantization import runtime_of

KEY = "_linger_round_tensor_iq_tensor_quant_float_operand_"


class Met(nn.Module):
    """Two layers, a parameter, and a function of the model and its inputs."""

    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.p = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.randn(6))
        self.run = run

    def forward(self, *inputs):
        return self.run(self, *inputs)


def rows(seed=1, spread=1.0, count=4):
    return spread * torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def quantized(run, *batches):
    model = linger.init(Met(run)).eval()
    with linger.calibration():
        for batch in batches or (PAIR,):
            model(*batch)
    return model


def floats(model):
    return [op.op for op in linger.coverage(model).float_ops]


X, Y = rows(), rows(2)
PAIR = (X, Y)
MET = {
    "residual of the input": lambda m, x: torch.sigmoid(x + m.b(m.a(x))),
    "gate of the input": lambda m, x: torch.sigmoid(m.a(x)) * x,
    "two inputs": lambda m, x, y: m.b(m.a(x) + y),
    "difference": lambda m, x, y: y - m.a(x),
    "quotient": lambda m, x, y: m.a(x) / (y.abs() + 1.0),
    "cache": lambda m, x, y: torch.cat([y, m.a(x)]),
    "stack": lambda m, x, y: torch.stack([m.a(x), y]),
    "where": lambda m, x, y: torch.where(y > 0, m.a(x), y),
    "larger": lambda m, x, y: torch.maximum(y, m.a(x)),
    "product": lambda m, x, y: m.a(x) @ y.t(),
    "product from the left": lambda m, x, y: torch.matmul(y, m.a(x).t()),
    "bmm": lambda m, x, y: torch.bmm(m.a(x)[None], y.t()[None]),
    "einsum": lambda m, x, y: torch.einsum("ij,kj->ik", m.a(x), y),
    "addmm": lambda m, x, y: torch.addmm(y[:, :4], m.a(x), y.t()),
    "attention": lambda m, x, y: F.scaled_dot_product_attention(m.a(x)[None], y[None], m.b(y)[None]),
    "attention with a bias": lambda m, x, y: F.scaled_dot_product_attention(
        m.a(x)[None], m.b(y)[None], m.b(y)[None], attn_mask=(y @ x.t())[None]
    ),
    "in place": lambda m, x, y: m.a(x).add_(y),
    "float function": lambda m, x: torch.erf(m.a(x)) + m.b(x),
    "computed from a parameter": lambda m, x: m.a(x) * torch.exp(m.p),
    "made in forward": lambda m, x: m.a(x) * torch.tensor(0.3) + torch.full((6,), 0.5),
}
STAYS = {"float function": ["erf"], "attention with a bias": ["matmul"], "quotient": ["abs", "add"]}


def batch_for(run, x=X, y=Y):
    """As many inputs as the function takes beside the model."""
    return (x, y)[: run.__code__.co_argcount - 1]


@pytest.mark.parametrize("run", MET.values(), ids=MET.keys())
def test_the_op_is_an_integer_op_in_model_and_file(run, request, tmp_path):
    batch = batch_for(run)
    model = quantized(run, batch)
    assert floats(model) == STAYS.get(request.node.callspec.id, [])
    got = model(*batch)
    assert isinstance(got, linger.QTensor)
    real = Met(run).eval()(*batch)
    assert (got.dequantize() - real).abs().max() <= 0.05 * real.abs().max() + 0.05
    linger.onnx.export(model, batch, tmp_path / "m.onnx")
    proof = linger.verify(model, tmp_path / "m.onnx", [batch, batch_for(run, rows(3), rows(4))])
    assert (proof.ok, proof.differing) == (True, 0)


def test_the_range_is_that_of_the_tensor_alone():
    model = quantized(MET["two inputs"], (X, torch.full((4, 6), 3.0)))
    state = model.state_dict()
    # 3.0 gets 127/3 → 2^5
    assert [(k, v.item()) for k, v in state.items() if KEY in k] == [
        (f"{KEY}0_1.running_x", 3.0),
        (f"{KEY}0_1.scale_x", 32.0),
    ]


def test_coverage_names_what_is_quantized_by_itself():
    found = [op for op in linger.coverage(quantized(MET["two inputs"])).integer_ops if op.reason]
    assert [(op.where, op.op) for op in found] == [("", "Quant")]
    assert found[0].reason == "iqAdd reads a float tensor, which is quantized with a range of its own"
    assert found[0].reason in str(linger.coverage(quantized(MET["two inputs"])))


def test_masks_indices_and_integers_are_not_quantized():
    model = quantized(lambda m, x, k: m.a(x) * k, (X, torch.ones(4, 6, dtype=torch.int64)))
    (record,) = linger.coverage(model).float_ops
    assert record.reason == "an operand is of type torch.int64; only float tensors are quantized by themselves"
    model = quantized(lambda m, x, k: torch.where(k, m.a(x), x) * k, (X, X > 0))
    assert floats(model) == []
    assert len([k for k in model.state_dict() if KEY in k and "running" in k]) == 1


def test_training_learns_the_range_and_what_lies_before_it():
    model = linger.init(Met(lambda m, x, y: m.a(x) + y * torch.exp(m.p))).train()
    x = rows().requires_grad_()
    for _ in range(2):
        model(x, Y).dequantize().sum().backward()
    assert model.p.grad.abs().min() > 0
    assert model.get_buffer(f"{KEY}0_1.running_x") > 0
    learned = quantized(MET["two inputs"]).train()
    linger.learn_scales(learned)
    learned(*PAIR).dequantize().square().sum().backward()
    assert [n for n, p in learned.named_parameters() if "float_operand" in n and p.grad is not None]


def test_a_checkpoint_gives_the_same_integers():
    model = quantized(MET["gate of the input"], (X,))
    other = linger.init(Met(MET["gate of the input"])).eval()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(other(X).integers(), model(X).integers())


def older_checkpoint(run):
    """The state of a model whose functions of a float and a quantized tensor stayed float."""
    model = linger.init(Met(run)).train()
    runtime_of(model).keeps_float_operands = True
    for _ in range(2):
        model(*PAIR)
    return model.eval()


def later_sum(m, x, y):
    return m.b(m.a(x) + y) + m.a(x), m.a(x) * m.b(x)


def test_an_older_checkpoint_computes_as_before_until_it_is_calibrated():
    old = older_checkpoint(later_sum)
    expected, product = old(*PAIR)
    model = linger.init(Met(later_sum))
    model.load_state_dict(copy.deepcopy(old.state_dict()))
    for mode in (False, True):  # also in training, where the functions would get other numbers
        got, other = model.train(mode)(*PAIR)
        assert floats(model) == ["add"]
        assert not any(KEY in key for key in model.state_dict())
        if not mode:
            assert torch.equal(got.integers(), expected.integers())
            assert torch.equal(other.integers(), product.integers())
    with linger.calibration():
        model.eval()(*PAIR)
    assert floats(model) == []


def test_a_range_that_nobody_has_seen_leaves_the_op_float():
    model = quantized(lambda m, x, y, is_met: m.a(x) + y if is_met else m.a(x), (X, Y, False))
    assert torch.equal(model(X, Y, True), model(X, Y, False).dequantize() + Y)


@pytest.mark.parametrize("value", [-1e9, -math.inf], ids=["lowest number", "infinity"])
def test_what_would_leave_nothing_of_the_other_stays_float(value):
    y = Y.clone()
    y[0, 0] = value
    model = quantized(lambda m, x, y: m.a(x) + y, (X, y))
    assert floats(model) == ["add"]
    assert torch.equal(model(X, y)[1], model(X, Y)[1])
    assert not any(KEY in key for key in model.state_dict())


def test_a_summand_that_is_sometimes_a_mask_moves_no_other_range():
    def run(m, x, mask):
        return torch.softmax(m.a(x) + mask, -1), m.a(x) * m.b(x)

    blocked = torch.zeros(4, 6)
    blocked[:, 3] = -math.inf
    model = quantized(run, (X, blocked), (X, 0.1 * Y))
    expected = model(X, blocked)[1].integers()
    assert torch.equal(model(X, 0.1 * Y)[1].integers(), expected)
    assert not model(X, blocked)[0].dequantize()[:, 3].any()


def test_a_write_into_a_float_tensor_stays_one():
    def run(m, x):
        total = x.clone()
        total += m.a(x)
        return total

    model = quantized(run, (X,))
    (record,) = linger.coverage(model).float_ops
    assert record.reason == "it writes into a float tensor; write x = x + y instead of x += y"


def test_a_part_that_is_to_stay_float_stays_float():
    class Part(nn.Module):
        def forward(self, h, y):
            return h + y

    model = Met(lambda m, x, y: m.b(m.part(m.a(x), y)))
    model.part = Part()
    linger.disable_quant(model.part)
    model = linger.init(model).eval()
    with linger.calibration():
        model(*PAIR)
    assert [(o.where, o.reason) for o in linger.coverage(model).float_ops] == [
        ("part", "kept float by linger.disable_quant")
    ]


def test_a_cache_that_is_empty_at_first():
    run = MET["cache"]
    model = quantized(run, (X, torch.zeros(0, 6)), PAIR)
    assert floats(model) == []
    assert model(*PAIR).shape == (8, 6)
    assert model(X, torch.zeros(0, 6)).shape == (4, 6)


def test_the_name_of_such_a_range_is_no_name_for_quant_tensor():
    model = linger.init(Met(lambda m, x: m.a(linger.quant_tensor(m, x, "float_operand_0_1")))).eval()
    with pytest.raises(linger.UsageError, match="float_operand_0_1"), linger.calibration():
        model(X)
