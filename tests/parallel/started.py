"""Programs run on several ranks, quickly: ranks are forks of a process that has imported torch."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import socket
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

NUMBER = re.compile(r"\d+\.\d+|nan|inf")


def numbers_of(text: str, *, world: int, arguments: tuple[str, ...] = ()) -> list[float]:
    """Run a program and return the numbers with a decimal point that rank 0 prints.

    Raises:
        RuntimeError: A rank failed, with what it printed.
    """
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "program.py")
        script.write_text(text, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [
            start_rank(script, rank, world, port=port, arguments=arguments) for rank in range(world)
        ]
        statuses = wait_for(ranks, time.monotonic() + 40)
        outputs = [Path(folder, f"{rank}.out").read_text() for rank in range(world)]
    if any(statuses):
        raise RuntimeError(f"statuses {statuses}\n" + "\n".join(outputs)[-4000:])
    lines = [line for line in outputs[0].splitlines() if "loss" in line]
    return [float(number) for line in lines for number in NUMBER.findall(line)]


def start_rank(
    script: Path, rank: int, world: int, *, port: int, arguments: tuple[str, ...]
) -> int:
    """Fork a rank and return its process id; its output goes to a file beside the script."""
    with warnings.catch_warnings():  # of threads: those of xdist hold nothing that a rank needs
        warnings.simplefilter("ignore")
        process = os.fork()
    if process:
        return process
    status = 1
    warnings.resetwarnings()  # a test makes them errors
    warnings.simplefilter("ignore")
    try:
        import torch.distributed

        output = os.open(script.parent / f"{rank}.out", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
        sys.argv = [str(script), *arguments]
        torch.distributed.destroy_process_group = leave
        runpy.run_path(str(script), run_name="__main__")
        print("the program did not call destroy_process_group")
    except BaseException:
        traceback.print_exc()
    leave(status)


def leave(status: int = 0) -> None:
    """End this process at once: with gloo of torch 2.13, freeing what a program holds aborts or hangs at times."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_for(processes: list[int], deadline: float) -> list[int]:
    """Wait for all; the others are killed once one has failed, or at the deadline."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(processes):
        for process in set(processes) - set(statuses):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = status
        if any(statuses.values()) or time.monotonic() > deadline:
            for process in set(processes) - set(statuses):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, 9)
                statuses[process] = os.waitpid(process, 0)[1]
        time.sleep(0.02)
    return [statuses[process] for process in processes]
