"""`make fuzz`: start the coverage-guided run, and say at its end what it found. The exit code is 1 where something broke."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("build/fuzz")
TALLY = FOLDER / "tally.json"
GUIDED = (sys.executable, "-m", "tests.fuzz.guided")


def main(options: Sequence[str], command: Sequence[str] = GUIDED) -> int:
    """Run the fuzzer to its end, which leaves the interpreter without a word; what it counted is in a file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    TALLY.unlink(missing_ok=True)
    done = subprocess.run([*command, *options], check=False)
    if not TALLY.exists():
        sys.stderr.write("no input was tried\n")
        return done.returncode or 1
    tally = json.loads(TALLY.read_text())
    for where, file in tally["broken"].items():
        sys.stderr.write(f"BROKEN {where} {file}\n")
    reached = tally["reached"]
    sys.stderr.write(f"{sum(reached.values())} inputs: {reached}; {len(tally['broken'])} broken places\n")
    return done.returncode or int(bool(tally["broken"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
