# SPDX-License-Identifier: Apache-2.0
"""What tuning tried, as text."""

from __future__ import annotations

import pytest

from linger import TuneResult
from tests.support.tuning import TuneStep

STEPS = (
    TuneStep(
        name="equalize",
        settings={"rounds": 2},
        branch="equalized",
        source="direct",
        before_db=31.257,
        after_db=33.5,
        before_metric=0.5,
        after_metric=0.75,
        seconds=12.34,
        trials=3,
        is_complete=True,
        is_kept=True,
        why="the error falls",
    ),
    TuneStep(
        name="distill",
        settings={},
        branch="direct",
        source="direct",
        before_db=31.257,
        after_db=None,
        before_metric=0.5,
        after_metric=None,
        seconds=0.0,
        trials=0,
        is_complete=False,
        is_kept=False,
        why="no time is left",
    ),
)


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        pytest.param(
            (),
            [
                "step                branch     before dB  after dB  CPU s  kept  why",
                "equalize(rounds=2)  equalized      31.26     33.50   12.3  yes   the error falls",
                "distill()           direct         31.26         -    0.0  no    no time is left",
            ],
            id="without a metric",
        ),
        pytest.param(
            (0.5, 0.75),
            [
                "step                branch     before dB  after dB  metric before  after  CPU s  kept  why",
                "equalize(rounds=2)  equalized      31.26     33.50            0.5   0.75   12.3  yes   the error falls",
                "distill()           direct         31.26         -            0.5      -    0.0  no    no time is left",
            ],
            id="with a metric",
        ),
    ],
)
def test_every_step_is_a_line_with_what_it_gained_and_took(metrics: tuple[float, ...], lines: list[str]) -> None:
    result = TuneResult(31.257, 33.5, STEPS, "equalized", *metrics)
    assert str(result).splitlines()[2:] == lines
