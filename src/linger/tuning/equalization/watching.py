# SPDX-License-Identifier: Apache-2.0
"""A watched forward pass: which layers make and read each channel, and what stands between them.

Every torch function that the model calls is seen, with the tensors that it takes. One that commutes with positive factors
carries the labels of its input on (`rules`); one that is not known keeps the channels of its inputs as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from linger.analysis.batches import Batch, Function
from linger.analysis.trace import Trace, unaffected
from linger.constraint.conv_bn import ConvBN, as_batch_norm
from linger.constraint.limits import limits_of

Numbers = NDArray[np.int64]

PINNED = 0
"""The channel whose factor is 1: whatever is joined with it stays as it is."""

ANY = -1
"""The label of an element that is always zero, as in padding: every factor suits it."""


class Form(NamedTuple):
    """How a weight lies in memory: [outputs, inputs/groups, …], or [inputs, outputs/groups, …] if transposed."""

    groups: int = 1
    is_transposed: bool = False

    def rows(self, shape: torch.Size) -> int:
        """Output channels of a weight of this shape."""
        return shape[1] * self.groups if self.is_transposed else shape[0]

    def columns(self, shape: torch.Size) -> int:
        """Input channels of a weight of this shape."""
        return shape[0] if self.is_transposed else shape[1] * self.groups


@dataclass
class Norm:
    """A batch norm by the names of its state."""

    weight: str
    bias: str | None
    mean: str
    var: str
    eps: float


@dataclass
class Layer:
    """A weight, or a batch norm.

    Attributes:
        name: The name of the weight, or of the batch norm's.
        rows, columns: Numbers of its output and its input channels.
        weight: Name of the weight; None for a batch norm alone.
        form: How the weight lies in memory.
        biases: Names of what is added to the weight's product.
        norm: The batch norm, where the layer is one.
        reader: The batch norm that reads a weight's product; then the weight's own rows have no factors. The layer itself,
            if there are several.
        is_padded: Whether zeros are added around its input.
        input_power: Mean square of every input channel, from what was watched.
        output_power: Mean square of all outputs.
        lowest, mean, deviation: The least output of each channel, and the least mean and largest standard deviation of a pass.
    """

    name: str
    rows: Numbers
    columns: Numbers
    weight: str | None = None
    form: Form = field(default_factory=Form)
    biases: set[str] = field(default_factory=set)
    norm: Norm | None = None
    reader: Layer | None = None
    is_padded: bool = False
    input_power: NDArray[np.float64] | None = None
    output_power: float = 0.0
    lowest: NDArray[np.float64] | None = None
    mean: NDArray[np.float64] | None = None
    deviation: NDArray[np.float64] | None = None


class Channels:
    """All channels of a model, joined while the model is watched."""

    def __init__(self) -> None:
        self._parents = [PINNED]
        self._labels = WeakTensorKeyDictionary()
        self._largest: dict[int, float] = {}
        self.with_origin: set[int] = set()  # numbers of channels that a constant cannot be added to

    def new(self, count: int) -> Numbers:
        """Numbers of channels that nothing is known of yet."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def find(self, number: int) -> int:
        """The number that stands for all that were joined with this one."""
        root = number
        while self._parents[root] != root:
            root = self._parents[root]
        while self._parents[number] != root:
            self._parents[number], number = root, self._parents[number]
        return root

    def roots(self, numbers: Numbers) -> Numbers:
        """`find` of each."""
        return np.array([self.find(int(n)) for n in numbers], dtype=np.int64)

    def join(self, first: Numbers, second: Numbers) -> None:
        """Let channels have one factor, pair by pair."""
        for a, b in {(int(a), int(b)) for a, b in zip(first, second, strict=True)}:
            if ANY not in (a, b):
                low, high = sorted((self.find(a), self.find(b)))
                self._parents[high] = low  # so the pinned one stays the root

    def pin(self, numbers: Numbers) -> None:
        """Let channels keep the factor 1."""
        self.join(numbers, np.full_like(numbers, PINNED))

    # tensors
    def labels(self, tensor: Tensor) -> Tensor | None:
        """The labels of a tensor; None if it carries no factors."""
        found: Tensor | None = self._labels.get(tensor)
        return found

    def label(self, tensor: Tensor, labels: Tensor) -> None:
        """Give a tensor its labels, repeated to its shape."""
        self._labels[tensor] = labels.expand(tensor.shape)

    def label_axis(self, tensor: Tensor, axis: int, numbers: Numbers) -> None:
        """Give every index along an axis its number."""
        sizes = [1] * tensor.dim()
        sizes[axis] = -1
        self.label(tensor, torch.from_numpy(numbers).double().reshape(sizes))

    def pin_tensor(self, tensor: Tensor) -> None:
        """Let all channels of a tensor keep the factor 1."""
        labels = self.labels(tensor)
        if labels is not None:
            self.pin(as_numbers(compact(labels).unique()))

    def keep_origin(self, tensor: Tensor) -> None:
        """Note that a function of a tensor is another one when a constant is added to a channel."""
        labels = self.labels(tensor)
        if labels is not None:
            self.with_origin.update(as_numbers(compact(labels).unique()).tolist())
            self.with_origin.discard(ANY)

    def along(self, labels: Tensor, axis: int) -> Numbers:
        """One number per index of an axis; what else an index holds is joined with it."""
        axis %= labels.dim()
        others = [d for d in range(labels.dim()) if d != axis]
        numbers = as_numbers(self.collapse(labels, others).reshape(-1))
        return np.broadcast_to(numbers, (labels.shape[axis],))

    def collapse(self, labels: Tensor, axes: list[int]) -> Tensor:
        """Labels in which some axes have the size 1, because all along them was joined."""
        small = compact(labels)
        if not axes or small.numel() == 0:
            return small
        highest = small.amax(axes, keepdim=True)
        lowest = torch.where(small < 0, torch.inf, small).amin(axes, keepdim=True)
        if not bool(((highest == lowest) | (highest < 0)).all()):
            repeated = highest.expand(small.shape)
            pairs = torch.stack([small.reshape(-1), repeated.reshape(-1)]).unique(dim=1)
            self.join(as_numbers(pairs[0]), as_numbers(pairs[1]))
        kept = [1 if d in axes else labels.shape[d] for d in range(labels.dim())]
        return highest.expand(kept)

    def join_labels(self, first: Tensor, second: Tensor) -> Tensor:
        """Join two tensors of labels, element by element, each repeated as a sum would; returns those of the sum."""
        a, b = torch.broadcast_tensors(compact(first), compact(second))
        pairs = torch.stack([a.reshape(-1), b.reshape(-1)]).unique(dim=1)
        self.join(as_numbers(pairs[0]), as_numbers(pairs[1]))
        return torch.where(a < 0, b, a)

    # magnitudes
    def observe(self, tensor: Tensor, axis: int, numbers: Numbers) -> None:
        """Note the largest magnitude of each index along an axis, as one of that channel."""
        others = [d for d in range(tensor.dim()) if d != axis % tensor.dim()]
        if tensor.numel() == 0:
            return
        found = tensor.detach().abs().amax(others) if others else tensor.detach().abs()
        for number, value in zip(numbers.tolist(), found.tolist(), strict=True):
            self._largest[number] = max(value, self._largest.get(number, 0.0))

    def largest(self) -> dict[int, float]:
        """The largest magnitude that each channel was seen with, by the number that stands for it."""
        found: dict[int, float] = {}
        for number, value in self._largest.items():
            root = PINNED if number == ANY else self.find(number)
            found[root] = max(value, found.get(root, 0.0))
        return found


