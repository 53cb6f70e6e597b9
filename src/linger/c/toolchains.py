# SPDX-License-Identifier: Apache-2.0
"""Compilers and emulators of the machines that exported C is built for and run on."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from linger.c.runner_source import EXIT_REASONS, runner_file
from linger.errors import LingerError, UnsupportedError, UsageError, listing, printable

_LONGEST_WORDS = 1500
_COMPILE_SECONDS = 1800


@dataclass(frozen=True)
class Memory:
    """The memory of a machine: where it begins and its length, in bytes; code and constants are in flash.

    `vectors` is where a Cortex-M looks for its vector table, if that is not the start of the flash.
    """

    flash: tuple[int, int]
    ram: tuple[int, int]
    stack: int
    vectors: tuple[int, int] | None = None

    def script(self) -> str:
        """The part of a linker script that says where memory is."""
        flash, length = self.flash
        # the linker wants a region for vectors; at the start of the flash they are simply its first bytes
        vectors = self.vectors or (flash, _VECTOR_BYTES)
        if self.vectors is None:
            flash, length = flash + _VECTOR_BYTES, length - _VECTOR_BYTES
        regions = {"VECTORS": vectors, "FLASH": (flash, length), "RAM": self.ram}
        lines = [f"  {name} : ORIGIN = {origin:#x}, LENGTH = {size:#x}" for name, (origin, size) in regions.items()]
        return "\n".join(["MEMORY {", *lines, "}", f"_stack_bytes = {self.stack:#x};", ""])


_VECTOR_BYTES = 64


@dataclass(frozen=True)
class Size:
    """Bytes of compiled objects: instructions, constants (weights, tables), and variables with and without first values."""

    code: int
    constants: int
    data: int
    bss: int

    @property
    def text(self) -> int:
        """Instructions and constants, which the tool `size` calls text."""
        return self.code + self.constants

    @property
    def flash(self) -> int:
        """Bytes of flash: all but the variables without first values."""
        return self.code + self.constants + self.data

    @property
    def ram(self) -> int:
        """Bytes of RAM; the stack is not known here."""
        return self.data + self.bss


@dataclass(frozen=True)
class Toolchain:
    """How to compile for a machine and how to run what was compiled.

    Attributes:
        compilers: Names of its C compiler, the first that is found is taken.
        size_tool: The name of its tool `size`.
        packages: Debian packages with compiler and emulator.
        machine_flags: Options of the compiler for this processor.
        link_flags: Options when linking.
        support: The runner's C files for this machine.
        script: The runner's linker script; None: the compiler's own.
        emulator: The command that runs a program, whose path follows; empty: the program is run as it is.
        memory: The memory that the machine has; None: as much as one likes.
        instructions_per_tick: Instructions between two ticks of the runner's counter; None: there is no counter.
    """

    name: str
    compilers: tuple[str, ...]
    size_tool: str
    packages: str
    machine_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    support: tuple[str, ...] = ("posix.c",)
    script: str | None = None
    emulator: tuple[str, ...] = ()
    memory: Memory | None = None
    instructions_per_tick: float | None = None

    def find_compiler(self, cc: str | None = None) -> str:
        """The path of the compiler: the one that was asked for, or the first that is installed.

        Raises:
            UsageError: There is none.
        """
        names = (cc,) if cc is not None else self.compilers
        found = next((path for name in names if (path := shutil.which(name))), None)
        if found is None:
            raise UsageError(
                f"target {self.name!r}: no C compiler can be found; looked for {', '.join(map(repr, names))}. "
                f"Install it (Debian: apt-get install {self.packages}), or name another one by cc=…."
            )
        return str(Path(found).absolute())

    def compiler_version(self, cc: str) -> str:
        """What a compiler says of itself in its first line; empty where it says nothing."""
        lines = _run_tool([cc, "--version"], Path.cwd()).stdout.splitlines()
        return printable(lines[0].strip())[:_LONGEST_WORDS] if lines else ""

    def require_emulator(self) -> None:
        """Refuse a machine whose emulator is not installed.

        Raises:
            UsageError: It is not.
        """
        if self.emulator and shutil.which(self.emulator[0]) is None:
            raise UsageError(
                f"target {self.name!r}: the emulator {self.emulator[0]} cannot be found. "
                f"Install it (Debian: apt-get install {self.packages})."
            )

    def compile(self, cc: str, source: Path, target: Path, flags: Sequence[str]) -> None:
        """Compile one file to an object.

        Raises:
            LingerError: The compiler refuses it; its words are in the message.
        """
        command = [cc, "-std=c99", *self.machine_flags, *flags, "-c", "-o", str(target), str(source)]
        done = _run_tool(command, source.parent)
        if done.returncode != 0:
            raise LingerError(f"{Path(cc).name} cannot compile {source.name}: {_words(done.stderr, source.parent)}")

    def link(self, cc: str, objects: Sequence[Path], target: Path, flags: Sequence[str]) -> None:
        """Link objects to a program for this machine.

        Raises:
            UnsupportedError: It is too large for the machine.
            LingerError: The linker refuses it; its words are in the message.
        """
        place = target.parent
        options: list[str] = []
        if self.script is not None and self.memory is not None:
            (place / "memory.ld").write_text(self.memory.script(), encoding="utf-8")
            (place / self.script).write_text(runner_file(self.script), encoding="utf-8")
            options = ["-L", str(place), "-T", str(place / self.script)]
        names = [str(path) for path in objects]
        command = [cc, *self.machine_flags, *flags, *options, "-o", str(target), *names, *self.link_flags, "-lm"]
        done = _run_tool(command, place)
        if done.returncode == 0:
            return
        excess = re.findall(r"region .?(VECTORS|FLASH|RAM).? overflowed by (\d+) bytes", done.stderr)
        if excess:
            needs = " and ".join(f"{count} bytes of {name} too many" for name, count in excess)
            assert self.memory is not None  # only then the linker knows regions
            has = f"{self.memory.flash[1] // 1024} KB of flash and {self.memory.ram[1] // 1024} KB of RAM"
            raise UnsupportedError(
                f"the network does not fit target {self.name!r}: it needs {needs}. The machine has {has}. "
                "Choose another target, or a smaller network."
            )
        raise LingerError(f"{Path(cc).name} cannot link the program: {_words(done.stderr, place)}")

    def command(self, program: Path, *, counting: bool = False) -> list[str]:
        """The command that runs a program; for counting, time passes with instructions."""
        if not self.emulator:
            return [str(program)]
        # with shift=0 each instruction takes one nanosecond of the machine's time
        return [*self.emulator, *(("-icount", "shift=0") if counting else ()), "-kernel", str(program)]

    def run(self, program: Path, folder: Path, *, timeout: float, counting: bool = False) -> None:
        """Run a program as a process of its own, with this working folder.

        Raises:
            LingerError: It crashed, did not end in time, or ended with an error.
        """
        command = self.command(program, counting=counting)
        who = f"the program on {self.name}" if self.emulator else "the program"
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LingerError(
                f"{who} did not end within {timeout:g} seconds. It may hang; if it is only slow, give a longer timeout."
            ) from error
        except OSError as error:
            raise LingerError(f"{who} cannot be started ({error.strerror}).") from error
        if done.returncode != 0:
            said = _words(done.stderr.decode(errors="replace"), folder)
            raise LingerError(f"{who} {_ending(done.returncode)}" + (f"; it said: {said}" if said else "."))

    def size(self, objects: Sequence[Path]) -> Size:
        """The bytes that objects take on the machine, without unwinding tables and notes.

        Raises:
            UsageError: The tool `size` is not installed, or the objects hold no machine code yet.
            LingerError: It cannot read the objects.
        """
        tool = shutil.which(self.size_tool)
        if tool is None:
            raise UsageError(
                f"target {self.name!r}: the tool {self.size_tool} cannot be found. "
                f"Install it (Debian: apt-get install {self.packages})."
            )
        done = _run_tool([tool, "-A", *map(str, objects)], Path.cwd())
        if done.returncode != 0:
            raise LingerError(f"{self.size_tool} cannot measure the objects: {_words(done.stderr, Path.cwd())}")
        size = _summed(done.stdout)
        if size.code == 0:
            raise UsageError(
                "the objects hold no machine code before they are linked. Build without -flto to measure them."
            )
        return size


_KINDS: Mapping[str, tuple[str, ...]] = {
    "code": (".text", ".itcm"),
    "constants": (".rodata", ".srodata", ".data.rel.ro", ".ldata.rel.ro", ".lrodata"),
    "data": (".data", ".sdata", ".ldata"),
    "bss": (".bss", ".sbss", ".lbss", "COMMON"),
}
"""Where the sections of an object belong; those that begin otherwise take no memory of a microcontroller."""


def _summed(listing_of_sections: str) -> Size:
    totals = dict.fromkeys(_KINDS, 0)
    for name, size in re.findall(r"^(\S+)[ \t]+(\d+)[ \t]+\d+[ \t]*$", listing_of_sections, re.MULTILINE):
        begins = [(kind, begin) for kind, known in _KINDS.items() for begin in known if name.startswith(begin)]
        if begins:
            # .data.rel.ro begins with .data, too: the longest name decides
            totals[max(begins, key=lambda pair: len(pair[1]))[0]] += int(size)
    return Size(**totals)


def _run_tool(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["env", "LC_ALL=C", *command],  # in English, because some of the words are understood here
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LingerError(f"{Path(command[0]).name} did not end within {_COMPILE_SECONDS} seconds.") from error
    except OSError as error:
        raise LingerError(f"{command[0]} cannot be started ({error.strerror}).") from error


def _words(text: str, folder: Path) -> str:
    """What a tool said, on one line and of bounded length, without the name of a temporary folder."""
    lines = [printable(line.strip()) for line in text.replace(f"{folder}/", "").splitlines() if line.strip()]
    said = "; ".join(lines)
    return said if len(said) <= _LONGEST_WORDS else f"{said[:_LONGEST_WORDS]}…"


def _ending(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"crashed (signal {name})"
    reason = EXIT_REASONS.get(code)
    return f"ended with exit code {code}" + (f": {reason}" if reason else "")


HOST = Toolchain(name="host", compilers=("gcc", "cc", "clang", "tcc"), size_tool="size", packages="gcc binutils")

_KB = 1024
_MB = 1024 * _KB
_QUIET = ("-display", "none", "-monitor", "none", "-serial", "null")
_SEMIHOSTING = ("-semihosting-config", "enable=on,target=native")
_SECTIONS = ("-ffunction-sections", "-fdata-sections")


def _cortex(
    name: str, machine: str, memory: Memory, *, flags: tuple[str, ...], instructions_per_tick: float
) -> Toolchain:
    return Toolchain(
        name=name,
        compilers=("arm-none-eabi-gcc",),
        size_tool="arm-none-eabi-size",
        packages="gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm",
        machine_flags=(f"-mcpu={name}", "-mthumb", *flags, *_SECTIONS),
        link_flags=("-nostartfiles", "-Wl,--gc-sections"),
        support=("semihosting.c", "cortex_m.c"),
        script="cortex_m.ld",
        emulator=("qemu-system-arm", "-M", machine, *_QUIET, *_SEMIHOSTING),
        memory=memory,
        instructions_per_tick=instructions_per_tick,
    )


_MPS2 = Memory(flash=(0, 4 * _MB), ram=(0x20000000, 4 * _MB), stack=64 * _KB)
_MICROBIT = Memory(flash=(0, 256 * _KB), ram=(0x20000000, 16 * _KB), stack=2 * _KB)
_MPS3 = Memory(flash=(0x01000000, 2 * _MB), ram=(0x21000000, 4 * _MB), stack=64 * _KB, vectors=(0, _VECTOR_BYTES))
_VIRT = Memory(
    flash=(0x80001000, 64 * _MB - 4 * _KB),
    ram=(0x84000000, 64 * _MB),
    stack=64 * _KB,
    vectors=(0x80000000, 4 * _KB),
)

# A tick of the timer is a cycle of the machine's clock, an instruction a nanosecond: 25 MHz is 40 instructions a tick.
_CORTEX = (
    _cortex("cortex-m0", "microbit", _MICROBIT, flags=("-mfloat-abi=soft",), instructions_per_tick=62.5),
    _cortex("cortex-m3", "mps2-an385", _MPS2, flags=("-mfloat-abi=soft",), instructions_per_tick=40.0),
    _cortex(
        "cortex-m4", "mps2-an386", _MPS2, flags=("-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"), instructions_per_tick=40.0
    ),
    _cortex(
        "cortex-m7", "mps2-an500", _MPS2, flags=("-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"), instructions_per_tick=40.0
    ),
    _cortex("cortex-m55", "mps3-an547", _MPS3, flags=("-mfloat-abi=hard",), instructions_per_tick=31.25),
)

_RISCV = Toolchain(
    name="rv32imac",
    compilers=("riscv64-unknown-elf-gcc",),
    size_tool="riscv64-unknown-elf-size",
    packages="gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc",
    machine_flags=("-march=rv32imac", "-mabi=ilp32", "-mcmodel=medany", "--specs=picolibc.specs", *_SECTIONS),
    link_flags=("-nostartfiles", "-Wl,--gc-sections"),
    support=("semihosting.c", "riscv.c"),
    script="riscv.ld",
    emulator=("qemu-system-riscv32", "-M", "virt", "-bios", "none", *_QUIET, *_SEMIHOSTING),
    memory=_VIRT,
    instructions_per_tick=1.0,
)

TOOLCHAINS: Mapping[str, Toolchain] = {chain.name: chain for chain in (HOST, *_CORTEX, _RISCV)}
"""Every target by name."""

_OTHER_NAMES: Mapping[str, str] = {"rv32": "rv32imac", "riscv32": "rv32imac", "x86": "host", "native": "host"}


def toolchain(name: str | None = None) -> Toolchain:
    """The toolchain of a target; None: this machine.

    Raises:
        UsageError: The name is unknown.
    """
    known = "host" if name is None else _OTHER_NAMES.get(name, name)
    if known in TOOLCHAINS:
        return TOOLCHAINS[known]
    near = get_close_matches(str(name), [*TOOLCHAINS, *_OTHER_NAMES], n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Use one of {listing(TOOLCHAINS)}."
    raise UsageError(f"target {printable(str(name))!r}: unknown. {hint}")
