# SPDX-License-Identifier: Apache-2.0
"""A watched forward pass: which layers make and read each channel, what stands between them, and which channels share a factor.

Each weight has one number per output channel (a row) and one per input channel (a column); numbers that must have the same
factor are joined (a union-find). A tensor of the model has labels: a tensor of its shape that holds, for every element, the
number of the channel whose factor the element carries. A tensor without labels carries none. Multiplying rows by their factors
and dividing columns by theirs then changes no output. Every torch function that the model calls is seen, with the tensors that it
takes. One that commutes with positive factors carries the labels of its input on (`rules`); one that is not known keeps the
channels of its inputs as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
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
Array = NDArray[np.float64]

PINNED = 0
"""The channel whose factor is 1: whatever is joined with it stays as it is."""

ANY = -1
"""The label of an element that is always zero, as in padding: every factor suits it."""

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

_LAYERS = {"linear", "batch_norm", "prelu"} | {f"conv{kind}{n}d" for n in "123" for kind in ("", "_transpose")}
"""Functions that take parameters after their input. What any other function makes of a parameter would miss its factors."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""

_LOOKS = {
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
} | {"is_floating_point", "is_complex", "storage_offset", "__len__", "is_same_size", "__hash__", "__repr__"}
"""Functions that do not look at numbers, where they return no tensor."""


