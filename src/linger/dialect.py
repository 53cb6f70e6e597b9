# SPDX-License-Identifier: Apache-2.0
"""What an op is: its schema (read from the body's signature), its torch counterparts, its samples.

The registry is filled by importing the modules of `linger.ops`; no other file lists the ops.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, wraps
from itertools import chain, filterfalse
from typing import Any, Literal, Protocol

from linger.errors import UnsupportedError, UsageError, listing
from linger.numeric.kernel import Sample

DOMAIN = "thinker"
DOMAIN_VERSION = 1
PLATFORM_QUANT = "luna_quant"
QUANT_MODE = "floor_add"
"""How nodes that name their chip say that they round half up."""

AttributeKind = Literal["float", "int", "ints", "str"]
_KINDS: dict[str, AttributeKind] = {"float": "float", "int": "int", "Ints": "ints", "str": "str"}

Limit = Callable[[Iterable[float]], float]
Constants = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Refusal:
    """Why a torch call has no integer form; it stays float and the coverage report says so."""

    reason: str


Settings = Mapping[str, Any] | Refusal
"""What a binding gives: attributes of the op, or why there are none."""
Binding = Callable[..., Settings]


def no_settings(x: object) -> Mapping[str, Any]:
    """The binding of a layer, or of a function of one tensor, without settings."""
    del x
    return {}


def only_in_place(x: object, inplace: bool = False) -> Mapping[str, Any]:  # noqa: FBT001, FBT002 - as torch has it
    """The binding of a function whose one setting, `inplace`, is honored by the caller."""
    del x, inplace
    return {}


def recurrent_layer(layer: Any) -> Settings:
    """Its sizes are those of its weights."""
    if layer.proj_size:
        return Refusal("proj_size makes the state smaller by a product that has no integer form")
    return {}


def two_operands(x: object, other: object) -> Mapping[str, Any]:
    """The binding of a function of two tensors without settings."""
    del x, other
    return {}


def along_axis(x: Any, dim: Any = None, dtype: object = None) -> Settings:
    """The axis of a softmax; refuses a missing one, which torch guesses, and results of other types."""
    if not isinstance(dim, int):
        return Refusal("the axis is not given as a number; write dim=-1")
    if str(dtype) not in ("None", "torch.float32"):
        return Refusal(f"the result is asked for as {dtype}")
    if not x.dim():
        return Refusal("the tensor has no axis")
    return {"dim": dim}


def along_axis_in_functional(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: object = None) -> Settings:
    """The same in torch.nn.functional; `_stacklevel` is for torch's own warning."""
    return along_axis(x, dim, dtype)


def convolution(layer: Any) -> Settings:
    """The geometry of a torch convolution; "same" padding becomes the explicit, perhaps uneven, pads."""
    kernel, dilations = tuple(layer.kernel_size), tuple(layer.dilation)
    begins = ends = (0,) * len(kernel)
    if layer.padding == "same" and layer.padding_mode == "zeros":
        totals = [d * (n - 1) for d, n in zip(dilations, kernel, strict=True)]
        begins, ends = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    elif layer.padding != "valid" and layer.padding_mode == "zeros":  # a border that copies is put on before
        begins = ends = tuple(layer.padding)
    window = {"kernel_shape": kernel, "pads": (*begins, *ends), "strides": tuple(layer.stride)}
    return {"dilations": dilations, "group": layer.groups, **window}


def kept_axis(x: Any, dim: Any, *, keepdim: bool, dtype: object = None) -> Refusal | None:
    """What keeps a sum or mean from its integer form, in which it goes over one axis that is kept; callers bring others into it."""
    if str(dtype) not in ("None", "torch.float32"):
        return Refusal(f"the result is asked for as {dtype}")
    if not isinstance(dim, int) or not keepdim or not 0 <= dim < len(x.shape):
        return Refusal("its axes are not those of the tensor")
    return None


