# SPDX-License-Identifier: Apache-2.0
"""QTensor: a tensor of fixed-point numbers that torch functions recognize.

It wraps the real values q/scale (exact in float32), so an op that linger does not know computes the right float
result from it. While a model is exported it wraps the integers themselves and its real value is a Dequant node.

A `torch.autograd.Function` and a reentrant checkpoint ask torch's C++ side for gradients: they look at the wrapper alone,
never at what it wraps. So the wrapper stands in the gradient graph behind its content, and a wrapper that they return hands
its own place on to its content.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, SupportsIndex, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.compiler import is_exporting
from torch.utils._pytree import tree_leaves, tree_map

from linger.constraint.limits import Widths
from linger.dialect import Op, find_op
from linger.errors import UnsupportedError
from linger.numeric.torch.kernel import TorchKernel, carrier, integer_type
from linger.numeric.torch.quantize import Scale
from linger.quantization.core.runtime import OpCall, Runtime, TorchFunction


# the place in the gradient graph
class _Wrapped(torch.autograd.Function):
    """A wrapper, made by `make`, whose gradient is its content's, in the type of the content."""

    @staticmethod
    def forward(ctx: Any, content: Tensor, make: Callable[[], Tensor]) -> Tensor:
        ctx.kind = content.dtype
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].to(ctx.kind), None


class _Rewrapped(torch.autograd.Function):
    """A wrapper that has got other content."""

    @staticmethod
    def forward(ctx: Any, wrapper: Tensor, content: Tensor) -> Tensor:
        ctx.kind = content.dtype
        ctx.mark_dirty(wrapper)
        return wrapper

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, gradients[0].to(ctx.kind)


class _Unwrapped(torch.autograd.Function):
    """Content whose gradient is its wrapper's. A copy: the content itself may be a view of something that is not in the graph."""

    @staticmethod
    def forward(ctx: Any, wrapper: Tensor, content: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return content.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        return gradients[0].float(), None


def has_place(wrapper: Tensor) -> bool:
    """Whether the wrapper itself, not its content, is in the graph."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the wrapper's function would ask the content
        return wrapper.requires_grad


def _lacks_place(content: Tensor, wrapper: Tensor) -> bool:
    """Whether another function returned or wrote the wrapper, so that the graph no longer leads from it to its content."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        if wrapper.grad_fn is None:
            return False
        is_own = getattr(wrapper.grad_fn, "_forward_cls", None) in (_Wrapped, _Rewrapped)
        return not (is_own and content.requires_grad)


def follow(wrapper: Tensor, content: Tensor) -> None:
    """Move a wrapper to the place of its new content in the graph; torch refuses gradients that saved the old one."""
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():  # noqa: SLF001
        if not wrapper.is_inference():
            torch.autograd.graph.increment_version(wrapper)
        if wrapper.requires_grad:
            wrapper.detach_()
        if content.requires_grad:
            _Rewrapped.apply(wrapper, content)


_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]  # a class method
_MODULE = nn.Module._call_impl.__code__  # noqa: SLF001 - only its code is compared


