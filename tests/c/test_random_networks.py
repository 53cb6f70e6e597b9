"""Random graphs, and networks that an independent engine has run, as C: every tensor, every element."""

import random
from collections import Counter

import numpy as np
import pytest

from linger.c import build, export
from tests.support.c_compiler import require_compiler
from tests.support.c_networks import FLAGS, assert_proven, differing, prove, without_empty_outputs
from tests.support.dialect_graphs import FLOAT, OPSETS, Scope, Tensor, World, feeds, finish
from tests.support.golden import NETS, case_names, model_path, recorded
from tests.support.graph_control import SHAPE
from tests.support.graph_families import INTEGERS, MOVEMENT

NOT_IN_C = {"plain product", "standard dequantize", "extreme", "largest index", "integer mask"}
"""Families with standard ops that compute: C refuses them."""

CHOICES = [(table, name) for table in (INTEGERS, MOVEMENT) for name in table if name not in NOT_IN_C]
SMALL_ARENA = 1.25
"""Tensors of a few bytes take 16 each, so one that cannot lie in a gap is a large part of the arena."""


def integer_model(seed, size):
    """A random graph of about `size` ops, all of which have C; and how often each family is in it."""
    dice = random.Random(seed)
    world = World(dice, dice.choice(OPSETS))
    main = Scope(world)
    main.input(Tensor("x", FLOAT, SHAPE))
    if dice.random() < 0.5:
        main.input(Tensor("z", FLOAT, dice.choice([SHAPE, SHAPE[::-1]])))
    main.quantize(main.tensors[0], dice.choice([8, 8, 16, 32]))
    for _ in range(size):
        table, name = dice.choice(CHOICES)
        if table[name](main):
            world.families[name] += 1
    made = finish(world, main)
    return without_empty_outputs(made.model), made.families


def prove_all(seeds, size, folder):
    require_compiler()
    families = Counter()
    for seed in seeds:
        model, found = integer_model(seed, size)
        families += found
        assert_proven(prove(model, folder / str(seed), feeds(model, seed)), most_arena=SMALL_ARENA)
    return families


def test_random_graphs(tmp_path):
    prove_all((1026, 1031), 25, tmp_path)  # which once differed, and could not be written
    prove_all(range(6), 8, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_hundreds_of_random_graphs(part, tmp_path):
    families = prove_all(range(5000 + 30 * part, 5030 + 30 * part), 12, tmp_path)
    assert set(families) - {"output with consumers"} >= {name for _, name in CHOICES} - {"recurrent"}


@pytest.mark.slow
@pytest.mark.parametrize("case", case_names(folder=NETS))
def test_what_an_independent_engine_has_computed(case, tmp_path):
    require_compiler()
    inputs, outputs = recorded(case, NETS)
    count = len(next(iter(inputs.values())))
    samples = [{name: array[i] for name, array in inputs.items()} for i in range(count)]
    assert_proven(prove(model_path(case, NETS), tmp_path / "c", samples[:2]))
    with build(export(model_path(case, NETS), tmp_path / "again"), flags=FLAGS) as program:
        found = program.run_many(samples)
    for i, sample in enumerate(found):
        wrong = {n: differing(sample[n], array[i].astype(np.float32)) for n, array in outputs.items()}
        assert wrong == dict.fromkeys(outputs, 0)
