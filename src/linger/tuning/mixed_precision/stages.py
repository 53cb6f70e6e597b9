# SPDX-License-Identifier: Apache-2.0
"""Widths that change while a model trains: what a user asks for at which step, checked for every layer, and put in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import chain, filterfalse

from torch import nn

from linger.constraint.limits import QUANTIZATION, QuantChoice, Widths
from linger.dialect import Op, find_op, ops
from linger.errors import UsageError
from linger.notation import as_width
from linger.numeric.curves import is_exact
from linger.quantization.core.quantized import keep_widths
from linger.quantization.core.runtime import Runtime
from linger.quantization.core.stored import Kind
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import NormLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.marking import checked_widths
from linger.tuning.mixed_precision.units import ACTIVATIONS, WEIGHTS, ChipWidths, Unit

Wish = int | str
"""Bits of the weights (`4`), or of input, weights and output (`"16/8/16"`)."""

_EVERYTHING = "*"
_USUAL_BITS = 8


@dataclass(frozen=True)
class _Place:
    """Something that has widths and computes `ops`: a quantized layer, or a module that calls products such as F.linear.

    The ranges of such products are held by `functions`.
    """

    module: nn.Module
    ops: tuple[Op, ...]
    functions: tuple[FunctionalLayer, ...] = ()

    @property
    def has_weights(self) -> bool:
        """Whether the width of its weights can be chosen."""
        return any("w" in op.inputs or op.is_recurrent for op in self.ops) and not isinstance(self.module, NormLayer)

    def widths(self, runtime: Runtime) -> Widths:
        """Those that it has now."""
        if isinstance(self.module, (QuantLayer, QuantRecurrent)):
            return self.module.widths
        assert runtime.products is not None  # init made it
        return runtime.products.widths_in(self.module)

    def give(self, widths: Widths) -> None:
        """Give it widths; a checkpoint has them from now on."""
        if isinstance(self.module, (QuantLayer, QuantRecurrent)):
            self.module.widths = widths
            keep_widths(self.module, self.module.widths)  # those of a norm's weight are its own
            bits_of = {Kind.INPUT: widths.data, Kind.WEIGHT: widths.parameter, Kind.OUTPUT: widths.output}
            for each in self.module.learned_ranges:
                if each.kind is not None and each.learned is not None:
                    bits = bits_of[each.kind]
                    each.learned.change_width(bits + each.users.is_unsigned(bits))
            return
        QUANTIZATION.put(self.module, QuantChoice(widths=widths))
        for function in self.functions:
            keep_widths(function, widths)


def _places_of(model: nn.Module) -> dict[str, _Place]:
    """All places of a model, by their path."""
    products = {op.state_name: op for op in ops().values() if op.state_name is not None and "w" in op.inputs}
    places: dict[str, _Place] = {}
    for path, module in model.named_modules():
        if isinstance(module, (QuantLayer, QuantRecurrent)):
            places[path] = _Place(module, (find_op(module.op_name),))
        elif calls := _calls_of(module, products):
            places[path] = _Place(module, tuple(dict.fromkeys(calls.values())), tuple(calls))
    return places


def _calls_of(module: nn.Module, products: Mapping[str, Op]) -> dict[FunctionalLayer, Op]:
    """The products that a module calls, by the layers that hold their ranges."""
    functions = [(n, m) for n, m in module.named_children() if isinstance(m, FunctionalLayer) and "w" in m.ranges]
    names = {m: n.removeprefix(KEY_PREFIX).rpartition("_")[0] for n, m in functions}
    return {function: products[name] for function, name in names.items() if name in products}


class Stages:
    """The widths of a model by step; `steps` says when they change, in order."""

    def __init__(self, model: nn.Module, runtime: Runtime, wishes: Mapping[int, Mapping[str, Wish]]) -> None:
        self._model, self._runtime, self._wishes = model, runtime, wishes
        self.steps = tuple(wishes)
        self._first = {path: place.widths(runtime) for path, place in _places_of(model).items()} if wishes else {}
        self._first_products = None if runtime.products is None else runtime.products.widths

    def apply(self, step: int) -> None:
        """Give the model the widths that it has after so many steps."""
        if not self._wishes:
            return
        for path, place in _places_of(self._model).items():
            before = place.widths(self._runtime)
            place.give(self._widths(path, place, self._first.setdefault(path, before), step))
        products = self._runtime.products
        if products is not None and self._first_products is not None:  # of calls that no pass has shown yet
            wide = self._first_products
            for wish in self._until(step, _EVERYTHING):
                wide = _with(wide, wish, has_weights=True)
            self._runtime.products = replace(products, widths=wide)

    def problems(self) -> Iterator[str]:
        """Widths that a layer, or in the end the model's chip, cannot have; names that nothing has."""
        places = _places_of(self._model) if self._wishes else {}
        for pattern in dict.fromkeys(chain.from_iterable(self._wishes.values())):
            if pattern != _EVERYTHING and not any(fnmatchcase(path, pattern) for path in places):
                near = get_close_matches(pattern, places, n=1)
                yield f"widths: no layer has the path {pattern!r}" + (f" (is {near[0]!r} meant?)" if near else "")
        chip = ChipWidths.of(self._runtime.target)
        for path, place in places.items():
            yield from self._problems_of(path, place)
            first = self._first[path]
            yield from _refusals(path, place, first, self._widths(path, place, first, self.steps[-1]), chip)

    def _problems_of(self, path: str, place: _Place) -> Iterator[str]:
        """Wishes that a layer cannot fulfil. A norm's sums must be exact; of a group only the run tells how long they are."""
        module = place.module
        for step, wish in self._wishes.items():
            if isinstance(wish.get(path), int) and not place.has_weights:
                yield f"widths[{step}]: {path} has no weights whose width can be chosen"
            bits = self._widths(path, place, Widths(), step).data
            if isinstance(module, NormLayer) and "groups" not in module.geometry and not is_exact(module.count, bits):
                yield f"widths[{step}]: {path} sums over {module.count} numbers, which are not exact with {bits} bits"

    def told(self, step: int) -> str:
        """The wishes of a step in a few words."""
        return ", ".join(
            (f"weights of {wish} bits" if isinstance(wish, int) else f"{wish} bits")
            + ("" if pattern == _EVERYTHING else f" in {pattern}")
            for pattern, wish in self._wishes[step].items()
        )

    def _widths(self, path: str, place: _Place, first: Widths, step: int) -> Widths:
        widths = first
        for wish in self._until(step, path):
            widths = _with(widths, wish, has_weights=place.has_weights)
        return widths

    def _until(self, step: int, path: str) -> Iterator[Wish]:
        """Every wish for a path up to a step, in order; the later one counts."""
        for start, wishes in self._wishes.items():
            if start <= step:
                yield from (wish for pattern, wish in wishes.items() if fnmatchcase(path, pattern))


