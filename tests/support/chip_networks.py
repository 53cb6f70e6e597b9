"""Small networks for chips: quantized, exported, and what a check says of the file."""

from dataclasses import dataclass

import onnx
import torch
from torch import nn

import linger
from linger.targets import TARGETS


class Joined(nn.Module):
    """Layers by name, joined by a function of the module and its inputs."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = forward

    def forward(self, *inputs):
        return self.run(self, *inputs)


def conv(inputs, outputs, size=3, **settings):
    """A convolution that keeps the size of the image, unless it is told otherwise."""
    return nn.Conv2d(inputs, outputs, size, **{"padding": size // 2} | settings)


def sample(*shape, seed=0):
    """An input with numbers of an ordinary size."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(net, x, target=None):
    """The network as integers, calibrated on one sample."""
    model = linger.init(net.eval(), target=target).eval()
    with linger.calibration():
        model(x)
    return model


def exported(net, x, path, target, **options):
    """The file for a chip, proven equal to the simulation, every integer.

    Raises:
        UnsupportedError: The chip cannot take it.
    """
    model = quantized(net, x, target)
    linger.onnx.export(model, (x,), path, verify=True, **options)  # which writes nothing that differs
    return onnx.load(path)


@dataclass(frozen=True)
class Said:
    """What a check says of a file."""

    errors: dict[str, str]
    warnings: dict[str, str]

    @classmethod
    def of(cls, file, target):
        """By the id of the rule: the reasons and remedies of errors, and of warnings, joined."""
        found = linger.check(file, TARGETS[target])
        about_chips = [f for f in found.findings if f.rule.startswith("LGR9")]
        texts = {"error": {}, "warning": {}, "note": {}}
        for finding in about_chips:
            by_rule = texts[finding.severity]
            by_rule[finding.rule] = (
                f"{by_rule.get(finding.rule, '')}{finding.node}: {finding.reason}. {finding.remedy}\n"
            )
        return cls(texts["error"], texts["warning"])


def judged(net, x, path, target, *, by=None, **options):
    """What a check for `target` says of a file that was written without a chip, or for the chip `by`."""
    linger.onnx.export(quantized(net, x, by), (x,), path, **{"form": "bare"} | options)
    return Said.of(path, target)


def op_types(file):
    """The op types of a file, in order, without constants."""
    return [node.op_type for node in file.graph.node if node.op_type != "Constant"]


def attribute(node, name):
    """An attribute of a node, or None."""
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)
