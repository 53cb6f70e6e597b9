# SPDX-License-Identifier: Apache-2.0
"""Write docs/tutorial.ipynb, the tutorial as a notebook, from docs/tutorial.md; a test compares the two.

A Python block of the page becomes a cell. The block that a reader saves as a file becomes a cell that writes it (`%%writefile`). Where
the last line of a block prints a result, the cell ends with the result itself, so that the notebook shows it as a table. Text, and
commands for the terminal, become cells of text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")

BLOCK = re.compile(r'^```python(?: title="(?P<file>\w+\.py)")?\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^print\((?P<name>\w+)(?:\.summary\(\))?\)(?: *#.*)?\n\Z", re.MULTILINE)


def notebook_of(page: str) -> dict[str, Any]:
    """The notebook of a page, as nbformat 4.5 has it: no outputs, the same bytes every time."""
    cells = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, text) in enumerate(cells_of(page))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def cells_of(page: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each cell."""
    end = 0
    for block in BLOCK.finditer(page):
        if text := page[end : block.start()].strip():
            yield "markdown", text
        yield "code", code_of(block["code"], block["file"])
        end = block.end()
    if text := page[end:].strip():
        yield "markdown", text


def code_of(code: str, file: str | None) -> str:
    """A block of the page as a cell."""
    if file is not None:
        return f"%%writefile {file}\n{code}".rstrip()
    return PRINTED.sub(lambda found: f"{found['name']}\n", code).rstrip()


def main() -> None:
    """Write the notebook."""
    content = json.dumps(notebook_of(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
