# SPDX-License-Identifier: Apache-2.0
"""Does anybody speak: silero-vad as C that computes chunk by chunk, every tensor proven on an emulated Cortex-M4.

    python examples/18_voice_activity.py

The network has four convolutions and an LSTM cell whose state goes from one chunk of 32 ms to the next. It is quantized,
exported as ONNX and written as C with `reset` and `step`; the program keeps the state. A real conversation then runs through
the emulated core. Writes voice-output/voice.onnx, the C beside it and timeline.png (the sound, the probabilities in float and
on the core, the speech that both hear); prints how many of all numbers differ from the file, and a table: decisions, RAM, flash,
instructions for one chunk. Needs the packages silero-vad and pyannote.audio (requirements-models.txt; only files in them are
read), the extra `report`, and the compiler and emulator of the core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from real_models.packages import SOUND_RATE, conversation, need
from real_models.proof import quantize
from real_models.voice import CHUNK, SPEECH, STATE, groups, load, spectra, stream, widen
from rich.console import Console

import linger
from linger.errors import LingerError
from linger.records.rich_table import table

COLORS = {"sound": "0.45", "float": "tab:blue", "integers": "tab:orange"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cortex-m4", help="cortex-m7, cortex-m55, rv32imac, host, …")
    parser.add_argument("--seconds", type=float, default=30.0, help="how much of the conversation")
    parser.add_argument("--folder", type=Path, default=Path("voice-output"))
    options = parser.parse_args()
    need("silero_vad", "pyannote.audio", "matplotlib")
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    model, filters = load()
    sound = conversation()[: int(options.seconds * SOUND_RATE)]
    spectrum = spectra(sound, filters)
    expected, steps = stream(model, spectrum)
    calibration = [tuple(torch.cat(part) for part in zip(*group, strict=True)) for group in groups(steps[:310], 62)]
    quantized = quantize(model, calibration, prepare=widen)

    path = options.folder / "voice.onnx"
    names = {"input_names": ["spectrum", "h", "c"], "output_names": ["speech", "next_h", "next_c"]}
    linger.onnx.export(quantized, steps[0], path, dynamic_axes=None, **names)
    states = {"next_h": "h", "next_c": "c"}
    folder = linger.c.export(path, options.folder / "c", stream=0, pairs=states, overwrite=True)
    chunks = [{"spectrum": chunk[None].numpy()} for chunk in spectrum]
    try:
        with linger.c.build(folder, target=options.target) as program:
            found = np.array([made["speech"].item() for made in program.run_many(chunks)])
            silent = {name: np.zeros((1, STATE), np.float32) for name in states.values()}  # the program has its own
            proof = linger.c.prove(program, path, [chunk | silent for chunk in chunks[:100]])
            rows = report(expected.numpy(), found) + costs(program, chunks[0], options.target)
    except LingerError as error:
        print(error)
        return 2
    draw(sound.numpy(), expected.numpy(), found, options.folder / "timeline.png")
    print(proof.summary())
    print(f"timeline: {options.folder / 'timeline.png'}")
    Console().print(table(f"a conversation on {options.target}", ("what", "figure"), rows))
    return 0 if proof.ok else 1


def report(expected: np.ndarray, found: np.ndarray) -> list[list[str]]:
    """Decisions of the program beside those of the float network."""
    same = ((expected >= SPEECH) == (found >= SPEECH)).mean()
    return [
        ["chunks of 32 ms", f"{len(found)}"],
        ["with speech, float", f"{int((expected >= SPEECH).sum())}"],
        ["with speech, integers", f"{int((found >= SPEECH).sum())}"],
        ["the same decision", f"{100 * same:.1f} %"],
        ["probability differs by, mean", f"{np.abs(expected - found).mean():.4f}"],
    ]


def costs(program: linger.c.Program, feed: dict[str, np.ndarray], target: str) -> list[list[str]]:
    """What the program needs on the core."""
    size = program.size()
    rows = [["flash", f"{size.flash:,} bytes"], ["RAM, without the state of a stream", f"{size.ram:,} bytes"]]
    if target != "host":
        rows.append(["instructions for one chunk", f"{program.instructions(feed):,}"])
    return rows


def draw(sound: np.ndarray, expected: np.ndarray, found: np.ndarray, path: Path) -> None:
    """The conversation from left to right: waveform, probability of speech, and when somebody speaks."""
    from matplotlib.figure import Figure

    seconds = np.arange(len(found)) * CHUNK / SOUND_RATE
    figure = Figure(figsize=(11, 5), layout="constrained")
    wave, probability, speech = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1))
    wave.plot(np.arange(len(sound)) / SOUND_RATE, sound, color=COLORS["sound"], linewidth=0.3)
    wave.set_ylabel("sound")
    decisions = {"float": expected, "integers": found}
    for name, values in decisions.items():
        probability.step(seconds, values, where="post", label=name, color=COLORS[name], linewidth=1)
    probability.axhline(SPEECH, color="0.7", linewidth=0.8, linestyle="--")
    probability.set_ylabel("probability of speech")
    probability.legend(loc="center left", ncols=2, framealpha=1)
    for row, (name, values) in enumerate(decisions.items()):
        spans = [(start, CHUNK / SOUND_RATE) for start in seconds[values >= SPEECH]]
        speech.broken_barh(spans, (-row - 0.4, 0.8), facecolors=COLORS[name])
    speech.set_yticks([0, -1], list(decisions))
    speech.set_xlabel("seconds")
    speech.set_xlim(0, len(sound) / SOUND_RATE)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
