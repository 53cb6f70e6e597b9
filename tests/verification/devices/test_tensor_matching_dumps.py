"""Mangled names find their tensors, or a sentence says why not."""

import pytest

from linger.verification.devices.compare import _NameMatcher
from linger.verification.devices.file_runner import TensorFact

TENSORS = {
    "x": "",
    "/layer1/conv/Conv_output_0": "/layer1/conv/Conv",
    "conv1.Conv2dInt": "Conv2dInt_1",
    "conv1_relu": "Relu_7",
    "a.b": "n1",
    "a-b": "n2",
    "321": "Quant_0Quant_321",
    "z" * 300: "long",
}


@pytest.fixture
def matcher():
    return _NameMatcher({name: TensorFact(name, node, "Op", i) for i, (name, node) in enumerate(TENSORS.items())})


@pytest.mark.parametrize(
    ("name", "tensor", "how"),
    [
        ("conv1.Conv2dInt", "conv1.Conv2dInt", "name"),
        ("a.b", "a.b", "name"),
        ("root.conv1.Conv2dInt", "conv1.Conv2dInt", "file name"),
        ("%2Flayer1%2Fconv%2FConv_output_0", "/layer1/conv/Conv_output_0", "file name"),
        ("Relu_7", "conv1_relu", "node name"),
        ("layer1_conv_Conv_output_0", "/layer1/conv/Conv_output_0", "normalized name"),
        ("CONV1_conv2dint", "conv1.Conv2dInt", "normalized name"),
        ("_layer1_conv_Conv", "/layer1/conv/Conv_output_0", "normalized node name"),
        ("003_conv1_Conv2dInt", "conv1.Conv2dInt", "normalized name without its number"),
        ("017-321", "321", "normalized name without its number"),
        ("12_relu_7", "conv1_relu", "normalized node name without its number"),
        ("conv1", "conv1.Conv2dInt", "layer name"),
        ("root.conv1", "conv1.Conv2dInt", "layer name"),
    ],
)
def test_names(matcher, name, tensor, how):
    assert matcher.find(name) == (tensor, how)


def test_a_name_that_linger_cut_short(matcher):
    from linger.files import file_stem

    assert matcher.find(file_stem("root." + "z" * 300))[0] == "z" * 300


def test_two_candidates_are_named(matcher):
    assert matcher.find("A_B") == "A_B may be a.b, a-b (normalized name). Rename it to one of them."


def test_unknown_names_get_a_hint(matcher):
    assert "no tensor of this name. Is conv1_relu" in matcher.find("conv1_rela")
    assert "The file has x, " in matcher.find("?!")


@pytest.mark.parametrize(("count", "hint"), [(2000, "Is "), (2001, "The file has ")], ids=["small", "large"])
def test_similar_names_are_looked_for_in_files_that_are_not_too_large(count, hint):
    facts = [TensorFact(f"tensor{i}", f"node{i}", "Relu", 0) for i in range(count)]
    assert f"the file has no tensor of this name. {hint}" in _NameMatcher({f.name: f for f in facts}).find("tensr7")


def test_a_node_means_its_first_output():
    facts = [TensorFact("y", "lstm", "LSTMInt", 0), TensorFact("h", "lstm", "LSTMInt", 1)]
    assert _NameMatcher({f.name: f for f in facts}).find("lstm")[0] == "y"
