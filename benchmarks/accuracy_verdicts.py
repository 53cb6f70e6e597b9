# SPDX-License-Identifier: Apache-2.0
"""Whether the bars of the accuracy benchmark are met, from measured cells."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from accuracy_columns import METHODS, PAIRS
from accuracy_outliers import NETWORKS, OUTLIERS
from networks import ENTRIES, Entry

TUNED = ("tune", "tune mixed")
LONGEST, SHORTEST = 300.0, 90.0
"""CPU seconds, with mixed widths and where all tensors have 8 bits."""

FALL_DB = 0.3
"""What tuning may lose against plain calibration of the same numbers, in any network, set and seed."""

SQNR = "output SQNR dB"

OUTLIER_COST = 1.0
"""dB, by the best method."""

Verdict = tuple[str, str, str]
"""What is asked for, what was measured, and whether it is enough."""

DIFFERING, ERRORS = "differing integers", "errors for venus"


def verdicts(cells: Any) -> list[Verdict]:
    """Every bar. Of several seeds the mean counts."""
    return [*_of_networks(cells), *_of_outliers(cells), *_of_all(cells), *_of_falls(cells)]


def _of_networks(cells: Any) -> Iterator[Verdict]:
    for name, entry in ENTRIES.items():
        for bar in entry.bars:
            if any("reason" in cell for cell in cells.read(name, bar.column)):
                yield f"{entry.title}, {bar}", "does not run", "MISSED"
                continue
            found = [figures[bar.figure] for figures in figures_of(cells, name, bar.column)]
            mean = statistics.fmean(found) if found else None
            is_met = mean is not None and bar.is_met(mean)
            text, value, verdict = _verdict(f"{entry.title}, {bar}", mean, is_met=is_met)
            yield text, value, "measured" if bar.limit is None and is_met else verdict


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
    short = [f["CPU seconds"] for name in ENTRIES for column in PAIRS.values() for f in figures_of(cells, name, column)]
    slowest = max(short, default=None)
    text = f"every network tuned at 8 bits: CPU seconds ≤ {SHORTEST:g}"
    yield _verdict(text, slowest, is_met=slowest is not None and slowest <= SHORTEST)
    finer = [column for pair in PAIRS.items() for column in pair if column not in ("max", "tune")]
    found_there = [f[DIFFERING] for n in ENTRIES for c in finer for f in figures_of(cells, n, c) if DIFFERING in f]
    there = sum(found_there) if found_there else None
    yield _verdict(
        "every network per channel, and unsigned: integers of its file that differ = 0", there, is_met=there == 0
    )
    proven = [(name, figures) for name, figures in tuned if DIFFERING in figures]
    differing = sum(figures[DIFFERING] for _, figures in proven) if proven else None
    columns = (*TUNED, *finer)
    failed = [f"{n}, {c}" for n in ENTRIES for c in columns if any("reason" in cell for cell in cells.read(n, c))]
    yield _verdict("every tuned network: integers of its file that differ = 0", differing, is_met=differing == 0)
    if failed:
        yield "every tuned network: can be exported", f"not {'; '.join(failed)}", "MISSED"
    fitting = {name for name in ENTRIES if any(f.get(ERRORS) == 0 for f in figures_of(cells, name, "max"))}
    errors = [figures[ERRORS] for name, figures in proven if name in fitting]
    found = sum(errors) if errors else None
    yield _verdict("tuned networks whose untuned file fits venus: errors for venus = 0", found, is_met=found == 0)


class Fall(NamedTuple):
    """How far a tuned network is below plain calibration on one set of data."""

    db: float
    parts: float
    """Of what the metric may lose: of one standard error where it is a share of samples, else of 0.3 dB."""
    where: str


def falls(cells: Any) -> Iterator[Fall]:
    """One for every network, number system, seed and set of judged data that was measured both ways."""
    for name, entry in ENTRIES.items():
        for plain_column, column in PAIRS.items():
            plain = {seed: cell for seed, cell in cells.by_seed(name, plain_column).items() if "figures" in cell}
            for seed, cell in cells.by_seed(name, column).items():
                beside = plain.get(seed, None if entry.is_trained else plain.get(0))
                if "figures" in cell and beside is not None:
                    yield from _falls_of(entry, beside, cell, f"{entry.title}, {column}, seed {seed}")


def _falls_of(entry: Entry, plain: dict[str, Any], tuned: dict[str, Any], where: str) -> Iterator[Fall]:
    before = {"as judged": plain["figures"], **plain.get("shifted", {})}
    after = {"as judged": tuned["figures"], **tuned.get("shifted", {})}
    for place in before.keys() & after.keys():
        old, new = before[place], after[place]
        lost = old.get(entry.metric, 0.0) - new.get(entry.metric, 0.0)
        allowed = FALL_DB if entry.count is None else error_of(entry, old)
        yield Fall(old.get(SQNR, 0.0) - new.get(SQNR, 0.0), lost / allowed, f"{where}, {place}")


def error_of(entry: Entry, figures: dict[str, float]) -> float:
    """The standard error of a share of samples: of independent ones, or of the mean of sources whose samples depend on each other."""
    if entry.sources is None:
        return standard_error(figures.get(entry.metric, 0.0), figures.get(entry.count or "", 0.0))
    shares = [value for name, value in figures.items() if re.fullmatch(entry.sources, name)]
    return statistics.stdev(shares) / math.sqrt(len(shares))


def standard_error(share: float, count: float) -> float:
    """Of a share of samples in %. Half a sample is added to both sides, so that 0 and 100 % have an error, too."""
    p = (share / 100 * count + 0.5) / (count + 1)
    return 100 * math.sqrt(p * (1 - p) / max(count, 1.0))


def _of_falls(cells: Any) -> Iterator[Verdict]:
    """Tuning cannot hurt: the worst of all networks, sets and seeds."""
    every = list(falls(cells))
    texts = (
        f"any network, set and seed: dB of the outputs that tune is below plain calibration ≤ {FALL_DB:g}",
        f"any network, set and seed: what its metric falls by tune, in standard errors ({FALL_DB:g} dB where it is in dB) ≤ 1",
    )
    for text, key, limit in zip(texts, ("db", "parts"), (FALL_DB, 1.0), strict=True):
        worst = max(every, key=lambda fall: getattr(fall, key), default=None)
        if worst is None:
            yield text, "not measured", "—"
            continue
        found = getattr(worst, key)
        several = sum(getattr(fall, key) > limit for fall in every)
        farther = sum(getattr(fall, key) > limit and fall.db > 0 < fall.parts for fall in every)
        by_both = f", {farther} of them by a fall of the outputs and of the metric" if farther < several else ""
        count = f"; {several} of {len(every)} miss it{by_both}" if several else ""
        yield text, f"{found + 0.0:.2f} ({worst.where}{count})", "met" if found <= limit else "MISSED"


def figures_of(cells: Any, network: str, column: str) -> list[dict[str, float]]:
    """The figures of every seed that could be measured."""
    return [cell["figures"] for cell in cells.read(network, column) if "figures" in cell]


def _verdict(text: str, found: float | None, *, is_met: bool) -> Verdict:
    if found is None:
        return text, "not measured", "—"
    return text, f"{found + 0.0:.2f}", "met" if is_met else "MISSED"
