"""Models that fully_shard has spread over two processes: training, both kinds of checkpoints, export; and what is refused."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import linger
from tests.support.interrupted import read_whole
from tests.support.processes import run_processes
from tests.support.quantization import FunctionalLayer

pytestmark = pytest.mark.needs_torch

WHOLE = StateDictOptions(full_state_dict=True)


class Scaled(nn.Module):
    """A parameter of its own, and one of a single element, which two processes cannot share evenly."""

    def __init__(self):
        super().__init__()
        self.linear, self.gamma, self.one = nn.Linear(8, 8), nn.Parameter(torch.rand(8)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + torch.relu(self.linear(x)) * self.gamma * self.one


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(8) * 0.1)
        self.first, self.blocks = nn.Linear(6, 8), nn.ModuleList([Scaled(), Scaled()])

    def forward(self, x):
        x = self.first(x) + self.position
        for block in self.blocks:
            x = block(x)
        return x


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.second, self.bn2 = nn.Conv2d(5, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = F.relu(self.bn(self.first(x)))
        return self.head(F.relu(x + self.bn2(self.second(x))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
        self.first, self.blocks, self.rnn = nn.Linear(4, 8), nn.ModuleList(layers), nn.LSTM(8, 4, batch_first=True)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.rnn(x)[0][:, -1]


WITH_OTHERS, ALONE = ("linear", "convolution"), ("attention",)
"""What runs in the same two processes; a group that nobody asks for does not run."""

KINDS = {"linear": (Linear, (6,)), "convolution": (Convolution, (1, 6, 6)), "attention": (Attention, (5, 4))}


def inputs(kind):
    return torch.randn(8, *KINDS[kind][1], generator=torch.Generator().manual_seed(3))


def made(kind, seed=0):
    torch.manual_seed(seed)
    model = KINDS[kind][0]()
    if kind == "convolution":
        linger.trace_layers(model, inputs(kind)[:2])
    return linger.init(model)


def shard(model):
    for part in model.blocks if hasattr(model, "blocks") else (model.first, model.second):
        fully_shard(part)
    return fully_shard(model)


def train(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(2):
        optimizer.zero_grad()
        model.train()(x[dist.get_rank() :: 2]).dequantize().square().mean().backward()
        optimizer.step()
    return model.eval()


def integers(model, x):
    with torch.no_grad():
        return model.eval()(x).integers().tolist()


# what runs in both processes
def trained(folder, kinds):
    found = {kind: trained_kind(folder, kind) for kind in kinds}
    return found, others() if kinds == WITH_OTHERS else None


def trained_kind(folder, kind):
    """Train sharded and by DDP, and save both kinds of checkpoints."""
    x, model, plain = inputs(kind), shard(made(kind)), made(kind)
    for each in (model, plain):
        with linger.calibration("percentile"):
            each.eval()(x)
    train(model, x)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder / f"{kind}.dcp")
    state = get_model_state_dict(model, options=WHOLE)
    if dist.get_rank() == 0:
        torch.save({"model": state}, folder / f"{kind}.pt")
    train(DistributedDataParallel(plain), x)
    if dist.get_rank():
        state = plain.state_dict()  # the state of all is gathered in the first process only
    different = [key for key, value in plain.state_dict().items() if not torch.equal(value, state[key])]
    floats = [f"{op.where} {op.op}" for op in linger.coverage(model).float_ops]
    return {
        "different": different,
        "float": floats,
        "integers": integers(model, x),
        "refused": [refusal(linger.onnx.export, model, (x,), folder / "m.onnx"), refusal(linger.init, model)],
    }


def refusal(function, *args):
    with pytest.raises(linger.UsageError) as caught:
        function(*args)
    return str(caught.value)


def edited():
    """Evaluate while single columns of a large weight change, by the shards that an optimizer sees."""
    torch.manual_seed(0)
    model = linger.init(nn.Sequential(nn.Linear(128, 64))).eval()
    x = torch.eye(128)
    with linger.calibration():
        model(x)
    plain = linger.init(nn.Sequential(nn.Linear(128, 64))).eval()
    plain.load_state_dict(model.state_dict())
    fully_shard(model, reshard_after_forward=True)
    seen = [integers(model, x)]
    for column in (5, 40, 70, 120):
        for each in (model, plain):
            weight = each[0].weight
            with torch.no_grad():
                (weight.to_local() if each is model else weight)[:, column] = 0.0
        seen.append(integers(model, x))
        if seen[-1] != integers(plain, x) or seen[-1] == seen[-2]:
            return f"column {column}: the integers are those of other weights"
    return ""


def in_16_bits(what):
    model = linger.init(nn.Sequential(nn.Linear(4, 2)))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(**{what: torch.bfloat16}))
    return refusal(model, torch.rand(2, 4)) if what != "reduce_dtype" else str(model(torch.rand(2, 4)).shape)


def by_function():
    model = made("linear").eval()
    with linger.calibration():
        model(inputs("linear"))
    linger.learn_scales(model)
    functions = [(path, m) for path, m in model.named_modules() if isinstance(m, FunctionalLayer)]
    fully_shard(functions[0][1])
    fully_shard(model)
    return functions[0][0], refusal(model.train(), inputs("linear"))


def others():
    model = shard(made("linear"))
    tuned = refusal(linger.tune, model, [inputs("linear")])
    policies = [in_16_bits(what) for what in ("param_dtype", "output_dtype", "reduce_dtype")]
    return edited(), policies, tuned, by_function()


# tests
@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")

    @functools.cache
    def run(kinds):
        results = run_processes(trained, 2, folder, kinds)
        assert all(isinstance(each, tuple) for each in results), results
        return results

    return folder, run


each_kind = pytest.mark.parametrize("kind", [*WITH_OTHERS, pytest.param(*ALONE, marks=pytest.mark.slow)])


def of_kind(trainings, kind):
    """What both processes found for a kind."""
    return [found[kind] for found, _ in trainings[1](ALONE if kind in ALONE else WITH_OTHERS)]


@each_kind
def test_a_sharded_model_trains_as_the_whole_one_does(trainings, kind):
    first, second = of_kind(trainings, kind)
    assert first["different"] == second["different"] == []
    assert first["integers"] == second["integers"]
    assert first["float"] == []


@each_kind
def test_both_kinds_of_checkpoints_load_into_one_process_and_are_exported(trainings, kind, tmp_path):
    found, x = of_kind(trainings, kind), inputs(kind)
    for suffix in ("pt", "dcp"):
        model = made(kind, seed=1)
        model.load_state_dict(read_whole(trainings[0] / f"{kind}.{suffix}"))
        assert integers(model, x) == found[0]["integers"]
    linger.onnx.export(model, (x,), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", (x,)).ok


def test_a_sharded_model_is_not_exported_nor_quantized_again(trainings):
    export, init = of_kind(trainings, "linear")[0]["refused"]
    assert export.startswith("export: FSDPLinear, blocks.0, blocks.1: the parameters are sharded")
    assert "get_model_state_dict" in export
    assert init.endswith("Call linger.init on the model as it was before, then fully_shard.")


def test_evaluation_sees_what_changes_in_shards_and_16_bits_are_refused(trainings):
    for _, (stale, policies, tuned, (name, by_function_alone)) in trainings[1](WITH_OTHERS):
        assert stale == ""
        assert all("mp_policy" in refused and "float32" in refused for refused in policies[:2])
        assert policies[2] == "torch.Size([2, 2])"
        assert tuned.startswith("tune: FSDPLinear")
        assert by_function_alone.startswith(f"{name}: fully_shard")
