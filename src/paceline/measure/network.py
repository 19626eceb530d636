"""``paceline bench network``: latency and bandwidth of all_reduce between the ranks of a run.

On one node it starts ranks of ``paceline.measure.network_worker`` with ``paceline run``. Under a
launcher it is a rank: ``srun paceline bench network`` measures between the nodes of a job.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import EXIT_OK, Finding, UsageError
from paceline.machine import gpus, own_process, own_world
from paceline.measure import network_points, network_worker
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.world import World

_RANKS_WITHOUT_GPUS = 2


def main(
    *,
    nproc_per_node: int | None,  # None for one per GPU, two without GPUs
    seconds: float,  # time budget of the measurement
    rounds: int,  # how often each size is measured
    as_json: bool,  # print data for a program
) -> int:
    """Measure, print the table, and return the exit status.

    Raises UsageError if there is one rank only, or the launcher has chosen the ranks.
    """
    world = own_world.read()
    if world.world_size > 1:
        if nproc_per_node is not None:
            raise UsageError(_already_started(world))
        result = network_worker.measure(rounds=rounds, budget_s=seconds)
        if result is not None:
            _print(result, as_json)
        return EXIT_OK
    ranks = nproc_per_node
    if ranks is None:
        num_gpus, _ = gpus.count(env.visible_devices())
        ranks = num_gpus or _RANKS_WITHOUT_GPUS
    if ranks < 2:
        raise UsageError(network_worker.too_few_ranks())
    with tempfile.TemporaryDirectory(prefix="paceline-network-") as folder:
        terminal.say(f"measuring all_reduce over {ranks} ranks, about {seconds:.0f} s")
        ended = _run(ranks, Path(folder), seconds=seconds, rounds=rounds)
        if ended.returncode:
            print(ended.stdout, end="", file=sys.stderr)
            return ended.returncode
        _print(json.loads((Path(folder) / "network.json").read_text()), as_json)
    return EXIT_OK


def _already_started(world: World) -> Finding:
    return Finding(
        "option-contradicted",
        f"--nproc-per-node has no effect: {world.launcher} has started {world.world_size} ranks",
        where="command line",
        fix="paceline bench network, without --nproc-per-node",
    )


def _run(
    ranks: int, folder: Path, *, seconds: float, rounds: int
) -> subprocess.CompletedProcess[str]:
    """Start the ranks, and return how their run ended and what it printed."""
    of_worker = ["--out", str(folder / "network.json")]
    of_worker += ["--rounds", str(rounds), "--seconds", str(seconds)]
    # as a script, whose path is not the current folder; a module's would be
    _, *worker = own_process.command(*of_worker, module=network_worker.__name__)
    options = ["--nproc-per-node", str(ranks), "--run-dir", str(folder / "run")]
    command = own_process.command("run", *options, "--no-slurm", "--no-probe", *worker)
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        terminal.show(network_points.render(result))
