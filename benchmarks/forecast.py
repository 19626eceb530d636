"""Forecasts from a bench of 1 and 2 ranks, beside what 3, 4 and 8 ranks then measured.

    python benchmarks/forecast.py [--rounds 3] [--steps 10] [--seed 0]

Every rank has a network namespace of its own, on links of two rates (``tc tbf``): needs root and
iproute2. A bench at each rate predicts 3, 4 and 8 ranks at that rate. Computing is replaced by
sleeping, because two cores cannot compute for eight ranks; how long is drawn from the steps of a
real computation on this machine.
World sizes and rates take turns in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import SkipTest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faults.hosts import Host, hosts
from paceline.measure.bench_file import BenchFile
from paceline.measure.forecast import prediction

RATES = ("200mbit", "80mbit")
BENCH_WORLDS, PREDICTED_WORLDS = (1, 2), (3, 4, 8)
LAYERS, LAYER_BYTES = 4, 1 << 19
MEAN_STEP_S = 0.12
SAMPLES_PER_RANK = 64
WARMUP = 2
RANK = Path(__file__).with_name("forecast_rank.py")


def measured_durations_s(seconds: float = 5.0) -> list[float]:
    """Return durations of a computation's steps, scaled to a mean of ``MEAN_STEP_S``."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    batch, times = torch.randn(256, 512), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        model(batch).sum().backward()
        times.append(time.perf_counter() - begin)
    counted = times[len(times) // 10 :]
    mean_s = statistics.fmean(counted)
    return [MEAN_STEP_S * seconds / mean_s for seconds in counted]


def started(places: list[Host], command: list[str], port: int, **per_rank: list[str]) -> None:
    """Run a command as the ranks of one run, each on its host."""
    processes = []
    for rank, host in enumerate(places):
        environ = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "WORLD_SIZE": str(len(places)),
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": str(len(places)),
            "MASTER_ADDR": places[0].address,
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": host.cable,
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        words = [sys.executable, *(word.replace("RANK", str(rank)) for word in command)]
        processes.append(subprocess.Popen(host.inside(words), env=environ))
    try:
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(statuses):
        sys.exit(f"ranks ended with {statuses}")


def measured_network(pair: list[Host], rate: str, folder: Path) -> dict:
    """Return what ``bench network`` measures between two hosts."""
    for host in pair:
        host.slow(rate)
    out = folder / f"network-{rate}.json"
    worker = ["-m", "paceline.measure.network_worker", "--seconds", "4", "--rounds", "3"]
    started(pair, [*worker, "--out", str(out)], 29701)
    for host in pair:
        subprocess.run(host.inside(["tc", "qdisc", "del", "dev", host.cable, "root"]), check=True)
    return json.loads(out.read_text())


def measured_steps(places: list[Host], folder: Path, arguments: argparse.Namespace) -> dict:
    """Train in all configurations; return rounds of steps by rate and world size."""
    configs = [
        {"world": world, "rate": rate, "round": number}
        for number in range(arguments.rounds)
        for rate in RATES
        for world in (*BENCH_WORLDS, *PREDICTED_WORLDS)
    ]
    print("training", flush=True)
    plan = {
        "configs": configs,
        "layers": LAYERS,
        "layer_bytes": LAYER_BYTES,
        "warmup": WARMUP,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "durations_s": measured_durations_s(),
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    outs = str(folder / "out-RANK.json")
    started(places, [str(RANK), str(folder / "plan.json"), outs], 29702)
    ranks = [json.loads((folder / f"out-{rank}.json").read_text()) for rank in range(len(places))]
    rounds: dict[tuple[str, int], list[dict]] = {}
    for number, config in enumerate(configs):
        by_rank = [results[number] for results in ranks[: config["world"]]]
        steps = {
            str(step): {str(rank): rows[step] for rank, rows in enumerate(by_rank)}
            for step in range(arguments.steps)
        }
        rounds.setdefault((config["rate"], config["world"]), []).append(steps)
    return rounds


def bench(rounds: dict, rate: str, network: dict | None) -> dict:
    """Return the content of ``bench.json`` of the small world sizes at one rate."""
    worlds = {
        str(world): {
            "num_nodes": world,
            "samples_per_step": SAMPLES_PER_RANK * world,
            "hosts": {},
            "rounds": rounds[rate, world],
        }
        for world in BENCH_WORLDS
    }
    return {
        "version": 1,
        "kind": "bench",
        "command": ["train.py"],
        "scaling": "weak",
        "backend": "gloo",
        "warmup_steps": WARMUP,
        "worlds": worlds,
        "gradient_bytes": LAYERS * LAYER_BYTES,
        "bucket_bytes": [LAYER_BYTES] * LAYERS,
        "settings": [],
        "network": network,
    }


def samples_per_s(rounds: dict, rate: str, world: int) -> float:
    """Return the throughput of all steps: nothing is left out of what is compared with."""
    seconds = [
        max(sum(stages) for stages in step.values())
        for steps in rounds[rate, world]
        for step in steps.values()
    ]
    return SAMPLES_PER_RANK * world / (statistics.fmean(seconds) / 1e6)


def compare(rounds: dict, networks: dict[str, dict | None]) -> list[tuple[float, float, bool]]:
    """Print forecasts beside measurements; return errors, half widths, and whether within."""
    rows = []
    print("      link  ranks   forecast      95 % interval    measured    error")
    for rate, network in networks.items():
        file = BenchFile.from_json(bench(rounds, rate, network))
        for point in prediction.predict(file, worlds=PREDICTED_WORLDS).points:
            actual = samples_per_s(rounds, rate, point.world)
            error = point.samples_per_s / actual - 1
            is_within = point.low <= actual <= point.high
            rows.append((error, (point.high - point.low) / 2 / point.samples_per_s, is_within))
            print(
                f"{rate:>10}{point.world:>7}{point.samples_per_s:>11,.0f}"
                f"{point.low:>11,.0f} - {point.high:<7,.0f}{actual:>10,.0f}{error:>+9.1%}"
                f"{'' if is_within else '  outside'}"
            )
    return rows


def measured(arguments: argparse.Namespace) -> tuple[dict, dict]:
    """Return the networks by rate, and the rounds of steps by rate and world size."""
    with tempfile.TemporaryDirectory() as name, hosts(max(PREDICTED_WORLDS)) as places:
        folder = Path(name)
        networks = {rate: measured_network(places[:2], rate, folder) for rate in RATES}
        return networks, measured_steps(places, folder, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", default="", help="write what was measured to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hosts are removed
    try:
        networks, rounds = measured(arguments)
    except SkipTest as reason:
        print(f"not measured: {reason}")
        return
    if arguments.keep:
        by_name = {f"{rate} {world}": steps for (rate, world), steps in rounds.items()}
        Path(arguments.keep).write_text(json.dumps({"networks": networks, "rounds": by_name}))
    for title, chosen in (
        ("with bench network", networks),
        ("without", dict.fromkeys(networks)),
    ):
        print(f"\n{title}:")
        rows = compare(rounds, chosen)
        print(
            f"largest error {max(abs(error) for error, _, _ in rows):.1%} (asked: at most 10 %);"
            f" widest interval +-{max(width for _, width, _ in rows):.0%} (at most 20 %);"
            f" {sum(is_within for _, _, is_within in rows)} of {len(rows)} within it"
        )


if __name__ == "__main__":
    main()
