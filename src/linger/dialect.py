# SPDX-License-Identifier: Apache-2.0
"""What an op is: its schema (read from the body's signature), its torch counterparts, its samples.

The registry is filled by importing the modules of `linger.ops`; nothing else needs to be told of a new op.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from linger.errors import UnsupportedError, UsageError, listing

DOMAIN = "thinker"
DOMAIN_VERSION = 1
PLATFORM_QUANT = "luna_quant"

AttributeKind = Literal["float", "int", "ints", "str"]
_KINDS: dict[str, AttributeKind] = {"float": "float", "int": "int", "Ints": "ints", "str": "str"}

Binding = Callable[..., "Mapping[str, Any] | Refusal"]
Limit = Callable[[Iterable[float]], float]
Constants = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Refusal:
    """Why a torch call has no integer form; it stays float and the coverage report says so."""

    reason: str


@dataclass(frozen=True)
class Attribute:
    """One attribute of an op, from a keyword-only parameter of its body."""

    name: str
    kind: AttributeKind
    default: Any = None
    is_required: bool = True


@dataclass(frozen=True)
class Sample:
    """Input for the contract test: integer (or real) arrays as nested lists or generator names, attributes."""

    name: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Draw:
    """Random integers for a sample: shape, width, and whether the extremes are forced in."""

    shape: tuple[int, ...]
    bits: int = 8
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class DrawReal:
    """Random float32 values for a sample, with exact ties among them."""

    shape: tuple[int, ...]
    spread: float = 4.0


@dataclass(eq=False)
class Op:
    """One op of the dialect.

    `limit` bounds the output scale from the input scales (`math.prod` for products: the device shifts right
    only); `output_scale` is one that the device fixes. With neither, the op keeps the scale of its first input.
    `is_scale_free` ops compare and move numbers without looking at the scale, so they run on real values too.
    `input_end` is where the device's own format of the input ends and numbers are lost beyond.
    `variants` are ops of the same name with the arithmetic of another chip, by the attribute `platform` of their nodes.
    """

    name: str
    body: Callable[..., Any]
    inputs: tuple[str, ...]
    optional_inputs: frozenset[str]
    is_variadic: bool
    attributes: tuple[Attribute, ...]
    limit: Limit | None
    output_scale: float | None
    input_bits: int | None
    last_axis: str | None
    input_end: float | None
    is_scale_free: bool
    output_bits: str | None
    state_name: str | None
    has_integer_output: bool
    standard_name: str | None
    has_own_counter: bool
    module: str
    forms: tuple[tuple[str, ...], ...] = ()
    outputs: tuple[str, ...] = ("y",)
    form_names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    is_narrow_exact: Callable[..., bool] | None = None
    layers: dict[str, Binding] = field(default_factory=dict)
    functions: dict[str, Binding] = field(default_factory=dict)
    orders: dict[Binding, tuple[str, ...]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    constant_names: tuple[str, ...] = ()
    make_constants: Constants | None = None
    platform: str | None = None
    variants: dict[str, Op] = field(default_factory=dict)

    def on(self, platform: str, *, input_bits: int | None = None) -> Callable[[Callable[..., Any]], Op]:
        """Declare a body for another chip: the same name, torch functions and ranges, a schema and a width of its own."""

        def keep(body: Callable[..., Any]) -> Op:
            inputs, optional, is_variadic, attributes = _read_parameters(body)
            self.variants[platform] = replace(
                self,
                body=body,
                inputs=inputs,
                optional_inputs=optional,
                is_variadic=is_variadic,
                attributes=attributes,
                input_bits=input_bits,
                platform=platform,
                samples=(),
                variants={},
            )
            return self.variants[platform]

        return keep

    def for_platform(self, platform: str | None) -> Op:
        """The variant for a chip; the op itself where it has none."""
        return self if platform is None else self.variants.get(platform, self)

    def arrange(self, given: Sequence[Any]) -> list[Any]:
        """Inputs as a node has them, in the order of the body: what this form of the node lacks is None.

        Raises:
            UsageError: No form of the op has so many inputs.
        """
        if not self.forms:
            return list(given)
        form = self.form(len(given))
        return [given[form.index(name)] if name in form else None for name in self.inputs]

    def form(self, count: int) -> tuple[str, ...]:
        """The names of the inputs of a node with so many; ops without forms have one."""
        if not self.forms:
            return self.inputs[:count]
        found = next((form for form in self.forms if len(form) == count), None)
        if found is None:
            allowed = listing(str(len(form)) for form in self.forms)
            raise UsageError(f"{self.name}: the node has {count} inputs; expected {allowed}.")
        return found

    def bare_name(self, count: int) -> str:
        """What bare files call a node with so many inputs."""
        if self.standard_name is not None:
            return self.standard_name
        return self.form_names[self.forms.index(self.form(count))] if self.form_names else self.name

    def constants(self, *names: str) -> Callable[[Constants], Constants]:
        """Declare how a binding's settings become integer inputs once the scale and width of x are known.

        `names` are the buffers (and initializers) that hold them. A number becomes a scalar of the type of x, a tuple an
        int64 vector, a tuple of tuples a matrix of 16 bits.
        """

        def keep(make: Constants) -> Constants:
            self.constant_names, self.make_constants = names, make
            return make

        return keep

    def narrow(self, rule: Callable[..., bool]) -> Callable[..., bool]:
        """Declare when float32 holds every narrow number of the op: a function of its known inputs and attributes."""
        self.is_narrow_exact = rule
        return rule

    def layer(self, *names: str) -> Callable[[Binding], Binding]:
        """Declare how a torch module's settings become this op's attributes."""
        return self._declare(self.layers, names)

    def function(self, *names: str, order: tuple[str, ...] | None = None) -> Callable[[Binding], Binding]:
        """Declare how a torch function's arguments become this op's attributes.

        `order` names the inputs that the first arguments are, where they come in another order than the op's.
        """

        def keep(binding: Binding) -> Binding:
            if order is not None:
                self.orders[binding] = order
            return self._declare(self.functions, names)(binding)

        return keep

    @staticmethod
    def _declare(table: dict[str, Binding], names: Sequence[str]) -> Callable[[Binding], Binding]:
        def keep(binding: Binding) -> Binding:
            table.update(dict.fromkeys(names, binding))
            return binding

        return keep

    def complete(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes in schema order with defaults filled in; complains about all that is missing or unknown."""
        known = {a.name: a for a in self.attributes}
        missing = [a.name for a in self.attributes if a.is_required and a.name not in attributes]
        unknown = [n for n in attributes if n not in known and not self.is_variadic_attribute(n)]
        if missing or unknown:
            parts = []
            if missing:
                parts.append(f"lacks {listing(missing)}")
            if unknown:
                parts.append(f"does not know {listing(unknown)}")
            raise UsageError(f"{self.name}: the node {' and '.join(parts)}. Expected: {listing(known)}.")
        extra = {n: attributes[n] for n in attributes if n not in known}
        return {a.name: attributes.get(a.name, a.default) for a in self.attributes} | extra

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[str, str | None]]:
        """An op is itself wherever it is copied or unpickled."""
        return find_op, (self.name, self.platform)

    def is_variadic_attribute(self, name: str) -> bool:
        """Whether `name` is one of scale_x_0, scale_x_1 … of a variadic op."""
        stem, _, index = name.rpartition("_")
        return self.is_variadic and stem == "scale_x" and index.isdigit()