def compact(labels: Tensor) -> Tensor:
    """Labels without the repetitions of expand(): the size of such axes is 1."""
    for axis, (size, stride) in enumerate(zip(labels.shape, labels.stride(), strict=True)):
        if stride == 0 and size > 1:
            labels = labels.narrow(axis, 0, 1)
    return labels


def as_numbers(labels: Tensor) -> Numbers:
    """Labels as numbers of channels."""
    found: Numbers = labels.to(torch.int64).numpy()
    return found


_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

_LAYERS = frozenset(
    {"linear", "batch_norm", "prelu"} | {f"conv{kind}{n}d" for n in "123" for kind in ("", "_transpose")}
)
"""Functions that take parameters after their input. What any other function makes of a parameter would miss its factors."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""

_LOOKS = frozenset(
    {
        "__get__",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "is_contiguous",
        "element_size",
        "get_device",
    }
    | {"is_floating_point", "is_complex", "storage_offset", "__len__", "is_same_size", "__hash__", "__repr__"}
)
"""Functions that do not look at numbers, where they return no tensor."""


@dataclass
class Clip:
    """A call of ReLU6 or of another function that limits to 0 … `limit`, right after a layer.

    Attributes:
        module: Path of the module whose output it limits; None if no module returned it.
        numbers: The channels of that output.
        limit: The largest result.
        uses: Counts the functions that take the output.
        is_in_place: Whether the output was overwritten, so that later functions take the limited numbers.
        axis: The axis of the channels, counted from the end.
    """

    module: str | None
    numbers: Numbers
    limit: float
    uses: list[int]
    is_in_place: bool
    axis: int


class Watch:
    """What watched passes of a model found.

    Attributes:
        channels: All channels.
        layers: Weights and batch norms by name.
        clips: Calls that limit the output of a layer.
        calls: How often each module ran, by path.
    """

    def __init__(self, model: nn.Module) -> None:
        self.channels = Channels()
        self.layers: dict[str, Layer] = {}
        self.clips: list[Clip] = []
        self.calls: Counter[str] = Counter()
        self.paths = {module: path for path, module in model.named_modules()}
        state = [*model.named_parameters(remove_duplicate=True), *model.named_buffers(remove_duplicate=True)]
        self._names = {id(tensor): name for name, tensor in state}
        self._kept_state = _sharing_memory(dict(state))
        self._bias_rows: dict[str, Numbers] = {}
        self._makers = WeakTensorKeyDictionary()
        self._uses = WeakTensorKeyDictionary()
        self._returned_by = WeakTensorKeyDictionary()

    # state of the model
    def name_of(self, tensor: object) -> str | None:
        """The name of a parameter or buffer; None for any other tensor."""
        return self._names.get(id(tensor))

    def keep_state(self, tensor: Tensor) -> None:
        """Let a parameter or buffer keep its numbers."""
        name = self.name_of(tensor)
        if name is not None:
            self._kept_state.add(name)

    def finish(self) -> None:
        """Pin the channels of all state that is used in other ways than as a layer's."""
        for layer in self.layers.values():
            own = {layer.weight, *layer.biases} | (set() if layer.norm is None else set(vars(layer.norm).values()))
            if own & self._kept_state:
                self.channels.pin(layer.rows)
                self.channels.pin(layer.columns)

    # tensors
    def use(self, tensor: Tensor) -> list[int]:
        """Count a function that takes a tensor; returns the counter."""
        found: list[int] = self._uses.setdefault(tensor, [0])
        found[0] += 1
        return found

    def uses_of(self, tensor: Tensor) -> list[int]:
        """The counter of a tensor."""
        found: list[int] = self._uses.setdefault(tensor, [0])
        return found

    def maker(self, tensor: Tensor) -> tuple[Layer, int] | None:
        """The layer whose very output a tensor is, and the axis of its channels."""
        found: tuple[Layer, int] | None = self._makers.get(tensor)
        return found

    def module_of(self, tensor: Tensor) -> str | None:
        """Path of the innermost module that returned a tensor."""
        found: str | None = self._returned_by.get(tensor)
        return found

    def note_returned(self, module: nn.Module, output: object) -> None:
        """Note a module's call, and its result if that is what one layer made."""
        path = self.paths[module]
        self.calls[path] += 1
        if isinstance(output, Tensor) and output in self._makers and output not in self._returned_by:
            self._returned_by[output] = path

    def observe_made(self, tensor: Tensor) -> None:
        """Note the magnitudes of a layer's output that is used as it is, not only where it is positive."""
        found = self.maker(tensor)
        if found is not None:
            layer, axis = found
            self.channels.observe(tensor, axis, layer.rows)

    # layers
    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, axis: int) -> Layer | None:
        """Note that a weight reads the channels of x; None where it is no parameter, or has other forms elsewhere.

        Args:
            x: The input.
            weight: The weight.
            bias: What is added.
            form: How the weight lies in memory.
            axis: The axis of the channels, counted from the end.
        """
        name = self.name_of(weight)
        offset = None if bias is None else self.name_of(bias)
        if name is None or (bias is not None and offset is None):
            return None
        layer = self.layers.get(name)
        if layer is None:
            rows, columns = self.channels.new(form.rows(weight.shape)), self.channels.new(form.columns(weight.shape))
            layer = self.layers[name] = Layer(name, rows, columns, name, form)
        elif layer.form != form:
            return None
        if offset is not None:
            layer.biases.add(offset)
            self.channels.join(self._bias_rows.setdefault(offset, layer.rows), layer.rows)
        self.read(x, layer, axis)
        return layer

    def read(self, x: Tensor, layer: Layer, axis: int) -> None:
        """Join the channels of x with those that a layer reads, and observe their magnitudes."""
        labels = self.channels.labels(x)
        if labels is None:
            self.channels.pin(layer.columns)
        else:
            numbers = self.channels.along(labels, axis)
            self.channels.join(numbers, layer.columns)
            self.channels.observe(x, axis, layer.columns)
        others = [d for d in range(x.dim()) if d != axis % x.dim()]
        power = x.detach().double().square()
        found = (power.mean(others) if others else power).cpu().numpy()
        layer.input_power = found if layer.input_power is None else np.maximum(found, layer.input_power)

    def made(self, output: Tensor, layer: Layer, axis: int) -> None:
        """Note the output of a layer."""
        self.channels.label_axis(output, axis, layer.rows)
        self._makers[output] = (layer, axis % output.dim() - output.dim())
        layer.output_power = max(layer.output_power, float(output.detach().double().square().mean()))
        _note_heights(layer, output.detach().double().movedim(axis, 0).flatten(1).cpu().numpy())

    def normalize(self, x: Tensor, feeder: Layer | None, norm: Norm, output: Tensor, axis: int) -> None:
        """Note a batch norm: rows are its γ and β, columns its statistics.

        The output of a convolution that it reads keeps the factor 1, as both become one layer later.
        """
        layer = self.layers.get(norm.weight)
        if layer is None:
            size = x.shape[axis]
            layer = Layer(norm.weight, self.channels.new(size), self.channels.new(size), norm=norm)
            self.layers[norm.weight] = layer
        if feeder is None:
            self.read(x, layer, axis)
        else:
            self.channels.pin(feeder.rows)
            self.channels.pin(layer.columns)
            feeder.reader = layer if feeder.reader in (None, layer) else feeder
        self.made(output, layer, axis)
        if feeder is not None:
            feeder.output_power = layer.output_power

    def unknown(self, arguments: object) -> None:
        """Let whatever a function takes stay as it is."""
        for leaf in tree_leaves(arguments):
            if isinstance(leaf, Tensor):
                self.channels.pin_tensor(leaf)
                self.keep_state(leaf)


