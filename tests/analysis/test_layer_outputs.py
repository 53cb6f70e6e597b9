"""Which layers are watched, what counts of their results, and how calls and passes are told apart."""

import copy
import pickle
import re
import warnings
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

from linger.errors import UsageError
from tests.support.analysis import (
    Calls,
    Hook,
    LayerOutputs,
    compiled_pattern,
    is_without_values,
    joined,
    leaf_layers,
    main_output,
    matching_layers,
    measured_tensors,
    root_name,
    tensors_of,
)


def never(module):
    return False


def leaves(model, is_whole=never, is_helper=never):
    return leaf_layers(model, is_whole=is_whole, is_helper=is_helper)


def watched(model, **options):
    """Statistics of every leaf of a model."""
    made = LayerOutputs(options.get("to_real", lambda module, tensor: tensor))
    layers = {module: name for name, module in reversed(leaves(model).items())}
    made.watch(model, layers, is_counted=options.get("is_counted", lambda: True))
    return made


def rows(made):
    return [(row.name, row.call, row.count) for row in made.result.rows]


class Net(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.run(self, *args)


# -- names ------------------------------------------------------------------------------------------------------


def test_leaves_have_the_name_of_their_path():
    model = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))))
    assert list(leaves(model)) == ["root.a", "root.b.0", "root.b.1.0"]


def test_single_layer_is_the_root():
    assert list(leaves(nn.Linear(2, 2))) == ["root"]
    assert root_name("") == "root"


def test_whole_layers_hide_their_parts_and_helpers_are_none():
    inner = nn.Sequential(nn.ReLU(), nn.Tanh())
    model = nn.Sequential(inner, nn.Sequential(nn.Sigmoid()), nn.Sequential(nn.Tanh(), nn.ReLU()))
    found = leaves(model, is_whole=lambda m: m is inner, is_helper=lambda m: isinstance(m, nn.Sigmoid))
    assert list(found) == ["root.0", "root.1", "root.2.0", "root.2.1"]


def test_a_whole_model_is_one_leaf():
    assert list(leaves(nn.Sequential(nn.ReLU()), is_whole=lambda m: isinstance(m, nn.Sequential))) == ["root"]


def test_parametrized_layers_are_leaves():
    model = nn.Sequential(weight_norm(nn.Linear(2, 2)), weight_norm(nn.Conv2d(1, 1, 1)))
    assert list(leaves(model)) == ["root.0", "root.1"]


def test_parametrized_container_shows_its_layers_only():
    model = Net(lambda m, x: m.fc(x), fc=nn.Linear(2, 2))
    model.weight = nn.Parameter(torch.ones(2, 2))
    assert list(leaves(weight_norm(model))) == ["root.fc"]


def test_attention_is_a_leaf_because_its_parts_are_never_called():
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    assert list(leaves(model)) == ["root.0"]


def test_what_cannot_be_called_is_no_leaf():
    parts = {"a": nn.ModuleList(), "b": nn.ParameterList(), "c": nn.ModuleDict(), "d": nn.ModuleList([nn.ReLU()])}
    assert list(leaves(Net(None, **parts))) == ["root.d.0"]


def test_scripted_parts_are_left_out():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = nn.Sequential(torch.jit.script(nn.Sequential(nn.ReLU())), nn.Tanh())
    assert list(leaves(model)) == ["root.1"]


# -- patterns ---------------------------------------------------------------------------------------------------


def test_pattern_fits_the_beginning_of_a_name():
    layers = dict.fromkeys(["root.conv1", "root.layer1.conv1", "root.fc"])
    layers = {name: nn.Identity() for name in layers}
    found = matching_layers("here", layers, compiled_pattern("here", "root.conv|root.f"))
    assert list(found.values()) == ["root.conv1", "root.fc"]


def test_compiled_patterns_are_taken_too():
    assert compiled_pattern("here", re.compile("ROOT", re.IGNORECASE)).match("root")


def test_shared_layer_has_its_first_name_that_fits():
    relu = nn.ReLU()
    layers = leaves(nn.Sequential(OrderedDict(a=relu, b=nn.Tanh(), c=relu)))
    assert list(layers) == ["root.a", "root.b", "root.c"]
    assert matching_layers("here", layers, re.compile(".*"))[relu] == "root.a"
    assert matching_layers("here", layers, re.compile("root.c")) == {relu: "root.c"}


@pytest.mark.parametrize("pattern", ["(", "*", 5], ids=str)
def test_what_is_no_expression_is_refused(pattern):
    with pytest.raises(UsageError, match=r"here: match_pattern=.* is no regular expression \(.*\)\. Give one"):
        compiled_pattern("here", pattern)


def test_pattern_that_fits_nothing_is_told_some_names():
    layers = leaves(nn.Sequential(*(nn.ReLU() for _ in range(9))))
    with pytest.raises(UsageError) as refused:
        matching_layers("here", layers, re.compile("conv"))
    assert "match_pattern='conv' matches none of the 9 layers" in str(refused.value)
    assert "root.0, root.1, root.2, root.3, root.4, root.5 and 3 more" in str(refused.value)


# -- results ----------------------------------------------------------------------------------------------------


@dataclass
class Boxes:
    box: Tensor
    score: Tensor
    label: str = "cat"


