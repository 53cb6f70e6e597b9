"""Findings of required rules of MISRA C:2012 in exported C are those that the page explains, and no others."""

import re
import subprocess

import pytest

from linger.c.exporter import export
from tests.conftest import REPOSITORY
from tests.support.c_folders import picture_network, require_tool, sequence_network

ADVISORY = frozenset(
    [
        "2.3",
        "2.4",
        "2.5",
        "2.6",
        "2.7",
        "4.2",
        "5.9",
        "8.7",
        "8.9",
        "8.11",
        "8.13",
        "10.5",
        "11.4",
        "11.5",
        "12.1",
        "12.3",
        "12.4",
        "13.3",
        "13.4",
        "15.1",
        "15.4",
        "15.5",
        "17.5",
        "17.8",
        "18.4",
        "18.5",
        "19.2",
        "20.1",
        "20.5",
        "20.10",
        "21.12",
    ]
)
CASES = {
    "picture": (picture_network, {}),
    "given by the caller": (picture_network, {"arena": "caller", "weights": "file", "layout": "nhwc"}),
    "stream": (sequence_network, {"stream": 1}),
}


def findings(folder):
    cppcheck = require_tool("cppcheck", "cppcheck")
    sources = [str(file) for file in folder.glob("*.c") if file.name != "test.c"]
    options = ["--addon=misra", "--std=c99", "--enable=style", "-DLINGER_GENERIC", "-ULINGER_PROOF", "-U__cplusplus"]
    done = subprocess.run([cppcheck, *options, *sources], capture_output=True, text=True, check=True)
    return set(re.findall(r"misra-c2012-(\d+\.\d+)", done.stderr))


def explained():
    page = (REPOSITORY / "docs/c-misra.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| (\d+\.\d+) \|", page, re.MULTILINE)), page


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options"), CASES.values(), ids=CASES)
def test_findings_are_explained(make, options, tmp_path):
    required, page = explained()
    found = findings(export(make(), tmp_path / "c", name="net", **options))
    assert found  # the tool has looked
    assert found - ADVISORY <= required
    advisory = set(re.findall(r"\b\d+\.\d+\b", page.partition("Advisory rules")[2]))
    assert found & ADVISORY <= advisory


@pytest.mark.slow
def test_a_finding_that_nobody_explains_is_seen(tmp_path):
    folder = export(picture_network(), tmp_path / "c", name="net")
    with (folder / "net.c").open("a") as file:
        file.write(
            "\nint32_t net_more(int32_t x);\nint32_t net_more(int32_t x) { if (x) goto end; x = 2; end: return x; }\n"
        )
    assert findings(folder) - ADVISORY - explained()[0]
