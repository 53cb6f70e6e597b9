# SPDX-License-Identifier: Apache-2.0
"""Where a torch function on a QTensor goes: moved through, computed as integers, or computed in float and noted."""

from __future__ import annotations

import inspect
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from linger.dialect import Binding, Op, Refusal, ops
from linger.errors import UnsupportedError, UsageError
from linger.quantization.core import packing
from linger.quantization.core.gradient_path import follow, has_place
from linger.quantization.core.precision import full_precision
from linger.quantization.core.qtensor import QTensor, runtime_among, unwrap
from linger.quantization.core.recomputation import is_repeating, may_be_repeated
from linger.quantization.core.runtime import is_exporting
from linger.quantization.core.supported import NO_INTEGER_FORM
from linger.quantization.core.switched import SHUFFLES, is_switched, reason_of, why_off
from linger.quantization.functions import passthrough
from linger.quantization.functions.adaptive import ADAPTIVE, pool_adaptively
from linger.quantization.functions.compositions import COMPOSITIONS
from linger.quantization.functions.functional import as_operand, run_functional
from linger.quantization.functions.multiplications import multiplications
from linger.quantization.functions.norms import NAMES as NORMS
from linger.quantization.functions.norms import affine_of, call_norm, why_float
from linger.quantization.functions.open_sizes import run_openly
from linger.quantization.functions.parameters import is_parameter
from linger.quantization.functions.products import MATRIX_PRODUCTS, PRODUCTS, as_linear, compute_product, read_product
from linger.quantization.functions.rewrites import MOVES as OWN_MOVES
from linger.quantization.functions.rewrites import NUMPY_SPELLINGS, REWRITES, Call, rewritten, shuffle_channels
from linger.quantization.functions.traced_sizes import with_sizes_read

_SHAPE_QUERIES = frozenset({"size", "dim", "numel", "nelement", "ndimension", "__len__", "is_same_size"})
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "device", "is_cuda", "is_cpu", "layout", "is_meta"})
_QUERIES = frozenset(
    [
        "size",
        "dim",
        "numel",
        "nelement",
        "stride",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "element_size",
        "ndimension",
        "storage_offset",
        "__len__",
        "get_device",
        "is_signed",
        "requires_grad_",
        "backward",
        "register_hook",
        "retain_grad",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__repr__",
        "__format__",
        "__str__",
        "__hash__",
        "__bool__",
        "__float__",
        "__int__",
        "type",
        "is_pinned",
        "data_ptr",
        "is_same_size",
        "__get__",
        "__set__",
        "__delete__",
    ]
)


