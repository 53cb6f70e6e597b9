# SPDX-License-Identifier: Apache-2.0
"""Draw docs/packages.svg: the packages of linger as the import contracts of pyproject.toml stack them.

Each row may import the rows below it. A box shows a package, the first sentence of its docstring and its subpackages.
The image is made from the contracts and docstrings; a test fails when it is older than they are.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGE = REPOSITORY / "docs" / "packages.svg"
WIDTH, GAP, LINE, LETTER = 1120, 8, 16, 6.6
TORCH_SIDE = {"onnx", "simulation", "compatibility", "quantization", "constraint", "analysis"}
STYLE = """
text { font: 12px sans-serif; fill: #1f2328 } .name { font-weight: bold; font-size: 14px } .part { fill: #57606a }
rect { stroke: #8c959f; rx: 6 } .torch { fill: #fff1e5 } .plain { fill: #ddf4ff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .part { fill: #9198a1 } .torch { fill: #5a3410 } .plain { fill: #123a5c } rect { stroke: #6e7681 } }
"""


def contracts() -> tuple[list[list[str]], dict[str, list[str]]]:
    """The rows of packages from top to bottom, and the subpackages of each package, as the contracts name them."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    rows: list[list[str]] = []
    inside: dict[str, list[str]] = {}
    for contract in project["tool"]["importlinter"]["contracts"]:
        layers = [row.split(" | ") for row in contract.get("layers", ())]
        if contract.get("containers"):
            package = contract["containers"][0].removeprefix("linger.")
            names = [name for row in layers for name in row if source(f"{package}/{name}").is_dir()]
            inside[package] = names
        elif layers:
            rows = [[name.removeprefix("linger.") for name in row] for row in layers]
    return rows, inside


def source(name: str) -> Path:
    """The folder of a package, or the file of a module."""
    folder = REPOSITORY / "src" / "linger" / name
    return folder if folder.is_dir() else folder.with_suffix(".py")


def sentence(name: str) -> str:
    """The first sentence of the docstring of a package or module."""
    path = source(name)
    text = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    documentation = ast.get_docstring(ast.parse(text)) or ""
    return documentation.partition("\n")[0].partition(". ")[0].rstrip(".")


def box(name: str, parts: list[str], x: float, y: float, width: float) -> tuple[str, int]:
    """One package as SVG, without its rectangle's height, and the number of text lines."""
    letters = int((width - 20) / LETTER)
    lines = textwrap.wrap(sentence(name), letters)
    lines += textwrap.wrap("▸ " + " · ".join(parts), letters) if parts else []
    texts = [f'<text class="name" x="{x + 10:g}" y="{y + 18:g}">{escape(name)}</text>']
    for number, line in enumerate(lines, start=1):
        kind = ' class="part"' if line.startswith("▸") else ""
        texts.append(f'<text{kind} x="{x + 10:g}" y="{y + 18 + number * LINE:g}">{escape(line)}</text>')
    return "\n".join(texts), len(lines) + 1


def image() -> str:
    """The whole image as SVG text."""
    rows, inside = contracts()
    y: float = GAP
    drawn: list[str] = []
    for row in rows:
        width = (WIDTH - GAP * (len(row) + 1)) / len(row)
        boxes = [(n, GAP + i * (width + GAP)) for i, n in enumerate(row)]
        texts = [(name, x, *box(name, inside.get(name, []), x, y, width)) for name, x in boxes]
        height = max(count for *_, count in texts) * LINE + 12
        for name, x, text, _ in texts:
            kind = "torch" if name in TORCH_SIDE else "plain"
            drawn += [f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>', text]
        y += height + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}" role="img">'
    title = "<title>The packages of linger; each row imports only rows below it</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    IMAGE.write_text(image(), encoding="utf-8")
