"""A device that is not the CPU, for machines without a GPU: torch's own place for other backends, on the CPU's memory.

It refuses calls whose tensors are not all on it, as a GPU does, and counts how often a number is read back to the host,
which on a GPU is a stall. `emulated_device.cpp` is compiled once, by torch's extension builder, and kept beside torch's other
extensions under a name that tells its content. Torch's own cache is not used: its lock file outlives a process that is killed
while it builds, and every later one waits for it without end.
"""

import hashlib
import shutil
import sys
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch

DEVICE = "emulated"

_SOURCE = Path(__file__).with_suffix(".cpp")
_NAME = "linger_emulated_device"


def why_missing() -> str:
    """Why the device cannot be built here; empty if it can."""
    missing = [tool for tool in ("c++", "ninja") if shutil.which(tool) is None]
    return f"the emulated device is compiled, and {' and '.join(missing)} cannot be found" if missing else ""


def cached_library() -> Path:
    """Where the compiled device is kept: another source, torch or Python has another name, so nobody overwrites it."""
    from torch.utils import cpp_extension  # slow to import, and not needed where the device is not used

    made_of = (_SOURCE.read_text(encoding="utf-8"), torch.__version__, sys.version)
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()
    return Path(cpp_extension.get_default_build_root()) / f"{_NAME}-{digest[:16]}.so"


def _load_library() -> None:
    """Load the compiled device, or compile it in a folder of this process and put it in its place in one step."""
    from torch.utils import cpp_extension

    library = cached_library()
    if library.exists():
        torch.ops.load_library(library)
        return
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        options = {"extra_cflags": ["-O1"], "is_python_module": False, "build_directory": scratch}
        cpp_extension.load(_NAME, [str(_SOURCE)], **options)  # builds and loads
        Path(scratch, f"{_NAME}.so").replace(library)


@cache
def load_device() -> str:
    """Build the device if it is not kept, make torch know it; returns its name."""
    _load_library()
    torch.utils.rename_privateuse1_backend(DEVICE)
    module = SimpleNamespace(
        is_available=lambda: True,
        device=lambda index: nullcontext(),
        device_count=lambda: 1,
        current_device=lambda: 0,
        _is_in_bad_fork=lambda: False,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        # random numbers are the CPU's
        manual_seed_all=lambda seed: None,
        get_rng_state=lambda index=None: torch.get_rng_state(),
        set_rng_state=lambda state, index=None: torch.set_rng_state(state),
    )
    torch._register_device_module(DEVICE, module)
    return DEVICE


def take_host_reads() -> int:
    """How many numbers were read back to the host since the last call."""
    return int(torch.ops.emulated_device.take_host_reads())