class Form(NamedTuple):
    """How a weight lies in memory: [outputs, inputs/groups, …], or [inputs, outputs/groups, …] if transposed."""

    groups: int = 1
    is_transposed: bool = False


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

    The reader is the batch norm that reads a weight's product; then the weight's own rows have no factors. It is the layer
    itself, if there are several.
    """

    name: str  # the name of the weight, or of the batch norm's
    rows: Numbers  # numbers of its output and its input channels
    columns: Numbers
    weight: str | None = None  # name of the weight, None for a batch norm alone, and how it lies in memory
    form: Form = field(default_factory=Form)
    biases: set[str] = field(default_factory=set)  # names of what is added to the weight's product
    norm: Norm | None = None  # the batch norm, where the layer is one
    reader: Layer | None = None
    is_padded: bool = False  # whether zeros are added around its input
    input_power: Array | None = None  # mean square of every input channel, and of all outputs
    output_power: float = 0.0
    lowest: Array | None = None  # the least output of each channel
    mean: Array | None = None  # the least mean of a pass
    deviation: Array | None = None  # the largest standard deviation of a pass

    def note_heights(self, values: Array) -> None:
        """Note how low each channel of the output is; [channels, numbers]."""
        if values.shape[1] == 0:
            return
        lowest, mean, deviation = values.min(1), values.mean(1), values.std(1)
        if self.lowest is not None and self.mean is not None and self.deviation is not None:
            lowest, mean = np.minimum(self.lowest, lowest), np.minimum(self.mean, mean)
            deviation = np.maximum(self.deviation, deviation)
        self.lowest, self.mean, self.deviation = lowest, mean, deviation

    def least_output(self, deviations: float) -> Array | None:
        """So many standard deviations below the least output of each channel, and twice as many below its mean; None if never seen."""
        if self.lowest is None or self.mean is None or self.deviation is None:
            return None
        margin = deviations * self.deviation
        least: Array = np.minimum(self.lowest, self.mean - margin) - margin
        return least


@dataclass
class Clip:
    """A call of ReLU6 or of another function that limits to 0 … `limit`, right after a layer."""

    module: str | None  # path of the module whose output it limits; None if no module returned it
    numbers: Numbers  # the channels of that output, and their axis, counted from the end
    limit: float  # the largest result
    uses: list[int]  # counts the functions that take the output
    is_in_place: bool  # whether the output was overwritten, so that later functions take the limited numbers
    axis: int


class Channels:
    """All channels of a model, joined while the model is watched."""

    def __init__(self) -> None:
        self._parents = [PINNED]
        self._labels: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
        self._largest: dict[int, float] = {}
        self._made: dict[int, float] = {}
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
        return self._labels.get(tensor)

    def label(self, tensor: Tensor, labels: Tensor) -> None:
        """Give a tensor its labels, repeated to its shape."""
        self._labels[tensor] = labels.expand(tensor.shape)

    def label_axis(self, tensor: Tensor, axis: int, numbers: Numbers) -> None:
        """Give every index along an axis its number."""
        sizes = [1] * tensor.dim()
        sizes[axis] = -1
        self.label(tensor, torch.from_numpy(numbers).double().reshape(sizes))

    def _numbers_of(self, tensor: Tensor) -> Numbers:
        labels = self.labels(tensor)
        return np.zeros(0, np.int64) if labels is None else as_numbers(_compact(labels).unique())

    def pin_tensor(self, tensor: Tensor) -> None:
        """Let all channels of a tensor keep the factor 1."""
        self.pin(self._numbers_of(tensor))

    def keep_origin(self, tensor: Tensor) -> None:
        """Note that a function of a tensor is another one when a constant is added to a channel."""
        self.with_origin |= set(self._numbers_of(tensor).tolist()) - {ANY}

    def along(self, labels: Tensor, axis: int) -> Numbers:
        """One number per index of an axis; what else an index holds is joined with it."""
        axis %= labels.dim()
        others = [d for d in range(labels.dim()) if d != axis]
        return np.broadcast_to(as_numbers(self.collapse(labels, others).reshape(-1)), (labels.shape[axis],))

    def collapse(self, labels: Tensor, axes: list[int]) -> Tensor:
        """Labels in which some axes have the size 1, because all along them was joined."""
        small = _compact(labels)
        if not axes or small.numel() == 0:
            return small
        highest = small.amax(axes, keepdim=True)
        lowest = torch.where(small < 0, torch.inf, small).amin(axes, keepdim=True)
        if not bool(((highest == lowest) | (highest < 0)).all()):
            self._join_elements(small, highest.expand(small.shape))
        return highest.expand([1 if d in axes else labels.shape[d] for d in range(labels.dim())])

    def join_labels(self, first: Tensor, second: Tensor) -> Tensor:
        """Join two tensors of labels, element by element, each repeated as a sum would; returns those of the sum."""
        a, b = torch.broadcast_tensors(_compact(first), _compact(second))
        self._join_elements(a, b)
        return torch.where(a < 0, b, a)

    def _join_elements(self, first: Tensor, second: Tensor) -> None:
        pairs = torch.stack([first.reshape(-1), second.reshape(-1)]).unique(dim=1)
        self.join(as_numbers(pairs[0]), as_numbers(pairs[1]))

    # magnitudes
    def observe(self, tensor: Tensor, axis: int, numbers: Numbers, *, is_made: bool = False) -> None:
        """Note the largest magnitude of each index along an axis, as one of that channel where it is read, or as a layer made it."""
        others = [d for d in range(tensor.dim()) if d != axis % tensor.dim()]
        if tensor.numel() == 0:
            return
        largest = tensor.detach().abs().amax(others) if others else tensor.detach().abs()
        known = self._made if is_made else self._largest
        for number, value in zip(numbers.tolist(), largest.tolist(), strict=True):
            known[number] = max(value, known.get(number, 0.0))

    def largest(self, *, is_made: bool = False) -> dict[int, float]:
        """The largest magnitude that each channel was read with, or made, by the number that stands for it."""
        largest: dict[int, float] = {}
        for number, value in (self._made if is_made else self._largest).items():
            root = PINNED if number == ANY else self.find(number)
            largest[root] = max(value, largest.get(root, 0.0))
        return largest


def _compact(labels: Tensor) -> Tensor:
    """Labels without the repetitions of expand(): the size of such axes is 1."""
    for axis, (size, stride) in enumerate(zip(labels.shape, labels.stride(), strict=True)):
        if stride == 0 and size > 1:
            labels = labels.narrow(axis, 0, 1)
    return labels


def as_numbers(labels: Tensor) -> Numbers:
    """Labels as numbers of channels."""
    numbers: Numbers = labels.to(torch.int64).numpy()
    return numbers


class Watch:
    """What watched passes of a model tell."""

    def __init__(self, model: nn.Module) -> None:
        self.channels = Channels()
        self.layers: dict[str, Layer] = {}  # weights and batch norms by name
        self.clips: list[Clip] = []  # calls that limit the output of a layer
        self.calls: Counter[str] = Counter()  # how often each module ran, by path
        self.paths = {module: path for path, module in model.named_modules()}
        state = [*model.named_parameters(remove_duplicate=True), *model.named_buffers(remove_duplicate=True)]
        self._names = {id(tensor): name for name, tensor in state}
        places = {name: t.untyped_storage().data_ptr() for name, t in state if t.numel()}
        counts = Counter(places.values())
        self._kept_state = {name for name, place in places.items() if counts[place] > 1}  # they share memory
        self._bias_rows: dict[str, Numbers] = {}
        # by tensor, the layer whose very output it is, with the axis of its channels; and the innermost module that returned it
        self.makers: MutableMapping[Tensor, tuple[Layer, int]] = WeakTensorKeyDictionary()
        self._uses: MutableMapping[Tensor, list[int]] = WeakTensorKeyDictionary()
        self.returned_by: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()

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
    def uses_of(self, tensor: Tensor) -> list[int]:
        """The counter of the functions that take a tensor."""
        return self._uses.setdefault(tensor, [0])

    def note_returned(self, module: nn.Module, output: object) -> None:
        """Note a module's call, and its result if that is what one layer made."""
        path = self.paths[module]
        self.calls[path] += 1
        if isinstance(output, Tensor) and output in self.makers and output not in self.returned_by:
            self.returned_by[output] = path

    def observe_made(self, tensor: Tensor) -> None:
        """Note the magnitudes of a layer's output that is used as it is, not only where it is positive."""
        maker = self.makers.get(tensor)
        if maker is not None:
            self.channels.observe(tensor, maker[1], maker[0].rows, is_made=True)

    # layers
    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, form: Form, axis: int) -> Layer | None:
        """Note that a weight reads the channels of x, on an axis counted from the end.

        None where it is no parameter, or has other forms elsewhere.
        """
        name = self.name_of(weight)
        offset = None if bias is None else self.name_of(bias)
        if name is None or (bias is not None and offset is None):
            return None
        layer = self.layers.get(name)
        if layer is None:
            sizes = (weight.shape[0], weight.shape[1] * form.groups)
            rows, columns = map(self.channels.new, sizes[::-1] if form.is_transposed else sizes)
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
            self.channels.join(self.channels.along(labels, axis), layer.columns)
            self.channels.observe(x, axis, layer.columns)
        others = [d for d in range(x.dim()) if d != axis % x.dim()]
        squares = x.detach().double().square()
        power = (squares.mean(others) if others else squares).cpu().numpy()
        layer.input_power = power if layer.input_power is None else np.maximum(power, layer.input_power)

    def made(self, output: Tensor, layer: Layer, axis: int) -> None:
        """Note the output of a layer."""
        self.channels.label_axis(output, axis, layer.rows)
        self.makers[output] = (layer, axis % output.dim() - output.dim())
        layer.output_power = max(layer.output_power, float(output.detach().double().square().mean()))
        layer.note_heights(output.detach().double().movedim(axis, 0).flatten(1).cpu().numpy())

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

    def norm_of(self, mean: object, var: object, weight: object, bias: object, eps: float) -> Norm | None:
        """A batch norm by the names of its tensors; None where one of them is missing or no state of the model."""
        names = [self.name_of(t) for t in (weight, bias, mean, var)]
        gamma, beta, first, second = map(str, names)
        return None if None in names else Norm(gamma, beta, first, second, eps)

    def pin_attributes(self, model: nn.Module) -> None:
        """Let the tensors that modules keep in attributes, for their next call, stay as they are."""
        for module in model.modules():
            for tensor in tensors([value for name, value in vars(module).items() if name not in _OF_TORCH]):
                self.channels.pin_tensor(tensor)

    def unknown(self, arguments: object) -> None:
        """Let whatever a function takes stay as it is."""
        for leaf in tensors(arguments):
            self.channels.pin_tensor(leaf)
            self.keep_state(leaf)