EXTENSIONS: Mapping[str, tuple[str, Any]] = {
    "exponents_w": ("channels", ()),
    "exponents_iw": ("inputs", ()),
    "exponents_hw": ("states", ()),
    "o_unsigned": ("unsigned", 0),
}
"""Attributes of ours that extend the arithmetic of the documents: the sub-domain of functions that read them, and the default.

A node has one only where it says something: its default is what the documents mean. Chips refuse them by rule.

`exponents_w` (one of each output channel, none negative): the weights of channel c are at scale_w·2^exponents_w[c], and so is its
bias, at scale_x·scale_w·2^exponents_w[c]. `exponents_iw` and `exponents_hw`: the same of a recurrent op's rows of gates.
`o_unsigned`: the output has 0 … 2^o_bits − 1 instead of two's complement, in an unsigned type.
"""


def extensions_of(attributes: Mapping[str, Any]) -> frozenset[str]:
    """The extensions that a node uses; its attributes by name, as Python values."""
    return frozenset(name for name, (_, default) in EXTENSIONS.items() if attributes.get(name, default) != default)


@dataclass(frozen=True)
class Attribute:
    """One attribute of an op, from a keyword-only parameter of its body."""

    name: str
    kind: AttributeKind
    default: Any = None
    is_required: bool = True


@dataclass(frozen=True, kw_only=True)
class Newer:
    """An op under a name that it has in the newer dialect, the domain `linger`.

    Attribute names follow from the op's own: `linger.graph.core.dialects` knows the customary differences.
    """

    name: str = field(kw_only=False)
    """Its type in the file."""
    inputs: tuple[str, ...] | None = None
    """Its inputs; None: those of the op."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that the op has no name for, with the value that means what the op computes; None: any value does."""
    axes: int | None = None
    """The number of axes of its data, where it takes only that; the op of another name takes the rest."""
    is_global: bool = False
    """Its window is the whole image, whatever its size."""
    has_rounding: bool = True
    """Its nodes say how they round (`quant_mode`)."""
    is_packed: bool = True
    """The packer knows the name."""
    unlike: str = ""
    """Why its numbers are not those of the op, so that neither is converted into the other."""


class NodeFacts(Protocol):
    """Facts about one node of a file, by the names of the op's inputs. An op's `refuse` rule decides from them."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Every attribute of the node, defaults included."""

    def size(self, name: str, axis: int) -> int | None:
        """The size of an axis of an input; None where it is not known."""

    def bits(self, name: str) -> int:
        """The width in which an input is stored; 8 where that is not known."""

    def is_real(self, name: str) -> bool:
        """Whether an input holds real numbers."""

    def content(self, name: str) -> Any:
        """The array that an input always is; None where it is computed."""


NodeRule = Callable[[NodeFacts], "str | None"]
Interval = tuple[float, float]
UsedRule = Callable[[Mapping[str, Any], Sequence[Interval]], Interval]
"""From an op's settings, and the smallest and largest number of each constant operand, to the interval that it looks at."""
TorchFunction = Callable[..., Any]


