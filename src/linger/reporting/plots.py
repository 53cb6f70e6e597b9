# SPDX-License-Identifier: Apache-2.0
"""Images: tensors on their grids, losses of layers, differences of tensors. Needs the extra `report`."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, install_line, listing, refuse_if
from linger.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from linger.analysis.advice import Item
    from linger.checks.memory_use import MemoryUse

SUFFIXES = (".png", ".svg")
_CEILING_DB = 100.0
"""Bars of layers without any noise end here."""

_BLUE, _RED, _GREY = "#33658a", "#c1292e", "#8d99ae"
_MOST_GRID_LINES = 64
_MOST_LABELS = 100
_LONGEST_LABEL = 40
_WIDEST = 24.0
_KB = 1024
_LINEAR_TO = 16.0
"""The axis is linear up to so many LSB, so that 1 and 2 can be told apart."""


def draw_tensor(item: Item, values: tuple[NDArray[Any], NDArray[Any]], path: Path) -> None:
    """Draw the histogram (edges, counts) of a tensor with the 8-bit grid of linger's rule, where it clips, and the limit advised."""
    figure = _figure(path, 8, 4)
    axes = figure.add_subplot()
    edges, counts = values
    axes.bar(edges[:-1], np.maximum(counts, 0), np.diff(edges), align="edge", color=_BLUE, linewidth=0)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlabel("value")
    axes.set_ylabel("count")
    _draw_grid(axes, item)
    if item.limit is not None:
        for edge in (-item.limit, item.limit):
            axes.axvline(edge, color="black", linestyle="--", linewidth=1, label="limit advised" if edge > 0 else None)
    axes.set_title(f"{item.name}  ({item.role})", loc="left", fontsize=10)
    axes.text(0.0, -0.25, item.advice, transform=axes.transAxes, fontsize=8, va="top", wrap=True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right", fontsize=8, frameon=False)
    _save(figure, path)


def _draw_grid(axes: Axes, item: Item) -> None:
    if not item.rule_format:
        return
    fraction = int(item.rule_format.rpartition(".")[2])
    step, top = math.ldexp(1.0, -fraction), math.ldexp(127.0, -fraction)
    for edge in (-128 * step, top):
        axes.axvline(edge, color=_RED, linewidth=1.2, label=f"clips ({item.rule_format})" if edge > 0 else None)
    shown = math.ceil(256 / _MOST_GRID_LINES)  # 256 lines would be a grey field
    for i in range(-128, 128, shown):
        axes.axvline(i * step, color=_GREY, linewidth=0.3, alpha=0.6, zorder=0)
    axes.plot([], [], color=_GREY, linewidth=0.8, label=f"every {shown}th step of {step:g}")


def draw_layers(names: Sequence[str], decibels: Sequence[float], path: Path, *, title: str) -> None:
    """Draw the signal to noise of each layer as a bar, in the order given, the worst fifth in red."""
    refuse_if(not names, f"{path}: there is no layer to draw.")
    figure = _figure(path, 9, max(2.5, 0.22 * len(names) + 1))
    axes = figure.add_subplot()
    heights = [min(max(d, -_CEILING_DB), _CEILING_DB) for d in decibels]
    threshold = sorted(heights)[max(len(heights) // 5 - 1, 0)]
    axes.barh(range(len(names)), heights, color=[_RED if h <= threshold else _BLUE for h in heights])
    axes.set_yticks(range(len(names)), list(names), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("signal to noise, dB")
    axes.set_title(title, loc="left", fontsize=10)
    _save(figure, path)


def draw_differences(
    names: Sequence[str], largest: Sequence[float], path: Path, *, title: str, are_real: Sequence[bool]
) -> None:
    """Draw the largest difference of each tensor in LSB as a bar, in the order given, the first that differs marked.

    It is infinite where shapes differ. Where no scale is known (`are_real`) it is a real number, and the bar is grey.
    """
    refuse_if(not names, f"{path}: there is no tensor to draw.")
    figure = _figure(path, min(max(6.0, 0.16 * len(names) + 2), _WIDEST), 4.5)
    axes = figure.add_subplot()
    colors = [_GREY if real else _BLUE for real in are_real]
    _draw_bars(axes, names, np.asarray(largest, dtype=float), colors)
    axes.set_ylabel("largest difference, LSB (grey: real numbers)" if any(are_real) else "largest difference, LSB")
    step = -(-len(names) // _MOST_LABELS)
    axes.set_xticks(range(0, len(names), step), [names[i] for i in range(0, len(names), step)], rotation=90, fontsize=6)
    axes.set_title(title, loc="left", fontsize=10)
    _save(figure, path)


def _draw_bars(axes: Axes, names: Sequence[str], largest: NDArray[np.float64], colors: Sequence[str]) -> None:
    """Bars, the infinite ones twice as high as the highest other; a line at the first that is not zero."""
    top = float(largest[np.isfinite(largest)].max(initial=0.0)) or 1.0
    axes.bar(range(len(names)), np.where(np.isfinite(largest), largest, 2 * top), color=colors)
    differing = np.flatnonzero(largest)
    if differing.size:
        axes.axvline(differing[0], color=_RED, linewidth=1, linestyle="--", label=f"first: {names[differing[0]]}")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    if top > _LINEAR_TO:
        axes.set_yscale("symlog", linthresh=_LINEAR_TO)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)


def memory_image(use: MemoryUse, suffix: str) -> bytes:
    """The bytes that are alive while each layer runs, red where they reach the chip's limit, which is a line."""
    from matplotlib.figure import Figure

    layers, limit = use.layers, math.inf if use.tensor_bytes is None else use.tensor_bytes
    figure = Figure(figsize=(min(max(6.0, 0.16 * len(layers) + 2), _WIDEST), 4.5), layout="constrained")
    axes = figure.add_subplot()
    colors = [_RED if layer.live_bytes >= limit else _BLUE for layer in layers]
    axes.bar(range(len(layers)), [layer.live_kb for layer in layers], color=colors)
    shown = range(0, len(layers), -(-len(layers) // _MOST_LABELS) or 1)
    axes.set_xticks(shown, [_label(layers[i].node) for i in shown], rotation=90, fontsize=6, parse_math=False)
    if use.tensor_bytes is not None:
        label = f"{use.target}: {limit / _KB:g} KB"
        axes.axhline(limit / _KB, color="black", linestyle="--", linewidth=1, label=label)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    axes.set_ylabel("tensors alive, KB")
    axes.set_title(_label("" if use.path is None else use.path.name), loc="left", fontsize=10, parse_math=False)
    return _content(figure, suffix)


def _label(name: str) -> str:
    """A name that fits under a bar, in letters that every font has."""
    plain = name.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= _LONGEST_LABEL else f"{plain[:_LONGEST_LABEL]}..."


def require_image(path: Path) -> None:
    """Refuse an image that could not be drawn (its ending, a missing matplotlib) before the work that leads to it."""
    refuse_if(
        path.suffix not in SUFFIXES, f"{path}: images are written as {listing(SUFFIXES)}. Choose one of these endings."
    )
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(f"images need matplotlib. Install it with: {install_line('report')}") from error


def _figure(path: Path, width: float, height: float) -> Figure:
    require_image(path)
    from matplotlib.figure import Figure  # pyplot would keep every figure in a list of its own

    return Figure(figsize=(width, height), layout="constrained")


def _content(figure: Figure, suffix: str) -> bytes:
    content = io.BytesIO()
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "linger"}):  # with it, and without a date, the same data gives the same file
        figure.savefig(content, format=suffix, dpi=120, metadata={"Date": None} if suffix == "svg" else None)
    return content.getvalue()


def _save(figure: Figure, path: Path) -> None:
    write_atomically(path, _content(figure, path.suffix[1:]))


def file_name(name: str, suffix: str) -> str:
    """A name that any file system takes, from that of a tensor.

    >>> file_name("layer1.0/conv:weight", ".png")
    'layer1.0_conv_weight.png'
    """
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name) + suffix
