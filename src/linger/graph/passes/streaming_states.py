# SPDX-License-Identifier: Apache-2.0
"""What a streaming network remembers from step to step: states, and the nodes that read and renew them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.errors import GraphError, listing, printable
from linger.graph.core.nodes import inner_graphs, inputs_within, is_used, opset_of, tensor_names
from linger.graph.core.tensor_types import constant_tensor
from linger.graph.files.model_io import copied
from linger.graph.formats.propagation import propagate
from linger.graph.lowering.bodies import (
    Shape,
    bring_to_normal_form,
    constant_value,
    dialect_nodes,
    drop_bodies,
    known_tensors,
    shape_of,
)
from linger.graph.passes.constants import evaluated, fix_shapes, fixed_sizes
from linger.graph.passes.time_axes import Shapes, is_recurrent
from linger.graph.passes.well_formed import inline_functions, remove_dead_code


def prepared(model: ir.Model) -> ir.Model:
    """A copy in normal form and in the dialect's plain domain, in which everything that can be is constant."""
    made = copied(model)
    inline_functions(made)
    bring_to_normal_form(made)
    _use_plain_domain(made)
    _fold_constants(made)
    fix_shapes(made)
    _fold_constants(made)
    remove_dead_code(made)
    for index, node in enumerate(made.graph):
        node.name = node.name or f"{node.op_type}_{index}"
    return made


def _use_plain_domain(model: ir.Model) -> None:
    """Take the bodies of dialect nodes away: a step has other sizes and forms, for which whoever writes a file makes new ones."""
    for node in dialect_nodes(model):
        node.domain = DOMAIN
    drop_bodies(model)
    model.graph.opset_imports[DOMAIN] = DOMAIN_VERSION


def _fold_constants(model: ir.Model) -> None:
    """Replace what standard nodes compute of constants alone: paddings and bounds that an exporter has put together."""
    nodes: dict[ir.Node, None] = {}  # those that read constants, or each other, alone
    for node in model.graph:
        if _has_constants(node, nodes):
            nodes[node] = None
    inner = [value for node in nodes for value in node.outputs if not value.is_graph_output()]
    ends = [value for value in inner if not nodes.keys() >= set(value.consumers())]
    for value, content in zip(ends, _computed(nodes, ends, opset_of(model)), strict=True):
        folded = constant_value(f"{value.name}.folded", content)
        model.graph.register_initializer(folded)
        value.replace_all_uses_with(folded)


def _has_constants(node: ir.Node, computed: Mapping[ir.Node, None]) -> bool:
    if node.domain or node.op_type == "Constant" or inner_graphs(node):
        return False
    values = inputs_within(node)
    return bool(values) and all(is_constant(value) or value.producer() in computed for value in values)


def is_constant(value: ir.Value) -> bool:
    """Whether a tensor always has the same content."""
    return not value.is_graph_input() and constant_tensor(value) is not None


def _computed(nodes: Iterable[ir.Node], ends: Sequence[ir.Value], opset: int) -> list[Any]:
    """The content of tensors that these nodes compute of constants."""
    if not ends:
        return []
    tensors = {str(x.name): constant_tensor(x) for node in nodes for x in filter(None, node.inputs)}
    contents = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
    return evaluated(nodes, contents, ends, opset)


def sizes_of(model: ir.Model) -> Shapes:
    """The sizes of every tensor that is used; a GraphError names those that are open."""
    shapes = known_tensors(model).shapes
    if _unknown(model, shapes):
        shapes = _with_states(model, shapes)
    unknown = _unknown(model, shapes)
    if unknown:
        names = listing(map(printable, unknown))
        raise GraphError(f"{names}: sizes are open or not known. Export the model with fixed sizes.")
    return fixed_sizes(shapes)


def _unknown(model: ir.Model, shapes: dict[str, Shape]) -> list[str]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    used = [str(value.name) for value in values if value.name and is_used(value)]
    return [name for name in used if None in shapes.get(name, (None,))]