def function_with_symbolic() -> str:
    """The name of the torch.autograd.Function at work that writes nodes of its own into a file; empty where there is none.

    torch tells nobody which function is at work, so the frames of the module's forward are looked at. Ask only where
    `torch._C._is_fwd_grad_enabled()` says no, as it does in the forward of every such function.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _MODULE:
        if frame.f_code is _APPLY:
            function = frame.f_locals["cls"]
            return str(function.__name__) if hasattr(function, "symbolic") else ""
        frame = frame.f_back
    return ""


# where numbers come from
class Origin(NamedTuple):
    """The users (`ReadInterval`) of a range that numbers of a tensor were rounded to, and the limits that they have passed since."""

    users: Any
    low: float = -math.inf
    high: float = math.inf

    def limited(self, low: float, high: float) -> Origin:
        """The same numbers behind a function that limits them."""
        return Origin(self.users, *(min(max(end, self.low), self.high) for end in (low, high)))


# the tensor
class QTensor(Tensor):
    """Real values that are multiples of 1/scale, with their scale and width.

    `scale` is None once an in-place float op has written over the tensor: from then on it is an ordinary one. In a pass
    that changes ranges on another device it is a tensor without axes, which is not read back; else a number.
    """

    _content: Tensor
    scale: Any
    bits: int
    runtime: Runtime
    is_nonnegative: bool
    own_bits: int
    # in passes that observe ranges, those that the numbers come from, as long as nothing has used all of them
    origins: tuple[Origin, ...] = ()
    is_constant: bool = False  # whether it is a parameter or a buffer
    is_unsigned: bool = False  # whether its integers are 0 … 2^bits − 1
    _real: Tensor | None
    _make: Callable[[], Tensor] | None
    _writes: list[int]
    _writes_known: int
    _copied_at: int | None = None  # writes into the memory of a copy that took the place of the content in the graph

    @staticmethod
    def __new__(cls, content: Tensor, *_: object, **__: object) -> QTensor:
        """A wrapper without storage of its own, in the gradient graph where its content is."""
        # a trace that meets the wrapper itself then complains instead of keeping its unknown values as a constant
        is_traced = not content.is_floating_point() and torch._C._is_tracing()  # noqa: SLF001 - torch.jit hides it from mypy
        if content.requires_grad and torch.is_grad_enabled():
            wrapped: QTensor = _Wrapped.apply(content, partial(_wrapper, cls, content, is_traced=is_traced))
            return wrapped
        return _wrapper(cls, content, is_traced=is_traced)

    def __init__(
        self,
        content: Tensor,
        scale: Scale,
        bits: int,
        runtime: Runtime,
        *,
        is_nonnegative: bool = False,
        is_unsigned: bool = False,
    ) -> None:
        if is_unsigned:
            self.is_unsigned = is_nonnegative = True
        self._content = content
        self.scale = scale
        self.bits = bits
        self.runtime = runtime
        self.is_nonnegative = is_nonnegative
        # the width without the room that a mask made for one number far below the others
        self.own_bits = bits
        self._real = None
        self._make = None
        # counts in-place writes, linger's own and torch's; tensors that share memory share the list, so that a stale one is
        # never read
        self._writes, self._writes_known = [0, _version(content)], 0
        if runtime.announcer is not None:
            self._announce()

    def _announce(self) -> None:
        """Tell a trace that follows wrappers what this one holds."""
        if self.runtime.announcer is not None:
            self.runtime.announcer.announce(self, self._content, self.scale)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # an attribute there
        """The shape of the content; asked of the wrapper, which a trace does not know, the trace would be repeated."""
        return self._content.shape

    @property
    def content(self) -> Tensor:
        """`moved_content`, all of which is used from now on."""
        if self.origins:
            self.use()
        return self.moved_content

    def use(self, low: float = -math.inf, high: float = math.inf) -> None:
        """Tell the ranges that the numbers come from which of them matter: all, or those between two ends."""
        for origin in self.origins:
            ends = origin.limited(low, high)
            ends.users.use(ends.low, ends.high)
            if not self.runtime.frames:  # a tensor that was kept is used after its pass
                ends.users.settle(is_complete=True)
        if (low, high) == (-math.inf, math.inf):
            self.origins = ()

    @property
    def moved_content(self) -> Tensor:
        """Real values in a simulation, integers in an export, for functions that move or limit them.

        What they return has the same `origins`, so that its users decide which numbers matter.

        Raises:
            UnsupportedError: A view of this tensor, or the tensor it is a view of, was changed in place since.
        """
        agreed = self._writes[1] if self._copied_at is None else self._copied_at
        if self._writes_known != self._writes[0] or agreed != _version(self._content):
            raise UnsupportedError(
                f"{self.runtime.path or 'model'}: a quantized tensor is used after another one that shares its memory "
                "(a view or slice) was changed in place. Write x = x + y instead of x += y, or clone() first."
            )
        if self._make is not None:
            self._compute(self._make)
        if torch.is_grad_enabled() and self._content.grad_fn is None and _lacks_place(self._content, self):
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
                self._content = _Unwrapped.apply(self, self._content)
            self._copied_at = _version(self._content)  # tensors that share the memory before still have that one
        if self.runtime.announcer is not None and self.is_integer:
            return cast(Tensor, self.runtime.announcer.integers(self))
        return self._content

    def _compute(self, make: Callable[[], Tensor]) -> None:
        """Compute content that was deferred."""
        self._make = None
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as inside every other function
            self._content = make()
        self._writes[1] = _version(self._content)

    def deferred(self, make: Callable[[], Tensor]) -> QTensor:
        """This tensor, whose shape, type and scale are right, with content that is computed on first use.

        Where it has a gradient, or a trace follows wrappers, it is computed at once: such uses cannot be seen.
        """
        self._make = make
        self._writes, self._writes_known = [0, _version(self._content)], 0
        if has_place(self):
            content = self.moved_content
            if not self.is_integer:
                follow(self, content)
            self._announce()
        return self

    @property
    def stored(self) -> Tensor:
        """The content as this pass has computed it, without asking the trace."""
        return self._content

    @property
    def scale_on_host(self) -> Scale:
        """The scale as a number, read back from the device if it must be; None where there is none."""
        if isinstance(self.scale, Tensor):
            self.scale = float(self.scale)
        return self.scale

    scale_data = scale_on_host
    """The scale, under its documented name."""

    @property
    def zero_point(self) -> int:
        """Always 0: the formats are symmetric."""
        return 0

    @property
    def is_integer(self) -> bool:
        """Whether the content is integers (export) and not real values."""
        return self.scale is not None and not self._content.is_floating_point()

    @property
    def signed_bits(self) -> int:
        """The width of signed integers that hold its numbers: 9 for unsigned bytes."""
        return self.bits + self.is_unsigned

    @property
    def integer_type(self) -> torch.dtype:
        """The torch type of its integers."""
        return torch.uint8 if self.is_unsigned else integer_type(self.bits)

    def dequantize(self) -> Tensor:
        """The values as an ordinary float32 tensor, in the autograd graph."""
        content = self.content
        if self.scale is None:
            return content
        if self.is_integer and self.runtime.announcer is not None:
            return cast(Tensor, self.runtime.announcer.real(self))
        if self.is_integer:
            if self._real is None:
                runtime = self.runtime
                name = runtime.unique_name(runtime.path, "Dequant")
                self._real = runtime.emit(find_op("Dequant"), [content], {"scale_o": self.scale}, name)
            return self._real
        return content if content.dtype == torch.float32 else content.float()

    def preset_real(self, real: Tensor) -> None:
        """Real values that the file has already: no Dequant is written for them."""
        self._real = real

    def integers(self) -> Tensor:
        """The integers q = value·scale, in the narrowest integer type that holds them."""
        if self.scale is None:
            raise TypeError("this tensor was overwritten by a float op and holds no integers")
        if self.is_integer:
            return self.content
        whole: Tensor = self.content.detach() * self.scale
        return whole.to(self.integer_type)

    def like(self, content: Tensor) -> QTensor:
        """Other content at the same scale and width."""
        assert self.scale is not None  # callers handle overwritten tensors first
        other, own = (
            QTensor(content, self.scale, self.bits, self.runtime, is_nonnegative=self.is_nonnegative),
            self._content,
        )
        other.own_bits = self.own_bits
        if self.is_unsigned:
            other.is_unsigned = True
        if self.origins:
            other.origins = self.origins
        if content is own or content.untyped_storage()._cdata == own.untyped_storage()._cdata:  # noqa: SLF001 - a storage's identity
            other._writes, other._writes_known, other._copied_at = self._writes, self._writes_known, self._copied_at
        return other

    def overwrite(self, other: Tensor) -> QTensor:
        """Become `other`, as an in-place op demands; a ReLU that the layer before has done already changes nothing."""
        if other is self:
            return self
        self._real = self._make = None
        content = other.moved_content if isinstance(other, QTensor) else other
        if not (isinstance(other, QTensor) and content is self._content):  # else the memory itself was written
            self._writes[0] += 1
            self._writes, self._writes_known, self._copied_at = [0, _version(content)], 0, None
        self._content = content
        if isinstance(other, QTensor):
            self.scale, self.bits, self.origins = other.scale, other.bits, other.origins
            self.is_nonnegative, self.own_bits = other.is_nonnegative, other.own_bits
            self.is_unsigned = other.is_unsigned
        else:
            self.scale, self.is_nonnegative, self.origins = None, False, ()
            self.is_unsigned = False
        if torch.is_grad_enabled():  # else the gradient stays what it was, as with any tensor of torch
            follow(self, self._content)
        self._announce()
        return self

    def accept_write(self) -> None:
        """Accept a write into the memory that left every value a multiple of 1/scale: tensors that share it stay readable."""
        if self._copied_at is None:
            self._writes[1] = _version(self._content)
        else:
            self._copied_at = _version(self._content)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # torch leaves it open
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            return f"QTensor(scale={self.scale}, bits={self.bits}, {self._content!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Saved as an ordinary tensor: a file outlives the model that made it."""
        return self.dequantize().detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.dequantize().detach().clone()

    @classmethod
    def __torch_function__(
        cls,
        func: TorchFunction,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Every torch function that receives a QTensor comes here; the model of the first one runs it."""
        named = dict(kwargs) if kwargs else {}
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            first = args[0] if args else None
            runtime = first.runtime if isinstance(first, QTensor) else runtime_among((args, named))
            return runtime.dispatch(runtime, func, args, named)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub has no func
        cls,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Calls that bypass torch functions see the real values, and may not write them."""
        if func._schema.is_mutable and any(isinstance(a, QTensor) for a in args[:1]):  # noqa: SLF001 - no public name
            raise UnsupportedError(
                f"{args[0].runtime.path or 'model'}: {func} writes over a quantized tensor unseen. Make a new one instead."
            )
        return func(*unwrap(args), **unwrap(dict(kwargs or {})))


IQTensor = QTensor
"""The name of linger 1.x."""


@contextmanager
def unwatched(tensors: Sequence[QTensor]) -> Iterator[None]:
    """Without origins inside the block: which of the numbers are used is accounted for."""
    before = [(tensor, tensor.origins) for tensor in tensors if tensor.origins]
    for tensor, _ in before:
        tensor.origins = ()
    try:
        yield
    finally:
        for tensor, origins in before:
            tensor.origins = origins


def is_quantized(value: object) -> TypeGuard[QTensor]:
    """Whether it is a QTensor that no float op has written over."""
    return isinstance(value, QTensor) and value.scale is not None


def runtime_among(tree: object) -> Runtime:
    """The runtime of the first QTensor among arguments, which is nearly always the first argument."""
    first = tree
    while isinstance(first, tuple) and first:
        first = first[0]
    if isinstance(first, QTensor):
        return first.runtime
    return next(leaf.runtime for leaf in tree_leaves(tree) if isinstance(leaf, QTensor))


def unwrap(tree: Any) -> Any:
    """Arguments with every QTensor replaced by its real values."""
    return tree_map(lambda leaf: leaf.dequantize() if isinstance(leaf, QTensor) else leaf, tree)


def _wrapper(cls: type[QTensor], content: Tensor, *, is_traced: bool) -> QTensor:
    make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001 - torch has no public name for it
    wrapped: QTensor = make(cls, content.shape, dtype=torch.float32, device=content.device, requires_grad=is_traced)
    return wrapped


def _version(content: Tensor) -> int:
    """How often torch has written into this memory: views of it, also those that a float function returned, count too."""
    if is_exporting() or content.is_inference():  # neither counts
        return 0
    return content._version  # noqa: SLF001 - torch's public name is missing


def to_carrier(values: Tensor, bits: int) -> Tensor:
    """Values in the float type that holds integers of this width."""
    dtype = carrier(bits)
    return values if values.dtype == dtype else values.to(dtype)  # torch's own way to find out takes long


Real = Callable[[], Tensor]
"""Computes the result of an op in real numbers."""

Operand = QTensor | Tensor | tuple[int, ...]
"""A quantized tensor, a constant matrix of integers, or a tuple of places or counts, whose values a trace knows too."""


def compute(
    call: OpCall,
    operands: Sequence[Operand],
    attributes: Mapping[str, Any],
    scale_o: Scale,
    bits: int,
    real: Real | None = None,
    learn: Callable[[Tensor], Tensor] | None = None,
    *,
    is_unsigned: bool = False,
) -> QTensor:
    """Write the op as a node, or simulate it: in training on real values, else by the exact integers.

    `real` gives the values of a pass in real numbers; without it they are those of the body on real operands. `learn` lets
    gradients of rounded values reach the parameter of a learned range.
    """
    op, runtime = call.op, call.runtime
    full = op.complete(attributes)
    call.note()
    if call.is_written:
        integers = call.emit([_content(o) for o in operands], attributes)
        return QTensor(integers, scale_o, bits, runtime, is_unsigned=is_unsigned)
    if call.now.is_real:
        values = _unrounded(op, operands, full, scale_o) if real is None else real()
    else:
        is_training = runtime.frame is not None and runtime.frame.module.training
        values = simulate(op, operands, full, scale_o, is_exact=not is_training)
        values = values if learn is None else learn(values)
    result = QTensor(to_carrier(values, bits), scale_o, bits, runtime, is_unsigned=is_unsigned)
    shown = [torch.tensor(o) if isinstance(o, tuple) else o for o in operands] if runtime.is_recorded else ()
    call.record(result, shown, attributes)
    return result


def signed(q: QTensor) -> QTensor:
    """Signed bytes at half the scale of unsigned ones, for an op that takes no others; any other tensor as it is."""
    if not q.is_unsigned or q.scale is None:
        return q
    call, scale_o = q.runtime.begin(find_op("Requant"), q.runtime.path), q.scale / 2.0
    return compute(
        call, [q], {"data_bits": q.bits, "o_bits": q.bits, "scale_x": q.scale, "scale_o": scale_o}, scale_o, q.bits
    )


def _unrounded(op: Op, operands: Sequence[Operand], attributes: Mapping[str, Any], scale_o: Scale) -> Tensor:
    """The op in real numbers; one that has no such form, because it stands for no function of torch, by its integers."""
    x = cast(QTensor, operands[0]).content
    if op.name == "Requant":
        return x
    if op.name == "iqSubMax":
        return x - x.amax(attributes["dim"], keepdim=True) if x.numel() else x
    return simulate(op, operands, attributes, scale_o, is_exact=True)


def _content(operand: Operand) -> Tensor | tuple[int, ...]:
    return operand.content if isinstance(operand, QTensor) else operand


def simulate(
    op: Op, operands: Sequence[Operand], attributes: Mapping[str, Any], scale_o: Scale, *, is_exact: bool
) -> Tensor:
    """Run the op's body on real values q/scale where scales do not matter, else on the integers."""
    contents = [_content(o) for o in operands]
    kernel = TorchKernel(is_exact=is_exact, device=next(t.device for t in contents if isinstance(t, Tensor)))
    if op.is_scale_free:
        return cast(Tensor, op.body(kernel, *contents, **attributes))
    integers = [o.content * o.scale if isinstance(o, QTensor) else o for o in operands]
    return cast(Tensor, op.body(kernel, *integers, **attributes) / scale_o)


# products with weights
def product_attributes(
    geometry: Mapping[str, Any],
    widths: Widths,
    scale_x: Scale,
    frozen: Any,
    scale_o: Scale,
    *,
    is_unsigned: bool = False,
) -> dict[str, Any]:
    """The attributes of a product's node, with parameters that are frozen."""
    several: dict[str, Any] = {"exponents_w": frozen.exponents} if frozen.exponents else {}
    several |= {"o_unsigned": 1} if is_unsigned else {}
    return (
        dict(geometry)
        | several
        | {
            "data_bits": widths.data,
            "parameter_bits": widths.parameter,
            "o_bits": widths.output,
            "scale_x": scale_x,
            "scale_w": frozen.scale_w,
            "scale_o": scale_o,
        }
    )


def products_in(call: OpCall, q: QTensor, y: Tensor, taps: int) -> int:
    """Multiply-accumulates, as `products_of` counts them, without a look-up in every pass of every layer."""
    if call.now.is_exporting:
        return 0  # in a trace the count would fix an open batch size
    return int((q.content if call.op.is_transposed else y).numel() * taps)
