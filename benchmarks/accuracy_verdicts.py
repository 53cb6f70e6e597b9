# SPDX-License-Identifier: Apache-2.0
"""Whether the bars of the accuracy benchmark are met, from measured cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from accuracy_columns import METHODS
from accuracy_outliers import NETWORKS, OUTLIERS
from networks import ENTRIES

TUNED = ("tune", "tune mixed")
LONGEST = 300.0
"""CPU seconds."""

OUTLIER_COST = 1.0
"""dB, by the best method."""

Verdict = tuple[str, str, str]
"""What is asked for, what was measured, and whether it is enough."""

DIFFERING, ERRORS = "differing integers", "errors for venus"


def verdicts(cells: Any) -> list[Verdict]:
    """Every bar. Of several seeds the mean counts."""
    return [*_of_networks(cells), *_of_outliers(cells), *_of_all(cells)]


def _of_networks(cells: Any) -> Iterator[Verdict]:
    for name, entry in ENTRIES.items():
        for bar in entry.bars:
            if any("reason" in cell for cell in cells.read(name, bar.column)):
                yield f"{entry.title}, {bar}", "does not run", "MISSED"
                continue
            found = [figures[bar.figure] for figures in figures_of(cells, name, bar.column)]
            mean = statistics.fmean(found) if found else None
            yield _verdict(f"{entry.title}, {bar}", mean, is_met=mean is not None and bar.is_met(mean))


def _of_outliers(cells: Any) -> Iterator[Verdict]:
    for name in NETWORKS:
        costs = [f["cost dB"] for method in METHODS for f in figures_of(cells, f"{OUTLIERS}-{name}", method)]
        least = min(costs) if costs else None
        text = f"{ENTRIES[name].title}, one outlier: cost in dB by the best method ≤ {OUTLIER_COST:g}"
        yield _verdict(text, least, is_met=least is not None and least <= OUTLIER_COST)


def _of_all(cells: Any) -> Iterator[Verdict]:
    """Bars that every tuned network is held to."""
    tuned = [(name, figures) for name in ENTRIES for column in TUNED for figures in figures_of(cells, name, column)]
    longest = max((figures["CPU seconds"] for _, figures in tuned), default=None)
    yield _verdict(
        f"every tuned network: CPU seconds ≤ {LONGEST:g}", longest, is_met=longest is not None and longest <= LONGEST
    )
    proven = [(name, figures) for name, figures in tuned if DIFFERING in figures]
    differing = sum(figures[DIFFERING] for _, figures in proven) if proven else None
    failed = [f"{n}, {c}" for n in ENTRIES for c in TUNED if any("reason" in cell for cell in cells.read(n, c))]
    yield _verdict("every tuned network: integers of its file that differ = 0", differing, is_met=differing == 0)
    if failed:
        yield "every tuned network: can be exported", f"not {'; '.join(failed)}", "MISSED"
    fitting = {name for name in ENTRIES if any(f.get(ERRORS) == 0 for f in figures_of(cells, name, "max"))}
    errors = [figures[ERRORS] for name, figures in proven if name in fitting]
    found = sum(errors) if errors else None
    yield _verdict("tuned networks whose untuned file fits venus: errors for venus = 0", found, is_met=found == 0)


def figures_of(cells: Any, network: str, column: str) -> list[dict[str, float]]:
    """The figures of every seed that could be measured."""
    return [cell["figures"] for cell in cells.read(network, column) if "figures" in cell]


def _verdict(text: str, found: float | None, *, is_met: bool) -> Verdict:
    if found is None:
        return text, "not measured", "—"
    return text, f"{found + 0.0:.2f}", "met" if is_met else "MISSED"
