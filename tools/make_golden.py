# SPDX-License-Identifier: Apache-2.0
"""Copy the recorded vectors of every op linger knows, and of whole networks, into tests/golden, with a manifest each.

The vectors were recorded from an independent engine. A case of golden/ops is taken when every op of its graph is either
an op of the dialect or a standard op that only moves data; run this again after adding an op. The networks of golden/nets
were exported by linger and are taken one and all. Every sha256 in a source's manifest is checked before anything is
written; golden/nets has those of the models only, so those of the arrays are added to the copy.

    python tools/make_golden.py [SHARED]

SHARED is the folder that holds golden/ops and golden/nets; without it, $LINGER_SHARED, else ../shared beside the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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

KEPT_OF_NETS = ("case", "chip", "form", "ops", "distinct", "sha256")
"""What the manifest says about a network."""


class Collection(NamedTuple):
    """What one folder is to hold: the manifest, which lists the cases, and their files by name."""

    manifest: dict[str, Any]
    contents: dict[str, bytes]

    def names(self) -> list[str]:
        """The names of the cases."""
        return [str(case["case"]) for case in self.manifest["cases"]]


def covered(cases: Iterable[dict[str, Any]], known: Iterable[str]) -> list[dict[str, Any]]:
    """The cases of the platforms whose graphs hold known ops only, in the order of their names."""
    allowed = MOVES_DATA.union(known)
    ours = [c for c in cases if c.get("platform", PLATFORMS[0]) in PLATFORMS and c["case"] not in NEVER_COPIED]
    chosen = [c for c in ours if c.get("ops") and allowed.issuperset(c["ops"])]
    return sorted(chosen, key=lambda c: str(c["case"]))


def read_manifest(source: Path) -> dict[str, Any]:
    """What the source says about its cases.

    Raises:
        SystemExit: There is no manifest.
    """
    path = source / "manifest.json"
    if not path.is_file():
        raise SystemExit(f"{source}: there is no manifest.json. Give the folder that holds golden/{source.name}.")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def file_names(case: Mapping[str, Any]) -> tuple[str, str]:
    """The model and the arrays of a case."""
    return f"{case['case']}.onnx", f"{case['case']}.npz"


def sha256(content: bytes) -> str:
    """The digest as manifests write it."""
    return hashlib.sha256(content).hexdigest()


def read_checked(folder: Path, case: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a case by name.

    Raises:
        SystemExit: A file is missing, or not the one of which the manifest gives the digest.
    """
    contents = {}
    for name in sorted(file_names(case)):
        path = folder / name
        if not path.is_file():
            raise SystemExit(f"{path}: the manifest names this file, but it is not there.")
        contents[name] = path.read_bytes()
        found = sha256(contents[name])
        if found != digests.get(name, found):
            raise SystemExit(
                f"{path}: sha256 is {found}, the manifest says {digests[name]}. The file is damaged or was changed."
            )
    return contents


def read_ops(source: Path) -> Collection:
    """The cases whose ops linger knows.

    Raises:
        SystemExit: A file is missing, superfluous or not the one the manifest describes.
    """
    manifest = read_manifest(source)
    chosen = covered(manifest["cases"], ops())
    contents: dict[str, bytes] = {}
    for case in chosen:
        expected = sorted(file_names(case))
        if sorted(case["sha256"]) != expected:
            raise SystemExit(f"{case['case']}: the manifest lists {sorted(case['sha256'])}, expected {expected}.")
        contents |= read_checked(source, case, case["sha256"])
    listed = [{key: case[key] for key in KEPT if key in case} for case in chosen]
    about = {"made_with": manifest["made_with"], "compare": manifest["compare"], "cases": listed}
    return Collection(about, contents)


def read_nets(source: Path) -> Collection:
    """Every network, in the order of their names, with the digests of both its files.

    Raises:
        SystemExit: A file is missing, or a model is not the one the manifest describes.
    """
    manifest = read_manifest(source)
    contents: dict[str, bytes] = {}
    listed = []
    for case in sorted(manifest["cases"], key=lambda c: str(c["case"])):
        model, _ = file_names(case)
        own = read_checked(source, case, {model: case["sha256"]})
        contents |= own
        digests = {name: sha256(content) for name, content in own.items()}
        listed.append({key: (case | {"sha256": digests})[key] for key in KEPT_OF_NETS})
    return Collection({"note": manifest["note"], "cases": listed}, contents)


def write(collection: Collection, target: Path) -> None:
    """Write the files and the manifest, remove what no case owns."""
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.iterdir():
        if stale.suffix in (".onnx", ".npz") and stale.name not in collection.contents:
            stale.unlink()
    for name, content in collection.contents.items():
        (target / name).write_bytes(content)
    text = json.dumps(collection.manifest, indent=1, ensure_ascii=False)
    (target / "manifest.json").write_text(text + "\n", encoding="utf-8")


def make_golden(shared: Path, target: Path) -> tuple[list[str], list[str]]:
    """Write the covered cases of `shared` into `target` and the networks into `target/nets`; return the names of both."""
    cases, nets = read_ops(shared / "golden" / "ops"), read_nets(shared / "golden" / "nets")
    write(cases, target)
    write(nets, target / "nets")
    return cases.names(), nets.names()


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    assert __doc__ is not None  # this module has one
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    configured = os.environ.get("LINGER_SHARED")
    default = Path(configured) if configured else REPOSITORY.parent / "shared"
    parser.add_argument(
        "shared", type=Path, nargs="?", default=default, help="folder that holds golden/ops and golden/nets"
    )
    cases, nets = make_golden(parser.parse_args(arguments).shared, TARGET)
    print(f"{len(cases)} cases and {len(nets)} networks in {TARGET.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
