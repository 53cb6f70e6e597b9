# SPDX-License-Identifier: Apache-2.0
"""Float tensors inside a quantized model, whose functions no quantized tensor sees.

`EdgeMode` computes products of a float tensor with a parameter as integers; a model has it only where modules of its own
hold such parameters. `InputQuantizer` quantizes the inputs of a layer with a forward of its own, and of an attention
layer. `FloatWatch` notes what stays float while a model is calibrated.

quant_tensor: quantize a tensor inside a user's own forward.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from linger.analysis.batches import Batch, Function, Keywords
from linger.constraint.limits import QUANTIZATION
from linger.dialect import Refusal
from linger.errors import UsageError
from linger.notation import as_width
from linger.quantization.core import packing
from linger.quantization.core.qtensor import QTensor, is_quantized, unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Frame, Runtime, Scope, scope_of
from linger.quantization.core.supported import NO_INTEGER_FORM, why_off
from linger.quantization.functions import products
from linger.quantization.functions.constants import is_state, note_derived
from linger.quantization.functions.dispatch import COMPOSITIONS, CONVERSIONS, MOVES, bindings
from linger.quantization.functions.functional_layer import FLOAT_OPERAND, INPUT_KEY, FunctionalLayer, functional_layer
from linger.quantization.functions.masks import masks_scores
from linger.quantization.functions.resizing import ADAPTIVE
from linger.quantization.functions.rewrites import REWRITES
from linger.quantization.setup.marking import QuantMode

_MASK_NAMES = (
    "zeros_like",
    "full_like",
    "new_zeros",
    "new_full",
    "masked_fill",
    "masked_fill_",
    "where",
    "triu",
    "tril",
)
_MASK_MAKERS = {getattr(place, name) for name in _MASK_NAMES for place in (torch, Tensor) if hasattr(place, name)}

_COMPUTES_NOTHING = MOVES | {*packing.FUNCTIONS, F.pad, torch.as_strided, Tensor.as_strided}
"""Functions that only move real numbers, or put others beside them."""

_QUANTIZES_INPUTS = frozenset({F.linear, F.multi_head_attention_forward})

_BY_OTHERS = (REWRITES, COMPOSITIONS, ADAPTIVE)  # functions that become integer ops by way of other functions


class _ModelMode(TorchFunctionMode):
    """Sees the torch functions of one model."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @property
    def _is_in_users_code(self) -> bool:
        """Whether a module that is no quantized layer is at work; the arithmetic inside a layer is its own."""
        frame = self._runtime.frame
        return frame is not None and not isinstance(frame.module, QuantizedBase)


