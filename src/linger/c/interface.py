# SPDX-License-Identifier: Apache-2.0
"""The functions that an exported program offers, and what they take.

Names of C from names of a file: identifiers that clash with nothing, and text that cannot leave a comment or a string.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linger.c.exported_folder import Cut, StreamOptions, Tensor
from linger.c.steps import Edge, Order
from linger.c.writer import ALIGNMENT, Source
from linger.errors import UsageError, printable
from linger.graph.core.nodes import attributes_of, op_of
from linger.graph.files.model_io import ModelLike
from linger.graph.passes.streaming import Streamed, StreamTensor
from linger.graph.passes.streaming_states import State

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Parameter:
    """An input or output of the functions that a program offers.

    Attributes:
        name: Its name in C.
        edge: The input or output of the network.
        outer: Its type and shape for the function that takes real numbers.
        inner: Its type and shape for the function that takes integers.
        order: Its axes from the outermost to the innermost; None: as in the file.
        time: How its frames lie in time; None in a network that runs as a whole, and where no axis is time.
    """

    name: str
    edge: Edge
    outer: Tensor
    inner: Tensor
    order: Order
    time: StreamTensor | None

    @property
    def scale(self) -> float | None:
        """The number that real values are multiplied with; None where they are not converted."""
        if self.edge.node is None:
            return None
        attributes = attributes_of(self.edge.node, op_of(self.edge.node))
        return float(attributes["scale_x" if self.edge.node.op_type == "Quant" else "scale_o"])

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest integer of an input that is quantized; fewer bits than its type has may be asked for."""
        assert self.edge.node is not None
        attributes = attributes_of(self.edge.node, op_of(self.edge.node))
        low, high = (0, 2) if attributes["o_unsigned"] else (-1, 1)
        half = 1 << (int(attributes["data_bits"]) - 1)
        return low * half, high * half - 1

    @property
    def shape_in_memory(self) -> list[int]:
        """Its sizes from the outermost axis to the innermost."""
        return [self.outer.shape[axis] for axis in self.order or range(len(self.outer.shape))]

    def tensor(self, *, quantized: bool) -> Tensor:
        """Its type and shape for one of the two functions."""
        return self.inner if quantized else self.outer


@dataclass(frozen=True)
class Interface:
    """The functions that a program offers.

    Attributes:
        source: The program.
        names: The C name of each input and output, by its name in the file.
        stream: The network as one step; None for a network that runs as a whole.
        stream_options: How that step was made.
        cut: Which part of the file it is; None for all of it.
        has_callers_weights: Whether the caller provides the weights, from a file.
    """

    source: Source
    names: Mapping[str, str]
    stream: Streamed | None = None
    stream_options: StreamOptions | None = None
    cut: Cut | None = None
    has_callers_arena: bool = False
    has_callers_weights: bool = False

    @property
    def name(self) -> str:
        """The name of the network in C."""
        return self.source.name

    @property
    def stem(self) -> str:
        """The name in capitals, for macros."""
        return self.source.name.upper()

    @property
    def entry(self) -> str:
        """The name of the main function; a stream that remembers nothing is run like any network."""
        return f"{self.name}_{'step' if self.states else 'run'}"

    @cached_property
    def states(self) -> dict[str, State]:
        """What a stream carries from step to step, by the name of its field in the struct of states."""
        return {f"state_{i}": state for i, state in enumerate(() if self.stream is None else self.stream.states)}

    @cached_property
    def inputs(self) -> list[Parameter]:
        """The inputs that the caller gives."""
        return self._parameters(self.source.plan.inputs, {state.input for state in self.states.values()})

    @cached_property
    def outputs(self) -> list[Parameter]:
        """The outputs that the caller gets."""
        return self._parameters(self.source.plan.outputs, {state.output for state in self.states.values()})

    def _parameters(self, edges: Iterable[Edge], hidden: set[str]) -> list[Parameter]:
        tensors, orders = self.source.plan.network.tensors, self.source.edge_orders
        timed = () if self.stream is None else (*self.stream.inputs, *self.stream.outputs)
        times = {t.name: t for t in timed if t.axis is not None}
        return [
            Parameter(self.names[e.name], e, tensors[e.name], tensors[e.tensor], orders.get(e.name), times.get(e.name))
            for e in edges
            if e.name not in hidden
        ]

    @property
    def parameters(self) -> list[Parameter]:
        """Inputs and outputs."""
        return [*self.inputs, *self.outputs]

    @property
    def is_quantized(self) -> bool:
        """Whether an edge has real numbers outside and integers inside, so that there are two interfaces."""
        return any(p.edge.node is not None for p in self.parameters)

    @property
    def arena_bytes(self) -> int:
        """The size of the arena."""
        return max(self.source.arena.size, ALIGNMENT)

    @property
    def weight_bytes(self) -> int:
        """The constants in bytes, as they lie in flash: all arrays, or the file with what alignment adds to it."""
        if self.has_callers_weights:
            return len(weights_file(self.source))
        return sum(int(weights.content.nbytes) for weights in self.source.weights)

    @property
    def state_bytes(self) -> int:
        """The size of the struct of states, every member at a multiple of its type's size; 0 where there is none."""
        size, widest = 0, 1
        for state in self.states.values():
            tensor = self.source.plan.network.tensors[state.input]
            item = np.dtype(tensor.dtype).itemsize
            widest = max(widest, item)
            size += -size % item + item * max(tensor.count, 1)
        return size + -size % widest

    def own(self, state: str, weights: str, arena: str) -> list[str]:
        """The arguments, or parameters, before inputs and outputs: those of the three that the program takes."""
        is_taken = (bool(self.states), self.has_callers_weights, self.has_callers_arena)
        return [text for text, is_one in zip((state, weights, arena), is_taken, strict=True) if is_one]

    def prototype(self, *, quantized: bool) -> str:
        """The declaration of the function that computes, without a semicolon."""
        own = self.own(f"{self.name}_state *state", "const void *weights", "void *arena")
        inputs = [f"const {p.tensor(quantized=quantized).ctype} *{p.name}" for p in self.inputs]
        outputs = [f"{p.tensor(quantized=quantized).ctype} *{p.name}" for p in self.outputs]
        return f"void {self.entry}{'_q' if quantized else ''}({', '.join([*own, *inputs, *outputs])})"


