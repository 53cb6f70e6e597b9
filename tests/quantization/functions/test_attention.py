"""Attention of quantized tensors: integers throughout, near torch's floats, exact in the file."""

import copy
import math

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor
from tests.support.functions import causal, refusal_of
from tests.support.quantization import init


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def calibrated(model, *inputs):
    model = init(copy.deepcopy(model)).eval()
    with linger.calibration():
        model(*inputs)
    return model


def proven(model, tmp_path, *inputs, opsets=(12,), others=()):
    path = tmp_path / "model.onnx"
    for opset in opsets:
        linger.onnx.export(model, inputs, path, opset_version=opset)
        proof = linger.verify(model, path, [inputs, *others])
        assert proof.ok, proof.summary()
    return onnx.load(path).graph


def near(model, real, *inputs, within):
    found, expected = model(*inputs), real(*inputs)
    found, expected = (t[0] if isinstance(t, tuple) else t for t in (found, expected))
    error = (found.dequantize() - expected).detach()
    return float(error.norm() / expected.detach().norm()) < within


# -- scaled_dot_product_attention ---------------------------------------------------------------------------------
class Dot(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("bias", noise(5, 5))
        self.settings = settings

    def forward(self, x, mask=None):
        q, k, v = (layer(x).reshape(x.shape[0], 5, 2, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.settings.get("is_biased"):
            return F.scaled_dot_product_attention(q, k, v, self.bias)
        return F.scaled_dot_product_attention(q, k, v, mask, **self.settings)


BOOLEANS = torch.tensor([[True, False, True, True, True]] * 5)
SETTINGS = {
    "plain": ({}, None),
    "causal": ({"is_causal": True}, None),
    "scale": ({"scale": 0.3}, None),
    "scale of one": ({"scale": 1.0}, None),
    "booleans": ({}, BOOLEANS),
    "additive": ({}, torch.zeros(5, 5).masked_fill(~BOOLEANS, -math.inf)),
    "bias of a buffer": ({"is_biased": True}, None),
    "no dropout in evaluation": ({"dropout_p": 0.0}, None),
}


@pytest.mark.parametrize(("settings", "mask"), SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.thin
def test_dot_product_attention(settings, mask, tmp_path):
    inputs = (noise(3, 5, 8),) if mask is None else (noise(3, 5, 8), mask)
    real = Dot(**settings)
    model = calibrated(real, *inputs)
    assert linger.coverage(model).float_ops == ()
    assert near(model, real, *inputs, within=0.05)
    graph = proven(model, tmp_path, *inputs, opsets=(11, 12, 17))
    names = [n.op_type for n in graph.node if n.domain]
    expected = ["BmmInt", "iqMul", "SoftmaxInt", "BmmInt"]
    assert [n for n in names if n in expected] == [n for n in expected if n != "iqMul" or settings.get("scale") != 1.0]


def test_a_fully_masked_row_gives_zeros_as_torchs_does():
    mask = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    mask[1, :, 2] = False
    real = Dot()
    model = calibrated(real, noise(3, 5, 8), mask)
    result = model(noise(3, 5, 8), mask).dequantize()
    assert not result[1, :, 2].any()
    assert result[0].any()
    assert not real(noise(3, 5, 8), mask)[1, :, 2].any()
    assert near(model, real, noise(3, 5, 8), mask, within=0.05)


def test_causal_positions_to_come():
    assert causal(2, 3, "cpu").tolist() == [[False, True, True], [False, False, True]]


REFUSED = {
    "gqa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
}


@pytest.mark.parametrize("run", REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_computed_in_float_and_said(run):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(8, 8)

        def forward(self, x):
            h = self.q(x).reshape(3, 2, 5, 4)
            return run(h, h, h)

    model = calibrated(Net(), noise(3, 5, 8))
    assert not isinstance(model(noise(3, 5, 8)), QTensor)
    assert "scaled_dot_product_attention" in [o.op for o in linger.coverage(model).float_ops]


def test_dropout_of_probabilities_in_training():
    model = calibrated(Dot(dropout_p=0.5), noise(3, 5, 8)).train()
    torch.manual_seed(0)
    first = model(noise(3, 5, 8)).dequantize()
    assert not torch.equal(first, model(noise(3, 5, 8)).dequantize())
    first.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


# -- nn.MultiheadAttention -----------------------------------------------------------------------------------------
class Heads(nn.Module):
    """Attention of a sequence to itself, or to another one."""

    def __init__(self, need_weights=False, average=True, is_cross=False, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.attn = nn.MultiheadAttention(16, 4, **settings)
        with torch.no_grad():
            if self.attn.in_proj_bias is not None:
                self.attn.in_proj_bias.copy_(noise(48) / 4)
                self.attn.out_proj.bias.copy_(noise(16) / 4)
        self.need_weights, self.average, self.is_cross = need_weights, average, is_cross

    def forward(self, x, memory=None, attn_mask=None, key_padding_mask=None):
        key = memory if self.is_cross else x
        result = self.attn(
            x,
            key,
            key,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            need_weights=self.need_weights,
            average_attn_weights=self.average,
        )
        return result if self.need_weights else result[0]


X, MEMORY = noise(3, 6, 16), noise(3, 5, 16, seed=4)
SELF = {
    "batch first": {"batch_first": True},
    "length first": {},
    "no bias": {"bias": False, "batch_first": True},
    "weights": {"need_weights": True, "batch_first": True},
    "weights of each head": {"need_weights": True, "average": False, "batch_first": True},
}


@pytest.mark.parametrize("settings", SELF.values(), ids=SELF.keys())
@pytest.mark.thin(every=2)
def test_self_attention(settings, tmp_path):
    real = Heads(**settings)
    model = calibrated(real, X)
    assert linger.coverage(model).float_ops == ()
    assert near(model, real.eval(), X, within=0.05)
    if settings.get("need_weights"):
        weights, expected = model(X)[1], real(X)[1]
        assert isinstance(weights, QTensor)
        assert weights.shape == expected.shape
        assert float((weights.dequantize() - expected).detach().abs().max()) < 0.05
    graph = proven(model, tmp_path, X, opsets=(11, 12, 17), others=[(noise(3, 6, 16, seed=5),)])
    assert [n.op_type for n in graph.node if n.op_type == "LinearInt"] == ["LinearInt"] * 4
    assert {i.data_type for i in graph.initializer} == {onnx.TensorProto.INT8, onnx.TensorProto.INT32}
    assert "attn.out_proj.weight" in [i.name for i in graph.initializer]


def test_weights_that_nobody_uses_are_not_missed(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Heads(need_weights=True, batch_first=True)

        def forward(self, x):
            return self.inner(x)[0]

    model = calibrated(Net(), X)
    graph = proven(model, tmp_path, X)
    assert "AvgPool2dInt" not in [n.op_type for n in graph.node]


CROSS = {"same widths": ({}, 16), "kdim and vdim": ({"kdim": 10, "vdim": 10}, 10)}


@pytest.mark.parametrize(("settings", "width"), CROSS.values(), ids=CROSS.keys())
def test_cross_attention(settings, width, tmp_path):
    real = Heads(is_cross=True, batch_first=True, **settings)
    memory = noise(3, 5, width, seed=4)
    model = calibrated(real, X, memory)
    assert linger.coverage(model).float_ops == ()
    assert near(model, real.eval(), X, memory, within=0.05)
    proven(model, tmp_path, X, memory)


def test_without_a_batch(tmp_path):
    real = Heads(need_weights=True)
    model = calibrated(real, X[0])
    assert near(model, real.eval(), X[0], within=0.05)
    assert model(X[0])[1].shape == (6, 6)
    proven(model, tmp_path, X[0])


BLOCKED = torch.ones(6, 6, dtype=torch.bool).triu(1)
PADDED = torch.zeros(3, 6, dtype=torch.bool)
PADDED[:, 4:] = True
PER_HEAD = (noise(12, 6, 6) > 1).logical_and(~torch.eye(6, dtype=torch.bool))
MASKS = {
    "causal": (BLOCKED, None),
    "causal, additive": (torch.zeros(6, 6).masked_fill(BLOCKED, -math.inf), None),
    "padding": (None, PADDED),
    "both": (BLOCKED, PADDED),
    "for each head": (PER_HEAD, None),
}


@pytest.mark.parametrize("need_weights", [False, True], ids=["values", "weights too"])
@pytest.mark.parametrize(("mask", "padding"), MASKS.values(), ids=MASKS.keys())
@pytest.mark.thin(every=8)
def test_masks(mask, padding, need_weights, tmp_path):
    real = Heads(need_weights=need_weights, average=False, batch_first=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = real

        def forward(self, x):
            return self.inner(x, None, mask, padding)

    model = calibrated(Net(), X)
    assert linger.coverage(model).float_ops == ()
    assert near(model, Net().eval(), X, within=0.05)
    if need_weights:
        blocked = torch.zeros(3, 4, 6, 6, dtype=torch.bool)
        if mask is not None:
            one = mask if mask.dtype == torch.bool else mask == -math.inf
            blocked |= one.reshape(3, 4, 6, 6) if one.dim() == 3 else one
        if padding is not None:
            blocked |= padding[:, None, None, :]
        assert not model(X)[1].integers()[blocked].any()
    proven(model, tmp_path, X, others=[(noise(3, 6, 16, seed=5),)])


def test_masks_are_inputs_of_the_file_too(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Heads(batch_first=True)

        def forward(self, x, padding):
            return self.inner(x, None, None, padding)

    model = calibrated(Net(), X, PADDED)
    other = torch.zeros(3, 6, dtype=torch.bool)
    other[0, 2:] = True
    other[1] = True  # nothing is left of this sequence
    proven(model, tmp_path, X, PADDED, others=[(noise(3, 6, 16, seed=5), other)])
    bias = model.inner.attn.out_proj.bias.detach()
    # a sequence that is all padding attends to nothing: the output is the bias of the last layer
    assert float((model(X, other).dequantize()[1] - bias).detach().abs().max()) <= 0.5 / model(X, other).scale


def test_float_checkpoints_load_and_keys_stay():
    real = Heads(batch_first=True)
    model = calibrated(Heads(batch_first=True), X)
    assert set(real.state_dict()) <= set(model.state_dict())
    assert not model.load_state_dict(real.state_dict()).unexpected_keys
    fresh = init(Heads(batch_first=True)).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(X).integers(), model(X).integers())


def test_every_parameter_learns():
    real = Heads(batch_first=True).train()
    model = calibrated(real, X).train()
    target = noise(3, 6, 16, seed=8)
    for m in (real, model):
        (m(X) * target).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, p in real.named_parameters():
        # rounding to 8 bits leaves a few percent of noise; the key's bias has no gradient but rounding
        if name != "attn.in_proj_bias":
            assert float((gradients[name] - p.grad).norm() / p.grad.norm()) < 0.15, name


@pytest.mark.parametrize("settings", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_what_has_no_integer_form_stays_float_and_says_so(settings, caplog):
    real = Heads(batch_first=True, **settings)
    model = calibrated(real, X)
    assert refusal_of(model.attn) is not None
    assert "attn (MultiheadAttention) stays float: add_bias_kv and add_zero_attn" in caplog.text
    assert {o.where for o in linger.coverage(model).float_ops} == {"attn"}
    result = model(X)
    assert torch.allclose(result.dequantize() if isinstance(result, QTensor) else result, real.eval()(X), atol=1e-6)


@pytest.mark.parametrize(
    "wish",
    [{"disable_module": [nn.MultiheadAttention]}, {"disable_submodel": ["attn"]}, {"quant_modules": [nn.Conv2d]}],
)
def test_wishes(wish):
    real = Heads(batch_first=True)
    model = init(copy.deepcopy(real), **wish).eval()
    with linger.calibration():
        model(X)
    assert linger.coverage(model).integer_ops == ()
    assert torch.allclose(model(X), real.eval()(X), atol=1e-6)


# -- nn.TransformerEncoder --------------------------------------------------------------------------------------------
ISLANDS: set[str] = set()
"""Functions without an integer form yet: empty this set as they get one."""


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.thin(every=2)
def test_encoder_layers_are_not_passed_by(norm_first, activation, tmp_path):
    torch.manual_seed(0)
    settings = {"batch_first": True, "norm_first": norm_first, "activation": activation}
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, **settings)
    real = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    model = calibrated(real, X)
    with torch.no_grad():
        model(X)
    ops = [o.op for o in linger.coverage(model).integer_ops]
    assert (ops.count("BmmInt"), ops.count("SoftmaxInt")) == (4, 2)
    assert ops.count("LinearInt") == 1 + 2 * (4 + 2)
    # what sees nothing but the result of a float island is float as well
    around = {"add", "dropout"} if ISLANDS else set()
    assert {o.op for o in linger.coverage(model).float_ops} <= ISLANDS | around
    assert near(model, real, X, within=0.1)
    proven(model, tmp_path, X, opsets=(17,))  # ONNX Runtime joins a float layer norm of older opsets to one it lacks


def test_padding_masks_do_not_start_torchs_nested_tensors(tmp_path):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, x, padding):
            return self.encoder(x, src_key_padding_mask=padding)

    real = Net().eval()
    model = calibrated(real, X, PADDED)
    assert real.encoder.use_nested_tensor
    expected = real(X, PADDED).detach()  # with gradients torch takes its layers one by one, too
    with torch.no_grad():
        result = model(X, PADDED)
    assert "SoftmaxInt" in [o.op for o in linger.coverage(model).integer_ops]
    found = result.dequantize() if isinstance(result, QTensor) else result
    assert float((found - expected).norm() / expected.norm()) < 0.1
    proven(model, tmp_path, X, PADDED, opsets=(17,))


def test_decoder_layers(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Linear(16, 16)
            self.decoder = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

        def forward(self, x, memory):
            mask = nn.Transformer.generate_square_subsequent_mask(6)
            return self.decoder(self.embed(x), self.embed(memory), tgt_mask=mask, tgt_is_causal=True)

    real = Net().eval()
    model = calibrated(real, X, MEMORY)
    assert [o.op for o in linger.coverage(model).integer_ops].count("SoftmaxInt") == 2
    assert near(model, real, X, MEMORY, within=0.1)
    proven(model, tmp_path, X, MEMORY, opsets=(17,))


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Heads(batch_first=True)

    def forward(self, x, padding):
        return self.inner(x, None, None, padding)


def test_lengths_may_stay_open(tmp_path):
    model = calibrated(Padded(), X, PADDED)
    path = tmp_path / "model.onnx"
    axes = {name: {0: "batch", 1: "length"} for name in ("x", "padding")}
    linger.onnx.export(model, (X, PADDED), path, input_names=["x", "padding"], dynamic_axes=axes)
    other = (noise(2, 9, 16, seed=7), noise(2, 9) > 0.5)
    assert linger.verify(model, path, [other]).ok


def test_the_newer_exporter_writes_the_same_integers(tmp_path):
    model = calibrated(Padded(), X, PADDED)
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (X, PADDED), path, dynamo=True, opset_version=18)
    assert linger.verify(model, path, [(X, PADDED)]).ok
