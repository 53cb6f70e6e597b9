# SPDX-License-Identifier: Apache-2.0
"""Copy the recorded vectors of every op linger knows into tests/golden, and say in a manifest what each one is.

The vectors were recorded from an independent engine. A case is taken when every op of its graph is either an op of
the dialect or a standard op that only moves data; run this again after adding an op. Every file is checked against
the sha256 in the source's manifest before anything is written.

    python tools/make_golden.py [SHARED]

SHARED is the folder that holds golden/ops; without it, $LINGER_SHARED, else ../shared beside the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from linger.dialect import ops

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = REPOSITORY / "tests" / "golden"
MOVES_DATA = frozenset({"Constant", "Reshape", "Transpose"})
"""Standard ops that a case may hold besides the dialect's."""

NEVER_COPIED = frozenset({"resnet18-12-regular"})
"""Other people's models: tests read them where they are."""

PLATFORMS = ("venus", "arcs")
"""The engine's chips whose numbers linger computes."""

KEPT = ("case", "op", "ops", "platform", "notes", "sha256")
"""What the manifest says about a case."""


def covered(cases: Iterable[dict[str, Any]], known: Iterable[str]) -> list[dict[str, Any]]:
    """The cases of the platforms whose graphs hold known ops only, in the order of their names."""
    allowed = MOVES_DATA.union(known)
    ours = [c for c in cases if c.get("platform", PLATFORMS[0]) in PLATFORMS and c["case"] not in NEVER_COPIED]
    chosen = [c for c in ours if c.get("ops") and allowed.issuperset(c["ops"])]
    return sorted(chosen, key=lambda c: str(c["case"]))


def read_checked(folder: Path, case: dict[str, Any]) -> dict[str, bytes]:
    """The files of a case by name.

    Raises:
        SystemExit: A file is missing, superfluous or not the one the manifest describes.
    """
    expected = {f"{case['case']}.onnx", f"{case['case']}.npz"}
    if set(case["sha256"]) != expected:
        raise SystemExit(f"{case['case']}: the manifest lists {sorted(case['sha256'])}, expected {sorted(expected)}.")
    contents = {}
    for name, digest in sorted(case["sha256"].items()):
        path = folder / name
        if not path.is_file():
            raise SystemExit(f"{path}: the manifest names this file, but it is not there.")
        contents[name] = path.read_bytes()
        found = hashlib.sha256(contents[name]).hexdigest()
        if found != digest:
            raise SystemExit(
                f"{path}: sha256 is {found}, the manifest says {digest}. The file is damaged or was changed."
            )
    return contents


def make_golden(shared: Path, target: Path) -> list[str]:
    """Write the covered cases of `shared` into `target`, remove what no case owns, return the names of the cases."""
    source = shared / "golden" / "ops"
    if not (source / "manifest.json").is_file():
        raise SystemExit(f"{source}: there is no manifest.json. Give the folder that holds golden/ops.")
    manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
    chosen = covered(manifest["cases"], ops())
    contents: dict[str, bytes] = {}
    for case in chosen:
        contents |= read_checked(source, case)
    listed = [{key: case[key] for key in KEPT if key in case} for case in chosen]
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.iterdir():
        if stale.suffix in (".onnx", ".npz") and stale.name not in contents:
            stale.unlink()
    for name, content in contents.items():
        (target / name).write_bytes(content)
    about = {"made_with": manifest["made_with"], "compare": manifest["compare"], "cases": listed}
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (target / "manifest.json").write_text(text + "\n", encoding="utf-8")
    return [str(case["case"]) for case in chosen]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    assert __doc__ is not None  # this module has one
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    configured = os.environ.get("LINGER_SHARED")
    default = Path(configured) if configured else REPOSITORY.parent / "shared"
    parser.add_argument("shared", type=Path, nargs="?", default=default, help="folder that holds golden/ops")
    names = make_golden(parser.parse_args(arguments).shared, TARGET)
    print(f"{len(names)} cases in {TARGET.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
