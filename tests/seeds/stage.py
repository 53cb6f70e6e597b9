"""Where a block of a document runs: its names, its folder, and what stands in for things this machine lacks."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.support.seed_blocks import Block, Namespace
from tests.support.symbolics import forget_symbolic


@dataclass
class Stage:
    """One run of a block, and of the blocks before it that it builds on."""

    blocks: list[Block]
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    names: Namespace = field(default_factory=lambda: Namespace(__name__="__main__"))
    printed: list[tuple[Any, ...]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    cleanup: ExitStack = field(default_factory=ExitStack)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def give(self, **names: Any) -> None:
        """Names that the block finds."""
        self.names.update(names)

    def run(self, index: int, *, closing: str = "") -> None:
        """Run one block of the document among the names; `closing` is what its last line lacks."""
        exec(self.blocks[index].code(closing=closing), self.names)

    def keep_prints(self) -> None:
        """What the block prints is kept as objects, to compare."""
        self.give(print=lambda *values: self.printed.append(values))

    def give_cuda(self) -> None:
        """A machine whose graphics card is its processor."""
        self.monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        self.monkeypatch.setattr(nn.Module, "cuda", lambda module: module)

    def give_cv2(self) -> None:
        """Reading and writing pictures in OpenCV's blue-green-red order; windows are only counted."""
        self.give(
            cv2=SimpleNamespace(
                imread=lambda path: np.asarray(Image.open(path))[..., ::-1].copy(),
                imwrite=lambda path, picture: Image.fromarray(picture[..., ::-1].copy()).save(path),
                imshow=lambda title, picture: self.shown.append(f"{title} {picture.shape}"),
                waitKey=lambda milliseconds: -1,
                destroyAllWindows=lambda: None,
            )
        )

    def give_torchvision(self) -> None:
        """An operator under the name of torchvision's; deformation does not matter to what is exported."""
        library = torch.library.Library("torchvision", "FRAGMENT")
        self.cleanup.callback(library._destroy)
        library.define(_DEFORM_CONV)
        library.impl("deform_conv2d", _without_deformation, "CompositeImplicitAutograd")

    def forget_symbolic(self, name: str) -> None:
        """At the end, forget the symbolic function that a block registers for an operator that had none."""
        self.cleanup.callback(forget_symbolic, name)


_DEFORM_CONV = (
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h, int stride_w, "
    "int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups, bool use_mask) -> Tensor"
)


def _without_deformation(x, weight, offset, mask, bias, *geometry):
    *geometry, groups, _, _ = geometry
    stride, pad, dilation = (tuple(geometry[i : i + 2]) for i in (0, 2, 4))
    return torch.nn.functional.conv2d(x, weight, bias, stride, pad, dilation, groups)