def tensors(tree: object) -> list[Tensor]:
    """The tensors of a nest."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Call(NamedTuple):
    """A call of a torch function: its name, its first argument, its arguments by the names that the rule knows, and its output."""

    name: str
    x: Any
    given: Mapping[str, Any]
    output: Any
    func: Function
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


Rule = Callable[[Watch, Call], bool]
"""What a function does to labels; False where it turns out to be none that is known."""

Rules = Mapping[str, tuple[Rule, Sequence[str]]]
"""By the name of a function its rule, and the names of its positional arguments."""


def _follow(watch: Watch, rules: Rules, func: Function, args: Batch, kwargs: dict[str, Any], output: object) -> None:
    """Carry labels over a function; whatever it takes stays as it is where no rule knows the function."""
    name = getattr(func, "__name__", "")
    taken = tensors((args, kwargs))
    for tensor in taken:
        watch.uses_of(tensor)[0] += 1
    is_known = False
    if name in rules and args and "out" not in kwargs:
        rule, names = rules[name]
        given = dict(zip(names, args, strict=False)) | kwargs
        is_known = rule(watch, Call(name, args[0], given, output, func, args, kwargs))
    if not is_known:
        watch.unknown((args, kwargs))
    for tensor in taken if name not in _LAYERS else taken[:1]:
        watch.keep_state(tensor)


def watch_channels(model: nn.Module, batches: Sequence[Batch], rules: Rules) -> Watch:
    """Run a float model on batches, in evaluation mode, and follow its channels."""
    watch = Watch(model)
    inside: list[nn.Module] = []  # modules that are looked at as a whole

    def run(func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        output, name = func(*args, **kwargs), getattr(func, "__name__", "")
        if not inside and (name not in _LOOKS or isinstance(output, Tensor)):
            _follow(watch, rules, func, args, kwargs, output)
        return output

    def enter(module: nn.Module, *_: object) -> None:
        inside.append(module)

    def leave(module: nn.Module, args: Batch, kwargs: dict[str, Any], output: object) -> None:
        if len(inside) == 1:
            is_known = bool(args) and isinstance(args[0], Tensor) and _follow_module(watch, module, args[0], output)
            watch.unknown((args[1:], kwargs) if is_known else (args, kwargs, list(module.parameters())))
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
            watch.pin_attributes(model)
    watch.finish()
    return watch


def _follow_module(watch: Watch, module: nn.Module, x: Tensor, output: Any) -> bool:
    """What a fused pair or a recurrent layer does to the channels of its input; False where that is not known."""
    if not isinstance(module, ConvBN):
        return _recurrent(watch, module, x)
    conv, bn = module.conv, as_batch_norm(module.bn)
    norm = watch.norm_of(bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.eps)
    if norm is None or any(limits_of(part).is_any for part in (module, conv, module.bn)):
        return False
    axis = -(conv.weight.dim() - 1)
    layer = watch.product(x, conv.weight, conv.bias, Form(conv.groups, isinstance(conv, _TRANSPOSED)), axis)
    if layer is None:
        return False
    layer.is_padded = any(conv.padding) if isinstance(conv.padding, tuple) else conv.padding != "valid"
    watch.normalize(output, layer, norm, output, axis)
    return True


def _recurrent(watch: Watch, module: nn.Module, x: Tensor) -> bool:
    """The columns of the first layer's weights, in both directions, read the input; nothing is known of the output."""
    is_cell = isinstance(module, nn.RNNCellBase)
    own = dict(module.named_parameters(recurse=False))
    for name in ("weight_ih",) if is_cell else ("weight_ih_l0", "weight_ih_l0_reverse"):
        if name in own:
            layer = watch.product(x, own[name], own.get(name.replace("weight", "bias")), Form(), -1)
            if layer is None:
                return False
            watch.channels.pin(layer.rows)
            layer.output_power = float(nn.functional.linear(x, own[name]).double().square().mean())
    return True
