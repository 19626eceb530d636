"""Run folders as a launcher, a logger and a bench leave them, for the tests of ``paceline report``."""

import json
import random

STAGES = ("optimizer", "other", "data", "forward", "backward")


def described(seconds=0.2, *, named=None):
    """A step as ``stage_times.describe`` describes it: a fifth of it is data, as much is waiting."""
    shares = dict(zip(STAGES, (0.05, 0.05, 0.2, 0.15, 0.25), strict=True))
    return {
        "seconds": seconds,
        "stages": {stage: share * seconds for stage, share in shares.items()},
        "exchange": 0.1 * seconds,
        "waiting": 0.2 * seconds,
        "waited_for": {"1": 1.0},
        "named": named,
        "suspects": [],
        "timed_steps": 64,
    }


NAMED = {"rank": 1, "host": "node-b", "stage": "data", "seconds": 0.04, "errors": 50.0}


def speed_line(number, *, attempt=0, start_s=1000.0, **values):
    """A line of ``speed.jsonl``, of which there is one each 5 s: 5 steps a second."""
    line = {
        "time_s": start_s + 5.0 * number,
        "attempt": attempt,
        "steps": 25 * number,
        "steps_per_s": 5.0,
        "loss": 2.0 / (number + 1),
        "samples_per_batch": 64,
        "tokens_per_batch": 0,
        "batches_per_step": 1.0,
        "step": described(0.2 + 0.001 * number, named=NAMED),
    }
    return {**line, **values}


def rank(number, *, own_s=10.0, host="node-a"):
    counts = {"steps": 101, "batches": 101, "seconds": 20.0, "data_s": 2.0, "own_s": own_s}
    return {"rank": number, "host": host, **counts, "loops": 2, "open_batches": 0, "loss": 0.5}


def start(attempt=0, *, time_s=1000.0, world_size=2, host="node-a"):
    return {
        "version": 1,
        "time_ns": int(time_s * 1e9),
        "node": 0,
        "kind": "start",
        "attempt": attempt,
        "ranks": list(range(world_size)),
        "pids": [1] * world_size,
        "world_size": world_size,
        "host": host,
        "launcher": 1,
    }


def outcome(*, time_s=1100.0, exit_status=0, findings=(), summary=None):
    return {
        "version": 1,
        "time_ns": int(time_s * 1e9),
        "node": 0,
        "kind": "outcome",
        "exit_status": exit_status,
        "findings": list(findings),
        "summary": summary or {},
    }


FINDING = {
    "name": "script-error-on-one-rank",
    "what": "rank 1 raised RuntimeError: <b>no & more</b>",
    "where": "rank 1 on node-b",
    "evidence": ["train.py:24 in <module>: raise RuntimeError('<script>alert(1)</script>')"],
    "why": "",
    "fix": "traceback: less logs/rank-001.out",
    "severity": "error",
}


def write_run(folder, *, command=("train.py", "--lr", "0.1"), lines=12, events=None, metrics=None):
    """Write a whole run: 60 s, two ranks, 300 steps, and return its folder."""
    folder.mkdir(parents=True)
    records = [start(), outcome()] if events is None else events
    write_lines(folder / "events.jsonl", records)
    write_lines(folder / "speed.jsonl", [speed_line(number) for number in range(1, lines + 1)])
    ranks = [rank(0), rank(1, own_s=14.0, host="node-b")]
    (folder / "speed.json").write_text(
        json.dumps({**speed_line(lines), "ranks": ranks, "gpus": []})
    )
    training = {"version": 1, "script": command[0], "arguments": list(command[1:])}
    (folder / "training.json").write_text(json.dumps(training))
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "metrics.csv").write_text(table() if metrics is None else metrics)
    return folder


PLAN = {
    "nproc": {"value": 2, "reason": "--nproc-per-node"},
    "threads": {"value": 1, "reason": "2 usable CPUs / 2 ranks"},
    "backend": "gloo",
    "start_method": {"value": "fork", "reason": ""},
    "software": {"python": "3.11.7", "torch": "2.13.0", "torch_cuda": "", "nccl": ""},
}


def table(rows=300, *, factor=1.0):
    """A table of metrics: a training loss each step, a loss and an accuracy each 30 steps."""
    lines = ["step,train/loss,val/loss,val/accuracy,lr"]
    for step in range(1, rows + 1):
        lines.append(f"{step},{factor * 2.5 / step},,,{0.1 - step / 10000}")
        if step % 30 == 0:
            lines.append(f"{step},,{factor * 3 / step},{1 - 20 / (step + 20)},")
    return "\n".join(lines) + "\n"


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def world(ranks, *, step_us=20_000, exchange_us=0, jitter=0.05, rounds=3, steps=20):
    """A world of a bench: each rank's own work is ``step_us``, then all exchange."""
    source = random.Random(ranks)
    measured = []
    for _ in range(rounds):
        blocks = {}
        for step in range(steps):
            own = [step_us * (1 + jitter * source.random()) for _ in range(ranks)]
            blocks[str(12 + step)] = {
                str(number): durations(work, max(own) - work + exchange_us)
                for number, work in enumerate(own)
            }
        measured.append(blocks)
    hosts = {str(number): "node-a" for number in range(ranks)}
    return {"num_nodes": 1, "samples_per_step": 32 * ranks, "hosts": hosts, "rounds": measured}


def durations(own_us, exchange_us):
    return [int(own_us * share) for share in (0.05, 0.05, 0.1, 0.3, 0.5)] + [int(exchange_us)]


def bench(**values):
    return {
        "version": 1,
        "kind": "bench",
        "command": ["train.py", "--lr", "0.1"],
        "scaling": "weak",
        "backend": "gloo",
        "warmup_steps": 10,
        "worlds": {
            "1": world(1),
            "2": world(2, exchange_us=2_000),
            "4": world(4, exchange_us=5_000),
        },
        "gradient_bytes": 102_400_000,
        "bucket_bytes": None,
        "settings": [],
        "network": {"points": [network_point(1 << power) for power in range(10, 29, 2)]},
        **values,
    }


def network_point(size, *, latency_s=1e-4, bytes_per_s=1e9):
    seconds = latency_s + 1.5 * size / bytes_per_s
    return {
        "bytes": size,
        "seconds": seconds,
        "low": 0.95 * seconds,
        "high": 1.1 * seconds,
        "bus_bytes_per_s": 1.5 * size / seconds,
        "rounds": 3,
        "repeats": 10,
    }


def forecast(most=4096):
    points = []
    ranks = 1
    while ranks <= most:
        value = 1500 * ranks / (1 + 0.02 * ranks**0.5)
        point = {"world": ranks, "num_nodes": 1, "samples_per_s": value, "efficiency": 0.5}
        points.append({**point, "low": 0.9 * value, "high": 1.1 * value})
        ranks *= 2
    return {"points": points, "half_worth_at": 2500, "notes": ["a second node was not measured"]}


def write_bench(folder, **values):
    """Write the folder of a bench with a forecast, and return it."""
    folder.mkdir(parents=True)
    (folder / "bench.json").write_text(json.dumps(bench(**values)))
    (folder / "forecast.json").write_text(json.dumps(forecast()))
    return folder