def read_wishes(given: object) -> tuple[dict[int, dict[str, Wish]], list[str]]:
    """`{0: 16, 200: "8/8/8", 400: {"head": 4}}` as wishes by pattern, and what is wrong with it."""
    if given is None:
        return {}, []
    if not isinstance(given, Mapping):
        return {}, [f"widths={given!r} (a dictionary from steps to widths, as {{0: 16, 200: 8}})"]
    steps = list(filter(is_count, given))
    problems = [f"widths: {step!r} is no step (a whole number from 0 on)" for step in filterfalse(is_count, given)]
    if steps != sorted(steps):
        problems.append(f"widths: the steps {', '.join(map(str, steps))} are not in order")
    wishes = {s: dict(given[s]) if isinstance(given[s], Mapping) else {_EVERYTHING: given[s]} for s in steps}
    for step, of_step in wishes.items():
        for pattern, wish in of_step.items():
            problems += _wish_problems(f"widths[{step}]" + f"[{pattern!r}]" * (pattern != _EVERYTHING), wish)
    return ({} if problems else wishes), problems


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wish_problems(where: str, wish: object) -> Iterator[str]:
    try:
        _with(Widths(), wish, has_weights=True)
    except UsageError as error:
        yield f"{where}={wish!r} ({error})"
    except (TypeError, ValueError):
        yield f"{where}={wish!r} (bits of the weights, as 8, or of input, weights and output, as '16/8/16')"


def _with(widths: Widths, wish: object, *, has_weights: bool) -> Widths:
    """Widths with a wish fulfilled, as far as it concerns a layer."""
    wish = as_width(wish)
    if isinstance(wish, int) and not isinstance(wish, bool):
        wanted = checked_widths(_USUAL_BITS, wish, _USUAL_BITS)
        return replace(widths, parameter=wanted.parameter) if has_weights else widths
    if not isinstance(wish, str):
        raise TypeError
    data, parameter, output = (int(bits) for bits in wish.split("/"))
    wanted = checked_widths(data, parameter, output)
    return wanted if has_weights else replace(wanted, parameter=widths.parameter)


def _refusals(path: str, place: _Place, first: Widths, last: Widths, chip: ChipWidths) -> Iterator[str]:
    """Widths that a layer gets for good and that its chip does not have."""
    if chip.target is None:
        return
    for op in place.ops:
        asked = (
            ("weights", first.parameter, last.parameter, _allows(chip, path, op, WEIGHTS, last.parameter)),
            ("an input", first.data, last.data, chip.reads(op, last.data)),
            ("an output", first.output, last.output, _allows(chip, path, op, ACTIVATIONS, last.output)),
        )
        for what, before, bits, is_allowed in asked:
            if bits != before and not is_allowed:
                yield f"widths: {chip.target.name} has no {op.name} with {what} of {bits} bits ({path})"


def _allows(chip: ChipWidths, path: str, op: Op, what: str, bits: int) -> bool:
    unit = Unit(f"{path}.{'w' if what == WEIGHTS else 'o'}", path, op.name, what, bits=0, size=1)
    return chip.allows(unit, bits)
