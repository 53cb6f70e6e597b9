"""The coverage-guided run. What breaks is written down once per place, and the run goes on."""

import hashlib
import json
import logging
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["linger.graph", "linger.verification", "linger.dialect"]):
    from tests.fuzz.mutations import mutated
    from tests.fuzz.run import FOLDER, TALLY
    from tests.fuzz.seeds import seeds
    from tests.fuzz.target import exercise

reached: Counter[str] = Counter()
broken: dict[str, Path] = {}
start = time.monotonic()


def one_input(data: bytes) -> int:
    """Exercise one input; what breaks is kept, with its traceback. Refused ones are no start for others (-1)."""
    result = 0
    (FOLDER / "last.bin").write_bytes(data)  # what a crash of the interpreter leaves behind
    try:
        stage = exercise(data)
        reached[stage] += 1
        result = -1 if stage in ("unreadable", "flawed") else 0
    except Exception as error:  # noqa: BLE001 - this is what the run looks for
        where = _signature(error)
        if where not in broken:
            name = hashlib.sha1(where.encode(), usedforsecurity=False).hexdigest()[:10]
            broken[where] = FOLDER / "broken" / f"{name}.bin"
            broken[where].write_bytes(data)
            broken[where].with_suffix(".log").write_text("".join(traceback.format_exception(error)))
            sys.stderr.write(f"BROKEN {where} {broken[where]}\n")
        reached["broken"] += 1
    shown = {place: str(file) for place, file in broken.items()}
    TALLY.write_text(json.dumps({"reached": reached, "broken": shown}))  # the run ends without a last word
    if sum(reached.values()) % 2000 == 0:
        sys.stderr.write(f"{time.monotonic() - start:.0f} s {dict(reached)}\n")
    return result


def _signature(error: Exception) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "linger" in f.filename or "fuzz" in f.filename]
    return f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].name}:{frames[-1].line}"


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mostly changes that leave a model; now and then of single bytes."""
    random = Random(seed)
    if random.random() < 0.05:
        changed: bytes = atheris.Mutate(data, max_size)
        return changed
    return mutated(data, random)[:max_size]


def main() -> None:
    """Start from the seeds; libFuzzer's options come from the command line."""
    logging.disable(logging.CRITICAL)  # onnx_ir warns of every broken model
    (FOLDER / "broken").mkdir(parents=True, exist_ok=True)
    (FOLDER / "found").mkdir(exist_ok=True)
    (FOLDER / "seeds").mkdir(exist_ok=True)
    for name, content in seeds().items():
        (FOLDER / "seeds" / name).write_bytes(content)
    options = ["-max_len=65536", "-timeout=30", "-rss_limit_mb=4096", f"-artifact_prefix={FOLDER}/", *sys.argv[1:]]
    arguments = [sys.argv[0], str(FOLDER / "found"), str(FOLDER / "seeds"), *options]
    atheris.Setup(arguments, one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
