"""What the loop of node 0's launcher that watches ranks pays for the speed of all ranks.

    python benchmarks/watch_loop.py [--ranks 256 1024 4096 16384]

Nodes of eight ranks that have timed 64 steps; their descriptions are in memory, as node 0 reads
them from the store. "loop" is the wall time of one call from the loop. "longest gap" is the longest
time that a loop of 1 ms sleeps did not run while the thread worked: what it waits for the
interpreter. "thread" is the CPU time of one description, and "interval" the time to the next one.
"""

import argparse
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from paceline import counters
from paceline.launch.monitor import speed_log
from paceline.launch.monitor.attempt import Attempt
from paceline.launch.monitor.speed_log import SpeedLog
from paceline.launch.monitor.timed_steps import TimedSteps
from paceline.rundir.files import RunDir

LOCAL = 8
OWN_NS, STEP_NS = (1_000_000, 3_000_000), 20_000_000


class Channel:
    """What the nodes have told node 0, as text."""

    node = 0

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes, self.told = num_nodes, [""] * num_nodes

    def tell(self, kind: str, value: dict) -> None:
        self.told[0] = json.dumps(value)
        for node in range(1, self.num_nodes):
            self.told[node] = self.told[node] or of_node(value, node)

    def hear(self, kind: str) -> dict[int, dict]:
        return dict(enumerate(map(json.loads, self.told)))


def of_node(first: dict, node: int) -> str:
    """Return the description of a node whose ranks do the same as those of node 0."""
    ranks = [{**rank, "rank": rank["rank"] + LOCAL * node} for rank in first["ranks"]]
    timed = {
        step: {str(int(rank) + LOCAL * node): times for rank, times in by_rank.items()}
        for step, by_rank in json.loads(first["timed"]).items()
    }
    return json.dumps({**first, "ranks": ranks, "timed": json.dumps(timed)})


def counted() -> counters.SharedCounters:
    """Return the counters of a node whose ranks have timed 64 steps."""
    shared = counters.SharedCounters(counters.create(LOCAL), LOCAL)
    for local in range(LOCAL):
        shared.slot(local)[counters.STEPS] = 65
        for step in range(1, 65):
            own = [random.randrange(*OWN_NS) for _ in range(5)]
            durations = [*own, STEP_NS - sum(own)]
            counters.write_stages(shared.slot(local), number=step, step=step, durations=durations)
    return shared


def measure(world_size: int, folder: Path) -> str:
    """Return a line of figures."""
    shared, ranks = counted(), {local: local for local in range(LOCAL)}
    group = SimpleNamespace(attempt=Attempt(0, ranks, world_size))
    timed, channel = TimedSteps(shared, ranks), Channel(max(1, world_size // LOCAL))
    timed.look()
    log = SpeedLog(group, shared, timed, channel, run_dir=RunDir(folder), with_gpus=False)
    channel.tell("speed", log._describe(timed.latest(64)))
    cpu_s, share = [], log._share

    def timed_share(latest: dict) -> None:
        began_s = time.thread_time()
        share(latest)
        cpu_s.append(time.thread_time() - began_s)

    log._share = timed_share
    began_s = before_s = time.perf_counter()
    log.tick(at_once=True)
    loop_s, longest_s = time.perf_counter() - began_s, 0.0
    while not cpu_s:
        before_s = time.perf_counter()
        time.sleep(0.001)
        longest_s = max(longest_s, time.perf_counter() - before_s)
    log.end()
    interval_s = max(log._every_s, speed_log._REST * cpu_s[0])
    return (
        f"{world_size:6} ranks: loop {loop_s * 1e3:.1f} ms, longest gap {longest_s * 1e3:.0f} ms,"
        f" thread {cpu_s[0]:.2f} s, interval {interval_s:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    gc.freeze()  # as the launcher does after it has imported torch
    for world_size in parser.parse_args().ranks:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(world_size, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
