# SPDX-License-Identifier: Apache-2.0
"""The rules that repair a model, by name and in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType

import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.core.dialects import is_quantizing_domain
from linger.graph.core.nodes import Changes, Finding
from linger.graph.lowering.bodies import attach_functions
from linger.graph.passes.constants import merge_duplicates, merge_initializers, own_parameters
from linger.graph.passes.declared_types import complete_types, correct_types
from linger.graph.passes.dequants import (
    cancel_dq_q,
    fill_float_islands,
    insert_dequant,
    pair_findings,
    remove_dequant,
    rescale_dequant,
    split_shared_zero_points,
)
from linger.graph.passes.well_formed import (
    dead_code_findings,
    fix_versions,
    inline_functions,
    name_nodes,
    remove_dead_code,
    remove_identity,
    sort_nodes,
)
from linger.graph.qdq.qdq_node import island_findings


@dataclass(frozen=True)
class RepairRule:
    """One repair.

    Attributes:
        name: What it is called.
        description: What it does, in one sentence.
        apply: The pass: edits a model in place and returns what it changed.
        is_default: Whether it runs when no rules are chosen.
        find: What the rule sees and leaves as it is, or would do if it was chosen; None where there is nothing to say.
        moves_dequants: It moves Dequants, which may free Identities and give the other rules that do so new work.
        reads_facts: The pass takes `facts`, what is known of the model as it is.
        joins_tensors: After it a tensor may have two Dequants again, so that all rules run once more.
        is_for_chips: It runs, too, when no rules are chosen and the file is for a chip.
    """

    name: str
    description: str
    apply: Callable[..., Changes]
    is_default: bool = True
    find: Callable[[ir.Model], tuple[Finding, ...]] | None = None
    moves_dequants: bool = False
    reads_facts: bool = False
    joins_tensors: bool = False
    is_for_chips: bool = False


def _attach_where_functions_are(model: ir.Model) -> Changes:
    has_bodies = any(is_quantizing_domain(function.domain) for function in model.functions.values())
    return attach_functions(model) if has_bodies else Changes()


_TYPES = "No tensor is declared as integers where it is real, or the other way round."
_DEAD = "Nodes, initializers and functions that nobody uses go."
_CANCELED = "A dequantization that is undone exactly goes, and so does what undoes it."
_ISLANDS = "Float ops between DequantizeLinear and QuantizeLinear run on integers where that gives the same numbers."
_OWN_PARAMETERS = "Every quantized tensor has a scale and a zero point of its own."
_BODIES = "A file that brings function bodies has one for every dialect node."
_OWN_WEIGHTS = "Every node of a file for a chip has a weight and a bias of its own, side by side."


_on_request = partial(RepairRule, is_default=False)
_of_dequants = partial(RepairRule, moves_dequants=True, reads_facts=True)
_joining = partial(RepairRule, is_default=False, joins_tensors=True)

_ALL = (
    RepairRule("sort_nodes", "Nodes stand after those that they need.", sort_nodes),
    RepairRule(
        "fix_versions", "Every domain that is used is imported once, and the format's version suffices.", fix_versions
    ),
    _on_request("inline_functions", "Calls of the user's own functions become nodes.", inline_functions),
    RepairRule("remove_identity", "Identities go, except where an output needs a tensor of its own.", remove_identity),
    _of_dequants("rescale_dequant", "Every Dequant has the scale of its tensor.", rescale_dequant),
    _of_dequants(
        "remove_dequant", "Ops that take integers have them; Dequants of floats and second ones go.", remove_dequant
    ),
    _of_dequants(
        "insert_dequant", "Ops that need real numbers have them, through one Dequant per tensor.", insert_dequant
    ),
    RepairRule("correct_types", _TYPES, correct_types, reads_facts=True),
    RepairRule("remove_dead_code", _DEAD, remove_dead_code, find=dead_code_findings),
    RepairRule("complete_types", "Every tensor says which type and shape it has, and says it right.", complete_types),
    RepairRule("cancel_dq_q", _CANCELED, cancel_dq_q, find=pair_findings, joins_tensors=True),
    _joining("fill_float_islands", _ISLANDS, fill_float_islands, find=island_findings),
    _joining("merge_initializers", "Initializers of equal content become one.", merge_initializers),
    _joining("merge_duplicates", "Nodes that compute the same become one.", merge_duplicates),
    RepairRule("split_shared_zero_points", _OWN_PARAMETERS, split_shared_zero_points),
    RepairRule("attach_functions", _BODIES, _attach_where_functions_are),
    _on_request("own_parameters", _OWN_WEIGHTS, own_parameters, is_for_chips=True),
    RepairRule("name_nodes", "Every node has a name of its own, and so has every tensor.", name_nodes),
)

RULES: Mapping[str, RepairRule] = MappingProxyType({rule.name: rule for rule in _ALL})
"""Every rule by its name, in the order in which they run.

On by default are rules that repair what tools stumble over and that take nothing from a sound file. Only on request come
those that change a sound file by taste: `inline_functions` and `merge_duplicates` take nodes away by whose names results are
compared, `merge_initializers` the names of weights (two layers with a bias of zeros have one then), and `fill_float_islands`
the Q/DQ pairs by which TensorRT and OpenVINO know where integers are meant.
"""


def choose_rules(
    names: Iterable[str] | str | None = None, known: Mapping[str, RepairRule] = RULES, *, is_for_chip: bool = False
) -> tuple[RepairRule, ...]:
    """The rules of these names, in the order in which they run (None: those that are on by default, or for a chip).

    >>> [rule.name for rule in choose_rules(["remove_identity", "sort_nodes"])]
    ['sort_nodes', 'remove_identity']

    Raises:
        UsageError: Names that no rule has; all of them are named, with those that come near.
    """
    if names is None:
        return tuple(rule for rule in known.values() if rule.is_default or (rule.is_for_chips and is_for_chip))
    if not isinstance(names, Iterable):
        raise UsageError(f"rules: {names!r} is no list of names. Known rules: {listing(known, limit=99)}.")
    names = dict.fromkeys([names] if isinstance(names, str) else names)
    unknown = " ".join(_hint(name, known) for name in names if name not in known)
    if unknown:
        raise UsageError(f"{unknown} Known rules: {listing(known, limit=99)}.")
    return tuple(filter(lambda rule: rule.name in names, known.values()))


def _hint(name: object, known: Mapping[str, RepairRule]) -> str:
    near = get_close_matches(name, known, n=2) if isinstance(name, str) else []
    hint = f" (is {' or '.join(near)} meant?)" if near else ""
    return f"{name!r}: there is no such rule{hint}."
