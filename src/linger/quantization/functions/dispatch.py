# SPDX-License-Identifier: Apache-2.0
"""Where a torch function on a QTensor goes: moved through, computed as integers, or computed in float and noted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from functools import cache, lru_cache, partial, reduce
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from linger.dialect import Binding, Op, Refusal, ops
from linger.errors import UnsupportedError, UsageError
from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core import packing
from linger.quantization.core.qtensor import (
    QTensor,
    follow,
    function_with_symbolic,
    has_place,
    is_quantized,
    runtime_among,
    signed,
    unwrap,
)
from linger.quantization.core.runtime import OpRecord, Runtime, TorchFunction, full_precision, may_be_repeated
from linger.quantization.core.stored import is_repeating
from linger.quantization.core.supported import NO_INTEGER_FORM, SHUFFLES, SWITCHES, reason_of, why_off
from linger.quantization.functions import rewrites
from linger.quantization.functions.attention import ATTENTION
from linger.quantization.functions.chip_forms import is_sum, negated, sum_op
from linger.quantization.functions.constants import is_parameter, quantize_floats
from linger.quantization.functions.functional import RELU, as_operand, run_functional, with_sizes_read
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.functions.masks import MASKS
from linger.quantization.functions.norms import call_norm
from linger.quantization.functions.products import (
    MATRIX_PRODUCTS,
    PRODUCTS,
    Product,
    as_linear,
    compute_product,
    count_macs,
    read_product,
)
from linger.quantization.functions.resizing import ADAPTIVE, pool_adaptively, run_openly
from linger.quantization.functions.rewrites import REWRITES, Handler, shuffle_channels

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_Tree = TypeVar("_Tree")

COMPOSITIONS: dict[TorchFunction, Handler] = {**rewrites.FORMS, **MASKS, **ATTENTION}
"""Functions that are several integer ops, or one whose operands are not all quantized: stacks, masks, attention."""

_SHAPE_QUERIES = frozenset({"size", "dim", "numel", "nelement", "ndimension", "__len__", "is_same_size"})
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "device", "is_cuda", "is_cpu", "layout", "is_meta"})
_GRADIENT_QUERIES = frozenset({"requires_grad_", "register_hook", "retain_grad"})
_GRADIENT_ATTRIBUTES = frozenset({"requires_grad", "grad", "grad_fn", "is_leaf"})
_CONTENT_QUERIES = _SHAPE_QUERIES | _GRADIENT_QUERIES
_OF_CONTENT = _CONTENT_QUERIES | _SHAPE_ATTRIBUTES | _GRADIENT_ATTRIBUTES
"""A question about the shape needs no Dequant, and the gradient is that of the content itself."""

_ARRAYS = frozenset({"numpy", "__array__"})
"""Questions whose answer is the memory itself."""

_OTHER_QUERIES = (
    "stride is_floating_point is_complex is_contiguous element_size storage_offset get_device is_signed backward "
    "item tolist __repr__ __format__ __str__ __hash__ __bool__ __float__ __int__ type is_pinned data_ptr __get__ "
    "__set__ __delete__"
)
_QUERIES = _CONTENT_QUERIES | _ARRAYS | frozenset(_OTHER_QUERIES.split())

_IN_PLACE_OPERATORS = frozenset(
    f"__i{name}__"
    for name in ["add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "lshift", "rshift"]
) | {"__setitem__"}

_WRITES_FLOAT = "it writes into a float tensor; write x = x + y instead of x += y"

_MOVING = (
    "reshape reshape_as view view_as flatten unflatten ravel transpose permute movedim moveaxis swapaxes swapdims t squeeze "
    "unsqueeze narrow select split split_with_sizes tensor_split chunk unbind contiguous clone detach expand expand_as repeat "
    "tile flip roll index_select broadcast_to adjoint"
)


def _collect(names: str, *others: TorchFunction) -> frozenset[TorchFunction]:
    """Functions and methods of these names, as far as torch has them, and others."""
    places = [getattr(place, name, None) for name in names.split() for place in (torch, Tensor)]
    return frozenset(function for function in (*places, *others) if function is not None)


# torch.export calls the op itself where an index is a size that it does not know
MOVES = _collect(_MOVING, Tensor.__getitem__, torch.ops.aten.slice, torch.ops.aten.select)
CONVERSIONS = _collect("", Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.type_as, Tensor.pin_memory)
_SHIFTING_DROPOUTS = _collect("alpha_dropout", F.alpha_dropout, F.feature_alpha_dropout)
DROPOUTS = _SHIFTING_DROPOUTS | _collect("dropout feature_dropout", F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
"""Functions that move numbers without changing them, or leave some out: scale and width pass through."""

_trace: Any = torch._C  # noqa: SLF001 - only torch._C knows what a trace holds; mypy lacks parts of it


@cache
def bindings() -> dict[TorchFunction, tuple[Op, Binding]]:
    """Every torch function an op stands for, with the binding of its arguments."""
    return {
        cast(TorchFunction, reduce(getattr, path.split(".")[1:], cast(Any, torch))): (op, binding)
        for op in ops().values()
        for path, binding in op.functions.items()
        if path.startswith("torch.")
    }


@cache
def bindings_by_path() -> dict[str, Binding]:
    """The same bindings by the torch function's dotted name."""
    return {path: binding for op in ops().values() for path, binding in op.functions.items()}


