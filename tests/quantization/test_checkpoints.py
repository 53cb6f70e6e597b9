"""Checkpoints of every stage: their keys, and into which later stage they load."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import init, trace_layers
from tests.support.models import SmallNet, settle
from tests.support.quantization import fold

X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(5))


class Tiny(nn.Module):
    """One pair, one sum, one join, one product: c, b and functional layers."""

    def __init__(self, *, bias=True):
        super().__init__()
        self.c = nn.Conv2d(1, 4, 3, padding=1, bias=bias)
        self.b = nn.BatchNorm2d(4)
        self.pool = nn.AvgPool2d(2)
        self.six = nn.ReLU6()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        h = self.six(self.pool(self.b(self.c(x))))
        return self.fc(torch.cat([h + 1.0, h * 0.5], 1).amax((2, 3)))


def float_model(seed=1, make=SmallNet):
    torch.manual_seed(seed)
    return settle(make()).eval()


def traced(seed=1, make=SmallNet):
    return trace_layers(float_model(seed, make), X)


def calibrated(model):
    init(model).eval()
    with linger.calibration():
        model(X)
    return model


def integers(model):
    with torch.no_grad():
        return model.eval()(X).integers()


def saved(model):
    """Through a file, as a user would."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer)


# -- keys -----------------------------------------------------------------------------------------------------

BN = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
RANGES = ["running_x", "scale_x", "running_w", "scale_w", "running_o", "scale_o"]


def test_keys_of_each_stage():
    model = float_model(make=Tiny)
    plain = {"fc.weight", "fc.bias"}
    assert set(model.state_dict()) == plain | {"c.weight", "c.bias"} | {f"b.{k}" for k in BN}
    trace_layers(model, X)
    pair = {"c.conv.weight", "c.conv.bias", "b._linger_ignore_parameter"} | {f"c.bn.{k}" for k in BN}
    assert set(model.state_dict()) == plain | pair
    calibrated(model)
    layer = {"c.weight", "c.bias", "b._linger_ignore_parameter"} | {f"c.bn.{k}" for k in BN}
    ranges = {f"{name}.{k}" for name in ("c", "fc") for k in RANGES}
    pool = {f"pool.{k}" for k in ("running_x", "scale_x", "running_o", "scale_o")}
    six = {f"six.{k}" for k in ("running_x", "scale_x", "min_thresh", "max_thresh")}
    names = ["iqadd__default_index_0", "iqmul__default_index_1", "iqcat_2"]
    functional = {f"_linger_round_tensor_{name}.{k}" for name in names for k in ("running_o", "scale_o")}
    assert set(model.state_dict()) == plain | layer | ranges | pool | six | functional


def test_shapes_of_the_new_keys():
    state = calibrated(traced(make=Tiny)).state_dict()
    for name, value in state.items():
        if "bn." not in name and name.rpartition(".")[2].startswith(("running_", "scale_")):
            assert tuple(value.shape) == (1,), name
    assert tuple(state["six.max_thresh"].shape) == ()
    assert state["six.max_thresh"].dtype == torch.int8
    assert tuple(state["b._linger_ignore_parameter"].shape) == (1,)


def test_a_convolution_without_bias_has_its_key_once_a_batch_norm_is_folded():
    model = trace_layers(settle(Tiny(bias=False)), X)
    assert "c.conv.bias" not in model.state_dict()
    calibrated(model)
    assert model.state_dict()["c.bias"].tolist() == [0.0] * 4
    assert not model.c.bias.requires_grad


# -- an earlier stage loads into a later one, strictly -------------------------------------------------------------


def test_a_float_checkpoint_loads_after_trace_layers():
    source, target = float_model(1), traced(2)
    assert target.load_state_dict(source.state_dict()) == ([], [])
    expected = trace_layers(copy.deepcopy(source), X)
    assert torch.equal(target(X), expected(X))


@pytest.mark.parametrize("stage", ["float", "traced"])
def test_an_earlier_checkpoint_loads_after_init(stage):
    source = (float_model if stage == "float" else traced)(1)
    target = init(traced(2))
    assert target.load_state_dict(source.state_dict()) == ([], [])
    with linger.calibration():
        target.eval()(X)
    expected = calibrated(source if stage == "traced" else trace_layers(source, X))
    assert torch.equal(integers(target), integers(expected))


def test_a_float_checkpoint_loads_after_init_without_trace():
    source, target = float_model(1), init(float_model(2))
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert torch.equal(target.stem.weight, source.stem.weight)
    assert torch.equal(target.bn.running_mean, source.bn.running_mean)


@pytest.mark.parametrize("stage", ["traced", "quantized"])
def test_a_part_loads_alone(stage):
    source, target = float_model(1), traced(2)
    if stage == "quantized":
        target = calibrated(target)
    assert target.block.load_state_dict(source.block.state_dict()) == ([], [])
    conv = target.block.conv1.conv if stage == "traced" else target.block.conv1
    assert torch.equal(conv.weight, source.block.conv1.weight)
    bn = target.block.conv2.bn
    assert torch.equal(bn.running_var, source.block.bn2.running_var)
    assert not torch.equal(target.fc.weight, source.fc.weight)


def test_a_model_inside_a_larger_one_loads_with_its_prefix():
    source = nn.Sequential(nn.Identity(), float_model(1))
    target = nn.Sequential(nn.Identity(), traced(2))
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert torch.equal(target[1].stem.conv.weight, source[1].stem.weight)


def test_a_float_checkpoint_keeps_the_ranges_of_a_calibrated_model():
    model = calibrated(traced(1))
    before = model.fc.read("running_o")
    model.load_state_dict(float_model(2).state_dict())
    assert model.fc.read("running_o") == before > 0


