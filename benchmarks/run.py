# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks, one script for each claim, and their rivals; write results.json, results.md and results.svg.

Every script is a process of its own: where one fails, its row says so and the others go on. A rival has an environment of its own
in .venv-rivals, made on first use from its pinned requirements. Results of scripts that were not run this time are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from results_page import rows_of, write_results
from rows import Row, not_measured, read

from linger.version import __version__

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent
ENVIRONMENTS = REPOSITORY / ".venv-rivals"
LOWER = ("ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2")
"""Holds torch down to AVX2; ONNX Runtime asks the CPU itself and cannot be held down."""

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni")
PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Script:
    """A script of this folder: its name, whether torch does the work, and the rivals that are measured on its claims.

    A script that measures linger beside others in one process has their environment, which can run linger too.
    """

    name: str
    is_torch: bool = False
    rivals: tuple[str, ...] = ()
    has_environment: bool = False


SCRIPTS = (
    Script("qat_step", is_torch=True, rivals=("torchao", "aimet", "brevitas", "modelopt")),
    Script("qat_rnn", is_torch=True, rivals=("brevitas",)),
    Script("ddp", is_torch=True),
    Script("onnx_file", rivals=("onnxruntime_static",)),
    Script("runtimes", has_environment=True),
    Script("c_speed"),
    Script("export_time"),
    Script("repair"),
    Script("wb_analyse"),
    Script("cli_start"),
    Script("report_page"),
    Script("growth"),
    Script("search_threads"),
)
RIVALS = tuple(dict.fromkeys(rival for script in SCRIPTS for rival in script.rivals))


class Store:
    """Everything that was measured, one entry for each script and rival, kept in one JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def keep(self, name: str, **content: Any) -> None:
        """Replace what was known of an entry; rows become plain data."""
        self.entries[name] = {key: _plain(value) for key, value in content.items()}
        self.path.write_text(json.dumps(self.entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    return [dataclasses.asdict(row) for row in value] if isinstance(value, list) else value


def run_script(command: Sequence[str], claim: str) -> list[Row]:
    """The rows of a script, or one that says why there are none. Its output goes to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        done = subprocess.run(
            [*command, "--json", str(path)], cwd=FOLDER, check=False, stderr=subprocess.PIPE, text=True
        )
        sys.stderr.write(done.stderr)
        if done.returncode == 0 and path.exists():
            return read(path)
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return [not_measured(claim, last[0])]


def environment(rival: str) -> Path:
    """The Python of a rival's environment; made where it is missing or where its requirements have changed.

    Torch comes first, from wherever pip finds the project's own version; everything else without its dependencies, so that no
    rival brings another torch.
    """
    requirements = FOLDER / "rivals" / f"requirements-{rival}.txt"
    if not requirements.exists():
        return Path(sys.executable)
    folder = ENVIRONMENTS / rival
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = f"torch=={version('torch').partition('+')[0]}\n{requirements.read_text(encoding='utf-8')}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"making the environment of {rival}", flush=True)
        constraints = str(REPOSITORY / "requirements.txt")
        install = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        for command in (
            (sys.executable, "-m", "venv", "--clear", str(folder)),
            (*install, "--constraint", constraints, wanted.partition("\n")[0], "numpy"),
            (*install, "--no-deps", "--requirement", str(requirements)),
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def interpreter(script: Script, *, has_rivals: bool) -> list[str]:
    """What runs a script: this Python, or that of its own environment where it has one and that can be made."""
    if script.has_environment and has_rivals:
        try:
            return ["env", f"PYTHONPATH={REPOSITORY / 'src'}", str(environment(script.name))]
        except subprocess.CalledProcessError as error:
            print(f"{script.name} runs without its environment: {_pip_reason(error)}", flush=True)
    return [sys.executable]


def run_rival(rival: str, options: Sequence[str]) -> list[Row]:
    """The rows of a rival; one that cannot be installed or fails is a row too."""
    claim = f"{rival}, all claims"
    try:
        python = environment(rival)
    except subprocess.CalledProcessError as error:
        return [not_measured(claim, f"cannot be installed: {_pip_reason(error)}")]
    return run_script([str(python), "-m", f"rivals.{rival}", *options], claim)


def _pip_reason(error: subprocess.CalledProcessError) -> str:
    reasons = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
    return str(reasons[0])


def machine() -> dict[str, str]:
    """What a figure depends on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    commit = _output("git", "rev-parse", "--short", "HEAD")
    changed = " with changes" if _output("git", "status", "--porcelain", "src") else ""
    return {
        "CPU": facts.get("model name", platform.processor()),
        "features": ", ".join(f"{'' if name in flags else 'no '}{name}" for name in FEATURES),
        "cores": str(int(facts.get("processor", "0")) + 1),
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.machine()}",
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in PACKAGES)]),
        "linger": f"{__version__}, commit {commit}{changed}",
    }


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


def measure(name: str, options: argparse.Namespace, store: Store) -> bool:
    """Run a script or a rival, once more with torch held down where that was asked for, and keep its rows.

    Returns:
        Whether a script of ours failed; a rival that cannot be installed is no failure.
    """
    given = ["--quick"] if options.quick else []
    begin = time.monotonic()
    here = {"machine": machine(), "date": dt.date.today().isoformat()}
    if name in RIVALS:
        print(f"\n== rival {name}", flush=True)
        rows = run_rival(name, given)
        store.keep(name, rows=rows, command=" ".join([f"python benchmarks/run.py --only {name}", *given]), **here)
        return False
    script = next(script for script in SCRIPTS if script.name == name)
    command = [*interpreter(script, has_rivals=not options.no_rivals), f"{name}.py", *given]
    print(f"\n== {name}", flush=True)
    rows = run_script(command, name)
    lower = []
    if script.is_torch and options.lower:
        print(f"\n== {name}, torch held down to AVX2", flush=True)
        lower = run_script(["env", *LOWER, *command], name)
    store.keep(name, rows=rows, lower=lower, command=" ".join([f"python benchmarks/{name}.py", *given]), **here)
    print(f"{name}: {time.monotonic() - begin:.0f} s")
    return any(row.claim == name and row.figure is None for row in (*rows, *lower))


def names_to_run(only: Sequence[str], *, has_rivals: bool) -> list[str]:
    """Scripts, and behind them the rivals of these, or just what was asked for."""
    if only:
        return list(only)
    return [*(script.name for script in SCRIPTS), *(RIVALS if has_rivals else ())]


def main() -> int:
    known: Mapping[str, None] = dict.fromkeys((*(script.name for script in SCRIPTS), *RIVALS))
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="+", choices=list(known), default=[], metavar="NAME", help=", ".join(known))
    arguments.add_argument("--quick", action="store_true", help="a quarter of the rounds")
    arguments.add_argument("--lower", action="store_true", help="torch's claims again, held down to AVX2")
    arguments.add_argument("--no-rivals", action="store_true", help="linger alone")
    arguments.add_argument("--page-only", action="store_true", help="measure nothing, write the page from what is kept")
    arguments.add_argument("--folder", type=Path, default=FOLDER, help="where results.json and the page are")
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    store = Store(options.folder / "results.json")
    names = [] if options.page_only else names_to_run(options.only, has_rivals=not options.no_rivals)
    failed = sum(measure(name, options, store) for name in names)
    write_results(options.folder, store.entries, {script.name: script.rivals for script in SCRIPTS})
    entries = [store.entries[name] for name in names]
    kept = [row.is_within for entry in entries for row in rows_of(entry) if row.bar is not None]
    print(f"{sum(map(bool, kept))} of {len(kept)} bars kept; {failed} scripts failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
