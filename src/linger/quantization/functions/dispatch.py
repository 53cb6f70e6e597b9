# SPDX-License-Identifier: Apache-2.0
"""Where a torch function on a QTensor goes: moved through, computed as integers, or computed in float and noted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from functools import cache, lru_cache, partial, reduce
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from linger.dialect import Binding, Op, Refusal, ops
from linger.errors import UnsupportedError, UsageError
from linger.quantization.core import packing
from linger.quantization.core.qtensor import (
    QTensor,
    follow,
    function_with_symbolic,
    has_place,
    is_quantized,
    runtime_among,
    unwrap,
)
from linger.quantization.core.runtime import Frame, OpRecord, Runtime, TorchFunction, full_precision, may_be_repeated
from linger.quantization.core.stored import is_repeating
from linger.quantization.core.supported import NO_INTEGER_FORM, SHUFFLES, SWITCHES, reason_of, why_off
from linger.quantization.functions import passthrough, rewrites
from linger.quantization.functions.attention import ATTENTION
from linger.quantization.functions.chip_forms import is_sum, negated, sum_op
from linger.quantization.functions.constants import is_parameter, quantize_floats
from linger.quantization.functions.functional import RELU, as_operand, run_functional
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.functions.masks import MASKS
from linger.quantization.functions.norms import affine_of, call_norm, why_float
from linger.quantization.functions.products import (
    MATRIX_PRODUCTS,
    PRODUCTS,
    Product,
    as_linear,
    compute_product,
    multiplications,
    read_product,
)
from linger.quantization.functions.resizing import ADAPTIVE, pool_adaptively, run_openly
from linger.quantization.functions.rewrites import NUMPY_SPELLINGS, REWRITES, Call, Handler, shuffle_channels

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
_CONTENT_ATTRIBUTES = _SHAPE_ATTRIBUTES | _GRADIENT_ATTRIBUTES
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

_trace: Any = torch._C  # noqa: SLF001 - only torch._C knows what a trace holds; mypy lacks parts of it
_SIZES = frozenset({"aten::size", "aten::numel", "aten::dim"})
_VALUES = frozenset({"prim::Param", "prim::GetAttr"})


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
    frames = runtime.current.frames
    frame = frames[-1] if frames else None
    if frame is not None and frame.module.training and may_be_repeated():
        _remember(runtime, func, args, frame)
    if _is_kept_float(runtime, func, args, frame):
        return _moved_or_float(runtime, func, args, kwargs)
    name = "" if _trace._is_fwd_grad_enabled() else function_with_symbolic()  # noqa: SLF001 - no public name
    if name:
        return _in_float(runtime, func, args, kwargs, reason=f"{name} has a symbolic, which the file has instead")
    return _by_rules(runtime, func, args, kwargs)


def _by_rules(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """The result of the first rule that has one."""
    for rule in _rules_of(func):
        result = rule(runtime, func, args, kwargs)
        if result is not NotImplemented:
            return result
    return _in_float(runtime, func, args, kwargs, reason=NO_INTEGER_FORM)


def _by_position(func: TorchFunction, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a function whose first one was given by its name."""
    if not any(func in table for table in (bindings(), passthrough.ALL, REWRITES)):
        return (), kwargs
    rest = dict(kwargs)
    return (rest.pop("input"),), rest