class EdgeMode(_ModelMode):
    """Computes a float tensor times a parameter as integers; the tensor is quantized first."""

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        """Compute products of float tensors here, run everything else as it is."""
        kwargs = kwargs or {}
        if self._is_in_users_code and (func in products.PRODUCTS or func in products.MATRIX_PRODUCTS):
            product = self._product(func, args, kwargs)
            if product is not None:
                return products.compute_product(product, self._runtime)
        return func(*args, **kwargs)

    def _product(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> products.Product | None:
        x, weight = (args[i] if len(args) > i else kwargs.get(name) for i, name in enumerate(("input", "weight")))
        product: object = None
        # a quantized tensor sees its own functions
        if not _is_float(x) or any(isinstance(value, QTensor) for value in (*args, *kwargs.values())):
            return None
        if func in products.MATRIX_PRODUCTS:
            product = products.as_linear(func, args, kwargs, self._runtime)
        elif is_state(weight, self._runtime) and not is_state(x, self._runtime):  # of two parameters it is a constant
            product = products.read_product(func, args, kwargs, self._runtime)
        return product if isinstance(product, products.Product) else None


class InputQuantizer:
    """A forward pre-hook that quantizes the arguments of a module that have these names."""

    def __init__(self, runtime: Runtime, names: tuple[str, ...]) -> None:
        self.runtime, self.names = runtime, names

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Quantize what is float; one tensor that is given twice stays one tensor."""
        known: dict[int, QTensor] = {}
        frame = self.runtime.frame
        assert frame is not None  # the scope's hook came first
        if frame.keeping.reason:
            return args, kwargs  # a part that stays float has called it
        positional = [self._quantized(v, n, frame, known) for v, n in zip(args, self.names, strict=False)]
        named = {k: self._quantized(v, k, frame, known) if k in self.names else v for k, v in kwargs.items()}
        return (*positional, *args[len(self.names) :]), named

    def _quantized(self, value: object, name: str, frame: Frame, known: dict[int, QTensor]) -> object:
        if not _is_float(value) or is_quantized(value):
            return value
        if id(value) not in known:
            runtime, policy = self.runtime, self.runtime.products
            assert policy is not None  # init made it
            where, bits = f"{frame.path}.{name}".lstrip("."), policy.widths_in(frame.module).data
            layer = functional_layer(frame, f"{INPUT_KEY}{name}", where, value.device, runtime)
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - other interceptors of the model's functions see none here
                known[id(value)] = layer.ranges["x"].quantize(unwrap(value), bits, runtime, frame.path)
        return known[id(value)]


class FloatWatch(_ModelMode):
    """Notes every computation on ordinary float tensors inside a quantized model."""

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        """Run the function; note it if it computed floats from floats."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._is_in_users_code:
            operands, results = _tensors_in((args, kwargs)), _tensors_in(result)
            name = getattr(func, "__name__", str(func))
            is_float = not name.startswith("__get") and _computes_floats(operands, results)
            if is_float and not note_derived(operands, results, self._runtime) and _counts(func, operands, results):
                macs = products.count_macs(name, args, kwargs, result)
                self._runtime.note_float(name, self._reason(func, args, kwargs), macs)
        return result

    def _reason(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> str:
        """Why the function stayed float: the inputs of a product with a parameter would have been quantized."""
        off = why_off(func, self._runtime.switches) if func in _QUANTIZES_INPUTS else None
        if func in products.MATRIX_PRODUCTS:
            product = products.as_linear(func, args, kwargs, self._runtime)
            off = product.reason if isinstance(product, Refusal) else None
        has_form = any(
            func in table for table in (bindings(), products.PRODUCTS, products.MATRIX_PRODUCTS, *_BY_OTHERS)
        )
        return off or (
            "its inputs are float tensors; linger.quant_tensor quantizes them" if has_form else NO_INTEGER_FORM
        )


def _is_float(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def _tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _computes_floats(operands: list[Tensor], results: list[Tensor]) -> bool:
    """Whether ordinary tensors became float tensors; what a quantized tensor takes part in is noted by that tensor."""
    has_quantized = any(isinstance(tensor, QTensor) for tensor in (*operands, *results))
    return bool(operands) and not has_quantized and any(map(_is_float, results))


def _counts(func: Function, operands: list[Tensor], results: list[Tensor]) -> bool:
    """Whether a function computes something.

    It does not where it moves numbers, takes whole numbers as real ones, gathers the parameters of FSDP, or only writes a mask:
    zeros, and the numbers that are added to scores that do not count.
    """
    if func in _COMPUTES_NOTHING or str(func).startswith("fsdp."):
        return False
    if func in CONVERSIONS and not any(map(_is_float, operands)):
        return False
    return not (func in _MASK_MAKERS and all(masks_scores(r, is_surely=True) for r in results))


_WIDTHS = (4, 8, 16)


def quant_tensor(
    module: nn.Module,
    x: Tensor,
    name: str = "_default_layername",
    mode: QuantMode = QuantMode.QValue,
    bits: int = 8,
    zero_point: int = 0,
) -> Tensor:
    """Quantize a tensor inside a forward: one `Quant` node, and a range that `module` keeps.

    In the float model, before `init`, this is x itself; so it is where `disable_quant` or `disable_submodel` keeps the
    module in float, which `coverage` then reports. A tensor that is quantized already stays as it is, or gets a `Requant`
    if its width is another one. A module that runs twice in a pass has one range for both runs.

    Args:
        module: The module whose forward this is (`self`). The range is its child
            `_linger_round_tensor_iq_tensor_quant_<name>`, a part of its state_dict.
        x: A float tensor, or a quantized one.
        name: One name for each tensor of a forward. A second use in one run of the module is an error: the two tensors
            would share one scale.
        mode: `QuantMode.QValue`.
        bits: 4, 8 or 16.
        zero_point: Must be 0.

    Returns:
        A `QTensor`, whose functions are computed as integers.

    Raises:
        UsageError: An argument is wrong, the name was used in this run before, the model is not at work.
    """
    bits = as_width(bits)
    _check(module, x, name, mode, bits, zero_point)
    scope = scope_of(module)
    if scope is None:
        return x
    runtime, path = scope.runtime, scope.path
    where = f"{path}.{name}" if path else name
    frame = runtime.frame
    if frame is None:
        raise UsageError(
            f"{where}: quant_tensor was called while the model is not running, so its range would belong to no pass. "
            "Call it inside forward, and the model itself instead of its forward method."
        )
    choice, policy = QUANTIZATION.of(module), runtime.products
    is_marked = choice is not None and choice.is_disabled
    if is_marked or frame.keeping.reason or (policy is not None and frame.path in policy.float_paths):
        runtime.note_float("quant_tensor", "this layer stays float, as init was asked")
        return x
    if frame.next_index(f"{where} {INPUT_KEY}"):
        raise UsageError(
            f"{where}: quant_tensor met the name {name!r} twice in one run of the module, and two tensors would share "
            "one scale. Give each tensor a name of its own."
        )
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - interceptors of the model's functions see none here
        return _quantized(x, bits, INPUT_KEY + name, where, module, scope)


def _quantized(x: Tensor, bits: int, key: str, where: str, module: nn.Module, scope: Scope) -> QTensor:
    owner = Frame(scope.path, module)
    if not is_quantized(x):
        layer = functional_layer(owner, key, where, x.device, scope.runtime)
        return layer.ranges["x"].quantize(unwrap(x), bits, scope.runtime, scope.path)
    # only what becomes narrower needs a range
    layer = functional_layer(owner, key, where, x.device, scope.runtime) if bits < x.bits else FunctionalLayer(key)
    return layer.ranges["x"].requantize(x, bits, scope.runtime, scope.path)


def _check(module: nn.Module, x: Tensor, name: str, mode: QuantMode, bits: int, zero_point: int) -> None:
    """The same complaints before and after `init`."""
    if not isinstance(module, nn.Module) or not isinstance(x, Tensor):
        raise UsageError(
            f"quant_tensor: needs a module and a tensor, not {type(module).__name__} and {type(x).__name__}. "
            "Write linger.quant_tensor(self, x)."
        )
    if mode is not QuantMode.QValue:
        raise UsageError(f"quant_tensor: unknown mode {mode!r}. Use QuantMode.QValue.")
    if not name or "." in name or (INPUT_KEY + name).startswith(FLOAT_OPERAND):
        raise UsageError(f"quant_tensor: {name!r} cannot be the name of a module. Use letters, digits and underscores.")
    if bits not in _WIDTHS:
        raise UsageError(f"quant_tensor: bits={bits!r}: no such width. Use 4, 8 or 16.")
    if zero_point != 0:
        raise UsageError(
            f"quant_tensor: zero_point={zero_point}: the formats are symmetric, so that no op of the file has a zero "
            "point. Leave zero_point out, and subtract an offset before."
        )
