"""Images: what is drawn, and that a file is whole or absent."""

import re
import sys

import numpy as np
import pytest
import torch

from linger.analysis.advice import Subject, make_item, measure_loss
from linger.analysis.checkpoint import TensorValues
from linger.analysis.magnitudes import histogram, measure
from linger.errors import UsageError
from linger.reporting.plots import draw_layers, draw_tensor, file_name

pytestmark = pytest.mark.needs_torch

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def outliers():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    x[0] = 60.0
    values = TensorValues(x)
    found = measure(values)
    return make_item(Subject("conv.weight", "conv"), found, measure_loss(values, found)), histogram(values, 60.0)


def texts(svg):
    """The text that a reader of the image sees; matplotlib keeps it in comments beside the glyphs."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


def test_a_tensor_with_grid_clip_points_and_limit(outliers, tmp_path):
    draw_tensor(*outliers, tmp_path / "a.svg")
    seen = texts(tmp_path / "a.svg")
    assert "conv.weight  (weight)" in seen
    assert "limit advised" in seen
    # 127/60 → scale 2: Q6.1 clips at 63.5
    assert "clips (Q6.1)" in seen
    assert "every 4th step of 0.5" in seen
    assert any("stretch the range to 60" in text for text in seen)


def uprights(svg, style):
    """Where lines from the bottom to the top stand that are drawn so, in points."""
    return [
        float(at) for at in re.findall(rf'<path d="M ([\d.]+) [\d.]+ \nL \1 [\d.]+ \n"[^>]*{style}', svg.read_text())
    ]


def test_the_limit_advised_is_drawn_on_both_sides(outliers, tmp_path):
    draw_tensor(*outliers, tmp_path / "a.svg")
    assert outliers[0].limit == 8
    lowest, highest = uprights(tmp_path / "a.svg", "#c1292e")  # -64 and 63.5
    points = (highest - lowest) / 127.5
    seen = [(at - lowest) / points - 64 for at in uprights(tmp_path / "a.svg", "stroke-dasharray")]
    assert seen == pytest.approx([-8, 8], abs=1e-3)


@pytest.mark.slow
def test_png_and_the_same_data_gives_the_same_file(outliers, tmp_path):
    for name in ("a.png", "a.svg", "b.png", "b.svg"):
        draw_tensor(*outliers, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_layers(tmp_path):
    draw_layers(["conv1", "conv2", "fc"], [12.0, np.inf, -np.inf], tmp_path / "l.svg", title="all layers")
    seen = texts(tmp_path / "l.svg")
    assert {"conv1", "conv2", "fc", "all layers", "signal to noise, dB"} <= set(seen)


def test_other_endings_and_nothing_to_draw_are_refused(outliers, tmp_path):
    with pytest.raises(UsageError, match=r"\.png, \.svg"):
        draw_tensor(*outliers, tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="no layer to draw"):
        draw_layers([], [], tmp_path / "l.png", title="")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(outliers, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"linger-nn\[report\]"):
        draw_tensor(*outliers, tmp_path / "a.png")


def test_file_names_cannot_leave_the_folder():
    assert file_name("../../etc/passwd", ".png") == ".._.._etc_passwd.png"
    assert file_name("層.weight", ".svg") == "層.weight.svg"