_IN_PLACE_OPERATORS = frozenset(
    f"__i{name}__"
    for name in ["add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "lshift", "rshift"]
) | {"__setitem__"}


_GRADIENT_QUERIES = frozenset({"requires_grad_", "register_hook", "retain_grad"})
_GRADIENT_ATTRIBUTES = frozenset({"requires_grad", "grad", "grad_fn", "is_leaf"})
_ARRAYS = frozenset({"numpy", "__array__"})
"""Questions whose answer is the memory itself."""


@cache
def bindings() -> dict[Any, tuple[Op, Binding]]:
    """Every torch function an op stands for, with the binding of its arguments."""
    table = {}
    for op in ops().values():
        for path, binding in op.functions.items():
            parts = path.split(".")[1:]
            if path.startswith("torch."):
                table[reduce(getattr, parts, torch)] = (op, binding)
    return table


@cache
def bindings_by_path() -> dict[str, Binding]:
    """The same bindings by the torch function's dotted name."""
    return {path: binding for op in ops().values() for path, binding in op.functions.items()}


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function some of whose arguments are QTensors."""
    if not args and "input" in kwargs and (func in bindings() or func in passthrough.ALL or func in REWRITES):
        kwargs = dict(kwargs)
        args = (kwargs.pop("input"),)
    if func in packing.FUNCTIONS:
        return packing.move_packed(func, *args)
    if may_be_repeated():
        _remember(func, args, kwargs)
    for rule in (_switched_off, _composed, _kept_as_it_is):
        result = rule(func, args, kwargs)
        if result is not NotImplemented:
            return result
    if func in PRODUCTS:
        return _as_product(func, args, kwargs)
    linear = as_linear(func, args, kwargs, runtime_among((args, kwargs))) if func in MATRIX_PRODUCTS else None
    if isinstance(linear, Refusal):
        return _in_float(func, args, kwargs, reason=linear.reason)
    if linear is not None:
        return compute_product(linear, linear.x.runtime)
    if func in bindings():
        return _as_integers(func, args, kwargs)
    return _in_float(func, args, kwargs, reason=NO_INTEGER_FORM)


def _remember(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A function in training whose module a checkpoint may not run again with it."""
    runtime = runtime_among((args, kwargs))
    frame = runtime.frame
    if frame is not None and frame.module.training and getattr(func, "__name__", "") not in _QUERIES:
        runtime.recomputation.remember(func, args, frame)


def _switched_off(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the model's switches keep in float, or away from an op of its own."""
    if func in SHUFFLES and not runtime_among((args, kwargs)).switches.channel_shuffle:
        is_right = not isinstance(bindings()[func][1](*args, **kwargs), Refusal)  # else torch says what is wrong
        return _kept_as_it_is(shuffle_channels, args, kwargs) if is_right else NotImplemented
    reason = why_off(func, runtime_among((args, kwargs)).switches) if is_switched(func) else None
    return NotImplemented if reason is None else _in_float(func, args, kwargs, reason=reason)


def _composed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is several ops, or one with operands that are not quantised."""
    handler = COMPOSITIONS.get(func)
    result = NotImplemented if handler is None else handler(func, args, kwargs, _call)
    return _in_float(func, args, kwargs, reason=result.reason) if isinstance(result, Refusal) else result


def _kept_as_it_is(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What moves numbers without changing them, or is another function in disguise."""
    x = args[0] if args else None
    if not isinstance(x, QTensor) or x.scale is None:
        return NotImplemented
    rest = args[1:]
    if func in passthrough.MOVES or func in OWN_MOVES:
        return passthrough.move(func, x, unwrap_indices(rest), kwargs)
    if func in passthrough.TRANSPOSES:
        return x.like(func(x.content))
    if func in passthrough.DROPOUTS:
        dropped = passthrough.drop(func, x, rest, kwargs)
        return x.overwrite(dropped) if _is_in_place(func, args, kwargs) else dropped
    if func in passthrough.CONVERSIONS:
        return passthrough.convert(func, x, rest, kwargs)
    if func in passthrough.IN_PLACE_VIEWS:
        raise UnsupportedError(
            f"{x.runtime.path or 'model'}: {func.__name__} changes the shape of a quantised tensor in place. "
            f"Write x = x.{func.__name__.rstrip('_')}(…) instead."
        )
    result = _by_other_calls(func, x, args, kwargs)
    return NotImplemented if result is None else result


def _by_other_calls(func: Any, x: QTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function that stands for others; None if it stands for itself."""
    if x.runtime.has_open_sizes and x.runtime.frame is not None:
        result = run_openly(func, args, kwargs)
        if result is not None:
            return result
    calls = rewritten(func, args, kwargs)
    if calls is not None:
        return _run_all(calls)
    return pool_slices(func, args, kwargs) if func in ADAPTIVE and x.runtime.frame is not None else None


def _call(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A torch function on quantised or ordinary tensors, from within one on quantised tensors."""
    has_quantized = any(isinstance(leaf, QTensor) for leaf in tree_leaves((args, kwargs)))
    return dispatch(func, args, kwargs) if has_quantized else func(*args, **kwargs)


def _as_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    runtime = runtime_among((args, kwargs))
    product = read_product(func, args, kwargs, runtime)
    if isinstance(product, Refusal):
        return _in_float(func, args, kwargs, reason=product.reason)
    return compute_product(product, runtime)


def _run_all(calls: list[Call]) -> Any:
    """Calls that stand for one: each but the first works on the result before it."""
    result: Any = None
    for func, (first, *rest) in calls:
        x = result if first is None else first
        result = dispatch(func, (x, *rest), {}) if isinstance(x, QTensor) else func(x, *rest)
    return result


def pool_slices(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Adaptive pooling as other calls; None if it has no such form, or is an ordinary pool already."""
    if runtime_among((args, kwargs)).has_open_sizes:
        return run_openly(func, args, kwargs)
    given = {**dict(zip(("x", "output_size", "return_indices"), args, strict=False)), **kwargs}
    if given.get("return_indices"):
        return None
    x, size = given["x"], given["output_size"]
    return pool_adaptively(func, x, size, lambda other, arguments: _call(other, *arguments))


def unwrap_indices(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Other arguments of a moving function (x.view_as(y), x[mask]) as ordinary tensors."""
    result: tuple[Any, ...] = tree_map(lambda a: a.content if isinstance(a, QTensor) else a, args)
    return result


def _as_integers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    op, binding = bindings()[func]
    runtime = runtime_among((args, kwargs))
    if runtime.frame is None:
        return _in_float(func, args, kwargs, reason="outside the model")
    if op.name == "BmmInt" and not runtime.switches.bmm:  # a product with a parameter is a layer, and came before
        return _in_float(func, args, kwargs, reason=reason_of("bmm"))
    args, kwargs = with_sizes_read(args), with_sizes_read(kwargs)
    spelled = {NUMPY_SPELLINGS.get(k, k): v for k, v in kwargs.items() if k != "out"}
    settings = binding(*args, **spelled)
    if isinstance(settings, Refusal):
        return _in_float(func, args, kwargs, reason=settings.reason)
    if op.name in NORMS:
        affine = affine_of(binding, args, spelled)
        reason = why_float(args[0] if args else spelled["x"], settings, affine)
        return _in_float(func, args, kwargs, reason=reason) if reason else call_norm(op, args[0], settings, affine)
    given = _operands(op, binding, args, spelled)
    parameter = given.pop() if op.inputs[-1] == "w" and is_parameter(given[-1]) else None
    operands = [as_operand(t, runtime) for t in given]
    if "out" in kwargs or any(o is None for o in operands):
        reason = "an operand is a float tensor; let a quantised layer produce it"
        return _in_float(func, args, kwargs, reason=reason)
    is_in_place = bool(args) and isinstance(args[0], QTensor) and _is_in_place(func, args, kwargs)
    known = [o for o in operands if o is not None]
    with full_precision():
        result = run_functional(op, known, settings, runtime, is_in_place=is_in_place, parameter=parameter)
    if not is_in_place:
        return result
    if result.content.shape != args[0].content.shape:
        raise UsageError(
            f"{runtime.path or 'model'}: {func.__name__} in place would change the shape {tuple(args[0].content.shape)} "
            f"to {tuple(result.content.shape)}. Write x = x + y instead of x += y."
        )
    return args[0].overwrite(result)


def _operands(op: Op, binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
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


def _in_float(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, reason: str) -> Any:
    """The function on real values. In place, it works on a copy and the QTensor becomes an ordinary tensor."""
    name = getattr(func, "__name__", str(func))
    if name in _QUERIES:
        return _answer(func, name, args, kwargs)
    x = args[0] if args else None
    runtime = runtime_among((args, kwargs))
    if runtime.frame is None and is_repeating(runtime):
        with runtime.recomputation.place_of(func, args, runtime):
            return dispatch(func, args, kwargs)
    _refuse_hidden_writes(name, x, args, kwargs)
    if isinstance(x, QTensor) and _is_in_place(func, args, kwargs):
        copy = x.dequantize().clone()
        func(copy, *unwrap(args[1:]), **unwrap(kwargs))
        _note(name, args, kwargs, reason)
        return x.overwrite(copy)
    if isinstance(kwargs.get("out"), QTensor):
        rest = {k: v for k, v in kwargs.items() if k != "out"}
        result = kwargs["out"].overwrite(func(*unwrap(args), **unwrap(rest)))
        _note(name, args, kwargs, reason)
        return result
    real_args, real_kwargs = unwrap(args), unwrap(kwargs)
    result = func(*real_args, **real_kwargs)
    # a function without result has written into a float tensor
    if result is None or any(isinstance(r, Tensor) and r.is_floating_point() for r in tree_leaves(result)):
        # in a trace the count would fix an open batch size
        is_counted = result is not None and not is_exporting() and runtime_among((args, kwargs)).emitter is None
        macs = multiplications(name, real_args, real_kwargs, result) if is_counted else 0
        _note(name, args, kwargs, reason, macs)
    return result


def _answer(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A question about a tensor, answered from its real values; nobody gets hold of its memory uncounted."""
    attribute = _attribute_name(func)
    if attribute == "data":
        if name == "__set__":
            raise _cannot_write(runtime_among(args), "assigning to .data")
        return args[0].dequantize().detach()  # .data itself hides later writes from torch
    is_about_shape = name in _SHAPE_QUERIES or attribute in _SHAPE_ATTRIBUTES
    is_about_gradient = name in _GRADIENT_QUERIES or attribute in _GRADIENT_ATTRIBUTES
    # a question about the shape needs no Dequant, and the gradient is that of the content itself
    seen = unwrap_indices if is_about_shape or is_about_gradient else unwrap
    answer = func(*seen(args), **unwrap(kwargs))
    if name == "requires_grad_" or (name == "__set__" and attribute == "requires_grad"):
        follow(args[0], args[0].content)
        return args[0]
    if attribute == "requires_grad":
        return answer or (has_place(args[0]) and not args[0].is_integer)
    if name in _ARRAYS:
        answer = answer.copy()
        answer.flags.writeable = runtime_among(args).frame is None  # inside a model, a write is meant for the tensor
    return answer


def _refuse_hidden_writes(name: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Writes that neither the tensor nor the file would learn of."""
    out = kwargs.get("out")
    if isinstance(out, (tuple, list)) and any(isinstance(o, QTensor) for o in out):
        raise _cannot_write(runtime_among(out), f"{name} with several results into out=")
    if not (name.endswith("_") and not name.endswith("__")):
        return
    if isinstance(x, (tuple, list)) and any(isinstance(leaf, QTensor) for leaf in tree_leaves(x)):
        raise _cannot_write(runtime_among(x), f"{name} on a list")
    if isinstance(x, Tensor) and not isinstance(x, QTensor) and x._is_view():  # noqa: SLF001 - torch has no other name
        runtime = runtime_among((args, kwargs))
        if runtime.emitter is not None:  # torch's exporter would forget the write
            raise UnsupportedError(
                f"{runtime.path or 'model'}: {name} writes a quantised tensor into a part of a float tensor, which a file "
                f"cannot hold. Write z[:, :2] = … instead of z[:, :2].{name}(…)."
            )


def _cannot_write(runtime: Any, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{runtime.path or 'model'}: {what} writes over a quantised tensor unseen. "
        "Make a new tensor instead, e.g. x = x * 2, or x.copy_(y)."
    )


def _attribute_name(func: Any) -> str:
    """`shape` for the getter of Tensor.shape."""
    return getattr(getattr(func, "__self__", None), "__name__", "")


def _note(name: str, args: Any, kwargs: Any, reason: str, macs: int = 0) -> None:
    runtime_among((args, kwargs)).note_float(name, reason, macs)


def _is_in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    if name in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
        return True
    if "inplace" in kwargs:
        return bool(kwargs["inplace"])
    position = _position_of_inplace(func)
    return position is not None and position < len(args) and bool(args[position])


@cache
def _position_of_inplace(func: Any) -> int | None:
    """Where a function takes `inplace`; looking at signatures is slow, so it is done once."""
    try:
        names = list(inspect.signature(func).parameters) if inspect.isfunction(func) else []
    except ValueError:  # a Python function around a builtin one, which has no signature
        names = []
    return names.index("inplace") if "inplace" in names else None
