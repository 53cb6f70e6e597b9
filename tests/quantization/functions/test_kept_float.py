"""Parts that are kept float compute their functions in float, too: values, gradients, coverage, files."""

import copy

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import linger
from linger import QTensor, init
from tests.support.quantization import FunctionalLayer

BY_MARK = "kept float by linger.disable_quant"
BY_NAME = "kept float by disable_module or disable_submodel"
both_kinds = pytest.mark.parametrize("is_reentrant", [True, False], ids=["reentrant", "non-reentrant"])


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Part(nn.Module):
    """A function of quantized tensors in a forward of its own."""

    def __init__(self, function):
        super().__init__()
        self.function, self.act = function, nn.GELU()

    def forward(self, x):
        return self.function(self, x)


class Net(nn.Module):
    """A part behind a quantized layer; returns what it was given, and its result."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.part, self.last = nn.Linear(6, 6), Part(function), nn.Linear(6, 6)

    def forward(self, x):
        h = self.first(x)
        given = h.clone()
        return given, self.part(h)


class Joined(Net):
    def forward(self, x):
        return self.last(super().forward(x)[1])


def calibrated(model, **options):
    model = init(model, **options).eval()
    with linger.calibration():
        model(noise(8, 6))
    return model


def marked(model):
    linger.disable_quant(model.part)
    return calibrated(model)


def in_place(_, x):
    x += 1.0
    return F.relu(x, inplace=True)


FUNCTIONS = {
    "a module": lambda m, x: m.act(x),
    "a power": lambda _, x: x**2 + 1e-6,
    "softmax": lambda _, x: x.softmax(-1),
    "cat": lambda _, x: torch.cat([x, 3.0 * x], -1),
    "a rewritten one": lambda _, x: F.softmin(x, -1),
    "attention": lambda _, x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "a product": lambda _, x: x @ x.T,
    "a mask": lambda _, x: x.masked_fill(torch.eye(8, 6).bool(), -30.0),
    "in place": in_place,
    "behind a move": lambda _, x: torch.sigmoid(x.reshape(4, 12)[:, ::2].transpose(0, 1)),
}
WAYS = {
    "by its mark": (marked, BY_MARK),
    "by its path": (lambda model: calibrated(model, disable_submodel=["part"]), BY_NAME),
    "by its type": (lambda model: calibrated(model, disable_module=[Part, nn.GELU]), BY_NAME),
}


@pytest.mark.parametrize(("made", "reason"), WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions_get_real_values_and_return_them(function, made, reason):
    model = made(Net(function))
    given, found = model(noise(8, 6, seed=5))
    assert isinstance(given, QTensor)
    assert getattr(found, "scale", None) is None  # in place, the wrapper stays and is an ordinary tensor
    assert torch.equal(found.clone(), function(model.part, given.dequantize()))
    floats = linger.coverage(model).float_ops
    assert floats
    assert {(o.where.partition(".")[0], o.reason) for o in floats} == {("part", reason)}
    assert not any(isinstance(m, FunctionalLayer) for m in model.modules())


def test_what_moves_numbers_leaves_them_quantized():
    model = marked(Joined(lambda _, x: x.reshape(-1, 2, 3).transpose(1, 2).flatten(1)))
    assert linger.coverage(model).float_ops == ()
    assert [o.op for o in linger.coverage(model).integer_ops] == ["Quant", "LinearInt", "LinearInt"]


def test_a_dropout_does_not_round():
    model = marked(Net(lambda m, x: F.dropout(x, 0.3, m.training))).train()
    torch.manual_seed(1)
    given, found = model(noise(8, 6))
    torch.manual_seed(1)
    assert type(found) is torch.Tensor
    assert torch.equal(found, F.dropout(given.dequantize(), 0.3))


def test_a_module_that_came_after_the_mark():
    model = Net(lambda m, x: m.late(x))
    linger.disable_quant(model.part)
    model.part.late = nn.Sequential(nn.Sigmoid())
    model = calibrated(model)
    (found,) = linger.coverage(model).float_ops
    assert (found.where, found.op, found.reason) == ("part.late.0", "sigmoid", BY_MARK)


class Sharing(nn.Module):
    """An activation, an attention layer and a layer, each called by two parts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6)
        self.one = nn.ModuleDict({"act": nn.GELU(), "attention": nn.MultiheadAttention(6, 2), "layer": nn.Linear(6, 6)})
        self.two = Part(lambda m, x: m.layer(m.attention(*[m.act(x) + 0.5] * 3, need_weights=False)[0]))
        for name, module in self.one.items():
            self.two.add_module(name, module)

    def forward(self, x):
        h = self.first(x)
        return self.one.layer(self.one.attention(*[self.one.act(h)] * 3, need_weights=False)[0]), self.two(h)


