# SPDX-License-Identifier: Apache-2.0
"""The image of an arena over time: a rectangle for each block, with weights and multiplications below. Needs matplotlib."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from linger.c.steps import PlacedBlock, StepMemory
from linger.errors import UsageError, install_line, printable
from linger.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

SUFFIXES = (".png", ".svg")
FILLS = {"input": "#f6d8a8", "tensor": "#bcd3e8", "output": "#bfe0c2", "scratch": "#ead7ea"}
"""The color of each kind of block, light enough for letters."""

_EDGES = {"input": "#c98a1b", "tensor": "#33658a", "output": "#3d8b46", "scratch": "#8e5a8e"}
_INK, _RED, _BAR, _PEAK = "#1d2b38", "#c1292e", "#8d99ae", "#f3ece4"

_KB = 1024
_DPI = 120
_WIDEST = 30.0
_MOST_LABELS = 100
_LONGEST_LABEL = 32
_LONGEST_NAME = 60
_LETTERS = (8.0, 7.0, 6.0, 5.0)
"""Sizes of letters that are tried for the name of a block, in points."""

_SHORTEST = 6
"""A name is shortened to so many letters at least; below that it is left out."""

_HINTING = 1.04
"""Letters that are fitted to pixels are so much wider than their outlines."""

_MARGIN = 2.0
"""Pixels between a name and the edge of its block."""


class _Planned(Protocol):
    """What is drawn of an `ArenaUse`."""

    @property
    def steps(self) -> tuple[StepMemory, ...]: ...
    @property
    def blocks(self) -> tuple[PlacedBlock, ...]: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def least_bytes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def peak_step(self) -> int: ...
    @property
    def path(self) -> Path | None: ...


def draw_arena(use: _Planned, path: Path) -> None:
    """Write the image.

    Raises:
        UsageError: The file is neither .png nor .svg, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: images are written as .png, .svg. Choose one of these endings.")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(f"images need matplotlib. Install it with: {install_line('report')}") from error
    write_atomically(path, arena_image(use, path.suffix[1:]))


def arena_image(use: _Planned, suffix: str) -> bytes:
    """The image as a file of this kind, "png" or "svg"; the same plan gives the same bytes."""
    from matplotlib import rc_context

    figure, content = arena_figure(use), io.BytesIO()
    with rc_context({"svg.hashsalt": "linger"}):  # with it, and without a date, the same plan gives the same file
        figure.savefig(content, format=suffix, dpi=_DPI, metadata={"Date": None} if suffix == "svg" else None)
    return content.getvalue()


