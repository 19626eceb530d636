"""What the strategies and communication hooks bring on a slow link, and what they cost in loss.

    python benchmarks/network.py                             # speed over 1 Gbit/s; needs root
    python benchmarks/network.py --part loss --steps 80      # loss after equal samples, loopback

Two network namespaces are joined by a link of 1 Gbit/s in each direction (``tc tbf``). In every
round raw TCP goodput is measured in both directions at once, as an all-reduce uses the link; then
two ranks train a perceptron of 25 million parameters with each setting in turn, in another order in every round;
medians over the rounds, with the least and the greatest. "link" is the share of the round's raw
goodput that the gradients of a step fill while it lasts, computation included: an all-reduce
between two ranks sends each rank's gradients once.

A round of all settings takes about a minute, since each setting begins with a broadcast of the
parameters; ``--setting NAME``, several times, chooses some.

The loss is that of the whole data after the same samples, from the same start. It does not depend
on the link, so it is measured without one.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn

from paceline import DDP, LocalSGD, Session

ROOT = Path(__file__).parent.parent
RATE = "1gbit"
PORT = 29717
WIDTH, ROWS, BATCH = 4096, 512, 8  # rows of data; batch of a rank
LOCAL_STEPS = 8
LR = 8.0  # of 1, 2, 4, 8, 12 and 20 the best of plain training
GOODPUT_BYTES = 100_000_000

# Settings whose arithmetic is that of plain DDP come first.
EXACT = {
    "ddp": DDP(),
    "ddp, buckets of 100 MiB": DDP(bucket_cap_mb=100),
    "parallel": DDP(comm_hook="parallel"),
    "parallel, views": DDP(comm_hook="parallel", gradient_as_bucket_view=True),
}
OTHER = {
    "fp16": DDP(comm_hook="fp16"),
    "bf16": DDP(comm_hook="bf16"),
    "powersgd, rank 4": DDP(comm_hook="powersgd", powersgd_rank=4, powersgd_start=1),
    f"local SGD, every {LOCAL_STEPS}": LocalSGD(every=LOCAL_STEPS),
    f"local SGD, every {LOCAL_STEPS}, average": LocalSGD(every=LOCAL_STEPS, outer="average"),
}
SETTINGS = {**EXACT, **OTHER}


class Training:
    """Two ranks that train with one setting, from the same start each time."""

    def __init__(self, name):
        self.session = Session(strategy=SETTINGS[name], loggers=(), run_dir="run")
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(1024, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, 1024),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        self.model, self.optimizer = self.session.setup(model, optimizer)
        self.num_bytes = sum(each.nbytes for each in model.parameters())
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, 1024, generator=generator)
        self.y = torch.tanh(self.x @ torch.randn(1024, 1024, generator=generator) / 32)
        self.num_steps = 0

    def step(self):
        world_size, rank = dist.get_world_size(), dist.get_rank()
        first = (self.num_steps * world_size + rank) * BATCH % ROWS
        rows = slice(first, first + BATCH)
        loss = nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
        self.session.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1

    def steps(self, count):
        """Return the seconds of some steps, from all ranks together to all ranks together."""
        dist.barrier()
        begin = perf_counter()
        for _ in range(count):
            self.step()
        dist.barrier()
        return perf_counter() - begin

    @torch.no_grad()
    def loss(self):
        return float(nn.functional.mse_loss(self.model(self.x), self.y))


def measure_speed(args):
    """As a rank: return the seconds of a step for each setting, a list over the rounds."""
    seconds, order = {name: [] for name in args.settings}, Random(0)
    goodputs = []
    for _ in range(args.rounds):
        goodputs.append(measure_goodput()["goodput"])
        for name in order.sample(args.settings, len(args.settings)):
            training = Training(name)
            count = LOCAL_STEPS if "local" in name else args.steps
            training.steps(count if "local" in name else 2)  # connections, buckets
            seconds[name].append(training.steps(count) / count)
            num_bytes = training.num_bytes
            del training
    return {"seconds": seconds, "bytes": num_bytes, "goodputs": goodputs}


def measure_loss(args):
    """As a rank: return the loss before, and with each setting after the same samples."""
    losses = {}
    for name in args.settings:
        training = Training(name)
        losses.setdefault("before", training.loss())
        training.steps(args.steps)
        losses[name] = training.loss()
        del training
    return {"losses": losses, "samples": args.steps * BATCH * 2}


def measure_goodput():
    """As one of two hosts: send and receive at once; return bytes a second that were received."""
    address = os.environ["MASTER_ADDR"], PORT + 1
    if os.environ["RANK"] == "0":
        with socket.create_server(address) as listener:
            peer, _ = listener.accept()
    else:
        peer = connected(address)
    with peer:
        sender = threading.Thread(target=peer.sendall, args=(bytes(GOODPUT_BYTES),))
        buffer, count = bytearray(1 << 20), 0
        begin = perf_counter()
        sender.start()
        while count < GOODPUT_BYTES:
            count += peer.recv_into(buffer)
        seconds = perf_counter() - begin
        sender.join()
    return {"goodput": GOODPUT_BYTES / seconds}


def connected(address):
    deadline = perf_counter() + 10
    while True:
        try:
            return socket.create_connection(address, timeout=10)
        except OSError:
            if perf_counter() > deadline:
                raise


def as_rank(args):
    """Perform a part as one of two ranks; rank 0 writes the result."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = measure_speed(args) if args.part == "speed" else measure_loss(args)
    dist.destroy_process_group()
    if rank == 0:
        args.result.write_text(json.dumps(result))


