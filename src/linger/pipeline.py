# SPDX-License-Identifier: Apache-2.0
"""Public functions that need both the torch side and the deployment side, which do not import each other."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from torch import nn

from linger.analysis.checkpoint import Source
from linger.analysis.magnitudes import histogram
from linger.analysis.weights import in_threads
from linger.constraint.advising import judge, tensors_of
from linger.errors import UsageError, listing
from linger.files import made_folder
from linger.onnx.exporter.export import redirect
from linger.progress import progress
from linger.quantization.setup import initialize
from linger.reporting import plots

if TYPE_CHECKING:
    from linger.quantization.diagnosis.layer_comparison import LayerComparison
    from linger.quantization.diagnosis.sensitivity import Sensitivity


_Arguments = ParamSpec("_Arguments")


def _with_redirect(quantize: Callable[_Arguments, nn.Module]) -> Callable[_Arguments, nn.Module]:
    @wraps(quantize, assigned=("__name__", "__qualname__", "__doc__"))  # it lives here
    def init(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> nn.Module:
        made = quantize(*args, **kwargs)
        redirect()
        nothing = initialize.why_nothing(made)
        if nothing is not None:
            warnings.warn(nothing, stacklevel=2)
        return made

    return init


init = _with_redirect(initialize.init)
"""`linger.init`: exports are redirected too, and a model in which nothing was replaced gets a warning."""


def plot_tensors(
    source: Source, folder: str | os.PathLike[str], inputs: Any = None, *, count: int = 10, suffix: str = ".png"
) -> list[Path]:
    """Draw the most worrying tensors: a histogram each, with the 8-bit grid, the clip points and the limit advised.

    Args:
        source: As for `linger.advise`.
        folder: Where the images go; made if it is missing.
        inputs: As for `linger.advise`: layer outputs are drawn too.
        count: How many.
        suffix: `.png` or `.svg`.

    Returns:
        The files, the most worrying first.

    Raises:
        UsageError: The source cannot be read, matplotlib (extra `report`) is missing, the suffix is none of the two.
    """
    if suffix not in plots.SUFFIXES:
        raise UsageError(f"plot_tensors: images are written as {listing(plots.SUFFIXES)}, not {suffix!r}.")
    tensors = tensors_of(source, inputs, where="plot_tensors")
    judged = in_threads(judge, tensors, "advise")
    worst = sorted(zip(judged, tensors, strict=True), key=lambda pair: pair[0].concern)[:count]
    place = made_folder("plot_tensors", folder)
    files = []
    for number, (item, tensor) in enumerate(progress(worst, "draw")):
        files.append(place / plots.file_name(f"{number:02d}_{item.role}_{item.name}", suffix))
        plots.draw_tensor(item, histogram(tensor.open(), 0.0 if math.isnan(item.max) else item.max), files[-1])
    return files


def plot_layers(result: Sensitivity | LayerComparison, path: str | os.PathLike[str]) -> Path:
    """Draw the signal to noise of every layer of a sensitivity ranking or of a comparison of layers.

    Raises:
        UsageError: The result has no rows, matplotlib (extra `report`) is missing, the file is neither .png nor .svg.
    """
    calls = [(str(row.name), getattr(row, "call", 0)) for row in result.rows]
    names = [f"{name} ({call})" if call else name for name, call in calls]
    plots.draw_layers(names, [row.sqnr_db for row in result.rows], Path(path), title=result.summary())
    return Path(path)
