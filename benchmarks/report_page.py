# SPDX-License-Identifier: Apache-2.0
"""The report page of a network of 500 layers: its size, its elements, and how long a headless Chromium takes to show it.

The time is from the start of the load to the first frame in which everything has been drawn, as the browser measures it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rows import Row, not_measured, parser, report, spread_of

from linger.reporting.page import render_page

REPOSITORY = Path(__file__).resolve().parent.parent
OPENED = (
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() / 1000))))"
)
LAYERS = 500
SIZE, ELEMENTS, TIME = (f"report page of {LAYERS} layers: {what}" for what in ("size", "elements", "time to open"))


def rows(options: argparse.Namespace) -> list[Row]:
    # the network and the browser are those of the tests
    sys.path.append(str(REPOSITORY))
    from tests.support.browser import chromium, opened
    from tests.support.report_runs import large

    page = render_page([large(LAYERS)])
    size = Row(SIZE, len(page.encode()) / 1e6, 10.0, unit="MB")
    program = chromium()
    if program is None:
        return [size, not_measured(ELEMENTS, "no Chromium", bar=4000), not_measured(TIME, "no Chromium", bar=3.0)]
    times = []
    with tempfile.TemporaryDirectory() as folder, opened(program) as browser:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        for _ in range(options.rounds):
            browser.open(file, settle=False)
            times.append(browser.run(OPENED))
        elements = browser.run("document.querySelectorAll('*').length")
    return [size, Row(ELEMENTS, elements, 4000, unit=""), spread_of(TIME, times, bar=3.0, unit="s")]


def main() -> None:
    report(rows, parser(__doc__, rounds=8))


if __name__ == "__main__":
    main()
