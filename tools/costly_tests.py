# SPDX-License-Identifier: Apache-2.0
"""List the tests that `make test-fast` leaves out, from the times of a whole run.

    python -m pytest -n 2 -m "not slow" --junitxml=times.xml
    python tools/costly_tests.py times.xml

`make test-fast` runs the first and the last case of every test function. This script writes to tests/costly.txt the functions
whose two cases take longer than the limit (seconds, in that run): the default keeps what is left under 90 seconds on two cores.
A function that is not listed is run, so a new test takes part until the list is made again.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LIST = REPOSITORY / "tests" / "costly.txt"


def seconds_of_two_cases(report: Path) -> dict[str, float]:
    """What the first and the last case of every test function took, by `path::function`."""
    cases: dict[str, list[float]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        module, is_class, owner = case.attrib["classname"].partition(".Test")  # tests.folder.test_file.TestClass
        holder = module.replace(".", "/") + ".py" + (f"::Test{owner}" if is_class else "")
        cases[f"{holder}::{case.attrib['name'].partition('[')[0]}"].append(float(case.attrib["time"]))
    return {name: sum(times[:1] + times[1:][-1:]) for name, times in cases.items()}


def main() -> None:
    """Write the list and say what it leaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="what pytest wrote with --junitxml")
    parser.add_argument("--limit", type=float, default=0.25, help="seconds for the two cases of one function")
    given = parser.parse_args()
    seconds = seconds_of_two_cases(given.report)
    costly = sorted(name for name, taken in seconds.items() if taken > given.limit)
    LIST.write_text("\n".join(costly) + "\n", encoding="utf-8")
    kept = sum(taken for name, taken in seconds.items() if name not in set(costly))
    print(f"{len(costly)} of {len(seconds)} functions left out; the others take {kept:.0f} s in one process")


if __name__ == "__main__":
    main()