def dispatch(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Run a torch function some of whose arguments are QTensors; `runtime` is that of the first one."""
    if not args and "input" in kwargs:
        args, kwargs = _by_position(func, kwargs)
    if func in packing.FUNCTIONS:
        return packing.move_packed(func, *args)
    rules, reason = _rules_of(func), NO_INTEGER_FORM
    if _stays_float(runtime, func, args):  # what only moves numbers leaves them quantized; a dropout rounds
        rules, reason = () if func in DROPOUTS else (_kept_as_it_is,), ""
    elif not _trace._is_fwd_grad_enabled() and (name := function_with_symbolic()):  # noqa: SLF001 - no public name
        rules, reason = (), f"{name} has a symbolic, which the file has instead"
    for rule in rules:
        result = rule(runtime, func, args, kwargs)
        if result is not NotImplemented:
            return result
    return _in_float(runtime, func, args, kwargs, reason=reason)


def _by_position(func: TorchFunction, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a function whose first one was given by its name."""
    if not any(func in table for table in (bindings(), MOVES, DROPOUTS, CONVERSIONS, REWRITES)):
        return (), kwargs
    rest = dict(kwargs)
    return (rest.pop("input"),), rest


def _stays_float(runtime: Runtime, func: TorchFunction, args: Args) -> bool:
    """Whether a module is at work whose functions stay float, or was when a checkpoint ran the function first.

    A function in training is remembered: a checkpoint may run it again without its module.
    """
    frames = runtime.current.frames
    if not frames:
        return is_repeating(runtime) and runtime.recomputation.kept_float(func, args)
    frame = frames[-1]
    if frame.module.training and may_be_repeated() and getattr(func, "__name__", "") not in _QUERIES:
        runtime.recomputation.remember(func, args, frame)
    return bool(frame.keeping.reason)


def _switched_off(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Functions that the model's switches keep in float; a channel shuffle becomes reshapes instead."""
    if func in SHUFFLES and not runtime.switches.channel_shuffle:
        is_right = not isinstance(bindings()[func][1](*args, **kwargs), Refusal)  # else torch says what is wrong
        return _kept_as_it_is(runtime, shuffle_channels, args, kwargs) if is_right else NotImplemented
    reason = why_off(func, runtime.switches) if func in SWITCHES else None
    return NotImplemented if reason is None else _in_float(runtime, func, args, kwargs, reason=reason)


def _composed(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Functions that are several ops, or one with operands that are not quantized."""
    handler = COMPOSITIONS.get(func)
    result = NotImplemented if handler is None else handler(func, args, kwargs, _call)
    return _in_float(runtime, func, args, kwargs, reason=result.reason) if isinstance(result, Refusal) else result


def _kept_as_it_is(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Functions that move numbers without changing them."""
    del runtime
    keep, x = _KEPT.get(func), args[0] if args else None
    return NotImplemented if keep is None or not is_quantized(x) else keep(func, x, args[1:], kwargs)


def _moved(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    """Apply a function to the content; its other arguments (x.view_as(y), x[mask]) are ordinary tensors."""
    others: Args = tree_map(lambda a: a.content if isinstance(a, QTensor) else a, rest)
    result = func(x.moved_content, *others, **kwargs)
    return x.like(result) if isinstance(result, Tensor) else type(result)(x.like(part) for part in result)


def _transposed(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    del rest, kwargs
    return x.like(func(x.moved_content))


def _converted(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    """.to(device) and .float() leave the numbers as they are; another type asks for real values."""
    if not x.is_integer:
        result = func(x.moved_content, *rest, **kwargs)
        if result.dtype == x.moved_content.dtype:
            return x.like(result)
    result = func(x.dequantize(), *rest, **kwargs)
    return x if x.is_integer and result.dtype == torch.float32 else result


def drop(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> QTensor:
    """Dropout: nothing in evaluation; in training the survivors, scaled up, are rounded to the same grid."""
    is_in_place = _is_in_place(func, (x, *rest), kwargs)
    dropped = x
    if not x.is_integer:
        source, before = _droppable(func, x)
        survivors = func(before, *rest, **{k: v for k, v in kwargs.items() if k != "inplace"})
        if survivors is not before and x.runtime.now.is_real:
            dropped = source.like(survivors)
        elif survivors is not before:  # larger, so limits behind a dropout hold before it too
            dropped = source.like(fake_quantize(survivors, source.scale, source.signed_bits))
            dropped.is_nonnegative = source.is_unsigned
    return x.overwrite(dropped) if is_in_place else dropped


def _droppable(func: TorchFunction, x: QTensor) -> tuple[QTensor, Tensor]:
    """What a dropout works on; alpha dropout goes negative, and reads all numbers."""
    if func not in _SHIFTING_DROPOUTS:
        return x, x.moved_content
    source = signed(x)
    return source, source.content


def _view_refused(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    del rest, kwargs
    raise UnsupportedError(
        f"{x.runtime.path or 'model'}: {func.__name__} changes the shape of a quantized tensor in place. "
        f"Write x = x.{func.__name__.rstrip('_')}(…) instead."
    )


_KEPT: dict[TorchFunction, Callable[[TorchFunction, QTensor, Args, Kwargs], object]] = {
    **dict.fromkeys(
        _collect("squeeze_ unsqueeze_ transpose_ t_ resize_ resize_as_ swapaxes_ swapdims_ as_strided_"), _view_refused
    ),
    **dict.fromkeys(CONVERSIONS, _converted),
    **dict.fromkeys(DROPOUTS, drop),
    **{getattr(Tensor, name).__get__: _transposed for name in ("T", "mT", "H", "mH")},
    **dict.fromkeys([*MOVES, *rewrites.MOVES], _moved),
}


def _already_done(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """A ReLU that the layer before it has fused; a recording shows every op, so there it is computed."""
    x, frames = args[0] if args else None, runtime.current.frames
    if not isinstance(x, QTensor) or x.scale is None or not x.is_nonnegative or not x.stored.is_floating_point():
        return NotImplemented
    if not frames or runtime.recorder is not None or runtime.observers:
        return NotImplemented
    runtime.note(OpRecord(frames[-1].path, RELU, is_integer=True))
    if _is_in_place(func, args, kwargs):
        return x
    result = QTensor(x.moved_content, x.scale, x.bits, runtime, is_nonnegative=True)  # a tensor of its own
    result.is_unsigned, result.origins = x.is_unsigned, x.origins
    return result


def _openly(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Where a file leaves sizes open: compute a function in a form that is valid at every size."""
    if not runtime.has_open_sizes or runtime.frame is None or not args or not is_quantized(args[0]):
        return NotImplemented
    result = run_openly(func, args, kwargs)
    return NotImplemented if result is None else result


def _by_other_calls(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Compute a function that can be written as other torch calls: each but the first works on the result before it."""
    if not args or not is_quantized(args[0]):
        return NotImplemented
    result: Any = None
    for other, (first, *rest) in rewrites.rewritten(func, args, kwargs) or ():
        x = result if first is None else first  # looking for the runtime among all arguments would take longer
        result = dispatch(x.runtime, other, (x, *rest), {}) if isinstance(x, QTensor) else other(x, *rest)
    if result is None and func in ADAPTIVE and runtime.frame is not None:
        result = pool_slices(runtime, func, args, kwargs)
    return NotImplemented if result is None else result


def _call(func: TorchFunction, *args: Any, **kwargs: Any) -> Any:
    """A torch function on quantized or ordinary tensors, from within one on quantized tensors."""
    if not any(isinstance(leaf, QTensor) for leaf in tree_leaves((args, kwargs))):
        return func(*args, **kwargs)
    return dispatch(runtime_among((args, kwargs)), func, args, kwargs)


def _as_product(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """A product with a weight, which is a layer without a module."""
    if func in PRODUCTS:
        product: Product | Refusal | None = read_product(func, args, kwargs, runtime)
    else:
        product = as_linear(func, args, kwargs, runtime)
    if product is None:
        return NotImplemented
    if isinstance(product, Refusal):
        return _in_float(runtime, func, args, kwargs, reason=product.reason)
    return compute_product(product, runtime)


def pool_slices(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> Tensor | None:
    """Adaptive pooling as other calls; None if it has no such form, or is an ordinary pool already."""
    if runtime.has_open_sizes:
        return run_openly(func, args, kwargs)
    given = {**dict(zip(("x", "output_size", "return_indices"), args, strict=False)), **kwargs}
    if given.get("return_indices"):
        return None
    x, size = given["x"], given["output_size"]
    return pool_adaptively(func, x, size, lambda other, arguments: _call(other, *arguments))


def _as_integers(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Functions that an op stands for."""
    op, _ = bindings()[func]
    if runtime.frame is None:
        return _in_float(runtime, func, args, kwargs, reason="outside the model")
    # a product with a parameter is a layer, and came before
    if op.switch is not None and not getattr(runtime.switches, op.switch):
        return _in_float(runtime, func, args, kwargs, reason=reason_of(op.switch))
    args, kwargs = with_sizes_read(args), with_sizes_read(kwargs)
    result = _run_op(runtime, func, args, kwargs)
    return _in_float(runtime, func, args, kwargs, reason=result.reason) if isinstance(result, Refusal) else result


def _run_op(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> QTensor | Refusal:
    """The op of a function on the arguments of a call, whose first one it may write over."""
    op, binding = bindings()[func]
    named = rewrites.spelled(kwargs)
    settings = binding(*args, **named)
    if isinstance(settings, Refusal):
        return settings
    if op.normalizes:
        return call_norm(op, binding, args, named, settings)
    arguments = _operands(op, binding, args, named)
    parameter = arguments.pop() if op.inputs[-1] == "w" and is_parameter(arguments[-1]) else None
    x = _target(func, args, kwargs)
    if "out" in kwargs or (x is None and _is_in_place(func, args, kwargs)):
        return Refusal(_WRITES_FLOAT)
    with full_precision():
        quantized = _quantized_operands(op, arguments, runtime)
        if isinstance(quantized, Refusal):
            return quantized
        op, operands, layer = quantized
        how: Kwargs = {"is_in_place": x is not None, "parameter": parameter, "layer": layer}
        result = run_functional(op, operands, settings, runtime, real=partial(_by_torch, func, args, kwargs), **how)
    if x is None:
        return result
    _refuse_growth(x, result.shape, func.__name__)
    return x.overwrite(result)


def _quantized_operands(
    op: Op, arguments: list[Any], runtime: Runtime
) -> tuple[Op, list[QTensor], FunctionalLayer | None] | Refusal:
    """An op, its operands as integers, and its layer where that is no usual one. For some chips x − y is the sum of x and −y."""
    as_sum = runtime.target is not None and is_sum(op, runtime.target)
    operands = [as_operand(value, runtime, is_negated=as_sum and place == 1) for place, value in enumerate(arguments)]
    known, layer = cast("list[QTensor]", operands), None
    if not all(map(is_quantized, operands)):
        quantized = quantize_floats(op, arguments, operands, runtime)
        if isinstance(quantized, Refusal):
            return quantized
        arguments = [q if o is None else a for a, o, q in zip(arguments, operands, quantized[0], strict=True)]
        known, layer = quantized
    if not as_sum:
        return op, known, layer
    x, y = known  # constants stand behind tensors, and are negated already
    y = negated(y, runtime) if isinstance(arguments[1], QTensor) else y
    return sum_op(), [x, y] if isinstance(arguments[0], QTensor) else [y, x], layer


def _by_torch(func: TorchFunction, args: Args, kwargs: Kwargs) -> Tensor:
    """What torch's own function makes of the real values; in place, it writes over a copy."""
    real_args, real_kwargs = unwrap(args), unwrap(kwargs)
    x = _target(func, args, kwargs)
    if x is not None:
        shapes = [leaf.shape for leaf in tree_leaves((real_args, real_kwargs)) if isinstance(leaf, Tensor)]
        _refuse_growth(x, torch.broadcast_shapes(*shapes), func.__name__)
        real_args = (real_args[0].clone(), *real_args[1:])
    result: Tensor = func(*real_args, **real_kwargs)
    if bindings()[func][0].name == "iqDiv":  # a divisor of zero counts for no range
        result = result.masked_fill(~result.isfinite(), 0.0)
    return result


def _target(func: TorchFunction, args: Args, kwargs: Kwargs) -> QTensor | None:
    """The tensor that a function in place writes over."""
    x = args[0] if args else None
    return x if isinstance(x, QTensor) and _is_in_place(func, args, kwargs) else None


def _refuse_growth(x: QTensor, shape: torch.Size, name: str) -> None:
    if shape != x.shape:
        raise UsageError(
            f"{x.runtime.path or 'model'}: {name} in place would change the shape {tuple(x.shape)} "
            f"to {tuple(shape)}. Write x = x + y instead of x += y."
        )


def _operands(op: Op, binding: Binding, args: Args, kwargs: Kwargs) -> list[Any]:
    """The tensor arguments of a call, by position or by name, in the order of the op's inputs."""
    count = 1 if op.is_variadic else len(op.inputs) - len(op.constant_names)
    names = _parameters(binding)[:count]
    tensors = [args[i] if i < len(args) else kwargs[name] for i, name in enumerate(names)]
    if op.is_variadic:
        return list(tensors[0])
    order = op.orders.get(binding)
    return tensors if order is None else [tensors[order.index(name)] for name in op.inputs[:count]]


@cache
def _parameters(func: Callable[..., object]) -> list[str]:
    """The names of a function's parameters; looking at signatures is slow, so it is done once."""
    try:
        return list(inspect.signature(func).parameters)
    except ValueError:  # a Python function around a builtin one, which has no signature
        return []


Rule = Callable[[Runtime, TorchFunction, Args, Kwargs], object]
"""What may become of a function; NotImplemented: it is not for this rule."""


@lru_cache(maxsize=1024)
def _rules_of(func: TorchFunction) -> tuple[Rule, ...]:
    """The rules that know a function, in the order in which they are tried. What none takes is computed in float.

    Which rules these are depends on the function alone, so it is found out once. A user may make functions without end.
    """
    known: tuple[tuple[Rule, Container[TorchFunction] | None], ...] = (
        (_switched_off, SHUFFLES | SWITCHES.keys()),
        (_composed, COMPOSITIONS),
        (_kept_as_it_is, _KEPT),
        (_already_done, [func for func, (op, _) in bindings().items() if op.name == RELU]),
        (_openly, None),  # may know any
        (_by_other_calls, ADAPTIVE | REWRITES.keys()),
        (_as_product, MATRIX_PRODUCTS | PRODUCTS.keys()),
        (_as_integers, bindings()),
    )
    return tuple([rule for rule, functions in known if functions is None or func in functions])


def _in_float(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs, *, reason: str) -> object:
    """The function on real values. In place, it works on a copy and the QTensor becomes an ordinary tensor."""
    name = getattr(func, "__name__", str(func))
    if name in _QUERIES:
        return _answer(func, name, args, kwargs)
    if runtime.frame is None and is_repeating(runtime):
        with runtime.recomputation.place_of(func, args, runtime):
            return dispatch(runtime, func, args, kwargs)
    return _on_real_values(runtime, func, args, kwargs, reason)


def _on_real_values(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs, reason: str) -> object:
    name = getattr(func, "__name__", str(func))
    _refuse_hidden_writes(runtime, name, args[0] if args else None, kwargs.get("out"))
    written = _overwritten(func, args, kwargs)
    if written is not None:
        runtime.note_float(name, reason)
        return written
    real_args, real_kwargs = unwrap(args), unwrap(kwargs)
    result = func(*real_args, **real_kwargs)
    if result is None or any(isinstance(r, Tensor) and r.is_floating_point() for r in tree_leaves(result)):
        # without a result it has written into a float tensor; in a trace the count would fix an open batch size
        is_counted = result is not None and not runtime.now.is_traced
        runtime.note_float(name, reason, count_macs(name, real_args, real_kwargs, result) if is_counted else 0)
    return result


def _overwritten(func: TorchFunction, args: Args, kwargs: Kwargs) -> QTensor | None:
    """The first argument, or `out`, as an ordinary tensor with the result of a float function; None if it writes neither."""
    x, out = _target(func, args, kwargs), kwargs.get("out")
    if x is not None:
        copy = x.dequantize().clone()
        func(copy, *unwrap(args[1:]), **unwrap(kwargs))
        return x.overwrite(copy)
    if not isinstance(out, QTensor):
        return None
    return out.overwrite(func(*unwrap(args), **unwrap({k: v for k, v in kwargs.items() if k != "out"})))


def _answer(func: TorchFunction, name: str, args: Args, kwargs: Kwargs) -> object:
    """Answer a question about a tensor from its real values, without giving away memory whose writes are not counted."""
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")  # `shape` for the getter of Tensor.shape
    if attribute == "data":
        if name == "__set__":
            raise _cannot_write(runtime_among(args), "assigning to .data")
        return args[0].dequantize().detach()  # .data itself hides later writes from torch
    if not _OF_CONTENT.isdisjoint((name, attribute)):  # the numbers themselves are no answer
        asked: Args = tree_map(lambda a: a.moved_content if isinstance(a, QTensor) else a, args)
    else:
        asked = unwrap(args)
    answer = func(*asked, **unwrap(kwargs))
    if name in _ARRAYS:
        answer = answer.copy()
        answer.flags.writeable = runtime_among(args).frame is None  # inside a model, a write is meant for the tensor
    if "requires_grad" not in (attribute, name.removesuffix("_")):
        return answer
    x = args[0]
    if name not in ("requires_grad_", "__set__"):
        return answer or (has_place(x) and not x.is_integer)
    follow(x, x.moved_content)  # after it was set, the wrapper follows its content
    return x


def _refuse_hidden_writes(runtime: Runtime, name: str, x: object, out: object) -> None:
    """Refuse writes that neither the tensor nor the file would notice."""
    if _lists_quantized(out):
        raise _cannot_write(runtime_among(out), f"{name} with several results into out=")
    if not _is_in_place_name(name):
        return
    if _lists_quantized(x):
        raise _cannot_write(runtime_among(x), f"{name} on a list")
    is_float = isinstance(x, Tensor) and not isinstance(x, QTensor)
    # torch's exporter would forget the write
    if runtime.emitter is not None and is_float and cast(Tensor, x)._is_view():  # noqa: SLF001 - torch has no other name
        raise UnsupportedError(
            f"{runtime.path or 'model'}: {name} writes a quantized tensor into a part of a float tensor, which a file "
            f"cannot hold. Write z[:, :2] = … instead of z[:, :2].{name}(…)."
        )


def _lists_quantized(tree: object) -> bool:
    return isinstance(tree, (tuple, list)) and any(isinstance(leaf, QTensor) for leaf in tree_leaves(tree))


def _cannot_write(runtime: Runtime, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{runtime.path or 'model'}: {what} writes over a quantized tensor unseen. "
        "Make a new tensor instead, e.g. x = x * 2, or x.copy_(y)."
    )


def _is_in_place_name(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _is_in_place(func: TorchFunction, args: Args, kwargs: Kwargs) -> bool:
    if _is_called_in_place(func):
        return True
    if "inplace" in kwargs:
        return bool(kwargs["inplace"])
    position = _position_of_inplace(func)
    return position is not None and position < len(args) and bool(args[position])


@cache
def _position_of_inplace(func: TorchFunction) -> int | None:
    """Where a function takes `inplace` among its arguments; None where it does not."""
    names = _parameters(func) if inspect.isfunction(func) else []
    return names.index("inplace") if "inplace" in names else None


@lru_cache(maxsize=1024)
def _is_called_in_place(func: TorchFunction) -> bool:
    """Whether a function's name says that it writes over its first argument."""
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE_OPERATORS or _is_in_place_name(name)
