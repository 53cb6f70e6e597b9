"""torch.compile: refused before init with a sentence, harmless after it."""

import copy

import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.quantization import unwrap

# torch's compiler uses what torch itself has deprecated, and warns of functions that it does not look into
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def image() -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(2))


def train(model: nn.Module, call) -> list[torch.Tensor]:
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
    model.train()
    for _ in range(2):
        y = unwrap(call(image()))
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
        seen.append(y.detach())
    model.eval()
    with torch.no_grad():
        seen.append(unwrap(call(image())))
    return [*seen, *model.state_dict().values()]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_trains_and_evaluates_with_the_same_integers(backend):
    model = linger.init(net())
    reference = copy.deepcopy(model)
    expected, found = train(reference, reference), train(model, torch.compile(model, backend=backend))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.slow
def test_what_stands_around_the_model_is_compiled():
    model, graphs = linger.init(net()), []
    reference = copy.deepcopy(model)

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=keep)
    def around(x):
        return unwrap(model(x * 2.0)) + 1.0

    expected, found = train(reference, lambda x: unwrap(reference(x * 2.0)) + 1.0), train(model, around)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert graphs


def test_a_whole_graph_cannot_hold_the_model_and_torch_says_why():
    model = linger.init(net())

    @torch.compile(backend="eager", fullgraph=True)
    def forward(x):
        return model(x * 2.0)

    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"runs as it is inside torch\.compile"):
        forward(image())


@pytest.mark.parametrize("wrap", [torch.compile, lambda m: (m.compile(), m)[1]], ids=["compile", "in place"])
def test_a_compiled_model_is_refused_before_init(wrap):
    with pytest.raises(UsageError, match=r"went through torch\.compile.*_orig_mod"):
        linger.init(wrap(net()))


def test_compiled_parts_are_named():
    model = nn.ModuleDict({"body": torch.compile(net()), "head": nn.Linear(3, 2)})
    with pytest.raises(UsageError, match=r"^init: body went through"):
        linger.init(model)
