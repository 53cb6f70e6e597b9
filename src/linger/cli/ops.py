# SPDX-License-Identifier: Apache-2.0
"""linger ops: which ops exist."""

from __future__ import annotations

import inspect

from linger.cli.terminal import console


def ops() -> None:
    """List the dialect's ops with their formulas and the torch layers and functions they stand for."""
    from linger.dialect import ops as all_ops
    from linger.reporting.tables import table

    rows = []
    for op in all_ops().values():
        formula = (inspect.getdoc(op.body) or "").splitlines()[0]
        stands_for = ", ".join(sorted({path.rpartition(".")[2] for path in (*op.layers, *op.functions)}))
        rows.append((op.name, formula, stands_for))
    console().print(table("thinker dialect", ("op", "formula", "stands for"), rows))