def _note_heights(layer: Layer, values: NDArray[np.float64]) -> None:
    """Note how low each channel of a layer's output is; [channels, numbers]."""
    if values.shape[1] == 0:
        return
    found = (values.min(1), values.mean(1), values.std(1))
    if layer.lowest is None or layer.mean is None or layer.deviation is None:
        layer.lowest, layer.mean, layer.deviation = found
        return
    layer.lowest = np.minimum(layer.lowest, found[0])
    layer.mean = np.minimum(layer.mean, found[1])
    layer.deviation = np.maximum(layer.deviation, found[2])


def _sharing_memory(state: dict[str, Tensor]) -> set[str]:
    """Names of tensors that share memory with another one."""
    where = {name: t.untyped_storage().data_ptr() for name, t in state.items() if t.numel()}
    counts = Counter(where.values())
    return {name for name, place in where.items() if counts[place] > 1}


Rule = Callable[[Watch, Function, Sequence[Any], dict[str, Any], Any], bool]
"""What a function does to labels; False where it turns out to be none that is known."""


def _follow(
    watch: Watch, rule: Rule | None, func: Function, args: Batch, kwargs: dict[str, Any], output: object
) -> None:
    """Carry labels over a function; whatever it takes stays as it is where no rule knows the function."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for tensor in tensors:
        watch.use(tensor)
    if rule is None or not args or "out" in kwargs or not rule(watch, func, args, kwargs, output):
        watch.unknown((args, kwargs))
    for tensor in tensors if getattr(func, "__name__", "") not in _LAYERS else tensors[:1]:
        watch.keep_state(tensor)


def watch_channels(model: nn.Module, batches: Sequence[Batch], rules: dict[str, Rule]) -> Watch:
    """Run a float model on batches, in evaluation mode, and follow its channels.

    Raises:
        UsageError: The model does not accept a batch.
    """
    watch = Watch(model)
    inside: list[nn.Module] = []  # modules that are looked at as a whole

    def run(func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        output, name = func(*args, **kwargs), getattr(func, "__name__", "")
        if not inside and (name not in _LOOKS or isinstance(output, Tensor)):
            _follow(watch, rules.get(name), func, args, kwargs, output)
        return output

    def enter(module: nn.Module, *_: object) -> None:
        inside.append(module)

    def leave(module: nn.Module, args: Batch, kwargs: dict[str, Any], output: object) -> None:
        if len(inside) == 1:
            _module_rule(watch, module, args, kwargs, output)
            watch.note_returned(module, output)
        inside.pop()

    def note(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        del args, kwargs
        if not inside:
            watch.note_returned(module, output)

    wholes = [module for module in model.modules() if isinstance(module, (ConvBN, *_RECURRENT))]
    with unaffected(model), Trace(model, run) as trace:
        trace.before(wholes, enter, is_first=True)
        trace.after(wholes, leave)
        trace.after((module for module in model.modules() if module not in wholes), note)
        for batch in batches:
            watch.unknown(trace.run(batch))
            _pin_remembered(watch, model)
    watch.finish()
    return watch


def _pin_remembered(watch: Watch, model: nn.Module) -> None:
    """Let the tensors that modules keep in attributes, for their next call, stay as they are."""
    for module in model.modules():
        own = [value for name, value in vars(module).items() if name not in _OF_TORCH]
        for leaf in tree_leaves(own):
            if isinstance(leaf, Tensor):
                watch.channels.pin_tensor(leaf)


def _module_rule(watch: Watch, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """What a fused pair or a recurrent layer does to the channels of its input."""
    is_known = bool(args) and isinstance(args[0], Tensor)
    if is_known and isinstance(module, ConvBN):
        is_known = _fused_pair(watch, module, args[0], output)
    elif is_known:
        is_known = _recurrent(watch, module, args[0])
    watch.unknown((args[1:], kwargs) if is_known else (args, kwargs, list(module.parameters())))


def _fused_pair(watch: Watch, pair: ConvBN, x: Tensor, output: Tensor) -> bool:
    conv, norm = pair.conv, norm_of(watch, pair.bn)
    if norm is None or limits_of(pair).is_any or limits_of(conv).is_any or limits_of(pair.bn).is_any:
        return False
    axis = -(conv.weight.dim() - 1)
    form = Form(conv.groups, isinstance(conv, _TRANSPOSED))
    layer = watch.product(x, conv.weight, conv.bias, form, axis)
    if layer is None:
        return False
    layer.is_padded = any(conv.padding) if isinstance(conv.padding, tuple) else conv.padding != "valid"
    watch.normalize(output, layer, norm, output, axis)
    return True


def norm_of(watch: Watch, module: nn.Module) -> Norm | None:
    """A batch norm by the names of its state; None where it has no factors of its own, or no statistics."""
    bn = as_batch_norm(module)
    return named_norm(watch, bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.eps)


def named_norm(watch: Watch, mean: object, var: object, weight: object, bias: object, eps: float) -> Norm | None:
    """A batch norm by the names of its tensors; None where one of them is missing or no state of the model."""
    names = [watch.name_of(t) for t in (weight, bias, mean, var)]
    if None in names:
        return None
    gamma, beta, first, second = (str(name) for name in names)
    return Norm(gamma, beta, first, second, eps)


def _recurrent(watch: Watch, module: nn.Module, x: Tensor) -> bool:
    """The columns of the first layer's weights, in both directions, read the input; nothing is known of the output."""
    is_cell = isinstance(module, nn.RNNCellBase)
    names = ("weight_ih",) if is_cell else ("weight_ih_l0", "weight_ih_l0_reverse")
    own = dict(module.named_parameters(recurse=False))
    for name in names:
        if name in own:
            layer = watch.product(x, own[name], own.get(name.replace("weight", "bias")), Form(), -1)
            if layer is None:
                return False
            watch.channels.pin(layer.rows)
            layer.output_power = float(nn.functional.linear(x, own[name]).double().square().mean())
    return True
