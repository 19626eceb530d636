"""A rank of ``benchmarks/forecast.py``: trains at several world sizes and link rates in turn.

Computing is replaced by sleeping, with durations drawn from a file, because eight ranks cannot
compute on two cores. The rest is real: DistributedDataParallel, its buckets and hooks, gloo.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

FORWARD_SHARE = 0.35


class SleepingLayer(torch.autograd.Function):
    """The identity, with a weight: its backward sleeps, and its gradient is zero."""

    @staticmethod
    def forward(ctx, values, weight, step):
        ctx.step, ctx.gradient = step, torch.zeros_like(weight)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.step["backward_s"] / ctx.step["layers"])
        return gradient, ctx.gradient, None


class Model(torch.nn.Module):
    def __init__(self, layers: int, layer_bytes: int) -> None:
        super().__init__()
        weights = (torch.nn.Parameter(torch.zeros(layer_bytes // 4)) for _ in range(layers))
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, values, step):
        for weight in self.weights:
            values = SleepingLayer.apply(values, weight, step)
        return values


def timed_step(model, own_s: float, layers: int) -> list[int]:
    """Train a step; return its stages in microseconds, in the order of ``stage_times.STAGES``."""
    step = {"backward_s": own_s * (1 - FORWARD_SHARE), "layers": layers}
    begin = time.perf_counter()
    time.sleep(own_s * FORWARD_SHARE)
    loss = model(torch.zeros(1, requires_grad=True), step).sum()
    forward = time.perf_counter()
    marks = []

    def own_gradients_begin(*_):
        # Queued before DistributedDataParallel's own callback, so it runs before that waits.
        Variable._execution_engine.queue_callback(lambda: marks.append(time.perf_counter()))

    loss.grad_fn.register_prehook(own_gradients_begin)
    loss.backward()
    end = time.perf_counter()
    stages = (0.0, 0.0, 0.0, forward - begin, marks[0] - forward, end - marks[0])
    return [round(stage * 1e6) for stage in stages]


def train(config: dict, plan: dict, group) -> list[list[int]]:
    model = Model(plan["layers"], plan["layer_bytes"])
    bucket_mb = plan["layer_bytes"] / (1 << 20)
    parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_mb)
    # Each rank and round draws other durations: a forecast must not know them in advance.
    source = random.Random(f"{plan['seed']} {config} {dist.get_rank()}")
    durations = source.choices(plan["durations_s"], k=plan["warmup"] + plan["steps"])
    return [timed_step(parallel, own_s, plan["layers"]) for own_s in durations][plan["warmup"] :]


def set_rate(rate: str) -> None:
    cable = os.environ["GLOO_SOCKET_IFNAME"]
    words = f"tc qdisc replace dev {cable} root tbf rate {rate} burst 64kb latency 1s"
    subprocess.run(words.split(), check=True)


def main() -> None:
    torch.set_num_threads(1)
    plan = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sizes = sorted({config["world"] for config in plan["configs"]})
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    results = []
    for config in plan["configs"]:
        set_rate(config["rate"])
        dist.barrier()
        is_in = rank < config["world"]
        results.append(train(config, plan, groups[config["world"]]) if is_in else None)
        dist.barrier()
    Path(sys.argv[2]).write_text(json.dumps(results))
    dist.barrier()
    os._exit(0)  # with threads of gloo left, the teardown of torch can abort


if __name__ == "__main__":
    main()