def test_only_a_part_was_traced():
    model = float_model(2)
    trace_layers(model, model.block, torch.randn(2, 8, 8, 8))
    assert model.load_state_dict(float_model(1).state_dict()) == ([], [])
    assert torch.equal(model.block.conv1.bn.running_mean, float_model(1).block.bn1.running_mean)
    assert torch.equal(model.bn.running_mean, float_model(1).bn.running_mean)


# -- a quantized checkpoint ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_calibrated", [False, True], ids=["fresh", "calibrated with other data"])
@pytest.mark.parametrize("make", [SmallNet, Tiny])
def test_a_quantized_checkpoint_gives_the_same_integers_in_another_model(make, is_calibrated):
    source = calibrated(traced(1, make))
    target = init(traced(2, make)).eval()
    if is_calibrated:
        with linger.calibration():
            target(100 * X)
    assert target.load_state_dict(saved(source)) == ([], [])
    assert torch.equal(integers(target), integers(source))
    assert list(target.state_dict()) == list(source.state_dict())


def test_functional_layers_are_made_from_the_keys():
    source, target = calibrated(traced(1)), init(traced(2))
    assert "block._linger_round_tensor_iqadd__default_index_0.running_o" not in target.state_dict()
    target.load_state_dict(saved(source))
    layer = target.block.get_submodule("_linger_round_tensor_iqadd__default_index_0")
    expected = source.block.get_submodule("_linger_round_tensor_iqadd__default_index_0")
    assert layer.read("running_o") == expected.read("running_o") > 0
    assert layer.training is target.block.training


def test_a_trained_checkpoint_goes_on_training():
    source = calibrated(traced(1)).train()
    optimizer = torch.optim.SGD(source.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        source(X).square().sum().backward()
        optimizer.step()
    expected = integers(source)
    target = init(traced(2))
    target.load_state_dict(saved(source))
    assert torch.equal(integers(target), expected)
    assert target.stem.bn.num_batches_tracked == 3
    target.train()(X).sum().backward()
    assert target.stem.weight.grad is not None


def folded_checkpoint(source):
    """A checkpoint of the original after init: the batch norm is in the weights, and gone."""
    state = source.state_dict()
    for path in ("stem", "block.conv1", "block.conv2"):
        layer = source.get_submodule(path)
        with torch.no_grad():
            state[f"{path}.weight"], state[f"{path}.bias"] = fold(layer.weight, layer.bias, layer.bn)
        for key in BN:
            del state[f"{path}.bn.{key}"]
    return state


def test_a_checkpoint_with_folded_weights_loads_and_gives_the_same_integers():
    source = calibrated(traced(1))
    target = init(traced(2)).eval()
    assert target.load_state_dict(folded_checkpoint(source)) == ([], [])
    assert target.stem.bn is None
    assert torch.equal(integers(target), integers(source))
    assert target.block.conv1.bias.requires_grad
    target.train()(X).sum().backward()
    assert target.block.conv1.bias.grad is not None
    assert not any(".bn." in key for key in target.state_dict())


# -- what is wrong is still refused ----------------------------------------------------------------------------------


STAGES = {
    "traced": traced,
    "quantized": lambda seed: init(traced(seed)),
    "quantized, not traced": lambda seed: init(float_model(seed)),
}


@pytest.mark.parametrize("key", ["fc.weight", "fc.bias", "stem.weight", "block.conv2.weight"])
@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES.keys())
def test_a_missing_key_is_refused(make, key):
    state = float_model(1).state_dict()
    del state[key]
    with pytest.raises(RuntimeError, match="Missing key"):
        make(2).load_state_dict(state)


@pytest.mark.parametrize("key", ["fc.extra", "extra.weight", "block.conv1.other", "stem.bn.other", "bn.other"])
@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES.keys())
def test_a_strange_key_is_refused(make, key):
    state = float_model(1).state_dict() | {key: torch.zeros(1)}
    with pytest.raises(RuntimeError, match=r"Unexpected key"):
        make(2).load_state_dict(state)


@pytest.mark.parametrize("key", ["bn.running_mean", "bn.weight", "block.bn1.running_var"])
@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES.keys())
def test_a_missing_statistic_is_refused(make, key):
    state = float_model(1).state_dict()
    del state[key]
    with pytest.raises(RuntimeError, match="Missing key"):
        make(2).load_state_dict(state)


def test_a_wrong_shape_is_refused():
    state = float_model(1).state_dict() | {"fc.weight": torch.zeros(3, 3)}
    with pytest.raises(RuntimeError, match="size mismatch"):
        init(traced(2)).load_state_dict(state)


def test_loading_leaves_the_checkpoint_as_it_was():
    state = float_model(1).state_dict()
    before = {k: v.clone() for k, v in state.items()}
    init(traced(2)).load_state_dict(state)
    assert list(state) == list(before)
    assert all(torch.equal(state[k], before[k]) for k in before)


def test_a_copied_model_loads_too():
    target = copy.deepcopy(init(traced(2)))
    source = calibrated(traced(1))
    assert target.load_state_dict(saved(source)) == ([], [])
    assert torch.equal(integers(target), integers(source))
    assert target.load_state_dict(float_model(3).state_dict()) == ([], [])


def test_keys_do_not_depend_on_relu_being_a_layer_or_a_function():
    class Spelled(nn.Module):
        def __init__(self, relu):
            super().__init__()
            self.c, self.relu = nn.Conv2d(1, 2, 3), relu

        def forward(self, x):
            h = self.relu(self.c(x))
            return h + h

    states = [set(calibrated(Spelled(relu)).state_dict()) for relu in (nn.ReLU(), F.relu)]
    assert states[0] == states[1]