def weight_places(source: Source) -> dict[str, int]:
    """Where each constant begins in a file of weights."""
    places, done = {}, 0
    for weights in source.weights:
        places[weights.name] = done
        done += -(-int(weights.content.nbytes) // ALIGNMENT) * ALIGNMENT
    return places


def weights_file(source: Source) -> bytes:
    """All constants, little-endian, each at its place; a network without any has a file that is not empty either."""
    parts = []
    for weights in source.weights:
        content = weights.content.astype(weights.content.dtype.newbyteorder("<")).tobytes()
        parts.append(content + bytes(-len(content) % ALIGNMENT))
    return b"".join(parts) or bytes(ALIGNMENT)


def rendered(template: str, **values: Any) -> str:
    """A whole file from its template in the folder `templates`."""
    text = (files("linger.c") / "templates" / f"{template}.j2").read_text(encoding="utf-8")
    return _environment().from_string(text).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined  # only exports and builds need it

    made = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    made.filters |= {
        "comment": _comment,
        "hex": "0x{:08X}u".format,
        "plain": plain,
        "sizes": lambda shape: " x ".join(map(str, shape)) or "1",
        "thousands": "{:,}".format,
    }
    return made


def _comment(text: str) -> str:
    """Lines as a comment of C."""
    lines = text.splitlines()
    return f"/* {lines[0]} */\n" if len(lines) == 1 else "\n".join(["/*", *(f" * {x}" for x in lines), " */", ""])


_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST_NAME = 48
_LONGEST_DERIVED = 32
_LONGEST_COMMENT = 80

_WORDS_OF_C = (
    "asm auto bool break case char complex const continue default do double else enum extern false far float for goto "
    "i386 if imaginary inline int linux long main near register restrict return short signed sizeof static struct switch "
    "true typedef typeof union unix unsigned void volatile while"
)
_WORDS_OF_CPP = (
    "alignas alignof and bitand bitor catch class compl concept constexpr decltype delete explicit export friend mutable "
    "namespace new noexcept not nullptr operator or private protected public requires template this throw try typeid "
    "typename using virtual xor"
)
_KEYWORDS = frozenset(f"{_WORDS_OF_C} {_WORDS_OF_CPP} and_eq not_eq or_eq xor_eq errno assert".split())
_OWN_PARAMETERS = frozenset({"arena", "memory", "state", "weights", "i"})
_OWN_FUNCTIONS = re.compile(r"(linger|step|copy|convert)_.*|.*_t|str[a-z].*|mem[a-z].*")
"""Functions and types that a parameter of the same name would hide."""

_TAKEN_NAMES = frozenset(
    {"all", "clean", "help", "install", "linger", "package", "test", "src", "zephyr", "edit_cache"}
)
"""Names of files in every folder, and of targets that CMake has itself."""

_HEADERS_OF_C = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype"
)
_HEADERS_OF_POSIX = (
    "aio cpio devctl dirent dlfcn endian fcntl fmtmsg fnmatch ftw glob grp iconv langinfo libgen libintl monetary mqueue "
    "ndbm netdb nl_types poll pthread pwd regex sched search semaphore spawn strings stropts syslog tar termios trace "
    "ulimit unistd utime utmpx wordexp"
)
_HEADERS_OF_LIBRARIES = (
    "alloca argp argz byteswap elf envlock envz err error execinfo fastmath features getopt ieeefp link malloc mcheck "
    "memory newlib obstack paths picolibc picotls printf reent regdef semihost stdfix stdio_ext syscall sysexits "
    "syslimits ucontext values varargs wait"
)
_HEADERS_OF_COMPILERS = (
    "altivec arm_acle arm_bf16 arm_cde arm_cmse arm_common_tables arm_const_structs arm_fp16 arm_math arm_math_types "
    "arm_mve arm_mve_types arm_neon arm_neon_sve_bridge arm_nnfunctions arm_sme arm_sve arm_vector_types cmsis_compiler "
    "cmsis_gcc cpuid mm3dnow mm_malloc msa omp openacc quadmath riscv_bitmanip riscv_crypto riscv_vector unwind wasm_simd128"
)
_HEADERS_OF_FRAMEWORKS = "arduino autoconf esp_attr esp_err esp_log esp_system esp_timer kernel sdkconfig version"
_HEADERS = frozenset(
    " ".join(
        (_HEADERS_OF_C, _HEADERS_OF_POSIX, _HEADERS_OF_LIBRARIES, _HEADERS_OF_COMPILERS, _HEADERS_OF_FRAMEWORKS)
    ).split()
)
"""Headers of others. One of the network with the same name would be found in their place, as its folder is given with -I."""
_INTRINSICS = re.compile(r".*intrin")
"""Headers of x86 compilers, to which every version adds some."""


