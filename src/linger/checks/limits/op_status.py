# SPDX-License-Identifier: Apache-2.0
"""What is known of single ops on a chip: whether its packer takes them, and whether its engine gives linger's integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from linger.checks.limits.limit import NO_EXACT_FORM, Site, limit
from linger.checks.limits.whole_file import QUANTIZE_FOR
from linger.dialect import Op, ops
from linger.errors import listing, printable
from linger.graph.core.dialects import NEWER_OPS
from linger.graph.core.nodes import WARNING, Finding, is_dialect, platform_of
from linger.targets import DEFAULT_TARGET, FLOAT, Status, chips_with

_OUTSIDE = "Compute it outside of the model."
_AS_INTEGERS = "Let linger compute it on integers: quantize what it reads (linger.quant_tensor), or move it behind the first layer."
_INTEGER_FORMS = frozenset({"Add", "Concat", "MaxPool", "Mul", "Pad", "Relu", "Sigmoid", "Tanh", "Transpose"})
"""Standard ops that linger computes on integers, where what they read is quantized."""

_NO_IDENTITY = "Export with linger, which leaves no Identity in the middle of a graph."


@limit(902, "op", "The chip's packer takes the op.", everywhere=True)
def check_known(site: Site) -> Iterator[Finding]:
    """The packer stops at an op that it does not know, and at some that it lists."""
    target, op = site.target, _op(site.op_type)
    if target.status_of(site.op_type, is_float=site.is_of_floats) is not Status.REFUSED:
        if site.op_type in target.unpacked_ops:
            yield site.warning(
                f"{target.name} runs {site.op_type}, but the public packer does not know it",
                "Ask the vendor for a packer that does.",
            )
        return
    if op is not None and "clip" in op.chip_limits:  # what it says of Clip is a rule of its own
        return
    if site.op_type not in target.ops:
        yield site.error(f"{target.name}'s packer has no {site.op_type}", _remedy(site, op))
    else:
        what = f"a float {site.op_type}" if site.is_of_floats else site.op_type
        yield site.error(f"{target.name}'s packer or engine stops at {what}", _remedy(site, op))


def foreign(site: Site) -> Finding:
    """The finding about a node of a domain that is nobody's."""
    name = printable(f"{site.node.domain}::{site.op_type}")
    return replace(
        site.error(f"{site.chip}'s packer has no {name}", f"{NO_EXACT_FORM} {_OUTSIDE}"), rule=check_known.rule.id
    )


def _op(op_type: str) -> Op | None:
    """The op of this name in either dialect."""
    newer = NEWER_OPS.get(op_type)
    return ops().get(op_type if newer is None else newer.older or "")


def _remedy(site: Site, op: Op | None) -> str:
    """What was seen to be exact instead; a float op as integers, another op that the op's file names."""
    if site.is_of_floats and site.op_type in _INTEGER_FORMS:
        return _AS_INTEGERS
    if site.op_type == "Identity":
        return _NO_IDENTITY
    if op is None or site.is_of_floats:
        return f"{NO_EXACT_FORM} {_OUTSIDE}"
    chips = [chip for chip in chips_with(op.name) if chip != site.chip]
    known = f" Other chips have it: {listing(chips)}." if chips else ""
    return f"{op.if_missing or f'{NO_EXACT_FORM} {_OUTSIDE}'}{known}"


@limit(907, "differs", "The chip computes the op as linger does.", everywhere=True)
def check_differs(site: Site) -> Iterator[Finding]:
    """Ops that run on the chip, with other numbers; some only where the packer keeps the float ends."""
    if site.is_of_floats and f"{FLOAT}{site.op_type}" in site.target.exact_without_ends:
        reason = f"{site.chip} computes something else for a float {site.op_type} where the packer keeps the float ends"
        yield site.warning(reason, "Pack without keeping them, as the packer does by default.")
    if site.target.status_of(site.op_type, is_float=site.is_of_floats) is not Status.DIFFERS:
        return
    op, kind = _op(site.op_type), "float " if site.is_of_floats else ""
    if op is not None and op.if_differs and not site.is_of_floats:
        remedy = op.if_differs.format(target=site.chip)
    else:
        remedy = _AS_INTEGERS if kind and site.op_type in _INTEGER_FORMS else f"{NO_EXACT_FORM} {_OUTSIDE}"
    yield site.error(f"{site.chip} runs {kind}{site.op_type} and was seen to compute something else", remedy)


@limit(953, "variant", "Nodes compute as the chip does.", everywhere=True)
def check_variant(site: Site) -> Iterator[Finding]:
    """An op that chips compute in different ways names the chip; without a name it computes as the default one does."""
    op = ops().get(site.op_type)
    if op is None or not op.variants or not is_dialect(site.node) or site.target.is_default:
        return
    if platform_of(site.node) is None:
        reason = f"the node computes as {DEFAULT_TARGET.name} does, not as {site.chip}"
        yield site.error(reason, QUANTIZE_FOR.format(site.chip))


@limit(904, "compared", "The op's numbers were compared with the chip's.", severity=WARNING, everywhere=True)
def check_compared(site: Site) -> Iterator[Finding]:
    """Ops whose results were never compared with those of this chip: a warning, or an error where the chip takes no such op."""
    if site.target.status_of(site.op_type, is_float=site.is_of_floats) is Status.UNTRIED:
        kind = "float " if site.is_of_floats else ""
        remedy = (
            _remedy(site, _op(site.op_type)) if site.target.refuses_untried else "Compare a few outputs on the chip."
        )
        yield site.untried(f"nobody has compared {kind}{site.op_type} with what {site.chip} computes", remedy)
