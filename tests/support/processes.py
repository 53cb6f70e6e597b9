"""Several processes that train together, as torchrun starts them, for the price of a fork each.

A server that has imported torch and linger once forks every process, so a test pays no import. Functions are found by their
module and name: define them at the top of a test's module.
"""

import multiprocessing
import queue
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

_COLLECTIVE_SECONDS = 30
"""After so long a process that waits for another one gives up."""


@dataclass(frozen=True)
class Failed:
    """How a process ended that returned nothing: its exception, or the signal that killed it."""

    kind: str
    message: str
    trace: str = ""


def run_processes(
    function: Callable[..., Any],
    count: int,
    *arguments: Any,
    seconds: float = 120,
    collective_seconds: float = _COLLECTIVE_SECONDS,
) -> list[Any]:
    """Call `function(*arguments)` in so many processes of one gloo group; returns what each returned, or a `Failed`.

    Raises:
        AssertionError: A process did not end in time: it hangs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "linger.pipeline", "numpy", "torch._dynamo"])
    results: Any = context.Queue()
    port = _free_port()
    made = [
        context.Process(
            target=_run, args=(function, arguments, rank, count, port, collective_seconds, results), daemon=True
        )
        for rank in range(count)
    ]
    for process in made:
        process.start()
    found = _collect(made, results, time.monotonic() + seconds)
    hanging = [rank for rank in range(count) if rank not in found]
    for process in made:
        if process.is_alive():
            process.join(10 if not hanging else 0)
        if process.is_alive():
            process.kill()
            process.join()
    assert not hanging, f"processes {hanging} of {count} did not end within {seconds} s; others: {found}"
    return [found[rank] for rank in range(count)]


def _collect(made: list[Any], results: Any, end: float) -> dict[int, Any]:
    """The result of every process that ends before a time."""
    found: dict[int, Any] = {}
    while len(found) < len(made) and time.monotonic() < end:
        try:
            rank, result = results.get(timeout=0.2)
            found[rank] = result
        except queue.Empty:
            for rank, process in enumerate(made):
                if rank not in found and process.exitcode is not None and process.exitcode < 0:
                    found[rank] = Failed(signal.Signals(-process.exitcode).name, "killed")
    return found


def _run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    count: int,
    port: int,
    collective_seconds: float,
    results: Any,
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
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
    results.put((rank, result))
    results.close()
    results.join_thread()
    if dist.is_initialized() and not isinstance(result, Failed):
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
