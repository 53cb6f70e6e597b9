"""What a model knows while it runs: which module is at work, how calls are named, and that every pass starts clean."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init, record
from tests.support.quantization import OpRecord, Runtime, Scope, collecting, dispatch, runtime_of
from tests.support.wired import Wired, after, image, quantize


def test_frames_follow_the_modules():
    runtime, root, part = Runtime(dispatch), nn.Identity(), nn.Identity()
    assert (runtime.frame, runtime.path) == (None, "")
    runtime.enter("", root)
    runtime.enter("part", part)
    assert (runtime.frame.module, runtime.path) == (part, "part")
    runtime.leave(part)
    assert (runtime.frame.module, runtime.path) == (root, "")
    runtime.leave(root)
    assert runtime.frame is None


def test_a_pass_is_chosen_where_it_begins_and_handed_down():
    runtime, root, part = Runtime(dispatch), nn.Identity(), nn.Identity()
    with collecting() as block:
        runtime.enter("", root)
        now = runtime.now
        assert (now.calibration, now.is_real, now.is_repeated) == (block, True, False)
        runtime.enter("part", part)
        assert runtime.now is now
    runtime.leave(part)
    runtime.enter("part", part)  # of a pass that was interrupted in the block
    assert (runtime.now.calibration, runtime.now.is_real) == (None, False)
    runtime.leave(root)


def test_a_gradient_inside_a_forward_pass_repeats_what_runs_in_it():
    runtime, root, part, seen = Runtime(dispatch), nn.Identity(), nn.Identity(), []

    def run(gradient):
        runtime.enter("part", part)
        seen.append(runtime.now.is_repeated)
        runtime.leave(part)

    x = torch.ones(1, requires_grad=True)
    x.register_hook(run)
    runtime.enter("", root)
    torch.autograd.grad(x.square().sum(), x)
    assert (seen, runtime.now.is_repeated) == ([True], False)
    runtime.leave(root)


def test_leaving_a_module_leaves_what_is_still_inside():
    runtime, root, part = Runtime(dispatch), nn.Identity(), nn.Identity()
    runtime.enter("", root)
    runtime.enter("part", part)
    runtime.leave(root)
    assert runtime.frame is None


def test_names_count_within_a_pass_and_start_again_with_the_next():
    runtime, root = Runtime(dispatch), nn.Identity()
    for _ in range(2):
        runtime.enter("", root)
        names = [runtime.unique_name("a.b", "Op"), runtime.unique_name("a.b", "Op"), runtime.unique_name("", "Op")]
        assert names == ["a.b.Op", "a.b.Op_1", "Op"]
        runtime.leave(root)


def test_ops_are_noted_inside_a_pass_only():
    runtime, root = Runtime(dispatch), nn.Identity()
    runtime.note(OpRecord("", "before", is_integer=True))
    runtime.enter("", root)
    runtime.note(OpRecord("", "inside", is_integer=True))
    runtime.note_float("float", "why")
    runtime.leave(root)
    runtime.note(OpRecord("", "after", is_integer=True))
    assert [(op.op, op.is_integer, op.reason) for op in runtime.ops] == [("inside", True, ""), ("float", False, "why")]


def test_a_new_pass_of_the_root_forgets_an_interrupted_one():
    runtime, root = Runtime(dispatch), nn.Identity()
    runtime.enter("", root)
    runtime.unique_name("", "Op")
    runtime.enter("", root)
    assert len(runtime.frames) == 1
    assert runtime.unique_name("", "Op") == "Op"


def test_abandoning_clears_the_frames():
    runtime = Runtime(dispatch)
    runtime.enter("", nn.Identity())
    runtime.abandon()
    assert runtime.frame is None


def test_observers_see_every_op_with_its_operands_until_the_model_is_copied():
    model, seen = quantize(Wired(lambda m, x: F.relu(m.conv(x)) + 1.0), image()), []
    runtime = runtime_of(model)
    assert not runtime.is_recorded
    runtime.observers.append(lambda name, op, operands, attributes, result: seen.append((name, op.name, len(operands))))
    assert runtime.is_recorded
    model(image())
    expected = [("conv.Quant", 1), ("conv.Conv2dInt", 2), ("Relu", 1), ("iqAdd", 2)]
    assert [(name, count) for name, _, count in seen] == expected
    assert [op for _, op, _ in seen] == ["Quant", "Conv2dInt", "Relu", "iqAdd"]
    other = copy.deepcopy(model)
    other(image())
    assert not runtime_of(other).is_recorded
    assert len(seen) == len(expected)


def test_hooks_tell_the_runtime():
    runtime, module = Runtime(dispatch), nn.Identity()
    scope = Scope(runtime, "here")
    scope.enter(module, ())
    assert runtime.path == "here"
    assert scope.leave(module, (), "output") is None
    assert runtime.frame is None


# -- whole models ---------------------------------------------------------------------------------------------


def sometimes_failing(error):
    def forward(m, x):
        h = m.conv(x) + 1.0
        if x.shape[0] == 1:
            raise error
        return F.relu(h)

    return quantize(Wired(forward), image())


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_exception_in_forward_leaves_the_next_pass_clean(error, mode):
    model = sometimes_failing(error)
    with torch.no_grad():
        expected = model(image()).integers()
    (before,) = record(model, image())
    state = copy.deepcopy(model.state_dict())
    model.train(mode == "train")
    with pytest.raises(type(error)):
        model(image(batch=1))
    model.load_state_dict(state)  # a training pass moves ranges, also one that fails later
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(image()).integers(), expected)
    assert runtime_of(model).frames == []
    (after_error,) = record(model, image())
    assert list(after_error.integers) == list(before.integers)
    assert [op.op for op in linger.coverage(model).ops] == ["Quant", "Conv2dInt", "iqAdd", "Relu"]


def test_a_module_called_twice_has_two_names_and_one_range():
    def forward(m, x):
        return m.conv2(m.conv2(m.conv(x)))

    model = quantize(Wired(forward), image())
    (made,) = record(model, image())
    assert list(made.integers) == ["conv.Quant", "conv.Conv2dInt", "conv2.Conv2dInt", "conv2.Conv2dInt_1"]
    assert [op.where for op in linger.coverage(model).ops] == ["conv", "conv", "conv2", "conv2"]


def test_two_inputs():
    model = init(Wired(lambda m, x, y: m.conv(x) + m.conv2(m.conv(y)))).eval()
    with linger.calibration():
        model(image(), image(seed=2))
    (made,) = record(model, (image(), image(seed=2)))
    assert list(made.integers) == [
        "conv.Quant",
        "conv.Conv2dInt",
        "conv.Quant_1",
        "conv.Conv2dInt_1",
        "conv2.Conv2dInt",
        "iqAdd",
    ]


@pytest.mark.parametrize(
    ("forward", "get"),
    [
        pytest.param(lambda h: {"a": h, "b": [h + 1.0]}, lambda y: (y["a"], y["b"][0]), id="dict"),
        pytest.param(lambda h: (h, h + 1.0), lambda y: y, id="tuple"),
        pytest.param(lambda h: [h, (h + 1.0,)], lambda y: (y[0], y[1][0]), id="list"),
    ],
)
def test_structured_outputs_keep_their_structure(forward, get):
    first, second = get(after(forward)(image()))
    assert isinstance(first, QTensor)
    assert isinstance(second, QTensor)
    assert first.scale != second.scale or not torch.equal(first.integers(), second.integers())


def test_a_part_of_a_model_runs_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    quantize(model, torch.randn(5, 3))
    hidden = torch.randn(5, 4)
    with torch.no_grad():
        assert isinstance(model[1](hidden), QTensor)
        whole = model(torch.ones(2, 3))
        parts = model[1](model[0](torch.ones(2, 3)))
    assert torch.equal(whole.integers(), parts.integers())


def test_training_forward_without_gradients():
    model = init(Wired(lambda m, x: F.relu(m.conv(x)) + 1.0)).train()
    with torch.no_grad():
        result = model(image())
    assert not result.requires_grad
    assert model.conv.read("running_x") > 0
    model(image()).sum().backward()
    assert model.conv.weight.grad is not None


def test_keyword_arguments_reach_the_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x, *, scale=1.0):
            return self.fc(x) * scale

    model = init(Net()).eval()
    with linger.calibration():
        model(torch.randn(4, 3), scale=2.0)
    assert isinstance(model(torch.randn(4, 3), scale=2.0), QTensor)
