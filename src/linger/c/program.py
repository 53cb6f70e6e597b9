# SPDX-License-Identifier: Apache-2.0
"""Build a folder of exported C and run it as a process of its own, on this machine or on an emulated one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from linger.c.exported_folder import Edge, ExportedFolder, read_folder
from linger.c.runner_source import (
    Feeds,
    SampleResult,
    Variant,
    main_source,
    packed_inputs,
    read_results,
    runner_file,
    weights_source,
)
from linger.c.toolchains import Size, Toolchain, toolchain
from linger.errors import LingerError, UnsupportedError, UsageError, listing, printable

DEFAULT_FLAGS = ("-O2",)
DEFAULT_TIMEOUT = 600.0

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)*")
_PROOF_FLAG = "-DLINGER_PROOF"
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def build(
    folder: str | os.PathLike[str],
    cc: str | None = None,
    *,
    target: str | None = None,
    flags: Sequence[str] = DEFAULT_FLAGS,
    timeout: float = DEFAULT_TIMEOUT,
    check_files: bool = True,
) -> Program:
    """Compile a folder that `linger.c.export` has written; the result is called like a `linger.Session`.

    The code runs with your rights, on this machine or in an emulator: build only folders that you trust.

    Args:
        folder: The folder.
        cc: The C compiler, a name or a path; None: the first that is found of those of the target.
        target: The machine: "host" (None: the same), "cortex-m0", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55", "rv32imac".
        flags: Options of the compiler beside those of the target, for the folder's files and for linking.
        timeout: Seconds after which a run is given up.
        check_files: Whether every file must be as it was exported; False after an edit by hand.

    Raises:
        UsageError: The folder is not sound, the target is unknown, or its compiler or emulator is not installed.
        UnsupportedError: The network is too large for the target.
        LingerError: The folder does not compile.
    """
    chain = toolchain(target)
    if isinstance(flags, str):
        raise UsageError(f"build: flags={flags!r} is one text. Give a list of options, such as [{flags!r}].")
    exported = read_folder(folder, check_files=check_files)
    compiler = chain.find_compiler(cc)
    chain.require_emulator()
    program = Program(exported, chain, compiler, flags=flags, timeout=timeout)
    try:
        program.compile()
    except LingerError:
        program.close()
        raise
    return program


@dataclass(frozen=True)
class EdgeInfo:
    """An input or an output as ONNX Runtime describes one: name, shape and type."""

    name: str
    shape: list[int]
    type: str


class Program:
    """A compiled network, called like a `linger.Session`.

    Every call starts a process, so that a crash of the C code is an error and not the end of Python.
    A streaming network is reset at the start of each call, and the samples of one call are its frames, one after another.
    The files lie in a temporary folder that goes with the program, or at the end of a `with` block.

    Args:
        folder: The folder, checked.
        chain: The toolchain of the target.
        compiler: The path of the compiler.
        flags: Options of the compiler.
        timeout: Seconds after which a run is given up.
    """

    def __init__(
        self, folder: ExportedFolder, chain: Toolchain, compiler: str, *, flags: Sequence[str], timeout: float
    ) -> None:
        self.folder = folder
        self.toolchain = chain
        self.timeout = timeout
        self._compiler = compiler
        self._flags = tuple(flags)
        self._place = Path(tempfile.mkdtemp(prefix="linger_c_"))
        self._delete = weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        self._programs: dict[Variant, Path] = {}
        self._objects: dict[tuple[str, bool], Path] = {}
        self._source = self._place / "source"
        self._copy_sources()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary files; the program cannot run any more."""
        self._delete()

    @property
    def description(self) -> str:
        """What a verification calls this program: `C (gcc 12.2.0 -O2 on host)`."""
        numbers = _VERSION.findall(self._compiler_version)
        words = [Path(self._compiler).name, *numbers[-1:], *self._flags, "on", self.toolchain.name]
        return f"C ({printable(' '.join(words))}{', emulated' if self.toolchain.emulator else ''})"

    @property
    def origin(self) -> dict[str, str | bool]:
        """What a certificate keeps of this program: the folder's manifest, and how it was compiled.

        `is_as_exported` is False where a file was changed after the export, so that the manifest does not describe it.
        """
        digests = self.folder.files.items()
        return {
            "manifest_sha256": self.folder.manifest_sha256,
            "is_as_exported": all(_sha256(self._source / name) == digest for name, digest in digests),
            "compiler": self._compiler_version,
            "flags": " ".join(self._flags),
            "target": self.toolchain.name,
        }

    @property
    def model_sha256(self) -> str | None:
        """The SHA-256 of the ONNX file that the folder was made from, where the manifest names it."""
        return self.folder.model_sha256

    @property
    def is_streaming(self) -> bool:
        """Whether the network takes one frame after another."""
        return self.folder.is_streaming

    @cached_property
    def _compiler_version(self) -> str:
        return self.toolchain.compiler_version(self._compiler)

    def get_inputs(self) -> list[EdgeInfo]:
        """The inputs of `run`."""
        return [_described(edge) for edge in self.folder.inputs]

    def get_outputs(self) -> list[EdgeInfo]:
        """The outputs of `run`."""
        return [_described(edge) for edge in self.folder.outputs]

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[NDArray[Any]]:
        """The named outputs (None: all), as `linger.Session.run` returns them."""
        known = [edge.name for edge in self.folder.outputs]
        wanted = known if output_names is None else list(output_names)
        unknown = [printable(str(name)) for name in wanted if name not in known]
        if unknown:
            raise UsageError(
                f"run: there is no output {listing(unknown)}. The outputs are {listing(map(printable, known))}."
            )
        outputs = self(feeds)
        return [outputs[name] for name in wanted]

    def __call__(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """The outputs of the float interface by name."""
        return self.run_many([feeds])[0]

    def run_q(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """The outputs of the integer interface by name: integers in and out at quantized edges, under the edges' names."""
        return self.run_many([feeds], quantized=True)[0]

    def run_many(self, samples: Sequence[Feeds], *, quantized: bool = False) -> list[dict[str, NDArray[Any]]]:
        """The outputs of many samples by name, from one process; for a streaming network, of successive frames."""
        results = self._run(samples, Variant(quantized=quantized))
        return [self._outputs(result, quantized=quantized) for result in results]

    def intermediates(self, feeds: Feeds, *, quantized: bool = False) -> dict[str, NDArray[Any]]:
        """Every tensor of the network by its ONNX name, and the outputs; from a proof build, compiled when first needed."""
        return self.intermediates_many([feeds], quantized=quantized)[0]

    def intermediates_many(self, samples: Sequence[Feeds], *, quantized: bool = False) -> list[dict[str, NDArray[Any]]]:
        """Like `intermediates` for many samples, or successive frames, from one process."""
        results = self._run(samples, Variant(quantized=quantized, proof=True))
        return [self._tensors(result, quantized=quantized) for result in results]

    def instructions(self, feeds: Feeds, *, quantized: bool = False) -> int:
        """The number of instructions that the emulated processor executes for one run (or the first step of a stream).

        Instructions are not cycles: the emulator knows nothing of caches, wait states or pipelines. On a RISC-V it is exact; on a Cortex-M it is a number of ticks of its timer, which are 31.25 to 62.5 instructions each.

        Raises:
            UnsupportedError: The target counts no instructions.
        """
        return self._cost(feeds, quantized=quantized)[0]

    def stack(self, feeds: Feeds, *, quantized: bool = False) -> int:
        """The bytes of the stack that one run (or the first step of a stream) needs, to within the frame of a small function.

        Raises:
            UnsupportedError: The target is not emulated.
        """
        return self._cost(feeds, quantized=quantized)[1]

    def _cost(self, feeds: Feeds, *, quantized: bool) -> tuple[int, int]:
        """Instructions, and bytes of the stack."""
        per_tick = self.toolchain.instructions_per_tick
        if per_tick is None:
            raise UnsupportedError(
                f"target {self.toolchain.name!r} counts neither instructions nor stack. "
                "Build for an emulated processor, such as target='cortex-m4'."
            )
        result = self._run([feeds], Variant(quantized=quantized, counting=True))[0]
        return round(result.ticks * per_tick), result.stack

    def size(self) -> Size:
        """The bytes that the network takes in flash and RAM: its own objects, without runner and library."""
        return self.toolchain.size([self._object(name, proof=False) for name in self.folder.sources])

    def compile(self, *, quantized: bool = False, proof: bool = False) -> None:
        """Compile and link one of the programs now instead of when it is first needed."""
        self._program(Variant(quantized=quantized, proof=proof))

    def _run(self, samples: Sequence[Feeds], variant: Variant) -> list[SampleResult]:
        if isinstance(samples, Mapping):
            raise UsageError("run_many: this is one feed. Give a list of feeds.")
        if not self._delete.alive:
            raise UsageError("the program is closed, and its files are deleted. Build it again.")
        samples = list(samples)
        content = packed_inputs(self.folder.inputs, samples, quantized=variant.quantized)
        if not samples:
            return []
        program = self._program(variant)
        with tempfile.TemporaryDirectory(dir=self._place, prefix="run_") as name:
            place = Path(name)
            (place / "in.bin").write_bytes(content)
            try:
                self.toolchain.run(program, place, timeout=self.timeout, counting=variant.counting)
            except LingerError as error:
                raise LingerError(f"{printable(str(self.folder.path))}: {error}") from error
            out = place / "out.bin"
            written = out.read_bytes() if out.exists() else b""
        return read_results(self.folder, written, len(samples), variant)

    def _outputs(self, result: SampleResult, *, quantized: bool) -> dict[str, NDArray[Any]]:
        edges = enumerate(self.folder.outputs)
        return {edge.name: edge.unpacked(result.outputs[number], quantized=quantized) for number, edge in edges}

    def _tensors(self, result: SampleResult, *, quantized: bool) -> dict[str, NDArray[Any]]:
        tensors = {t.name: t.restored(result.tensors[number]) for number, t in self.folder.by_id.items()}
        if quantized:
            return tensors
        outputs = self._outputs(result, quantized=False)
        return tensors | {name: array for name, array in outputs.items() if name not in tensors}

    def _copy_sources(self) -> None:
        """Copy the folder's files: what was checked is what is compiled, whatever the folder's name contains."""
        headers = (file.name for file in self.folder.path.glob("*.h"))
        for name in dict.fromkeys([*self.folder.files, *self.folder.sources, *headers]):
            copy = self._source / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder.path / name, copy)

    def _program(self, variant: Variant) -> Path:
        """The linked program, made on first need."""
        if variant in self._programs:
            return self._programs[variant]
        try:
            objects = [self._object(name, proof=variant.proof) for name in self.folder.sources]
            objects += [self._runner_object(name) for name in self.toolchain.support]
            objects += [] if self.folder.weights is None else [self._weights_object(self.folder.weights.file)]
            objects.append(self._main_object(variant))
            program = self._place / variant.stem
            self.toolchain.link(self._compiler, objects, program, self._flags)
        except LingerError as error:
            raise type(error)(f"{printable(str(self.folder.path))}: {error}") from error
        self._programs[variant] = program
        return program

    def _object(self, name: str, *, proof: bool) -> Path:
        """The object of one of the folder's files; a file that never asks for proof builds is compiled once."""
        proof = proof and self._asks_for_proof(name, set())
        key = (name, proof)
        if key not in self._objects:
            number = self.folder.sources.index(name)
            path = self._place / f"source_{number}{'_proof' if proof else ''}.o"
            self._compile(self._source / name, path, [*self._flags, *([_PROOF_FLAG] if proof else [])])
            self._objects[key] = path
        return self._objects[key]

    def _asks_for_proof(self, name: str, seen: set[str]) -> bool:
        """Whether a file, or one that it includes, mentions proof builds; large files of weights do not."""
        if name in seen or not (self._source / name).is_file():
            return False
        seen.add(name)
        content = (self._source / name).read_bytes()
        if b"LINGER_PROOF" in content or b"linger_proof" in content:
            return True
        parent = Path(name).parent
        found = {included.decode(errors="replace") for included in _INCLUDE.findall(content)}
        return any(self._asks_for_proof(os.path.normpath(parent / other), seen) for other in sorted(found))

    def _runner_object(self, name: str) -> Path:
        path = self._place / f"{name}.o"
        if not path.exists():
            place = self._place / "runner"
            place.mkdir(exist_ok=True)
            for file in (name, "linger_runner.h", "semihosting.h"):
                (place / file).write_text(runner_file(file), encoding="utf-8")
            self._compile(place / name, path, self._flags)
        return path

    def _weights_object(self, name: str) -> Path:
        """The file of weights as an object: on a microcontroller it lies in flash, too."""
        path = self._place / "runner_weights.o"
        if not path.exists():
            source = path.with_suffix(".c")
            source.write_text(weights_source((self._source / name).read_bytes()), encoding="utf-8")
            self._compile(source, path, ())
        return path

    def _main_object(self, variant: Variant) -> Path:
        # beside the folder's header: an option -I could hide a header of the system that has the same name
        source = self._source / f"linger_{variant.stem}.c"
        source.write_text(main_source(self.folder, variant), encoding="utf-8")
        path = self._place / f"{variant.stem}.o"
        self._compile(source, path, [*self._flags, *([_PROOF_FLAG] if variant.proof else [])])
        return path

    def _compile(self, source: Path, target: Path, flags: Sequence[str]) -> None:
        # in a layout with subfolders, headers are found by option; those beside a file need none
        folders = sorted({str(Path(name).parent) for name in self.folder.files if name.endswith(".h")} - {"."})
        options = [option for name in folders for option in ("-I", str(self._source / name))]
        self.toolchain.compile(self._compiler, source, target, [*flags, *options])


def _sha256(file: Path) -> str:
    """The digest of a file; empty where it is gone, because the program was closed."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _described(edge: Edge) -> EdgeInfo:
    names = {"float32": "float"}
    return EdgeInfo(edge.name, list(edge.shape), f"tensor({names.get(edge.type, edge.type)})")
