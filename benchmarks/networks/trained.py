# SPDX-License-Identifier: Apache-2.0
"""Networks that are trained here keep their weights in a file, so that the next run finds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


def trained_once(path: Path, empty: nn.Module, train: Callable[[], nn.Module]) -> nn.Module:
    """The model with the weights of the file, or trained and written to it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        torch.save(train().state_dict(), unfinished)
        unfinished.rename(path)
    empty.load_state_dict(torch.load(path, weights_only=True))
    return empty.eval()