def arena_figure(use: _Planned) -> Figure:
    """The image as a figure of matplotlib: the blocks, below them the weights and the multiplications of each step."""
    from matplotlib.figure import Figure

    width = min(max(7.5, 0.32 * len(use.steps) + 2.5), _WIDEST)
    figure = Figure(figsize=(width, 7.0), dpi=_DPI, layout="constrained")
    arena, weights, macs = figure.subplots(3, 1, sharex=True, height_ratios=[7, 1, 1])
    for axes in (arena, weights, macs):
        axes.axvspan(use.peak_step - 0.5, use.peak_step + 0.5, color=_PEAK, linewidth=0, zorder=0)
    _draw_blocks(arena, use)
    _draw_lines(arena, use)
    _draw_bars(weights, [step.weight_bytes / _KB for step in use.steps], "weights\nKB")
    most = max(step.macs for step in use.steps)
    unit, word = (10**6, "millions") if most >= 10**7 else (1000, "thousands")
    _draw_bars(macs, [step.macs / unit for step in use.steps], f"MACs\n{word}")
    shown = range(0, len(use.steps), -(-len(use.steps) // _MOST_LABELS))
    macs.set_xticks(shown, [_step_label(use, i) for i in shown], rotation=90, fontsize=6.5, parse_math=False)
    macs.set_xlim(-0.5, len(use.steps) - 0.5)
    arena.set_title(_title(use), loc="left", fontsize=10, pad=24, color=_INK, parse_math=False)
    figure.align_ylabels()
    _write_names(figure, arena, use)
    return figure


def _title(use: _Planned) -> str:
    name = "" if use.path is None else f"{_short(use.path.name, 60)}   "
    return f"{name}{len(use.steps) - 2} steps, arena {_size(use.arena_bytes)}, weights {_size(use.weight_bytes)}"


def _size(size: int) -> str:
    return f"{size / _KB:,.1f} KB" if size >= _KB else f"{size} B"


def _draw_blocks(axes: Axes, use: _Planned) -> None:
    """A rectangle for each block: steps from left to right, addresses from the bottom to the top."""
    from matplotlib.patches import Patch, Rectangle

    unit = _unit(use)
    for block in use.blocks:
        axes.add_patch(
            Rectangle(
                (block.first - 0.5, block.offset / unit),
                block.last - block.first + 1,
                block.bytes / unit,
                facecolor=FILLS[block.kind],
                edgecolor=_EDGES[block.kind],
                linewidth=0.8,
            )
        )
    kinds = [kind for kind in FILLS if any(block.kind == kind for block in use.blocks)]
    patches = [Patch(facecolor=FILLS[kind], edgecolor=_EDGES[kind], label=kind) for kind in kinds]
    patches.append(Patch(facecolor=_PEAK, label=f"fullest: step {use.peak_step}"))
    axes.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(patches),
        fontsize=8,
        frameon=False,
        borderpad=0,
        borderaxespad=0.6,
        handlelength=1.4,
    )
    axes.set_ylabel("address, KB" if unit == _KB else "address, bytes", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(0, use.arena_bytes / unit * 1.1)
    axes.grid(axis="x", color="#e6e9ec", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0)


def _unit(use: _Planned) -> int:
    return _KB if use.arena_bytes >= 4 * _KB else 1


def _draw_lines(axes: Axes, use: _Planned) -> None:
    """The size of the arena, and the least that it can be where that is less."""
    unit, last = _unit(use), len(use.steps) - 0.5
    is_least = use.arena_bytes == use.least_bytes
    text = f"arena {_size(use.arena_bytes)}" + (" = the least possible" if is_least else "")
    axes.axhline(use.arena_bytes / unit, color=_INK, linewidth=1.2)
    axes.annotate(
        text, (last, use.arena_bytes / unit), (-2, 3), textcoords="offset points", ha="right", fontsize=8, color=_INK
    )
    if not is_least:
        least = use.least_bytes / unit
        axes.axhline(least, color=_RED, linewidth=1, linestyle="--")
        axes.annotate(
            f"least possible {_size(use.least_bytes)}",
            (-0.5, use.arena_bytes / unit),
            (2, 3),
            textcoords="offset points",
            fontsize=8,
            color=_RED,
        )


def _draw_bars(axes: Axes, heights: Sequence[float], title: str) -> None:
    axes.bar(range(len(heights)), heights, width=0.8, color=_BAR)
    axes.set_ylabel(title, fontsize=7)
    axes.set_ylim(0, max(heights, default=0) * 1.15 or 1)
    axes.tick_params(axis="y", labelsize=6.5)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.locator_params(axis="y", nbins=3)
    axes.spines[["top", "right"]].set_visible(False)


def _step_label(use: _Planned, number: int) -> str:
    """The step's first node, with how many follow, and its number, which ends beside the axis."""
    step = use.steps[number]
    more = f" +{len(step.nodes) - 1}" if len(step.nodes) > 1 else ""
    edge = "" if step.function else "output: " if number else "input: "
    first = step.nodes[0].rpartition(" (")[0] or step.nodes[0] if step.nodes else ""
    return f"{edge}{_short(first, _LONGEST_LABEL)}{more}  {number}"


def _short(name: str, most: int) -> str:
    """A name in letters that every font has, of so many at most."""
    plain = printable(name).encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= most else f"{plain[: most - 2]}.."


@dataclass(frozen=True)
class _Label:
    """A text, the size of its letters, and the box that it fills; standing text is read from the bottom to the top."""

    text: str
    letters: float
    is_standing: bool
    box: Bbox


def _write_names(figure: Figure, axes: Axes, use: _Planned) -> None:
    """The name of each block where it fits: inside, lying or standing, or above a block that is too low for it."""
    from matplotlib.transforms import Bbox

    unit = _unit(use)
    figure.draw_without_rendering()  # places the axes; from here on everything is measured in pixels
    figure.set_layout_engine("none")  # and stays where it is
    boxes = []
    for block in use.blocks:
        ends = [(block.first - 0.5, block.offset / unit), (block.last + 0.5, (block.offset + block.bytes) / unit)]
        boxes.append((block, Bbox(axes.transData.transform(ends))))
    (left, bottom), (right, top) = axes.transData.transform([(-0.5, 0), (len(use.steps) - 0.5, use.arena_bytes / unit)])
    namer = _Namer(figure.dpi / 72, Bbox([(left, bottom), (right, top)]), [box for _, box in boxes])
    for block, box in sorted(boxes, key=lambda pair: -pair[1].width * pair[1].height):
        label = namer.label(_name(block), box)
        if label is not None:
            x, y = axes.transData.inverted().transform(_middle(label.box))
            axes.text(
                x,
                y,
                label.text,
                fontsize=label.letters,
                rotation=90 if label.is_standing else 0,
                ha="center",
                va="center",
                color=_INK,
                parse_math=False,
                in_layout=False,
            )


def _name(block: PlacedBlock) -> str:
    """The tensor of a block, with how many more lie in it; scratch by its name in C."""
    if block.kind == "scratch":
        return _short(block.name.rpartition("/")[2], _LONGEST_NAME)
    more = f" +{len(block.tensors) - 1}" if len(block.tensors) > 1 else ""
    return _short(block.name, _LONGEST_NAME) + more


class _Namer:
    """Finds room for names: large blocks come first, and no name covers another one or a block that is not its own."""

    def __init__(self, pixels_per_point: float, area: Bbox, taken: list[Bbox]) -> None:
        self._pixels_per_point, self._area, self._taken = pixels_per_point, area, taken

    def label(self, name: str, box: Bbox) -> _Label | None:
        """The name of a block, shortened or above it where there is no room inside; None where there is no room at all."""
        found = self._inside(name, box) or self._inside_shortened(name, box) or self._above(name, box)
        if found is not None:
            self._taken.append(found.box)
        return found

    def _inside(self, name: str, box: Bbox) -> _Label | None:
        labels = (
            self._made(name, letters, _middle(box), is_standing=is_standing)
            for letters in _LETTERS
            for is_standing in (False, True)
        )
        return next((label for label in labels if _holds(box, label.box)), None)

    def _above(self, name: str, box: Bbox) -> _Label | None:
        """In the free room above a block: beginning at its left edge, ending at its right one, or standing."""
        for letters in _LETTERS[1:]:
            lying, standing = (
                self._made(name, letters, (0, 0), is_standing=is_standing) for is_standing in (False, True)
            )
            height = box.y1 + _MARGIN
            for label, x in (
                (lying, box.x0 + lying.box.width / 2 + _MARGIN),
                (lying, box.x1 - lying.box.width / 2 - _MARGIN),
                (standing, (box.x0 + box.x1) / 2),
            ):
                middle = (x, height + label.box.height / 2)
                placed = self._made(name, letters, middle, is_standing=label.is_standing)
                if _holds(self._area, placed.box) and not any(placed.box.overlaps(other) for other in self._taken):
                    return placed
        return None

    def _inside_shortened(self, name: str, box: Bbox) -> _Label | None:
        is_standing = box.height > box.width
        whole = self._made(name, _LETTERS[-2], _middle(box), is_standing=is_standing)
        room, needed = (box.height, whole.box.height) if is_standing else (box.width, whole.box.width)
        most = int(len(name) * (room - 2 * _MARGIN) / needed) - 1
        if most < min(_SHORTEST, len(name)):
            return None
        label = self._made(_short(name, most), _LETTERS[-2], _middle(box), is_standing=is_standing)
        return label if _holds(box, label.box) else None

    def _made(self, text: str, letters: float, middle: tuple[float, float], *, is_standing: bool) -> _Label:
        from matplotlib.transforms import Bbox

        width, height = (size * letters * self._pixels_per_point * _HINTING for size in _outline(text))
        x, y = (height, width) if is_standing else (width, height)
        return _Label(text, letters, is_standing, Bbox.from_bounds(middle[0] - x / 2, middle[1] - y / 2, x, y))


@lru_cache(maxsize=4096)
def _outline(text: str) -> tuple[float, float]:
    """Width and height of a text, as multiples of the size of its letters."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, height, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=100), ismath=False)
    return width / 100, height / 100


def _middle(box: Bbox) -> tuple[float, float]:
    return (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2


def _holds(box: Bbox, inner: Bbox) -> bool:
    return bool(
        inner.width + 2 * _MARGIN <= box.width
        and inner.height + 2 * _MARGIN <= box.height
        and box.x0 <= inner.x0
        and inner.x1 <= box.x1
        and box.y0 <= inner.y0
        and inner.y1 <= box.y1
    )
