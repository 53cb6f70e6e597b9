# SPDX-License-Identifier: Apache-2.0
"""Does anybody speak: silero-vad as C that computes chunk by chunk, every tensor proven on an emulated Cortex-M4.

The network has four convolutions and an LSTM cell whose state goes from one chunk of 32 ms to the next. It is quantised,
exported as ONNX and written as C with `reset` and `step`; the program keeps the state. A real conversation then runs through
the emulated core. Prints decisions, RAM, flash, instructions for one chunk, and how many of all numbers differ from the file.
Needs silero-vad and the sounds of the tests, and the compiler and emulator of the core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from real_models.packages import conversation
from real_models.proof import quantise
from real_models.voice import SPEECH, STATE, groups, load, spectra, stream, widen

import linger
from linger.errors import LingerError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cortex-m4", help="cortex-m7, cortex-m55, rv32imac, host, …")
    parser.add_argument("--seconds", type=float, default=30.0, help="how much of the conversation")
    parser.add_argument("--folder", type=Path, default=Path("voice-output"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    model, filters = load()
    spectrum = spectra(conversation()[: int(options.seconds * 16000)], filters)
    expected, steps = stream(model, spectrum)
    calibration = [tuple(torch.cat(part) for part in zip(*group, strict=True)) for group in groups(steps[:310], 62)]
    quantised = quantise(model, calibration, prepare=widen)

    path = options.folder / "voice.onnx"
    names = {"input_names": ["spectrum", "h", "c"], "output_names": ["speech", "next_h", "next_c"]}
    linger.onnx.export(quantised, steps[0], path, dynamic_axes=None, **names)
    states = {"next_h": "h", "next_c": "c"}
    folder = linger.c.export(path, options.folder / "c", stream=0, pairs=states, overwrite=True)
    chunks = [{"spectrum": chunk[None].numpy()} for chunk in spectrum]
    try:
        with linger.c.build(folder, target=options.target) as program:
            found = np.array([made["speech"].item() for made in program.run_many(chunks)])
            silent = {name: np.zeros((1, STATE), np.float32) for name in states.values()}  # the program has its own
            proof = linger.c.prove(program, path, [chunk | silent for chunk in chunks[:100]])
            print(report(expected.numpy(), found, options.target))
            size = program.size()
            print(f"flash: {size.flash:,} bytes; RAM: {size.ram:,} bytes, and the state of each stream")
            if options.target != "host":
                print(f"{program.instructions(chunks[0]):,} instructions for one chunk of 32 ms")
    except LingerError as error:
        print(error)
        return 2
    print(proof.summary())
    return 0 if proof.ok else 1


def report(expected: np.ndarray, found: np.ndarray, target: str) -> str:
    """Decisions of the program beside those of the float network."""
    same = ((expected >= SPEECH) == (found >= SPEECH)).mean()
    heard = int((found >= SPEECH).sum())
    return f"on {target}: speech in {heard} of {len(found)} chunks; {100 * same:.1f} % of the decisions are the float network's"


if __name__ == "__main__":
    raise SystemExit(main())
