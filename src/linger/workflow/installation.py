# SPDX-License-Identifier: Apache-2.0
"""What linger finds on this machine: packages, CPU, compilers and emulators, and whether integers come out right."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from linger.errors import DISTRIBUTION, in_one_line, install_line

OK, MISSING, TOO_OLD, BROKEN = "ok", "missing", "too old", "broken"

_REQUIREMENT = re.compile(
    r"([\w.-]+)\s*(?:\[[^\]]*\])?\s*(?:>=\s*([\d.]+))?[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?"
)
_OWN_NAMES = (DISTRIBUTION, "linger")
_NOT_FOR_USERS = ("dev",)
_IMPORTED_AS = {"protobuf": "google.protobuf", "onnx-ir": "onnx_ir"}
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "asimddp", "i8mm")
"""What decides which integer kernels ONNX Runtime takes, on x64 and on ARM."""

_SELF_TEST = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
self_test (float[64,4] x) => (float[64,3] y) <int8[3,4] w = {127, -128, 3, 4, -5, 127, 127, 8, 1, -2, 77, -128}, int32[3] b = {-400, 25, 0}> {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  c = thinker.LinearInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=8.0>(q, w, b)
  r = Relu(c)
  y = thinker.Dequant<scale_o=8.0>(r)
}"""


@dataclass(frozen=True)
class Package:
    """One package that linger needs, or can use.

    Attributes:
        name: Its name.
        version: The installed version; empty where it is not installed.
        needed: The lowest version that linger takes; empty for any.
        extra: The extra of linger that brings it; empty where linger always needs it.
        status: `ok`, `missing`, `too old`, or `broken` where it cannot be imported.
        remedy: The line that puts it right; empty where nothing is wrong.
        reason: Why it cannot be imported; empty otherwise.
    """

    name: str
    version: str
    needed: str
    extra: str
    status: str
    remedy: str = ""
    reason: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether linger cannot work: something required is not as it must be, or something optional is too old."""
        return self.status in (BROKEN, TOO_OLD) or (self.status == MISSING and not self.extra)


@dataclass(frozen=True)
class Tool:
    """A machine that exported C is built for.

    Attributes:
        target: Its name, as --target takes it.
        compiler: The compiler that was found; empty for none.
        emulator: The emulator that was found; empty for none, and where none is needed.
        is_ready: Whether C can be built and run for it here.
        remedy: The line that installs what is missing, on Debian; empty where nothing is.
    """

    target: str
    compiler: str
    emulator: str
    is_ready: bool
    remedy: str = ""


@dataclass(frozen=True)
class SelfTest:
    """A small network, computed by the numpy reference and by ONNX Runtime.

    Attributes:
        ok: Whether every integer is equal.
        integers: How many were compared.
        differing: How many differ.
        u8s8_saturates: Whether ONNX Runtime's product of unsigned and signed bytes saturates on this CPU; files of linger
            avoid it.
        reason: Why it could not be run; empty otherwise.
    """

    ok: bool
    integers: int = 0
    differing: int = 0
    u8s8_saturates: bool | None = None
    reason: str = ""


def _distribution() -> metadata.Distribution | None:
    """What is installed of linger, under today's name or the former one; None where it runs from a folder of sources.

    Somebody else's distribution has the former name, too; linger's own requires onnx-ir.
    """
    for name in _OWN_NAMES:
        with suppress(metadata.PackageNotFoundError):
            installed = metadata.distribution(name)
            if any(text.startswith("onnx-ir") for text in installed.requires or ()):
                return installed
    return None


def packages() -> list[Package]:
    """Every package that linger requires or has an extra for, required ones first; linger itself where it is not installed."""
    own, by_name = _distribution(), dict[str, Package]()
    if own is None:
        return [Package(DISTRIBUTION, "", "", "", MISSING, f"pip install {DISTRIBUTION}")]
    for text in own.requires or ():
        match = _REQUIREMENT.match(text)
        assert match is not None  # a name comes first in every requirement
        name, needed, extra = match[1], match[2] or "", match[3] or ""
        if extra not in _NOT_FOR_USERS and name not in _OWN_NAMES:
            by_name.setdefault(name, _package(name, needed, extra))
    return sorted(by_name.values(), key=lambda package: bool(package.extra))


def _package(name: str, needed: str, extra: str) -> Package:
    line = install_line(extra) if extra else f"pip install '{name}{f'>={needed}' if needed else ''}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, "", needed, extra, MISSING, line)
    if needed and _release(version) < _release(needed):
        return Package(name, version, needed, extra, TOO_OLD, f"pip install '{name}>={needed}'")
    if not extra:  # what is optional may take seconds to import
        try:
            importlib.import_module(_IMPORTED_AS.get(name, name))
        except Exception as error:  # noqa: BLE001 - a package that is broken may raise anything
            remedy = f"pip install --force-reinstall '{name}=={version}'"
            return Package(name, version, needed, extra, BROKEN, remedy, in_one_line(error))
    return Package(name, version, needed, extra, OK)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version up to the first that is none, without zeros at the end: 2.13.0+cpu is (2, 13)."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def python_is_recent() -> bool:
    """Whether this Python is one that linger runs on."""
    own = _distribution()
    needed = own.metadata["Requires-Python"] if own is not None else ""
    return sys.version_info[:3] >= _release((needed or "").strip(">= "))


def cpu_features() -> list[str]:
    """Which of the features that matter for integer kernels this CPU has, as Linux names them; none where that is not told."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    words = set(re.findall(r"\w+", "\n".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE))))
    return [name for name in _FEATURES if name in words]


def tools() -> list[Tool]:
    """Every machine that exported C can be built for, and what is there to do it."""
    from linger.c.toolchains import TOOLCHAINS

    machines = []
    for chain in TOOLCHAINS.values():
        compiler = next((name for name in chain.compilers if shutil.which(name)), "")
        wanted = chain.emulator[0] if chain.emulator else ""
        emulator = wanted if wanted and shutil.which(wanted) else ""
        is_ready = bool(compiler) and emulator == wanted
        remedy = "" if is_ready else f"apt-get install {chain.packages}"
        machines.append(Tool(chain.name, compiler, emulator, is_ready, remedy))
    return machines


def self_test() -> SelfTest:
    """Compute a small network by the numpy reference and by ONNX Runtime, and compare every integer."""
    try:
        import onnx_ir as ir

        from linger.proof import verify
        from linger.runtime.session import has_saturating_products

        result = verify(None, ir.to_proto(ir.from_onnx_text(_SELF_TEST)), batches=4)
        return SelfTest(result.ok, result.integers, result.differing, has_saturating_products())
    except Exception as error:  # noqa: BLE001 - packages that are broken may raise anything
        return SelfTest(ok=False, reason=in_one_line(error))
