# SPDX-License-Identifier: Apache-2.0
"""The search on made-up figures: what it tries, what it takes back, when it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from torch import nn

from linger.tuning.mixed_precision.goals import Goal
from linger.tuning.mixed_precision.search import Ranking, Search, rank
from linger.tuning.mixed_precision.units import ACTIVATIONS, WEIGHTS, BitModel, Choice
from tests.support.tuning import Unit


def unit(name: str, what: str = WEIGHTS, size: int = 10) -> Unit:
    return Unit(f"{name}.w", name, "LinearInt", what, 8, size, label=name)


A, B, C, D = (unit(name) for name in "abcd")


@dataclass
class Paper:
    """Stands for a model: its figure is a function of the names of the wide tensors."""

    units: tuple[Unit, ...]
    figure: Callable[[set[str]], float]
    choice: Choice = field(default_factory=dict)
    model: Any = None

    def apply(self, choice: Choice) -> None:
        self.choice = choice

    def measure(self, _: nn.Module) -> float:
        return self.figure({f"{u.name}{bits}" for u, bits in self.choice.items()})


def search(paper: Paper, noises: dict[Unit, float], goal: float, unit_: str = "", **options: Any) -> Search:
    ranking = Ranking(noises=noises, measured=set(noises))
    aim = Goal(goal, unit_, paper.measure)
    return Search(cast(BitModel, paper), aim, ranking, lambda *_: True, **{"max_trials": 100, **options})


def names(choice: Choice) -> set[str]:
    return {f"{u.name}{bits}" for u, bits in choice.items()}


def test_what_the_goal_is_reached_without_is_taken_back() -> None:
    paper = Paper((A, B, C, D), lambda wide: float({"a16", "c16"} <= wide))
    found = search(paper, {A: 4.0, B: 3.0, C: 2.0, D: 1.0}, 1.0)
    assert names(found.widened()) == {"a16", "c16"}  # b ranks before c, and is not needed
    # nothing, a, ab, abc, then abc without c, b and a; nothing is measured twice
    assert found.trials <= 7


def test_as_many_are_tried_first_as_noises_ask_for() -> None:
    paper = Paper((A, B, C, D), lambda wide: 20.0 * (len(wide) >= 3))
    found = search(paper, {A: 0.4, B: 0.3, C: 0.2, D: 0.001}, 20.0, "dB")  # 20 dB allow a noise of 0.01
    assert names(found.widened()) == {"a16", "b16", "c16"}
    assert found.trials <= 5  # nothing, three of them, and three without one


def test_the_most_expensive_tensor_is_taken_back_first() -> None:
    large, small = unit("large", ACTIVATIONS, 1000), unit("small", WEIGHTS, 10)
    # greedy takes both, as a alone, which ranks first, is not enough; then either of the two others would do beside it
    paper = Paper((A, large, small), lambda wide: float("a16" in wide and len(wide) > 1) if len(wide) < 3 else 1.0)
    found = search(paper, {A: 9.0, large: 1.0, small: 0.5}, 1.0)
    assert names(found._pruned({A: 16, large: 16, small: 16})) == {"a16", "small16"}


def test_of_both_orders_the_one_that_leaves_fewer_tensors_counts() -> None:
    large, b, c = unit("large", WEIGHTS, 1000), unit("b"), unit("c")
    # large alone is enough, and so are b and c together: the dearest first would leave two
    paper = Paper((large, b, c), lambda wide: float("large16" in wide or {"b16", "c16"} <= wide))
    assert names(search(paper, {large: 4.0, b: 2.0, c: 1.0}, 1.0)._pruned({large: 16, b: 16, c: 16})) == {"large16"}


def test_the_gain_of_a_tensor_is_what_is_lost_without_it() -> None:
    paper = Paper((A, B, C), lambda wide: 7.0 * ("a16" in wide) + 2.0 * ("b16" in wide) + 1.0 * (len(wide) > 1))
    found = search(paper, {A: 3.0, B: 2.0, C: 1.0}, 10.0)
    choice = found.widened()
    assert {u.name: found.gain(choice, u) for u in choice} == {"a": 8.0, "b": 3.0}
    found.max_trials = found.trials  # nothing more may be measured, but what is known is known
    assert found.gain(choice, A) == 8.0
    assert found.gain({A: 16, C: 16}, A) is None


def test_the_cheaper_of_two_equals_comes_first() -> None:
    large, small = unit("large", ACTIVATIONS, 1000), unit("small", WEIGHTS, 10)
    paper = Paper((large, small), lambda wide: float(bool(wide)))
    assert names(search(paper, {large: 1.0, small: 0.9}, 1.0).widened()) == {"small16"}


def test_out_of_reach_the_smallest_choice_as_good_as_all_is_kept() -> None:
    paper = Paper((A, B, C, D), lambda wide: 10.0 + 5.0 * min(len(wide), 2))
    assert names(search(paper, {A: 0.4, B: 0.3, C: 0.2, D: 0.1}, 99.0, "dB").widened()) == {"a16", "b16"}


def test_four_bits_are_kept_only_while_the_goal_is_reached() -> None:
    paper = Paper((A, B, C, D), lambda chosen: 1.0 - 0.4 * len({"a4", "b4", "c4"} & chosen))
    found = search(paper, {A: 3.0, B: 2.0, C: 1.0, D: 4.0}, 0.5)
    assert names(found.narrowed({})) == {
        "c4",
        "d4",
    }  # one of the three, the least noisy, and the one that costs nothing


def test_the_number_of_trials_is_kept() -> None:
    paper = Paper((A, B, C, D), lambda wide: float(len(wide) == 4))
    found = search(paper, {A: 4.0, B: 3.0, C: 2.0, D: 1.0}, 1.0, max_trials=2)
    found.widened()
    assert found.trials <= 3


def test_a_harmless_group_is_not_taken_apart() -> None:
    units = [unit(f"w{i}") for i in range(20)] + [unit(f"x{i}", ACTIVATIONS) for i in range(20)]
    noise = {u: 1.0 if u.name == "w3" else 1e-6 for u in units}
    found = rank(units, lambda narrow: 0.5 + sum(noise[u] for u in narrow), 0.01, (WEIGHTS, ACTIVATIONS))
    assert found.noises[units[3]] == pytest.approx(1.0)  # sums of a few floats
    assert found.measured == set(units[:8])
    assert found.trials == 1 + 2 + 3 + 8  # nothing, both kinds, three groups of weights, the members of one
    assert found.total == pytest.approx(0.5 + sum(noise.values()))