def run_part(part, args, hosts):
    """Run a part on two hosts, or on this one if there are none; return rank 0's result."""
    with tempfile.TemporaryDirectory(prefix="network-") as folder:
        result = Path(folder) / "result.json"
        ranks = [start_rank(rank, part, args, hosts, result) for rank in range(2)]
        try:
            for process in ranks:
                if process.wait(args.limit_s):
                    sys.exit(f"a rank of {part} failed")
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return json.loads(result.read_text())


def start_rank(rank, part, args, hosts, result):
    settings = [word for name in args.settings for word in ("--setting", name)]
    command = [sys.executable, __file__, "--as-rank", "--part", part, "--result", str(result)]
    command += ["--rounds", str(args.rounds), "--steps", str(args.steps), *settings]
    address = hosts[0].address if hosts else "127.0.0.1"
    variables = {
        **{"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0 if hosts else rank},
        **{"LOCAL_WORLD_SIZE": 1 if hosts else 2, "MASTER_ADDR": address, "MASTER_PORT": PORT},
        **{"OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": hosts[rank].cable if hosts else "lo"},
    }
    return subprocess.Popen(
        hosts[rank].inside(command) if hosts else command,
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        cwd=Path(result).parent,
    )


def slow_hosts():
    """Return the context of two hosts with the slow link."""
    sys.path.insert(0, str(ROOT / "tests" / "faults"))
    from hosts import hosts

    return hosts(2)


def render_speed(speed):
    """The table of goodput and speed, as lines."""
    goodputs = speed["goodputs"]
    goodput = median(goodputs)
    each = ", ".join(f"{value / 1e6:.1f}" for value in goodputs)
    yield f"raw TCP goodput, both directions at once: {goodput / 1e6:.1f} MB/s ({each})"
    yield f"{speed['bytes'] / 1e6:.0f} MB of gradients, {2 * BATCH} samples a step"
    yield ""
    yield f"{'':<28}{'step s':>8}{'min':>7}{'max':>7}{'samples/s':>11}{'x ddp':>7}{'link':>7}"
    plain = median(speed["seconds"]["ddp"])
    for name, values in speed["seconds"].items():
        step_s = median(values)
        links = [
            speed["bytes"] / value / of_round
            for value, of_round in zip(values, goodputs, strict=True)
        ]
        yield (
            f"{name:<28}{step_s:>8.3f}{min(values):>7.3f}{max(values):>7.3f}"
            f"{2 * BATCH / step_s:>11.1f}{plain / step_s:>7.2f}"
            + (f"{median(links):>7.3f}" if name in EXACT else f"{'':>7}")
        )


def render_loss(result):
    """The table of losses, as lines."""
    losses = result["losses"]
    yield f"loss after {result['samples']} samples; {losses['before']:.5f} before"
    for name, loss in losses.items():
        if name != "before":
            yield f"{name:<28}{loss:>10.5f}{loss / losses['ddp'] - 1:>+9.2%} against ddp"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["speed", "loss"], default="speed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=3, help="of a setting in a round; in all for the loss"
    )
    parser.add_argument("--setting", dest="settings", action="append", choices=list(SETTINGS))
    parser.add_argument("--limit-s", type=float, default=1800)
    parser.add_argument("--output", type=Path, help="raw numbers")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.settings = args.settings or list(SETTINGS)
    if args.as_rank:
        return as_rank(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces are removed
    with nullcontext([]) if args.part == "loss" else slow_hosts() as hosts:
        for host in hosts:
            host.slow(RATE)
        result = run_part(args.part, args, hosts)
    lines = render_loss(result) if args.part == "loss" else render_speed(result)
    print("\n".join(lines))
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