A, B, C = torch.ones(2, 3), torch.zeros(4), torch.arange(5)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        pytest.param(A, [A], id="tensor"),
        pytest.param((A, None, [B, "text", 3]), [A, B], id="nested"),
        pytest.param({"x": A, "y": {"z": (B,)}}, [A, B], id="dict"),
        pytest.param(Boxes(A, B), [A, B], id="dataclass"),
        pytest.param(None, [], id="none"),
        pytest.param(Boxes, [], id="class"),
        pytest.param((torch.empty(3, device="meta"), C), [C], id="meta"),
    ],
)
def test_tensors_are_found_in_order(tree, expected):
    found = list(tensors_of(tree))
    assert [id(t) for t in found] == [id(t) for t in expected]


def test_of_a_packed_sequence_the_data_counts():
    packed = pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 1]))
    (found,) = tensors_of((packed, None))
    assert found.shape == (4, 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_of_a_recurrent_layer_the_sequence_counts(kind):
    layer = kind(4, 5)
    output = layer(torch.ones(3, 2, 4))
    assert measured_tensors(layer, output)[0] is output[0]
    assert len(measured_tensors(layer, output)) == 1
    assert main_output(nn.Identity(), output) is output


def test_floats_count_before_integers():
    (found,) = measured_tensors(nn.Identity(), (C, A))
    assert found is A
    assert [t.dtype for t in measured_tensors(nn.Identity(), (C, C > 1))] == [torch.int64, torch.bool]


@pytest.mark.parametrize(
    ("tensors", "dtype"),
    [
        pytest.param([A, B], torch.float32, id="float32"),
        pytest.param([A.half(), A.bfloat16()], torch.float32, id="halves"),
        pytest.param([A, B.double()], torch.float64, id="double"),
        pytest.param([C, C > 1], torch.int64, id="integers"),
        pytest.param([A.to_sparse(), B], torch.float32, id="sparse"),
    ],
)
def test_several_tensors_are_joined_without_loss(tensors, dtype):
    made = joined(tensors)
    assert made.dtype == dtype
    assert made.tolist() == [x for t in tensors for x in t.to_dense().reshape(-1).tolist()]


def test_one_tensor_is_not_copied():
    assert joined([A]) is A


# -- hooks ------------------------------------------------------------------------------------------------------


def test_copies_and_files_of_a_hook_do_nothing():
    seen = []
    hook = Hook(lambda *arguments: seen.append(arguments))
    for other in (copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
        assert other(1) is None
    assert seen == []
    assert hook(1) is None
    assert seen == [(1,)]


def test_calls_are_counted_within_a_pass():
    model, calls = nn.Identity(), Calls()
    calls.watch(model)
    assert [calls.number("a"), calls.number("a"), calls.number("b")] == [0, 1, 0]
    model(A)
    assert calls.number("a") == 0


def test_a_model_inside_itself_begins_no_pass():
    model = Net(lambda m, x, again: m(m.relu(x), False) if again else m.relu(x), relu=nn.ReLU())
    made = watched(model)
    for _ in range(2):
        model(A, True)
    assert rows(made) == [("root.relu", 0, 12), ("root.relu", 1, 12)]


def test_a_pass_that_fails_is_over():
    def forward(m, x):
        y = m.relu(x)
        if x.dim() == 1:
            raise RuntimeError("stop")
        return m.relu(y)

    model = Net(forward, relu=nn.ReLU())
    made = watched(model)
    with pytest.raises(RuntimeError, match="stop"):
        model(B)
    model(A)
    assert rows(made) == [("root.relu", 0, 10), ("root.relu", 1, 6)]


def test_calls_of_parts_from_outside_continue_the_pass():
    model = Net(lambda m, x: m.relu(x), relu=nn.ReLU())
    made = watched(model)
    model(A)
    model.relu(B)
    assert rows(made) == [("root.relu", 0, 6), ("root.relu", 1, 4)]


def test_rows_that_appear_later_follow():
    model = Net(lambda m, x: m.a(x) if x.dim() == 1 else m.a(m.b(x)), a=nn.ReLU(), b=nn.Tanh())
    made = watched(model)
    model(B)
    model(A)
    assert rows(made) == [("root.a", 0, 10), ("root.b", 0, 6)]


def test_shape_and_type_are_those_of_the_first_pass():
    model = Net(lambda m, x: m.pair(x), pair=Net(lambda m, x: (x, {"y": x[0].double()}, C)))
    made = watched(model)
    model(A)
    model(torch.ones(5, 3))
    (row,) = made.result.rows
    assert (row.shape, row.dtype, row.count) == ("2×3, 3", "float32, float64", 9 + 18)


def test_layers_without_a_row_are_known():
    model = Net(lambda m, x: (m.a(x), m.b(x)), a=nn.ReLU(), b=Net(lambda m, x: "no tensor"), c=nn.Tanh())
    made = watched(model)
    assert not made.has_run
    model(A)
    assert (made.has_run, made.is_watching) == (True, True)
    assert (made.silent, made.never_called) == (["root.b"], ["root.c"])
    assert rows(made) == [("root.a", 0, 6)]


def test_passes_may_be_left_out():
    is_counted = []
    model = nn.Sequential(nn.ReLU())
    made = watched(model, is_counted=lambda: bool(is_counted))
    model(A)
    assert not made.has_run
    is_counted.append(1)
    model(A)
    assert rows(made) == [("root.0", 0, 6)]


def test_values_are_those_of_the_conversion():
    model = nn.Sequential(nn.ReLU())
    made = watched(model, to_real=lambda module, tensor: tensor * 4)
    model(A)
    assert made.result.rows[0].max == 4.0


def test_tracing_is_no_pass():
    model = nn.Sequential(nn.ReLU())
    made = watched(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch announces the end of its tracer
        torch.jit.trace(model, A, check_trace=False)  # the check would be a pass
    torch.export.export(model, (A,))
    assert not made.has_run
    assert not is_without_values()
