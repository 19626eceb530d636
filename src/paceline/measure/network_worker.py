"""Measure all_reduce between the ranks of a run: the program of every rank of ``bench network``.

Every launcher can start it::

    paceline run --nproc-per-node 4 -m paceline.measure.network_worker
    srun --ntasks-per-node 4 python -m paceline.measure.network_worker --json

Sizes grow fourfold. Each is timed in several rounds, and the rounds go through all sizes in turn,
so that a disturbance of the network does not fall on one size alone. Rank 0 prints the result.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from paceline.errors import Finding, PacelineError, UsageError
from paceline.machine import own_world
from paceline.measure import network_points
from paceline.rundir import owned
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.world import World

SMALLEST_BYTES = 1 << 10
LARGEST_BYTES = 256 << 20
GROWTH = 4
ROUNDS = 5
_ROUND_S = 0.05  # a size is repeated for about this long in a round
_MOST_REPEATS = 50
_FLOAT_BYTES = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Measure as a rank of a run, and return the exit status."""
    options = _parse(argv)
    try:
        result = measure(rounds=options.rounds, budget_s=options.seconds)
    except PacelineError as error:
        terminal.show(error.finding.render(), sys.stderr)
        return error.exit_status
    if result is not None:
        _write(result, options)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="paceline.measure.network_worker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=20.0, help="time budget")
    parser.add_argument("--json", action="store_true", help="print data for a program")
    parser.add_argument("--out", default="", help="write the data to a file instead")
    return parser.parse_args(argv)


def _write(result: dict[str, Any], options: argparse.Namespace) -> None:
    import json
    from pathlib import Path

    if options.out:
        owned.write_whole(Path(options.out), json.dumps(result))
    elif options.json:
        print_json(result)
    else:
        terminal.show(network_points.render(result))


def measure(*, rounds: int, budget_s: float) -> dict[str, Any] | None:
    """Measure between the ranks that a launcher has started; return what rank 0 prints, else None.

    Sizes stop growing after ``budget_s``; a size is never cut off. Raises UsageError if there is
    one rank only.
    """
    world = own_world.read()
    if world.world_size < 2:
        raise UsageError(too_few_ranks())
    from paceline.train import runtime

    device = runtime.take_device(world)
    runtime.open_group(world, device)
    try:
        return _measure(world, device, rounds=rounds, budget_s=budget_s)
    finally:
        runtime.close_group()


def too_few_ranks() -> Finding:
    """Return the finding for a measurement of one rank."""
    return Finding(
        "option-invalid",
        "one rank has no network: an all-reduce needs two or more",
        where="bench network",
        fix="paceline bench network --nproc-per-node 2, or start it with srun on several nodes",
    )


def _measure(world: World, device: Any, *, rounds: int, budget_s: float) -> dict[str, Any] | None:
    import torch.distributed as dist

    repeats = dict(_sizes(device, rounds=rounds, budget_s=budget_s))
    blocks: dict[int, list[list[float]]] = {size: [] for size in repeats}
    for _ in range(rounds):
        for size, count in repeats.items():
            blocks[size].append(_times(size, count, device))
    hosts: list[Any] = [None] * world.world_size
    dist.all_gather_object(hosts, _host_name())
    if world.rank:
        return None
    return network_points.describe(
        blocks,
        backend=dist.get_default_backend_for_device(device),
        hosts=hosts,
        num_nodes=max(world.num_nodes, len(set(hosts))),
    )


def _host_name() -> str:
    import socket

    return socket.gethostname()


def _sizes(device: Any, *, rounds: int, budget_s: float) -> Iterator[tuple[int, int]]:
    """Yield sizes in bytes, and how often each is repeated in a round, within the time budget.

    The times are the maximum over all ranks, so all ranks decide alike.
    """
    size, spent_s = SMALLEST_BYTES, 0.0
    while size <= LARGEST_BYTES:
        _times(size, 1, device)  # the first call of a size allocates buffers
        (seconds,) = _times(size, 1, device)
        count = max(1, min(_MOST_REPEATS, int(_ROUND_S / seconds)))
        spent_s += seconds * (2 + rounds * count)
        if spent_s > budget_s and size > SMALLEST_BYTES:
            return
        yield size, count
        size *= GROWTH


def _times(size: int, count: int, device: Any) -> list[float]:
    """Return the seconds of ``count`` all-reduces of ``size`` bytes, the slowest rank's."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(size // _FLOAT_BYTES, device=device)
    dist.barrier()
    measured = _on_gpu(tensor, count) if device.type != "cpu" else _on_cpu(tensor, count)
    slowest = torch.tensor(measured, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    seconds: list[float] = slowest.tolist()
    return seconds


def _on_cpu(tensor: Any, count: int) -> list[float]:
    import torch.distributed as dist

    times = []
    for _ in range(count):
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - begin)
    return times


def _on_gpu(tensor: Any, count: int) -> list[float]:
    """Time with events of the device: the CPU's clock sees launches and not kernels."""
    import torch
    import torch.distributed as dist

    marks = [torch.Event(tensor.device, enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        dist.all_reduce(tensor)
        mark.record()
    torch.accelerator.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in pairwise(marks)]


def _run_as_program() -> NoReturn:
    """Measure, and exit without teardown: with threads of gloo left, that of torch can abort."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _run_as_program()
