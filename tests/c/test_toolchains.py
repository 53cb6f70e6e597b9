"""Exported C on other compilers and on emulated processors: the same integers, faults as errors, counted instructions."""

from dataclasses import replace

import numpy as np
import pytest

from linger.c import build, toolchains
from linger.c.toolchains import HOST, TOOLCHAINS, Size, toolchain
from linger.errors import LingerError, UnsupportedError, UsageError
from tests.support.c_folders import require_tool
from tests.support.c_targets import require_target
from tests.support.tiny_c_network import tiny_manifest, write_echo, write_tiny

INTEGERS = {"in/image*/": np.array([[[[8, 16], [-16, 32]]]], np.int8), "offset": np.array([5], np.int32)}
FLOATS = {**INTEGERS, "in/image*/": np.array([[[[0.5, 1.0], [-1.0, 2.0]]]], np.float32)}
SOON = 0.5  # seconds
FIRST_LINE = "    int8_t *y = (int8_t *)arena;\n"

EMULATED = [name for name, chain in TOOLCHAINS.items() if chain.emulator]
# one emulated processor in every run of the tests, the others in the slow ones
TARGETS = [pytest.param(name, marks=() if name == "cortex-m4" else pytest.mark.slow) for name in EMULATED]


def beginning_with(folder, code):
    """The network with C code at the beginning of its run."""
    return write_tiny(folder, change=lambda text: text.replace(FIRST_LINE, FIRST_LINE + code))