_registry: dict[str, Op] = {}


def op(
    name: str,
    *,
    limit: Limit | None = None,
    output_scale: float | None = None,
    input_bits: int | None = None,
    last_axis: str | None = None,
    input_end: float | None = None,
    is_scale_free: bool = False,
    output_bits: str | None = "o_bits",
    state_name: str | None = None,
    has_integer_output: bool = True,
    standard_name: str | None = None,
    has_own_counter: bool = False,
    forms: tuple[tuple[str, ...], ...] = (),
    outputs: tuple[str, ...] = ("y",),
    form_names: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Op]:
    """Turn a body into an op: positional parameters are tensors, keyword-only parameters attributes.

    Args:
        name: The op type in the file.
        limit: Bound of the output scale, a function of the input scales; None keeps the input's scale.
        output_scale: The one scale that the output has; its width is then the default of the attribute `output_bits`.
        input_bits: The width that the device wants: inputs of another one get a Requant.
        last_axis: The attribute with an axis that the device takes only where it is the last one.
        input_end: The largest magnitude that the device's format of the input holds, if numbers beyond it are lost.
        is_scale_free: The body works on real values as well as on integers.
        output_bits: The attribute that holds the output's width; None: the width of the first input.
        state_name: Part of the state_dict key of the functional form (`iqadd__default_index`).
        has_integer_output: False for Dequant alone.
        standard_name: The op of the standard domain that bare files use for it on integers.
        has_own_counter: Its calls are numbered by themselves in state_dict keys, not together with the other ops'.
        forms: The inputs of each form of the node, for an op whose optional inputs do not come last.
        form_names: What bare files call each form, where that is not the op's name.
        outputs: Names of the outputs. The first holds integers, the others are real.
        aliases: Other names that files have for it.
    """

    def register(body: Callable[..., Any]) -> Op:
        made = _read_signature(
            body,
            name=name,
            limit=limit,
            output_scale=output_scale,
            input_bits=input_bits,
            last_axis=last_axis,
            input_end=input_end,
            is_scale_free=is_scale_free,
            output_bits=output_bits,
            state_name=state_name,
            has_integer_output=has_integer_output,
            standard_name=standard_name,
            has_own_counter=has_own_counter,
            forms=forms,
            outputs=outputs,
            form_names=form_names,
            aliases=aliases,
        )
        if name in _registry and _registry[name].module != made.module:
            raise UsageError(
                f"{made.module}: op {name!r} is already defined in {_registry[name].module}. Give it a name of its own."
            )
        _registry[name] = made
        return made

    return register


