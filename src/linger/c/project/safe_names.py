# SPDX-License-Identifier: Apache-2.0
"""Names of C from names of a file: identifiers that clash with nothing, and text that cannot leave a comment or a string."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from linger.errors import UsageError, printable
from linger.graph.files.model_io import ModelLike

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
    for made in (name, f"{name}_net", f"net_{name}_net"):
        if not _is_taken(made):
            return made
    raise AssertionError(name)  # nothing that is taken begins and ends with a net


def _is_taken(name: str) -> bool:
    is_word = name in _KEYWORDS or name in _TAKEN_NAMES or name.startswith("linger_") or name.endswith("_t")
    return is_word or name in _HEADERS or _INTRINSICS.fullmatch(name) is not None


def parameter_names(network: str, names: Iterable[str]) -> dict[str, str]:
    """A C name for each input and output by its name in the file: the same where that is possible, each once."""
    found: dict[str, str] = {}
    for given in names:
        stem = re.sub(r"[^a-z0-9]+", "_", given.lower()).strip("_")[:_LONGEST_DERIVED].strip("_") or "x"
        stem = stem if stem[0].isalpha() else f"x_{stem}"
        if stem in _KEYWORDS or stem in _OWN_PARAMETERS or _OWN_FUNCTIONS.fullmatch(stem) or stem.startswith(network):
            stem = f"x_{stem}"
        name, number = stem, 1
        while name in found.values():
            number += 1
            name = f"{stem}_{number}"
        found[given] = name
    return found


def plain(text: str, *, longest: int = _LONGEST_COMMENT, also: str = "") -> str:
    """Text of a file as it may stand in a comment, a string, a page or a build file: few letters, a bounded length.

    Letters that one of these can bear beside them are given as `also`.

    >>> plain('conv1 */ system("x"); ??/ <b>')
    'conv1 __ system(_x_)_ ___ _b_'
    """
    safe = re.sub(rf"[^A-Za-z0-9 ().,:+_{re.escape(also)}-]", "_", text)
    safe = re.sub(r"--+", "-", safe).strip()
    return safe if len(safe) <= longest else f"{safe[:longest]}..."