def test_emulated_targets():
    assert EMULATED == ["cortex-m0", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55", "rv32imac"]
    assert toolchain("rv32") is toolchain("rv32imac")
    assert toolchain() is HOST


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("arena", ["static", "caller"])
def test_emulated_processor_gives_the_same_integers(tmp_path, target, arena):
    require_target(target)
    with build(write_tiny(tmp_path / "tiny", arena), target=target) as program:
        outputs = program.run_q(INTEGERS)
        assert outputs["scores\n"].tolist() == [[60, -60, 127]]
        assert outputs["raw"].tolist() == [13, -11, 29]
        tensors = program.intermediates_many([FLOATS, {**FLOATS, "offset": np.array([6], np.int32)}])
        assert tensors[0]["scores\n"].tolist() == [[3.75, -3.75, 7.9375]]
        assert tensors[0]["y"][0].tolist() == [[[13, 21], [-11, 37]], [[-11, -27], [37, -59]], [[29, 53], [-43, 101]]]
        assert tensors[1]["y"][0, 0].tolist() == [[14, 22], [-10, 38]]
        size = program.size()
        assert (size.data, size.bss) == (0, 16 if arena == "static" else 0)
        assert 100 < size.code < 1000


@pytest.mark.parametrize("target", TARGETS)
def test_stream_on_an_emulated_processor(tmp_path, target):
    require_target(target)
    with build(write_echo(tmp_path / "echo", "caller"), target=target) as echo:
        samples = [{"frame": np.array([[n, 1]], np.int8)} for n in (3, 4, 10)]
        outputs = echo.run_many(samples, quantized=True)
        assert [r["out"].tolist() for r in outputs] == [[[3, 1]], [[7, 2]], [[14, 2]]]


@pytest.mark.parametrize("target", TARGETS)
def test_fault_of_an_emulated_processor_is_an_error(tmp_path, target):
    require_target(target)
    folder = beginning_with(tmp_path / "tiny", "    *(volatile int *)0xE8000000u = 1;\n")
    with build(folder, target=target) as program, pytest.raises(LingerError, match=r"code 83.*fault of the processor"):
        program.run_q(INTEGERS)


@pytest.mark.slow
def test_unaligned_access_is_a_fault_of_a_cortex_m0(tmp_path):
    require_target("cortex-m0")
    # volatile: the compiler does not know the address, so it stores a word at once
    code = "    volatile uintptr_t odd = ((uintptr_t)y & ~(uintptr_t)3) + 1u; *(volatile int32_t *)odd = 1;\n"
    with (
        build(beginning_with(tmp_path / "tiny", code), target="cortex-m0") as program,
        pytest.raises(LingerError, match=r"code 83.*not aligned"),
    ):
        program.run_q(INTEGERS)


def deep(size):
    """C code that fills a local array."""
    return f"    volatile uint8_t deep[{size}]; for (int i = {size} - 1; i >= 0; i--) {{ deep[i] = 1; }}\n"


@pytest.mark.parametrize("target", TARGETS)
def test_stack_that_overflows_is_an_error(tmp_path, target):
    require_target(target)
    with (
        build(beginning_with(tmp_path / "tiny", deep(100_000)), target=target) as program,
        pytest.raises(LingerError, match=r"code 8[34]|Lockup"),
    ):
        program.run_q(INTEGERS)


@pytest.mark.parametrize("target", TARGETS)
def test_stack_is_measured(tmp_path, target):
    require_target(target)
    with build(beginning_with(tmp_path / "tiny", deep(1000)), target=target) as program:
        assert 1000 <= program.stack(INTEGERS, quantized=True) < 1128  # saved registers, rounding


@pytest.mark.slow
@pytest.mark.parametrize("target", EMULATED)
def test_endless_loop_on_an_emulated_processor_is_an_error(tmp_path, target):
    require_target(target)
    folder = beginning_with(tmp_path / "tiny", "    for (volatile int i = 0; i < 1; i += 0) {}\n")
    with build(folder, target=target, timeout=SOON) as program, pytest.raises(LingerError, match="did not end"):
        program.run_q(INTEGERS)


def counted(folder, target, rounds):
    """The instructions of the network with a loop of two instructions in it."""
    step = "addi %0, %0, -1; bnez %0, 1b" if target == "rv32imac" else "subs %0, %0, #1; bne 1b"
    # thumb code of a Cortex-M0 needs to be told the syntax with a trailing s; the others know it
    syntax = "" if target == "rv32imac" else ".syntax unified; "
    loop = f'    uint32_t n = {rounds}u; __asm__ volatile("{syntax}1: {step}" : "+l"(n) : : "cc");\n'
    loop = loop.replace('"+l"', '"+r"') if target == "rv32imac" else loop
    with build(beginning_with(folder, loop), target=target) as program:
        return program.instructions(INTEGERS, quantized=True)


@pytest.mark.parametrize("target", TARGETS)
def test_instructions_of_a_counted_loop(tmp_path, target):
    tick = require_target(target).instructions_per_tick
    short, long = (counted(tmp_path / str(rounds), target, rounds) for rounds in (70_001, 170_001))
    # 100 000 rounds of two instructions; each of the two numbers is rounded to ticks, and to whole numbers
    assert abs(long - short - 200_000) <= (2 * tick + 1 if tick != 1 else 0)
    assert short > 140_000
    assert short < 141_000  # the network itself has a few hundred


@pytest.mark.parametrize(
    ("target", "megahertz"),
    [("cortex-m0", 16), ("cortex-m3", 25), ("cortex-m4", 25), ("cortex-m7", 25), ("cortex-m55", 32)],
    ids=["m0", "m3", "m4", "m7", "m55"],
)
def test_a_tick_of_a_cortex_is_a_cycle_and_an_instruction_a_nanosecond(target, megahertz):
    assert toolchain(target).instructions_per_tick == 1000 / megahertz


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m4", "rv32imac"])
def test_instructions_beyond_the_range_of_the_timer(tmp_path, target):
    require_target(target)
    # 1 600 000 000 instructions are 40 000 000 ticks of 40: the timer of 24 bits has begun anew twice
    assert counted(tmp_path / "tiny", target, 800_000_000) == pytest.approx(1_600_000_000, abs=1000)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", *EMULATED])
@pytest.mark.parametrize("level", ["-O0", "-Os", "-O3", "-flto"])
def test_levels_of_optimization(tmp_path, target, level):
    require_target(target)
    with build(write_tiny(tmp_path / "tiny"), target=target, flags=["-O2", level]) as program:
        assert program.intermediates(FLOATS)["s"].tolist() == [[60, -60, 127]]
        if level == "-flto":
            with pytest.raises(UsageError, match="Build without -flto"):
                program.size()


def test_network_that_does_not_fit_is_refused(tmp_path):
    require_target("cortex-m0")
    folder = write_tiny(tmp_path / "tiny", "caller", manifest={**tiny_manifest("caller"), "arena_bytes": 16 * 1024})
    with pytest.raises(UnsupportedError, match=r"'cortex-m0'.*bytes of RAM too many.*256 KB of flash and 16 KB of RAM"):
        build(folder, target="cortex-m0")


@pytest.mark.parametrize("name", ["gcc", *(pytest.param(cc, marks=pytest.mark.devices) for cc in ("clang", "tcc"))])
def test_compilers_of_this_machine(tmp_path, name):
    require_tool(name, name)
    with build(write_tiny(tmp_path / "tiny", "caller"), cc=name) as program:
        assert program.intermediates(FLOATS)["s"].tolist() == [[60, -60, 127]]


def test_missing_tools_are_named_with_their_package(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"'no-such-cc'.*apt-get install gcc"):
        build(write_tiny(tmp_path / "tiny"), cc="no-such-cc")
    chain = replace(toolchain("cortex-m4"), emulator=("no-such-emulator",), size_tool="no-such-size")
    with pytest.raises(UsageError, match=r"no-such-emulator.*apt-get install .*qemu-system-arm"):
        chain.require_emulator()
    with pytest.raises(UsageError, match=r"no-such-size.*apt-get install"):
        chain.size([])


@pytest.mark.parametrize(("name", "near"), [("cortex-m5", "cortex-m55"), ("rv32i", "rv32"), ("avr", "Use one of host")])
def test_unknown_target_is_told_the_nearest(name, near):
    with pytest.raises(UsageError, match=near):
        toolchain(name)


def test_sections_are_counted_by_what_they_hold(tmp_path, monkeypatch):
    listing = """
digits.o  :
section               size   addr
.text                    0      0
.text.digits_run       100      0
.rodata.weights         30      0
.data.rel.ro             8      0
.data                    4      0
.bss.arena            2048      0
.comment                19      0
.debug_info           5000      0
.ARM.attributes         46      0
Total                 7255
"""
    done = toolchains.subprocess.CompletedProcess([], 0, listing, "")
    monkeypatch.setattr(toolchains.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(toolchains.shutil, "which", lambda name: name)
    size = HOST.size([tmp_path / "digits.o"])
    assert size == Size(code=100, constants=38, data=4, bss=2048)
    assert (size.text, size.flash, size.ram) == (138, 142, 2052)