def network_name(model: ModelLike, name: str | None) -> str:
    """What a network is called in C: the name that was given, or one made of the file's.

    Raises:
        UsageError: The name that was given is no C identifier, a keyword, or taken.
    """
    if name is None:
        return _derived(Path(model).stem if isinstance(model, (str, os.PathLike)) else "network")
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name) or "__" in name or len(name) > _LONGEST_NAME:
        raise UsageError(
            f"name={printable(str(name)[:_LONGEST_COMMENT])!r} is no name in C. Use up to {_LONGEST_NAME} lower-case "
            "letters, digits and single underscores, a letter first."
        )
    if _is_taken(name):
        raise UsageError(
            f"name={name!r} has a meaning of its own in C, in the folder, or as the header {name}.h of a library or a "
            "compiler. Choose another one."
        )
    return name


def _derived(stem: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:_LONGEST_DERIVED].strip("_") or "network"
    name = name if name[0].isalpha() else f"n_{name}"
    for candidate in (name, f"{name}_net", f"net_{name}_net"):
        if not _is_taken(candidate):
            return candidate
    raise AssertionError(name)  # nothing that is taken begins and ends with a net


def _is_taken(name: str) -> bool:
    is_word = name in _KEYWORDS or name in _TAKEN_NAMES or name.startswith("linger_") or name.endswith("_t")
    return is_word or name in _HEADERS or _INTRINSICS.fullmatch(name) is not None


def parameter_names(network: str, names: Iterable[str]) -> dict[str, str]:
    """A C name for each input and output by its name in the file: the same where that is possible, each once."""
    c_names: dict[str, str] = {}
    for file_name in names:
        stem = re.sub(r"[^a-z0-9]+", "_", file_name.lower()).strip("_")[:_LONGEST_DERIVED].strip("_") or "x"
        stem = stem if stem[0].isalpha() else f"x_{stem}"
        if stem in _KEYWORDS or stem in _OWN_PARAMETERS or _OWN_FUNCTIONS.fullmatch(stem) or stem.startswith(network):
            stem = f"x_{stem}"
        name, number = stem, 1
        while name in c_names.values():
            number += 1
            name = f"{stem}_{number}"
        c_names[file_name] = name
    return c_names


def plain(text: str, *, longest: int = _LONGEST_COMMENT, also: str = "") -> str:
    """Text of a file as it may stand in a comment, a string, a page or a build file: few letters, a bounded length.

    Letters that one of these can bear beside them are given as `also`.

    >>> plain('conv1 */ system("x"); ??/ <b>')
    'conv1 __ system(_x_)_ ___ _b_'
    """
    safe = re.sub(rf"[^A-Za-z0-9 ().,:+_{re.escape(also)}-]", "_", text)
    safe = re.sub(r"--+", "-", safe).strip()
    return safe if len(safe) <= longest else f"{safe[:longest]}..."
