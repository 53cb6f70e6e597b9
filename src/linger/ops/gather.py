# SPDX-License-Identifier: Apache-2.0
"""Gather: rows of an integer table, as an embedding looks them up. Nothing is rounded: the output has the table's scale.

The table comes first, as in the file format; `scale_o` repeats `scale_w`, and `o_bits` repeats `parameter_bits`.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import Newer, NodeFacts, Refusal, Settings, op
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op(
    "Gather",
    has_platform_quant=False,
    newer=(Newer("Gather", has_rounding=False),),
    repeats={"scale_o": "scale_w", "o_bits": "parameter_bits"},
    keeps_open_sizes=False,
)
def gather(k: Kernel[T], w: T, indices: T, *, scale_w: float, scale_o: float, parameter_bits: int, o_bits: int) -> T:
    """Y = w[indices], rows of the table; scale and width stay."""
    return k.rows(w, indices)


@gather.refuse
def refuse_other_format(node: NodeFacts) -> str | None:
    """Refuse rows in another format than the table's."""
    of_table, of_rows = (
        tuple(node.attributes[name] for name in names)
        for names in (("scale_w", "parameter_bits"), ("scale_o", "o_bits"))
    )
    if of_table == of_rows:
        return None
    return f"rows have the table's scale and width {of_table}, not {of_rows}. Add a Requant behind it."


@gather.layer("torch.nn.Embedding")
def from_embedding(layer: Any) -> Settings:
    """An embedding has no geometry; `padding_idx` matters to its gradient only."""
    if layer.max_norm is not None:
        return Refusal("max_norm rescales the table while it is read, so its integers would not stay; leave it out")
    if layer.sparse:
        return Refusal("sparse=True: a rounded table has a dense gradient; use sparse=False")
    if layer.scale_grad_by_freq:
        return Refusal("scale_grad_by_freq=True has no form for a rounded table; leave it out")
    return {}


def _sample(name: str, table: Draw, shape: tuple[int, ...]) -> Sample:
    indices = Draw(shape, 32, low=0, high=table.shape[0] - 1)
    scales = {"scale_w": 64.0, "scale_o": 64.0}
    return Sample(name, (table, indices), scales | {"parameter_bits": table.bits, "o_bits": table.bits})


gather.samples = (
    _sample("plain", Draw((9, 4)), (2, 5)),
    *(_sample(f"{bits} bits", Draw((7, 3), bits), (6,)) for bits in (4, 16)),
    _sample("indices of three axes", Draw((5, 2)), (2, 3, 4)),
    _sample("one index alone", Draw((5, 2)), ()),
    _sample("no indices", Draw((5, 2)), (0, 3)),
    _sample("one element", Draw((1, 1)), (1,)),
)
