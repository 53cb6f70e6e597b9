"""Several processes that train together, as torchrun starts them, for the price of a fork each.

A server that has imported torch and linger once forks every process, so a test pays no import. Functions are found by their
module and name: define them at the top of a test's module.
"""

import multiprocessing
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

_COLLECTIVE_SECONDS = 30
"""After so long a process that waits for another one gives up."""

_PRELOADED = [  # what the processes would import one by one
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "linger.pipeline",
    "numpy",
]

_STEP = "a step begins"
_ends: list[Any] = []
"""In a process that `run_processes` has started, the pipe to the test."""


@dataclass(frozen=True)
class Failed:
    """How a process ended that returned nothing: its exception, or the signal that killed it."""

    kind: str
    message: str
    trace: str = ""


@dataclass(frozen=True)
class Kill:
    """When a process is killed: in its so-manieth reported step, the first is 1, after a fraction of the time of the one before."""

    rank: int
    step: int
    fraction: float


def report() -> None:
    """Tell the test that a step begins."""
    for end in _ends:
        end.send(_STEP)


def run_processes(
    function: Callable[..., Any],
    count: int,
    *arguments: Any,
    seconds: float = 120,
    collective_seconds: float = _COLLECTIVE_SECONDS,
    kill: Kill | None = None,
) -> list[Any]:
    """Call `function(*arguments)` in so many processes of one gloo group; returns what each returned, or a `Failed`.

    Raises:
        AssertionError: A process did not end in time: it hangs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    port = _free_port()
    made, ends = [], []
    for rank in range(count):
        # a pipe for each: one that is killed while it writes leaves those of the others alone
        mine, theirs = context.Pipe(duplex=False)
        arguments_of = (function, arguments, rank, count, port, collective_seconds, theirs)
        made.append(context.Process(target=_run, args=arguments_of, daemon=True))
        made[-1].start()
        theirs.close()
        ends.append(mine)
    found = _collect(made, ends, time.monotonic() + seconds, kill)
    hanging = [rank for rank in range(count) if rank not in found]
    for process in made:
        if process.is_alive():
            process.join(10 if not hanging else 0)
        if process.is_alive():
            process.kill()
            process.join()
    assert not hanging, f"processes {hanging} of {count} did not end within {seconds} s; others: {found}"
    return [found[rank] for rank in range(count)]


def _collect(made: list[Any], ends: list[Any], end: float, kill: Kill | None) -> dict[int, Any]:
    """The result of every process that ends before a time."""
    found: dict[int, Any] = {}
    begun = [time.monotonic()]  # the steps of the process that is to be killed
    while len(found) < len(made) and time.monotonic() < end:
        waiting = {id(each): rank for rank, each in enumerate(ends) if rank not in found}
        for each in wait([ends[rank] for rank in waiting.values()], 0.2):
            rank = waiting[id(each)]
            told = _received(each, made[rank])
            if told != _STEP:
                found[rank] = told
            elif kill is not None and rank == kill.rank:
                begun.append(time.monotonic())
                if len(begun) == kill.step + 1:
                    time.sleep(kill.fraction * (begun[-1] - begun[-2]))
                    made[rank].kill()
    return found


def _received(end: Any, process: Any) -> Any:
    try:
        return end.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode
        return Failed(signal.Signals(-code).name, "killed") if code < 0 else Failed("exit", f"code {code}")


def _run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    count: int,
    port: int,
    collective_seconds: float,
    end: Any,
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        _ends.append(end)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=collective_seconds),
        )
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - the test judges it
        result = Failed(type(error).__name__, str(error), traceback.format_exc())
    end.send(result)
    if dist.is_initialized() and not isinstance(result, Failed):
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
