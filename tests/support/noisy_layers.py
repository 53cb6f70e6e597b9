"""A network with one bad layer, quantized layers computed by hand, and what a diagnosis must leave alone."""

import copy
import math
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

import linger
from linger.constraint.limits import QUANTIZATION
from linger.quantization.setup.initialize import init


def net_with_outlier():
    """Three linear layers; `bad` has one huge weight, on an input that ReLU always makes zero.

    In float the weight does nothing. As integers it costs all others their precision: at 60 the scale is 2, and
    weights of a tenth round to zero.
    """
    torch.manual_seed(3)
    model = nn.Sequential(
        OrderedDict(
            first=nn.Linear(12, 16),
            relu=nn.ReLU(),
            bad=nn.Linear(16, 16),
            after=nn.Linear(16, 16),
            last=nn.Linear(16, 4),
        )
    )
    with torch.no_grad():
        model.first.weight[5] = 0.0
        model.first.bias[5] = -1.0
        model.bad.weight.normal_(0.0, 0.3)
        model.bad.weight[3, 5] = 60.0
    return model.eval()


def vectors(count=32, seed=1, size=12):
    """Inputs for it."""
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def quantized_copy(model, *batches):
    """A copy, quantized as its marks say and calibrated with these batches (each one argument)."""
    made = init(copy.deepcopy(model)).eval()
    with linger.calibration():
        for batch in batches:
            made(batch)
    return made


def scale_by_hand(largest, bits):
    """The finest power of two at which a range fits; a range of zero counts as one."""
    return 2.0 ** math.floor(math.log2((2 ** (bits - 1) - 1) / (largest or 1.0)))


def round_by_hand(values, scale, bits):
    """Rounded half up and saturated, as real values."""
    top = 2 ** (bits - 1)
    return np.clip(np.floor(np.asarray(values, np.float64) * scale + 0.5), -top, top - 1) / scale


def linear_by_hand(layer, x, bits):
    """A linear layer on float inputs, with input, weights and output at `bits`, in float64."""
    weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
    scale_x = scale_by_hand(np.abs(x).max(), bits)
    scale_w = scale_by_hand(np.abs(weight).max(), bits)
    y = round_by_hand(x, scale_x, bits) @ round_by_hand(weight, scale_w, bits).T
    y = y + round_by_hand(bias, scale_x * scale_w, 32)
    largest = np.abs(x @ weight.T + bias).max()  # ranges are those of the float layer
    scale_o = min(scale_by_hand(largest, bits), scale_x * scale_w)
    return round_by_hand(y, scale_o, bits)


def db_by_hand(reference, found):
    """10·log10(Σ f²/Σ (f − q)²)."""
    f, q = (np.asarray(t.dequantize() if isinstance(t, linger.QTensor) else t, np.float64) for t in (reference, found))
    noise = ((f - q) ** 2).sum()
    return math.inf if noise == 0 else 10 * math.log10((f**2).sum() / noise)


def everything(model):
    """All that a diagnosis must leave as it is, in a form that can be compared."""
    state = {key: (value.dtype, value.numpy().tobytes()) for key, value in model.state_dict().items()}
    modules = [
        (name, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), QUANTIZATION.of(m))
        for name, m in model.named_modules()
    ]
    parameters = [(name, id(p), p.requires_grad, p.grad) for name, p in model.named_parameters()]
    return state, modules, parameters, torch.get_rng_state().tolist(), torch.is_grad_enabled()
