"""torch's table of symbolic functions, left as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.onnx import register_custom_op_symbolic
from torch.onnx._internal.torchscript_exporter import registration


def forget_symbolic(name: str) -> None:
    """Forget the symbolic functions of an operator that had none.

    torch's own unregister_custom_op_symbolic leaves an empty entry, on which the next export of the op stumbles.
    """
    registration.registry._registry.pop(name, None)


@contextmanager
def registered(name: str, symbolic, opset: int) -> Iterator[None]:
    """A symbolic function for an operator that has none, for a while."""
    register_custom_op_symbolic(name, symbolic, opset)
    try:
        yield
    finally:
        forget_symbolic(name)
