# SPDX-License-Identifier: Apache-2.0
"""linger ops: which ops exist."""

from __future__ import annotations

import inspect

from linger.cli import named_rows, say_result, say_table
from linger.cli.arguments.options import Json


def ops(*, as_json: Json = False) -> None:
    """List the dialect's ops with their formulas and the torch layers and functions they stand for.

    Examples:
        linger ops
        linger ops --json
    """
    from linger.dialect import ops as all_ops

    rows = []
    for op in all_ops().values():
        formula = (inspect.getdoc(op.body) or "").splitlines()[0]
        rows.append((op.name, formula, sorted({path.rpartition(".")[2] for path in (*op.layers, *op.functions)})))
    if as_json:
        say_result("ops", {"ops": named_rows(("name", "formula", "stands_for"), rows)})
    else:
        cells = [(*row, ", ".join(names)) for *row, names in rows]
        say_table("thinker dialect", ("op", "formula", "stands for"), cells)