@dataclass(eq=False, kw_only=True)
class _Properties:
    """The arguments of `@op`."""

    name: str = field(kw_only=False)
    """The op type in the file."""
    aliases: tuple[str, ...] = ()
    """Other names that files have for it."""
    standard_name: str | None = None
    """The op of the standard domain that bare files use for it on integers."""
    newer: tuple[Newer, ...] = ()
    """Its names in the newer dialect, the customary one first."""
    why_not_newer: str = "none computes this"
    """Why the newer dialect has no name for it."""
    float_op: str | None = None
    """The standard op that computes it on real numbers, between DequantizeLinear and QuantizeLinear."""

    forms: tuple[tuple[str, ...], ...] = ()
    """The inputs of each form of the node, for an op whose optional inputs do not come last."""
    form_names: tuple[str, ...] = ()
    """What bare files call each form, where that is not the op's name."""
    outputs: tuple[str, ...] = ("y",)
    """Names of the outputs. The first holds integers, the others are real."""
    real_inputs: tuple[str, ...] = ()
    """Inputs that hold real numbers."""
    unread_inputs: Mapping[str, float] = field(default_factory=dict)
    """Real inputs that files carry and the body does not read, with a value to write where there is none."""
    repeats: Mapping[str, str] = field(default_factory=dict)
    """Attributes that must have the value of another one."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Attributes that nodes carry behind those of the body, which does not read them; `platform_quant` follows."""
    has_platform_quant: bool = True
    """Its nodes say how the platform rounds."""

    limit: Limit | float | None = None
    """Bound of the output scale: a number, or a function of the input scales (`math.prod` for products).

    The device shifts a result right only, so the output cannot be finer than that. None keeps the scale of the first
    input, unless `output_scale` is given.
    """
    output_scale: float | None = None
    """The one scale that the output has; its width is then the default of the attribute `output_bits`."""
    finer_limit: Limit | None = None
    """The bound that replaces `limit` in models whose ranges are observed now; checkpoints of older ones keep theirs."""
    keeps_scale_unseen: bool = False
    """Its output is never coarser than its input, and keeps the input's scale in models that have no range for it."""
    output_bits: str | None = "o_bits"
    """The attribute that holds the output's width; None: the width of the first input."""
    has_integer_output: bool = True
    """False for Dequant alone."""
    is_scale_free: bool = False
    """The body compares and moves numbers without looking at the scale, so it works on real values too."""
    is_pointwise: bool = False
    """It has one input, and each number of its output depends on the one at the same place alone: a table of them computes it."""
    picks: bool = False
    """Every number of the result is one of an operand's, limited or not, so that limits behind the op hold before it too."""
    normalizes: bool = False
    """It divides its input by a deviation measured in it, and takes a weight and a bias, or neither."""

    input_bits: int | None = None
    """The width that the device wants: inputs of another one get a Requant."""
    widest_data: int = 32
    """The widest integers that its sums are exact for."""
    input_end: float | None = None
    """The largest magnitude that the device's format of the input holds, if numbers beyond it are lost."""
    last_axis: str | None = None
    """The attribute with an axis that the device takes only where it is the last one."""

    window_axes: int = 0
    """Axes of its window (`kernel_shape`); 0: it has none."""
    weight_axes: int | None = None
    """Axes of its weights, where products of them and the data are added in 32 bits; None: there is no such sum."""
    is_transposed: bool = False
    """Its weights are [in, out/group, …], not [out, in/group, …]."""
    takes_unsigned: bool = False
    """Its data may be unsigned bytes; what other ops read is brought to signed ones before."""
    keeps_sign: bool = False
    """It takes unsigned bytes, and of operands that are never negative its result is not, either."""
    never_negative: bool = False
    """Its result is never negative."""
    keeps_shape: bool = False
    """Its output has the shape of its first input, which shape inference through its body does not see."""
    is_sized_by_values: bool = False
    """The values of an input, not its shape alone, decide the shape of the output."""
    keeps_open_sizes: bool = True
    """A height or width of its first input that is open is open in its output, too."""
    is_for_open_sizes: bool = False
    """Files have it only where they leave the sizes of images open."""
    sized_inputs: tuple[str, ...] = ()
    """Inputs that, as constants, belong to one size of the image."""

    chip_limits: tuple[str, ...] = ()
    """The limits of chips that concern it, by the names of the rules (`target-…`) in `linger.checks.limits`."""
    if_missing: str = ""
    """What to do where a chip does not have it."""
    if_differs: str = ""
    """What a chip computes exactly where it computes this otherwise; `{target}` is its name. Empty: nothing is known."""

    state_name: str | None = None
    """Part of the state_dict key of the functional form (`iqadd__default_index`)."""
    has_own_counter: bool = False
    """Its calls are numbered by themselves in state_dict keys, not together with the other ops'."""
    switch: str | None = None
    """The user's switch that keeps its function calls in float."""
    pieces: Any = None
    """The table of straight pieces that its body evaluates; the torch side looks results up in it."""


