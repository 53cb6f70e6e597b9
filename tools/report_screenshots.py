# SPDX-License-Identifier: Apache-2.0
"""Images of a report for the documentation: `python tools/report_screenshots.py report.html [--layer 7] [--out docs/images]`.

Writes report-light.png, report-dark.png and report-narrow.png. They look best where a sans-serif font such as Noto Sans is installed.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY))

from tests.support.browser import chromium, opened  # noqa: E402 - found through the line above

VIEWS = {
    "light": {"width": 1280, "height": 1330, "dark": False},
    "dark": {"width": 1280, "height": 1330, "dark": True},
    "narrow": {"width": 360, "height": 1560, "dark": False},
}
LIMIT = 200_000


def small_png(content: bytes) -> bytes:
    """The image in 256 colors: the flat areas of a page stay exactly as they are, rare colors share what is left."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    colors = [color for _, color in sorted(image.getcolors(image.width * image.height), reverse=True)]
    rare = Image.new("RGB", (len(colors), 1))
    rare.putdata(colors)
    shared = rare.quantize(128).getpalette()
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for color in colors[:128] for part in color] + shared[: 3 * 128])
    out = io.BytesIO()
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> None:
    """Take the images."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("report", type=Path)
    arguments.add_argument(
        "--layer", type=int, help="the number of the layer that is shown as selected, counted from 1"
    )
    arguments.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images")
    options = arguments.parse_args()
    program = chromium()
    if program is None:
        sys.exit("no Chromium: install the package chromium")
    address = "" if options.layer is None else f"#layer={options.layer}"
    options.out.mkdir(parents=True, exist_ok=True)
    with opened(program) as browser:
        for name, view in VIEWS.items():
            browser.open(options.report.resolve(), address=address, **view)
            content = small_png(browser.image())
            if len(content) > LIMIT:
                sys.exit(f"report-{name}.png would have {len(content)} bytes; the limit is {LIMIT}")
            (options.out / f"report-{name}.png").write_bytes(content)
            print(f"report-{name}.png: {len(content)} bytes")


if __name__ == "__main__":
    main()
