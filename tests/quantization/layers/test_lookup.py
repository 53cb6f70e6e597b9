"""A quantized embedding: rows of the rounded table, at the table's scale, learned through, written as Gather."""

import copy
import logging

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger import NormalizeEmbedding, QTensor
from linger.errors import UsageError
from tests.support.quantization import Limits, init, quantized_layers, scale_for, unwrap

WORDS = torch.tensor([[0, 3, 3], [8, 1, 0]])
TYPES = [nn.Embedding, nn.Linear]


class Words(nn.Module):
    """An embedding and what follows it."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(9, 6, **options)
        self.fc = nn.Linear(6, 4)

    def forward(self, words):
        return self.fc(self.embed(words))


def quantized(model=None, **options):
    model = init(model or Words(), quant_modules=TYPES, **options).eval()
    with linger.calibration():
        model(WORDS)
    return model


def integers_by_hand(weight, bits=8):
    """⌊w·scale + ½⌋ at the largest power of two that holds the largest weight."""
    scale = scale_for(float(weight.detach().abs().max()), bits)
    return np.floor(weight.detach().double().numpy() * scale + 0.5).astype(np.int64), scale


# -- who is quantized ---------------------------------------------------------------------------------------------


def test_embeddings_must_be_named():
    assert set(quantized_layers(init(Words()))) == {"fc"}
    assert set(quantized_layers(init(Words(), quant_modules=TYPES))) == {"embed", "fc"}


def test_a_mark_names_it_too():
    model = Words()
    linger.quant_module(model, parameter_bits=4)  # every default type, so not the embedding
    linger.quant_module(model.embed, [nn.Embedding], parameter_bits=16)
    model = init(model)
    assert set(quantized_layers(model)) == {"embed", "fc"}
    assert model.embed.widths.parameter == 16
    model = Words()
    linger.quant_module(model.embed, [nn.Embedding])
    linger.disable_quant(model.embed)
    assert set(quantized_layers(init(model, quant_modules=TYPES))) == {"fc"}


@pytest.mark.parametrize("settings", [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}], ids=str)
def test_what_has_no_integer_form_stays_float_visibly(settings, caplog):
    with caplog.at_level(logging.WARNING):
        model = init(Words(**settings), quant_modules=TYPES)
    assert set(quantized_layers(model)) == {"fc"}
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"embed (Embedding) stays float: {next(iter(settings))}")


# -- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rows_are_those_of_the_rounded_table(bits):
    source = Words()
    weight = source.embed.weight
    model = quantized(source, parameter_bits=bits)
    expected, scale = integers_by_hand(weight, bits)
    assert model.embed.weight is weight
    with torch.no_grad():
        found = model.embed(WORDS)
    assert isinstance(found, QTensor)
    assert (found.scale, found.bits) == (scale, bits)
    np.testing.assert_array_equal(found.integers().numpy(), expected[WORDS.numpy()])
    assert model.embed.read("scale_w") == model.embed.read("scale_o") == scale
    assert model.embed.read("running_o") == model.embed.read("running_w")


def test_needs_no_calibration():
    model = init(nn.Sequential(nn.Embedding(9, 6)), quant_modules=[nn.Embedding]).eval()
    with torch.no_grad():
        assert unwrap(model(WORDS)).shape == (2, 3, 6)


def test_layer_behind_it_takes_its_integers_as_they_are():
    model = quantized()
    assert [op.op for op in linger.coverage(model).ops] == ["Gather", "LinearInt"]
    assert model.fc.read("scale_x") == model.embed.read("scale_w")


@pytest.mark.parametrize("words", [WORDS.float(), [1, 2]], ids=["float", "list"])
def test_indices_that_are_no_integers_are_refused(words):
    with pytest.raises(UsageError, match=r"embed\.Gather: the indices have type .*Convert them with \.long\(\)"):
        quantized().embed(words)


def test_limits_of_weight_and_output_both_hold():
    torch.manual_seed(5)
    table = NormalizeEmbedding(9, 6, normalize_weight=1.0, normalize_data=0.5)
    model = init(nn.Sequential(table), quant_modules=[NormalizeEmbedding]).eval()
    assert model[0].limited_to == Limits(weight=0.5)
    with torch.no_grad():
        found = model(WORDS)
    assert found.scale == 256.0  # ½·127/128 is 127/256
    assert unwrap(found).abs().max() == 127 / 256


# -- training -----------------------------------------------------------------------------------------------------


def test_gradient_is_that_of_the_float_layer():
    source = nn.Embedding(9, 6, padding_idx=3)
    model = init(nn.Sequential(copy.deepcopy(source)), quant_modules=[nn.Embedding]).train()
    upstream = torch.randn(2, 3, 6)
    model(WORDS).backward(upstream)
    source(WORDS).backward(upstream)
    # rounding passes the gradient on as it is; both add the same numbers in the same order
    assert torch.equal(model[0].weight.grad, source.weight.grad)
    assert model[0].weight.grad[3].abs().sum() == 0  # the padding row learns nothing


def test_training_moves_the_integers(tmp_path):
    model = quantized().train()
    before = model.embed.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(WORDS).dequantize().square().mean().backward()
        optimizer.step()
    assert not torch.equal(before, model.embed.weight)
    expected, _ = integers_by_hand(model.embed.weight)
    with torch.no_grad():
        np.testing.assert_array_equal(model.eval().embed(WORDS).integers().numpy(), expected[WORDS.numpy()])
    verified(model, tmp_path / "net.onnx")


def test_float_and_quantized_checkpoints_load():
    model, other = quantized(), Words()
    nn.init.normal_(other.embed.weight)
    for checkpoint in (other.state_dict(), quantized(copy.deepcopy(other)).state_dict()):
        model.load_state_dict(checkpoint, strict=True)
        expected, _ = integers_by_hand(other.embed.weight)
        with torch.no_grad():
            np.testing.assert_array_equal(model.embed(WORDS).integers().numpy(), expected[WORDS.numpy()])
    names = {key.partition("embed.")[2] for key in model.state_dict() if key.startswith("embed.")}
    ranges = {f"{kind}_{name}" for kind in ("running", "scale") for name in "xwo"}
    assert names == {"weight"} | ranges


# -- the file -----------------------------------------------------------------------------------------------------


def verified(model, path, **options):
    linger.onnx.export(model, (WORDS,), path, **options)
    result = linger.verify(model, path, [WORDS, WORDS.flip(0)])
    assert result.differing == 0
    assert result.ok
    assert result.integers > 50
    return onnx.load(path)


@pytest.mark.parametrize(
    ("form", "opset"),
    [
        ("dialect", 11),
        ("dialect", 12),
        ("dialect", 18),
        ("dialect", 20),
        ("bare", 12),
        ("standard", 11),
        ("standard", 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.thin(every=9)
def test_the_file_computes_every_integer_of_the_model(form, opset, bits, tmp_path):
    file = verified(quantized(parameter_bits=bits), tmp_path / "net.onnx", form=form, opset_version=opset)
    if form == "standard":
        return
    (node,) = [node for node in file.graph.node if node.op_type == "Gather"]
    assert (node.domain, node.name, node.input[0]) == ("thinker", "embed.Gather", "embed.weight")
    assert sorted(a.name for a in node.attribute) == ["o_bits", "parameter_bits", "scale_o", "scale_w"]


def test_the_newer_exporter_writes_the_same_integers(tmp_path):
    verified(quantized(), tmp_path / "net.onnx", dynamo=True, opset_version=18)


def test_qdq_holds_the_rows_as_explicit_nodes(tmp_path):
    linger.onnx.export(quantized(), (WORDS,), tmp_path / "net.onnx", form="qdq", opset_version=13)
    kinds = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds[0] == "Gather"
    assert "DequantizeLinear" in kinds


def test_an_open_batch_size_stays_open(tmp_path):
    model, path = quantized(), tmp_path / "net.onnx"
    linger.onnx.export(model, (WORDS,), path, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    more = WORDS.repeat(3, 1)
    with torch.no_grad():
        expected = unwrap(model(more)).numpy()
    np.testing.assert_array_equal(linger.Session(path).run(None, {"x": more.numpy()})[0], expected)


def test_torch_export_runs():
    model = quantized()
    with torch.no_grad():
        expected = unwrap(model(WORDS))
        program = torch.export.export(model, (WORDS,))
        assert torch.equal(program.module()(WORDS), expected)
