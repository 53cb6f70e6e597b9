"""Decisions that Python takes from values are noted with their line; sizes and linger's own reading are not."""

import pytest
import torch

from linger.onnx.exporter.tracing import DecisionWatch

READS = {
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "float": lambda x: float(x[0]),
    "int of a count": lambda x: int((x > 0).sum()),
    "item": lambda x: x.max().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "index": lambda x: [1, 2, 3][x.argmax()],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_a_value_is_noted_with_its_line(read):
    with DecisionWatch() as watch:
        read(torch.tensor([-1.0, 2.0, 1.0]))
    assert list(watch.places) == [f"test_decisions.py:{read.__code__.co_firstlineno}"]
    assert watch.summary().startswith(
        f"export: forward reads values of tensors at {next(iter(watch.places))}. The file"
    )


HARMLESS = {
    "shape": lambda x: 1 if x.shape[0] > 2 else 2,
    "len": len,
    "numel": lambda x: int(x.numel()),
    "integers that come from no value": lambda x: torch.arange(3)[0].item(),
    "computing": lambda x: torch.where(x > 0, x, -x).sum(),
}


@pytest.mark.parametrize("read", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_depends_on_no_value_is_not_noted(read):
    with DecisionWatch() as watch:
        read(torch.tensor([-1.0, 2.0, 1.0]))
    assert watch.summary() == ""


def test_each_line_is_named_once():
    x = torch.ones(3)
    with DecisionWatch() as watch:
        for _ in range(3):
            x.sum().item()
    assert len(watch.places) == 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * float(x.sum() * 0 + 2)


class Written(torch.autograd.Function):
    """In a file it is a node; what its forward reads matters to nobody."""

    @staticmethod
    def symbolic(g, x):
        return g.op("Add", x, x)

    @staticmethod
    def forward(ctx, x):
        return x * float(x.sum() * 0 + 2)


@pytest.mark.parametrize(("kind", "is_noted"), [(Doubled, True), (Written, False)])
def test_what_a_symbolic_replaces_is_not_noted(kind, is_noted):
    with DecisionWatch() as watch:
        kind.forward(None, torch.ones(2))
    assert bool(watch.places) is is_noted