def test_a_shared_module_is_float_where_a_float_part_calls_it():
    model = calibrated(Sharing(), disable_submodel=["two"])
    found = linger.coverage(model)
    assert [(o.where, o.op) for o in found.float_ops] == [
        ("one.act", "gelu"),
        ("two", "add"),
        ("one.attention", "multi_head_attention_forward"),
    ]
    assert {o.reason for o in found.float_ops} == {BY_NAME}
    assert [o.where for o in found.integer_ops if o.op == "iqGelu"] == ["one.act"]
    # a layer that was replaced is quantized wherever it is called
    assert [o.where for o in found.integer_ops if o.where == "one.layer" and o.op == "LinearInt"] == ["one.layer"] * 2


class Own(nn.Linear):
    def forward(self, x):
        return torch.sigmoid(F.linear(x, self.weight, self.bias))


def test_quant_module_inside_a_part_that_is_kept_float():
    model = Net(lambda m, x: m.own(m.layer(x) * 2.0))
    model.part.layer, model.part.own = nn.Linear(6, 6), Own(6, 6)
    linger.disable_quant(model.part)
    for layer in (model.part.layer, model.part.own):
        linger.quant_module(layer, parameter_bits=16)
    model = calibrated(model)
    found = linger.coverage(model)
    assert [(o.where, o.op) for o in found.float_ops] == [("part", "mul")]
    assert {"LinearInt", "iqSigmoid"} <= {o.op for o in found.integer_ops if o.where.startswith("part.")}


@pytest.mark.parametrize(
    ("name", "nodes"), [("a power", ["Pow", "Add"]), ("in place", ["Add", "Relu"])], ids=["a power", "in place"]
)
def test_a_file_has_float_nodes_between_dequant_and_quant(name, nodes, tmp_path):
    model, path = marked(Joined(FUNCTIONS[name])), tmp_path / "m.onnx"
    linger.onnx.export(model, (noise(8, 6),), path)
    assert linger.verify(model, path, [noise(8, 6, seed=9)]).ok
    kinds = [node.op_type for node in onnx.load(path).graph.node if node.op_type != "Constant"]
    assert kinds == ["Quant", "LinearInt", "Dequant", *nodes, "Quant", "LinearInt", "Dequant"]


def gradients_of(model):
    model.zero_grad()
    torch.manual_seed(4)
    model(noise(8, 6)).pow(2).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


REPEATED = {
    # outside its module, a square would become a product, which did not run before
    "functions": lambda run: lambda m, x: run(lambda h: h**2 + F.dropout(torch.sigmoid(h), 0.2), x),
    "a module": lambda run: lambda m, x: run(m.act, x),
}


@both_kinds
@pytest.mark.parametrize("repeated", REPEATED.values(), ids=REPEATED.keys())
def test_a_checkpoint_repeats_it_in_float(repeated, is_reentrant):
    plain = linger.init(Joined(repeated(lambda f, x: f(x))), disable_submodel=["part"]).train()
    other = copy.deepcopy(plain)
    other.part.function = repeated(lambda f, x: checkpoint(f, x, use_reentrant=is_reentrant))
    for _ in range(2):
        wanted, found = gradients_of(plain), gradients_of(other)
        assert all(torch.equal(found[name], wanted[name]) and wanted[name].any() for name in wanted)
    assert plain.state_dict().keys() == other.state_dict().keys()


class Squashed(nn.Module):
    """Its gradient depends on whether the sigmoid was rounded."""

    def forward(self, x):
        y = torch.sigmoid(x)
        return y * y


class Repeating(nn.Module):
    """A part that is kept float repeats an activation that a quantized part has, too."""

    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Sequential(nn.Linear(6, 6), Squashed())
        self.two = Part(lambda m, x: run(m.act, x))
        self.two.act = self.one[1]

    def forward(self, x):
        return self.two(self.one(x))


@both_kinds
def test_a_checkpoint_of_a_shared_module(is_reentrant):
    models = [Repeating(run) for run in (lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=is_reentrant))]
    wanted, found = (gradients_of(linger.init(m, disable_submodel=["two"]).train()) for m in models)
    assert all(torch.equal(found[name], wanted[name]) and wanted[name].any() for name in wanted)


def test_a_model_that_an_older_version_pickled_computes_as_it_did():
    model = marked(Net(FUNCTIONS["a power"]))
    runtime = model.first.runtime
    state = runtime.__getstate__()
    del state["asked"]
    runtime.__setstate__(state)
    with linger.calibration():
        model(noise(8, 6))
    assert linger.coverage(model).float_ops == ()