def _read_signature(body: Callable[..., Any], *, name: str, **properties: Any) -> Op:
    inputs, optional, is_variadic, attributes = _read_parameters(body)
    return Op(
        name=name,
        body=body,
        inputs=inputs,
        optional_inputs=optional | _left_out(properties["forms"]),
        is_variadic=is_variadic,
        attributes=attributes,
        module=body.__module__,
        **properties,
    )


def _read_parameters(body: Callable[..., Any]) -> tuple[tuple[str, ...], frozenset[str], bool, tuple[Attribute, ...]]:
    """Inputs, optional inputs, whether there may be any number of them, and attributes."""
    parameters = list(inspect.signature(body).parameters.values())[1:]  # the first is the kernel
    inputs = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    attributes = tuple(
        Attribute(
            name=p.name,
            kind=_KINDS[str(p.annotation)],
            default=None if p.default is p.empty else p.default,
            is_required=p.default is p.empty,
        )
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    )
    optional = frozenset(p.name for p in inputs if p.default is None)
    return tuple(p.name for p in inputs), optional, any(p.kind is p.VAR_POSITIONAL for p in inputs), attributes


def _left_out(forms: tuple[tuple[str, ...], ...]) -> frozenset[str]:
    """Inputs that not every form has."""
    return frozenset(name for form in forms for name in form if any(name not in other for other in forms))


@cache
def _discover() -> None:
    package = importlib.import_module("linger.ops")
    for found in pkgutil.iter_modules(package.__path__):
        if not found.ispkg:  # `fast` holds torch versions
            importlib.import_module(f"linger.ops.{found.name}")


def ops() -> Mapping[str, Op]:
    """Every op, by its name in the file."""
    _discover()
    return dict(sorted(_registry.items()))


def is_known(name: str) -> bool:
    """Whether there is an op of this name, or one that files also call so."""
    _discover()
    return name in _registry or name in _aliases()


def find_op(name: str, platform: str | None = None) -> Op:
    """The op with this name, with the arithmetic of a chip where it has one of its own there.

    Raises:
        UnsupportedError: There is none.
    """
    _discover()
    name = _aliases().get(name, name)
    if name not in _registry:
        raise UnsupportedError(
            f"{name}: linger has no op of this name. Known ops: {listing(sorted(_registry), limit=99)}."
        )
    return _registry[name].for_platform(platform)


@cache
def _aliases() -> dict[str, str]:
    _discover()
    return {alias: op.name for op in _registry.values() for alias in (*op.form_names, *op.aliases)}