@dataclass(eq=False, kw_only=True)
class Op(_Properties):
    """One op of the dialect: its properties, what its body's signature says, and what else its file declares."""

    limit: Limit | None = None
    body: Callable[..., Any]
    """The arithmetic, in the vocabulary of `linger.numeric.kernel.Kernel`."""
    inputs: tuple[str, ...]
    optional_inputs: frozenset[str]
    is_variadic: bool
    attributes: tuple[Attribute, ...]
    module: str
    is_narrow_exact: Callable[..., bool] | None = None
    layers: dict[str, Binding] = field(default_factory=dict)
    functions: dict[str, Binding] = field(default_factory=dict)
    orders: dict[Binding, tuple[str, ...]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    constant_names: tuple[str, ...] = ()
    make_constants: Constants | None = None
    constants_need_scale: bool = True
    refusal: NodeRule | None = None
    real_function: TorchFunction | None = None
    exact_result: TorchFunction | None = None
    used_rule: UsedRule | None = None
    platform: str | None = None
    variants: dict[str, Op] = field(default_factory=dict)
    """Ops of the same name with the arithmetic of another chip, by the attribute `platform` of their nodes."""

    @property
    def is_recurrent(self) -> bool:
        """Whether it carries a state from step to step."""
        return len(self.outputs) > 1

    def has_attribute(self, name: str) -> bool:
        """Whether its nodes may have an attribute of this name."""
        return any(attribute.name == name for attribute in self.attributes) or self.is_variadic_attribute(name)

    def default(self, name: str | None) -> Any:
        """The value of an attribute that a node leaves out; None where it must not."""
        return next((attribute.default for attribute in self.attributes if attribute.name == name), None)

    def output_channels(self, weight: Sequence[int], group: int) -> int:
        """The channels of the output, by the shape of the weight."""
        return weight[1] * group if self.is_transposed else weight[0]

    def on(
        self, platform: str, *, input_bits: int | None = None, pieces: Any = None
    ) -> Callable[[Callable[..., Any]], Op]:
        """Declare a body for another chip: the same name, torch functions and ranges, a schema and a width of its own."""

        def keep(body: Callable[..., Any]) -> Op:
            texts = {**self.texts, "platform": platform, "quant_mode": QUANT_MODE}
            own: dict[str, Any] = {"input_bits": input_bits, "pieces": pieces, "platform": platform, "texts": texts}
            schema = _read_parameters(body, texts | {"platform_quant": PLATFORM_QUANT})
            self.variants[platform] = replace(self, **schema, **own, samples=(), variants={})
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
        for form in self.forms:
            if len(form) == count:
                return form
        allowed = listing(str(len(form)) for form in self.forms)
        raise UsageError(f"{self.name}: the node has {count} inputs; expected {allowed}.")

    def bare_name(self, count: int) -> str:
        """What bare files call a node with so many inputs."""
        if self.standard_name is not None:
            return self.standard_name
        return self.form_names[self.forms.index(self.form(count))] if self.form_names else self.name

    def constants(self, *names: str, need_scale: bool = True) -> Callable[[Constants], Constants]:
        """Declare how a binding's settings become integer inputs once the scale and width of x are known.

        `names` are the buffers (and initializers) that hold them. A number becomes a scalar of the type of x, a tuple an
        int64 vector, a tuple of tuples a matrix of 16 bits. Without `need_scale` they do not depend on the scale, so one
        on a device is not read for them.
        """

        def keep(make: Constants) -> Constants:
            self.constant_names, self.make_constants, self.constants_need_scale = names, make, need_scale
            return make

        return keep

    def narrow(self, rule: Callable[..., bool]) -> Callable[..., bool]:
        """Declare when float32 holds every narrow number of the op: a function of its constant inputs and its attributes."""
        self.is_narrow_exact = rule
        return rule

    def refuse(self, rule: NodeRule) -> NodeRule:
        """Declare which nodes are refused: a function of a node's facts that gives the reason and the remedy, or None."""
        for each in (self, *self.variants.values()):
            each.refusal = rule
        return rule

    def real(self, function: TorchFunction) -> TorchFunction:
        """Declare the real function that the integers stand for: its range is observed, training sees its gradient.

        It gets the module torch, which an op file does not import, then the operands, then attributes by name.
        """
        for each in (self, *self.variants.values()):
            each.real_function = function
        return function

    def exact(self, function: TorchFunction) -> TorchFunction:
        """Declare the exact real result that one rounding turns into the integers: also of torch, operands, their `bits`."""
        self.exact_result = function
        return function

    def used(self, rule: UsedRule) -> UsedRule:
        """Declare the interval of the input beyond whose ends the result does not change, nor its gradient."""
        for each in (self, *self.variants.values()):
            each.used_rule = rule
        return rule

    def layer(self, *names: str) -> Callable[[Binding], Binding]:
        """Declare how a torch module's settings become this op's attributes."""

        def keep(binding: Binding) -> Binding:
            self.layers.update(dict.fromkeys(names, binding))
            return binding

        return keep

    def function(
        self, *names: str, methods: Sequence[str] = (), order: tuple[str, ...] | None = None
    ) -> Callable[[Binding], Binding]:
        """Declare how a torch function's arguments become this op's attributes; `methods` are those of torch.Tensor.

        `order` names the inputs that the first arguments are, where they come in another order than the op's.
        """

        def keep(binding: Binding) -> Binding:
            if order is not None:
                self.orders[binding] = order
            self.functions.update(dict.fromkeys((*names, *(f"torch.Tensor.{name}" for name in methods)), binding))
            return binding

        return keep

    def complete(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes in schema order with defaults filled in; complains about all that is missing or unknown."""
        known = {a.name: a.default for a in self.attributes}
        missing = [a.name for a in self.attributes if a.is_required and a.name not in attributes]
        unknown = [*filterfalse(self.is_variadic_attribute, (name for name in attributes if name not in known))]
        problems = (("lacks", missing), ("does not know", unknown))
        complaints = [f"{problem} {listing(names)}" for problem, names in problems if names]
        if complaints:
            raise UsageError(f"{self.name}: the node {' and '.join(complaints)}. Expected: {listing(known)}.")
        return {**known, **attributes}

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[str, str | None]]:
        """An op is itself wherever it is copied or unpickled."""
        return find_op, (self.name, self.platform)

    def is_variadic_attribute(self, name: str) -> bool:
        """Whether `name` is one of scale_x_0, scale_x_1 … of a variadic op."""
        stem, _, index = name.rpartition("_")
        return self.is_variadic and stem == "scale_x" and index.isdigit()


_registry: dict[str, Op] = {}


class _Declaration(_Properties):
    """`@op(name, …)`: turns a body into an op. Positional parameters are tensors, keyword-only parameters attributes."""

    def __call__(self, body: Callable[..., Any]) -> Op:
        """Register the op.

        Raises:
            UsageError: Another file has an op of this name.
        """
        properties = {each.name: getattr(self, each.name) for each in fields(_Properties)}
        properties["takes_unsigned"] |= self.keeps_sign
        limit = self.limit
        if isinstance(limit, float):
            properties["limit"] = lambda _: limit  # it does not depend on the scales of the inputs
        rounding = {"platform_quant": PLATFORM_QUANT} if self.has_platform_quant else {}
        schema = _read_parameters(body, {**self.texts, **rounding})
        if self.forms:  # what not every form has is optional
            schema["optional_inputs"] |= {*chain(*self.forms)} - frozenset(self.forms[0]).intersection(*self.forms)
        declared = Op(**properties, **schema, module=body.__module__)
        before = _registry.get(declared.name)
        if before is not None and before.module != declared.module:
            raise UsageError(
                f"{declared.module}: op {declared.name!r} is already defined in {before.module}. Give it a name of its own."
            )
        _registry[declared.name] = declared
        return declared


op = _Declaration


def _read_parameters(body: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """What a body's signature says: inputs, optional ones, whether there may be any number of them, attributes.

    `texts` are further attributes, which the body does not get.
    """
    parameters = list(inspect.signature(body).parameters.values())[1:]  # the first is the kernel
    inputs = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]

    @wraps(body)
    def without_texts(kernel: Any, *tensors: Any, **attributes: Any) -> Any:
        return body(kernel, *tensors, **{name: value for name, value in attributes.items() if name not in texts})

    return {
        "body": without_texts,
        "inputs": tuple(p.name for p in inputs),
        "optional_inputs": frozenset(p.name for p in inputs if p.default is None),
        "is_variadic": any(p.kind is p.VAR_POSITIONAL for p in inputs),
        "attributes": tuple(
            Attribute(
                p.name, _KINDS[str(p.annotation)], None if p.default is p.empty else p.default, p.default is p.empty
            )
            for p in parameters
            if p.kind is p.KEYWORD_ONLY
        )
        + tuple(Attribute(name, "str", text, is_required=False) for name, text in texts.items()),
    }


@cache
def _discover() -> None:
    package = importlib.import_module("linger.ops")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:  # `fast` holds torch versions
            importlib.import_module(f"linger.ops.{module.name}")


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