def _with_states(model: ir.Model, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """Shapes that are known with those of the last states of recurrent layers, which inference does not see in their bodies."""
    copy = copied(model)
    for node in filter(is_recurrent, list(copy.graph)):
        sizes = shape_of(node.inputs[0], shapes)
        is_batch_first = node.attributes.get_int("batch_first", 0)
        for output in [output for output in node.outputs[1:] if output.name and sizes]:
            stand_in = ir.Value(name=output.name, type=ir.TensorType(ir.DataType.FLOAT))
            batch = (sizes or (None, None))[1 - is_batch_first]
            stand_in.shape = ir.Shape([1, batch, node.attributes.get_int("hidden_size", 0)])
            output.name = f"{output.name}.replaced"
            output.replace_all_uses_with(stand_in, replace_graph_outputs=True)
            copy.graph.inputs.append(stand_in)
    return {**shapes, **known_tensors(copy).shapes}


_SLICE_INPUTS_OPSET = 10
"""From this opset on Slice has its bounds as inputs."""


@dataclass(frozen=True)
class State:
    """A tensor that one step returns and the next one takes.

    Attributes:
        input: The input of the step's model that takes it.
        output: The output of the step's model that has its new content.
        initial: Its content before the first step.
    """

    input: str
    output: str
    initial: NDArray[Any]


@dataclass(frozen=True)
class Timed:
    """How the frames of one tensor lie in time.

    Attributes:
        frames: Its size in one step.
        delay: Frame i of the stream is frame i − delay of the whole sequence, for every i that is at least 0 and at least
            `delay`. Where it is negative, the first frames of the whole sequence are zeros that the stream does not have.
    """

    axis: int
    frames: int
    delay: int = 0


@dataclass
class StateBook:
    """Puts states and the nodes around them into a model, and remembers them.

    Tensors that were made once are used again: two convolutions with the same reach over one tensor share a state.
    """

    model: ir.Model
    states: list[State] = field(default_factory=list)
    valid: ir.Value | None = None
    """The input that says which frames belong to the sequence; None where all do that come."""

    def __post_init__(self) -> None:
        self._names = tensor_names(self.model)
        self._scales = {value: fact.scale for value, fact in propagate(self.model).facts.items()}
        self._made: dict[tuple[Any, ...], ir.Value] = {}
        self._has_bounds_as_inputs = opset_of(self.model) >= _SLICE_INPUTS_OPSET

    def name(self, preferred: str) -> str:
        """A name for a tensor that is still free."""
        return self._names.choose(preferred)

    def constant(self, content: NDArray[Any], name: str) -> ir.Value:
        """A new initializer."""
        value = constant_value(self._names.choose(name), content)
        self.model.graph.register_initializer(value)
        return value

    def node(
        self, before: ir.Node | None, op_type: str, inputs: Sequence[ir.Value], name: str, **settings: Any
    ) -> ir.Value:
        """A new node in front of another one, or behind all of them; the name's domain prefix `thinker.` chooses the dialect."""
        domain, _, plain = op_type.rpartition(".")
        node = ir.node(plain, list(inputs), settings, domain=domain, name=self._names.choose(name))
        result = node.outputs[0]
        result.name, result.type = node.name, ir.TensorType(inputs[0].dtype or ir.DataType.UNDEFINED)
        if before is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_before(before, node)
        return result

    def ask_for_validity(self, frames: int) -> str:
        """Add the input that says which frames of a step belong to the sequence; return its name."""
        self.valid = ir.Value(name=self._names.choose("valid"), type=ir.TensorType(ir.DataType.INT8))
        self.valid.shape = ir.Shape([frames])
        self.model.graph.inputs.append(self.valid)
        return str(self.valid.name)

    def add(self, initial: NDArray[Any], name: str) -> ir.Value:
        """A new state's input; `renew` says what its new content is."""
        kind, shape = ir.TensorType(ir.DataType.from_numpy(initial.dtype)), ir.Shape(initial.shape)
        value = ir.Value(name=self._names.choose(f"{name}.state"), type=kind, shape=shape)
        self.model.graph.inputs.append(value)
        return value

    def renew(self, state: ir.Value, new: ir.Value, initial: NDArray[Any]) -> None:
        """Declare the new content of a state. An output of the network stays one, and the state gets an output of its own."""
        if new.is_graph_output():
            copy = self.node(None, "Identity", [new], f"{state.name}.next")
            copy.shape, new = new.shape, copy
        self.model.graph.outputs.append(new)
        self.states.append(State(str(state.name), str(new.name), initial))

    def cut(self, before: ir.Node | None, x: ir.Value, axis: int, bounds: tuple[int, int], name: str) -> ir.Value:
        """The places of an axis from the first bound to the one before the second."""
        start, end = bounds
        if self._has_bounds_as_inputs:
            numbers = [self.constant(np.array([n], np.int64), f"{name}.bound") for n in (start, end, axis)]
            part = self.node(before, "Slice", [x, *numbers], name)
        else:
            part = self.node(before, "Slice", [x], name, starts=[start], ends=[end], axes=[axis])
        part.shape = resized(x, axis, end - start)
        return part

    def with_history(self, before: ir.Node | None, x: ir.Value, timed: Timed, count: int) -> ir.Value:
        """A tensor behind its last `count` frames of earlier steps, which are zeros at first."""
        key = ("history", x, count)
        if count and key not in self._made:
            assert x.dtype is not None  # the normal form has typed every tensor
            initial = np.zeros(resized(x, timed.axis, count).numpy(), x.dtype.numpy())
            state = self.add(initial, str(x.name))
            joined = self.node(before, "Concat", [state, x], f"{x.name}.joined", axis=timed.axis)
            joined.shape = resized(x, timed.axis, count + timed.frames)
            bounds = (timed.frames, timed.frames + count)
            self.renew(state, self.cut(before, joined, timed.axis, bounds, f"{state.name}.next"), initial)
            self._made[key] = joined
        return self._made[key] if count else x

    def delayed(self, before: ir.Node | None, x: ir.Value, timed: Timed, count: int) -> tuple[ir.Value, Timed]:
        """A tensor whose frames come `count` frames later; zeros come first."""
        if count == 0:
            return x, timed
        key = ("delayed", x, count)
        if key not in self._made:
            joined = self.with_history(before, x, timed, count)
            self._made[key] = self.cut(before, joined, timed.axis, (0, timed.frames), f"{x.name}.delayed")
        return self._made[key], Timed(timed.axis, timed.frames, timed.delay + count)

    def masked(self, before: ir.Node, x: ir.Value, timed: Timed) -> ir.Value:
        """Integers whose frames before the first one of the whole sequence are zeros.

        Layers turn the zeros that stand before the stream into other numbers (their biases, say), where a padded layer of
        the whole sequence reads zeros.
        """
        key = ("masked", x)
        if key not in self._made:
            assert x.dtype is not None  # the normal form has typed every tensor
            mask, bits = self.mask(before, timed, x), int(x.dtype.itemsize * 8)
            self._made[key] = self._product(before, x, mask, f"{x.name}.masked", self._scales.get(x) or 1.0, bits)
        return self._made[key]

    def _product(
        self, before: ir.Node | None, x: ir.Value, mask: ir.Value, name: str, scale: float, bits: int
    ) -> ir.Value:
        scales = {"scale_x": scale, "scale_y": 1.0, "scale_o": scale}
        sign = {"o_unsigned": 1} if x.dtype == ir.DataType.UINT8 else {}
        product = self.node(before, f"{DOMAIN}.iqMul", [x, mask], name, **scales, o_bits=bits, **sign)
        product.shape = x.shape
        return product

    def mask(self, before: ir.Node, timed: Timed, like: ir.Value) -> ir.Value:
        """One for every frame of a tensor that the whole sequence has too, zero for the others; sizes beside time are 1."""
        assert like.dtype is not None  # the normal form has typed every tensor
        assert like.shape is not None  # every tensor of a step has fixed sizes
        sizes = [1] * len(like.shape)
        sizes[timed.axis] = timed.frames
        key = ("mask", like.dtype, tuple(sizes), timed)
        if key not in self._made:
            received = self._received(before, like, sizes)
            self._made[key], _ = self.delayed(before, received, timed, timed.delay)
        return self._made[key]

    def _received(self, before: ir.Node, like: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """One for every frame that this step brings, zero for those behind the end of the sequence."""
        assert like.dtype is not None
        if self.valid is None:
            return self.constant(np.ones(sizes, like.dtype.numpy()), f"{like.name}.ones")
        shape = self.constant(np.array(sizes, np.int64), f"{like.name}.sizes")
        turned = self.node(before, "Reshape", [self.valid, shape], f"{like.name}.turned")
        turned.shape = ir.Shape(sizes)
        if like.dtype == ir.DataType.INT8:
            return turned
        wide = self.node(before, "Cast", [turned], f"{like.name}.valid", to=int(like.dtype))
        wide.type, wide.shape = ir.TensorType(like.dtype), ir.Shape(sizes)
        return wide

    def cleared(self, before: ir.Node | None, real: ir.Value, mask: ir.Value, scale: float) -> ir.Value:
        """A real state of 16 bits at a scale, or zeros where the mask, which holds one number, is zero."""
        quantized = self.node(before, f"{DOMAIN}.Quant", [real], f"{real.name}.whole", data_bits=16, scale_x=scale)
        quantized.type, quantized.shape = ir.TensorType(ir.DataType.INT16), real.shape
        product = self._product(before, quantized, mask, f"{real.name}.kept", scale, 16)
        result = self.node(before, f"{DOMAIN}.Dequant", [product], f"{real.name}.next", scale_o=scale)
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), real.shape
        return result


def resized(value: ir.Value, axis: int, size: int) -> ir.Shape:
    """The shape of a tensor with another size of one axis."""
    assert value.shape is not None  # every tensor of a step has fixed sizes
    return ir.Shape([size if i == axis else n for i, n in enumerate(value.shape)])