def _moved_or_float(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """A function of a module that stays float: what only moves numbers leaves them quantized. A dropout rounds."""
    result = NotImplemented if func in passthrough.DROPOUTS else _kept_as_it_is(runtime, func, args, kwargs)
    return _in_float(runtime, func, args, kwargs, reason="") if result is NotImplemented else result


def _remember(runtime: Runtime, func: TorchFunction, args: Args, frame: Frame) -> None:
    """Remember a function in training: a checkpoint may run it again without its module."""
    if getattr(func, "__name__", "") not in _QUERIES:
        runtime.recomputation.remember(func, args, frame)


def _is_kept_float(runtime: Runtime, func: TorchFunction, args: Args, frame: Frame | None) -> bool:
    """Whether a module is at work whose functions stay float, or was when a checkpoint ran the function first."""
    if frame is not None:
        return bool(frame.keeping.reason)
    return is_repeating(runtime) and runtime.recomputation.kept_float(func, args)


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
    return passthrough.move(func, x, unwrap_indices(rest), kwargs)


def _transposed(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    del rest, kwargs
    return x.like(func(x.moved_content))


def _dropped(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    dropped = passthrough.drop(func, x, rest, kwargs)
    return x.overwrite(dropped) if _is_in_place(func, (x, *rest), kwargs) else dropped


def _view_refused(func: TorchFunction, x: QTensor, rest: Args, kwargs: Kwargs) -> object:
    del rest, kwargs
    raise UnsupportedError(
        f"{x.runtime.path or 'model'}: {func.__name__} changes the shape of a quantized tensor in place. "
        f"Write x = x.{func.__name__.rstrip('_')}(…) instead."
    )


_KEPT: dict[TorchFunction, Callable[[TorchFunction, QTensor, Args, Kwargs], object]] = {
    **dict.fromkeys(passthrough.IN_PLACE_VIEWS, _view_refused),
    **dict.fromkeys(passthrough.CONVERSIONS, passthrough.convert),
    **dict.fromkeys(passthrough.DROPOUTS, _dropped),
    **dict.fromkeys(passthrough.TRANSPOSES, _transposed),
    **dict.fromkeys([*passthrough.MOVES, *rewrites.MOVES], _moved),
}


def _already_done(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """A ReLU that the layer before it has fused; a recording shows every op, so there it is computed."""
    x, frames = args[0] if args else None, runtime.current.frames
    if not isinstance(x, QTensor) or x.scale is None or not x.is_nonnegative or not x.stored.is_floating_point():
        return NotImplemented
    if not frames or runtime.recorder is not None or runtime.observers:
        return NotImplemented
    runtime.note(OpRecord(frames[-1].path, RELU, is_integer=True))
    # out of place the result is a tensor of its own
    is_same = _is_in_place(func, args, kwargs)
    if is_same:
        return x
    result = QTensor(x.moved_content, x.scale, x.bits, runtime, is_nonnegative=True)
    result.origins = x.origins
    return result


@cache
def _relus() -> frozenset[TorchFunction]:
    return frozenset(func for func, (op, _) in bindings().items() if op.name == RELU)


def _openly(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Where a file leaves sizes open: compute a function in a form that is valid at every size."""
    if not runtime.has_open_sizes or runtime.frame is None or not args or not is_quantized(args[0]):
        return NotImplemented
    result = run_openly(func, args, kwargs)
    return NotImplemented if result is None else result


def _by_other_calls(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> object:
    """Compute a function that can be written as other torch calls."""
    if not args or not is_quantized(args[0]):
        return NotImplemented
    calls = rewrites.rewritten(func, args, kwargs) if func in REWRITES else None
    if calls is not None:
        return _run_all(calls)
    pooled = pool_slices(runtime, func, args, kwargs) if func in ADAPTIVE and runtime.frame is not None else None
    return NotImplemented if pooled is None else pooled


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
        product = as_linear(func, args, kwargs, runtime) if func in MATRIX_PRODUCTS else None
    if product is None:
        return NotImplemented
    if isinstance(product, Refusal):
        return _in_float(runtime, func, args, kwargs, reason=product.reason)
    return compute_product(product, runtime)


def _run_all(calls: list[Call]) -> object:
    """Calls that stand for one: each but the first works on the result before it."""
    result: Any = None
    for func, (first, *rest) in calls:
        x = result if first is None else first
        result = dispatch(x.runtime, func, (x, *rest), {}) if isinstance(x, QTensor) else func(x, *rest)
    return result


def pool_slices(runtime: Runtime, func: TorchFunction, args: Args, kwargs: Kwargs) -> Tensor | None:
    """Adaptive pooling as other calls; None if it has no such form, or is an ordinary pool already."""
    if runtime.has_open_sizes:
        return run_openly(func, args, kwargs)
    given = {**dict(zip(("x", "output_size", "return_indices"), args, strict=False)), **kwargs}
    if given.get("return_indices"):
        return None
    x, size = given["x"], given["output_size"]
    return pool_adaptively(func, x, size, lambda other, arguments: _call(other, *arguments))


def unwrap_indices(args: Args) -> Args:
    """Other arguments of a moving function (x.view_as(y), x[mask]) as ordinary tensors."""
    result: Args = tree_map(lambda a: a.content if isinstance(a, QTensor) else a, args)
    return result


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
    spelled = _spelled(kwargs)
    settings = binding(*args, **spelled)
    if isinstance(settings, Refusal):
        return settings
    if op.normalizes:
        return _run_norm(op, binding, args, spelled, settings)
    given = _operands(op, binding, args, spelled)
    parameter = given.pop() if op.inputs[-1] == "w" and is_parameter(given[-1]) else None
    is_in_place = _is_in_place(func, args, kwargs)
    x = args[0] if is_in_place and isinstance(args[0], QTensor) else None
    if "out" in kwargs or (is_in_place and x is None):
        return Refusal(_WRITES_FLOAT)
    with full_precision():
        found = _quantized_operands(op, given, runtime)
        if isinstance(found, Refusal):
            return found
        op, known, layer = found
        how: Kwargs = {"is_in_place": x is not None, "parameter": parameter, "layer": layer}
        result = run_functional(op, known, settings, runtime, real=partial(_by_torch, func, args, kwargs), **how)
    return result if x is None else _written_over(x, result, func.__name__)


def _quantized_operands(
    op: Op, given: list[Any], runtime: Runtime
) -> tuple[Op, list[QTensor], FunctionalLayer | None] | Refusal:
    """An op, its operands as integers, and its layer where that is no usual one. For some chips x − y is the sum of x and −y."""
    as_sum = runtime.target is not None and is_sum(op, runtime.target)
    operands = [as_operand(value, runtime, is_negated=as_sum and place == 1) for place, value in enumerate(given)]
    known, layer = cast("list[QTensor]", operands), None
    if not all(map(is_quantized, operands)):
        found = quantize_floats(op, given, operands, runtime)
        if isinstance(found, Refusal):
            return found
        given = [q if o is None else g for g, o, q in zip(given, operands, found[0], strict=True)]
        known, layer = found
    return (sum_op(), _summands(given, known, runtime), layer) if as_sum else (op, known, layer)


def _summands(given: list[Any], operands: list[QTensor], runtime: Runtime) -> list[QTensor]:
    """x and −y, constants behind tensors; a constant is negated already."""
    x, y = operands
    y = negated(y, runtime) if isinstance(given[1], QTensor) else y
    return [x, y] if isinstance(given[0], QTensor) else [y, x]


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


def _spelled(kwargs: Kwargs) -> Kwargs:
    """Arguments by their documented names, without `out`."""
    return {NUMPY_SPELLINGS.get(name, name): value for name, value in kwargs.items() if name != "out"} if kwargs else {}


def _run_norm(op: Op, binding: Binding, args: Args, kwargs: Kwargs, settings: Mapping[str, Any]) -> QTensor | Refusal:
    affine, x = affine_of(binding, args, kwargs), args[0] if args else kwargs["x"]
    reason = why_float(x, settings, affine)
    return Refusal(reason) if reason else call_norm(op, x, settings, affine)


def _written_over(x: QTensor, result: QTensor, name: str) -> QTensor:
    """The tensor of a call in place, which has become the result."""
    _refuse_growth(x, result.shape, name)
    return x.overwrite(result)


def _refuse_growth(x: QTensor, shape: torch.Size, name: str) -> None:
    if shape != x.shape:
        raise UsageError(
            f"{x.runtime.path or 'model'}: {name} in place would change the shape {tuple(x.shape)} "
            f"to {tuple(shape)}. Write x = x + y instead of x += y."
        )


def _operands(op: Op, binding: Binding, args: Args, kwargs: Kwargs) -> list[Any]:
    """The tensor arguments of a call, by position or by name, in the order of the op's inputs."""
    count = 1 if op.is_variadic else len(op.inputs) - len(op.constant_names)
    names = _first_parameters(binding, count)
    given = [args[i] if i < len(args) else kwargs[name] for i, name in enumerate(names)]
    if op.is_variadic:
        return list(given[0])
    order = op.orders.get(binding)
    return given if order is None else [given[order.index(name)] for name in op.inputs[:count]]


@cache
def _first_parameters(binding: Binding, count: int) -> list[str]:
    """Looking at signatures is slow, so it is done once."""
    return list(inspect.signature(binding).parameters)[:count]


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
        (_already_done, _relus()),
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
    if _target(func, args, kwargs) is not None or isinstance(kwargs.get("out"), QTensor):
        written = _overwritten(func, args, kwargs)
        runtime.note_float(name, reason)
        return written
    real_args, real_kwargs = unwrap(args), unwrap(kwargs)
    result = func(*real_args, **real_kwargs)
    if result is None or any(isinstance(r, Tensor) and r.is_floating_point() for r in tree_leaves(result)):
        # without a result it has written into a float tensor; in a trace the count would fix an open batch size
        is_counted = result is not None and not runtime.now.is_traced
        runtime.note_float(name, reason, multiplications(name, real_args, real_kwargs, result) if is_counted else 0)
    return result


def _overwritten(func: TorchFunction, args: Args, kwargs: Kwargs) -> QTensor:
    """The first argument, or `out`, as an ordinary tensor with the result of a float function."""
    x = _target(func, args, kwargs)
    if x is not None:
        copy = x.dequantize().clone()
        func(copy, *unwrap(args[1:]), **unwrap(kwargs))
        return x.overwrite(copy)
    out: QTensor = kwargs["out"]
    rest = {k: v for k, v in kwargs.items() if k != "out"}
    return out.overwrite(func(*unwrap(args), **unwrap(rest)))


def _answer(func: TorchFunction, name: str, args: Args, kwargs: Kwargs) -> object:
    """Answer a question about a tensor from its real values, without giving away memory whose writes are not counted."""
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")  # `shape` for the getter of Tensor.shape
    if attribute == "data":
        if name == "__set__":
            raise _cannot_write(runtime_among(args), "assigning to .data")
        return args[0].dequantize().detach()  # .data itself hides later writes from torch
    seen = _contents if name in _CONTENT_QUERIES or attribute in _CONTENT_ATTRIBUTES else unwrap
    answer = func(*seen(args), **unwrap(kwargs))
    if attribute == "requires_grad" or name == "requires_grad_":
        return _gradient_answer(args[0], answer, is_set=name in ("requires_grad_", "__set__"))
    if name in _ARRAYS:
        answer = answer.copy()
        answer.flags.writeable = runtime_among(args).frame is None  # inside a model, a write is meant for the tensor
    return answer


def _contents(args: Args) -> Args:
    """Arguments of a question to which the numbers themselves are no answer."""
    result: Args = tree_map(lambda a: a.moved_content if isinstance(a, QTensor) else a, args)
    return result


def _gradient_answer(x: QTensor, answer: object, *, is_set: bool) -> object:
    """Whether a tensor requires a gradient; after it was set, the wrapper follows its content."""
    if is_set:
        follow(x, x.moved_content)
        return x
    return answer or (has_place(x) and not x.is_integer)


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


@lru_cache(maxsize=1024)
def _is_called_in_place(func: TorchFunction) -> bool:
    """Whether a function's name says that it writes over its first argument."""
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE_OPERATORS or _is_in_place_name(name)


@cache
def _position_of_inplace(func: TorchFunction) -> int | None:
    """Where a function takes `inplace`; looking at signatures is slow, so it is done once."""
    try:
        names = list(inspect.signature(func).parameters) if inspect.isfunction(func) else []
    except ValueError:  # a Python function around a builtin one, which has no signature
        names = []
    return names.index("inplace") if "inplace" in names else None


# sizes of tensors as settings and operands, while a model is traced
def with_sizes_read(arguments: _Tree) -> _Tree:
    """Arguments with numbers in the place of tensors that a trace has computed from sizes alone, as ops need them.

    What is computed from values stays a tensor: it is not known before the file runs.
    """
    if not _trace._is_tracing():  # noqa: SLF001 - torch has no public way to ask
        return arguments

    def read(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or isinstance(leaf, QTensor) or leaf.dim() or not _is_from_sizes(leaf):
            return leaf
        return leaf.tolist()

    return cast(_Tree, tree_map(read, arguments))


def _is_from_sizes(tensor: Tensor) -> bool:
    """Whether the trace has computed a tensor from sizes and constants, and from no values."""
    waiting, seen, has_size = [_trace._get_value_trace(tensor).node()], set(), False  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        if node.kind() in _VALUES:
            return False
        if node.kind() in _SIZES:
            has_size = True
            continue
        new = [value.node() for value in node.inputs() if value.unique() not in seen]
        seen |= {value.unique() for value in node.inputs()}
        waiting += new
    return has_size
