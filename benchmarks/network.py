"""What the strategies and communication hooks bring on a slow link, and what they cost in loss.

    python benchmarks/network.py                             # speed over 1 Gbit/s; needs root
    python benchmarks/network.py --part loss --steps 80      # loss after equal samples, loopback

Two network namespaces are joined by a link of 1 Gbit/s in each direction (``tc tbf``). Its bucket
of tokens, ``--burst``, is as large as tc's manual asks for at this rate: 1 MB, or 8 ms. So a sender
may catch up after a pause of a few ms, which a real link does not let it. A smaller bucket forbids
that, and loses some of the rate to timers that come late, the more the busier the CPUs are.

In every round two ranks train a perceptron of 25 million parameters with each setting in turn, in
another order. Before each setting raw TCP goodput is measured in both directions at once, as an
all-reduce uses the link; the median of a round counts. Figures are medians over the rounds, with
bootstrap intervals (95 %).

An all-reduce between two ranks sends each rank's gradients once. "step" is the share of the raw
goodput that they fill over a whole step, computation included, "exchange" the share over its part
from the first gradient to the end of backward. "outside" is the rest of the step, in which there is
nothing to send yet, or nothing any more: forward, the backward of the last layer, the optimizer.
``--batch 1`` makes it as short as it gets with this model.

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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from paceline import DDP, Session
from paceline.measure import intervals

ROOT = Path(__file__).parent.parent
RATE = "1gbit"
BURST = "1mb"
PORT = 29717
WIDTH, ROWS = 4096, 512  # rows of data
LR = 8.0  # of 1, 2, 4, 8, 12 and 20 the best of plain training
GOODPUT_BYTES = 100_000_000

# Settings whose arithmetic is that of plain DDP come first.
EXACT = {
    "ddp": DDP(),
    "ddp, buckets of 100 MiB": DDP(bucket_cap_mb=100),
    "views": DDP(gradient_as_bucket_view=True),
}
OTHER = {"fp16": DDP()}  # with a communication hook of torch
SETTINGS = {**EXACT, **OTHER}


class Training:
    """Two ranks that train with one setting, from the same start each time."""

    def __init__(self, name, batch):
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
        if name == "fp16":
            self.model.register_comm_hook(None, fp16_compress_hook)
        self.num_bytes = sum(each.nbytes for each in model.parameters())
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, 1024, generator=generator)
        self.y = torch.tanh(self.x @ torch.randn(1024, 1024, generator=generator) / 32)
        self.num_steps, self.batch = 0, batch
        self.first_gradient = 0.0  # time of the last layer's gradient, with which DDP begins
        model[-1].weight.register_post_accumulate_grad_hook(self.note_gradient)

    def note_gradient(self, _):
        self.first_gradient = perf_counter()

    def step(self):
        """Train a step; return the seconds from its first gradient to the end of backward."""
        world_size, rank = dist.get_world_size(), dist.get_rank()
        first = (self.num_steps * world_size + rank) * self.batch % ROWS
        rows = slice(first, first + self.batch)
        loss = nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
        self.session.backward(loss)
        exchange_s = perf_counter() - self.first_gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        return exchange_s

    def steps(self, count):
        """Return the mean seconds of a step and of its exchange, over some steps.

        They begin and end with all ranks together.
        """
        dist.barrier()
        begin = perf_counter()
        exchanges_s = [self.step() for _ in range(count)]
        dist.barrier()
        return (perf_counter() - begin) / count, sum(exchanges_s) / count

    @torch.no_grad()
    def loss(self):
        return float(nn.functional.mse_loss(self.model(self.x), self.y))


def measure_speed(args):
    """As a rank: return the seconds of a step and of its exchange for each setting and round."""
    seconds, order = {name: [] for name in args.settings}, Random(args.seed)
    goodputs = []
    for _ in range(args.rounds):
        of_round = []
        for name in order.sample(args.settings, len(args.settings)):
            of_round.append(measure_goodput())
            training = Training(name, args.batch)
            training.steps(2)  # connections, buckets
            seconds[name].append(training.steps(args.steps))
            num_bytes = training.num_bytes
            del training
        goodputs.append(median(of_round))
    return {"seconds": seconds, "bytes": num_bytes, "goodputs": goodputs}


def measure_loss(args):
    """As a rank: return the loss before, and with each setting after the same samples."""
    losses = {}
    for name in args.settings:
        training = Training(name, args.batch)
        losses.setdefault("before", training.loss())
        training.steps(args.steps)
        losses[name] = training.loss()
        del training
    return {"losses": losses, "samples": args.steps * args.batch * 2}


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
    return GOODPUT_BYTES / seconds


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
    for name in ("rounds", "steps", "batch", "seed"):
        command += [f"--{name}", str(getattr(args, name))]
    command += settings
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


def render_speed(speed, samples):
    """The table of goodput and speed, as lines."""
    goodputs = speed["goodputs"]
    each = ", ".join(f"{value / 1e6:.1f}" for value in goodputs)
    yield f"raw TCP goodput, both directions at once: {median(goodputs) / 1e6:.1f} MB/s"
    yield f"  ({each})"
    yield f"{speed['bytes'] / 1e6:.0f} MB of gradients, {samples} samples a step"
    yield ""
    yield f"{'':<28}{'step s':>7}{'x ddp':>19}{'outside s':>10}{'step':>6}{'exchange':>9}"
    steps = {name: [pair[0] for pair in pairs] for name, pairs in speed["seconds"].items()}
    shares = {name: shares_of(speed, name) for name in steps if name in EXACT}
    for name, steps_s in steps.items():
        gain = intervals.ratio([steps["ddp"]], [steps_s])
        line = f"{name:<28}{median(steps_s):>7.3f}{shown(gain):>19}"
        if name in EXACT:
            outside_s = median(step_s - exchange_s for step_s, exchange_s in speed["seconds"][name])
            line += f"{outside_s:>10.3f}{shares[name][0].value:>6.3f}{shares[name][1].value:>9.3f}"
        yield line
    best = max(shares, key=lambda name: shares[name][0].value)
    of_step, of_exchange = map(shown, shares[best])
    yield f"best exact: {best}: step {of_step}, exchange {of_exchange}"


def shares_of(speed, name):
    """Return the shares of each round's goodput over the step and over the exchange, as medians."""
    rounds = zip(speed["seconds"][name], speed["goodputs"], strict=True)
    pairs = [
        [speed["bytes"] / seconds / goodput for seconds in step_and_exchange]
        for step_and_exchange, goodput in rounds
    ]
    return [intervals.median([values]) for values in zip(*pairs, strict=True)]


def shown(interval):
    return f"{interval.value:.3f} ({interval.low:.2f}-{interval.high:.2f})"


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
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank in a step")
    parser.add_argument("--burst", default=BURST, help="tokens of the link, as tc takes them")
    parser.add_argument("--seed", type=int, default=0, help="of the order of settings")
    parser.add_argument("--setting", dest="settings", action="append", choices=list(SETTINGS))
    parser.add_argument("--limit-s", type=float, default=1800)
    parser.add_argument("--output", type=Path, help="raw numbers")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.settings = args.settings or list(SETTINGS)
    if "ddp" not in args.settings:
        args.settings.insert(0, "ddp")  # the others are compared with it
    if args.as_rank:
        return as_rank(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces are removed
    with nullcontext([]) if args.part == "loss" else slow_hosts() as hosts:
        for host in hosts:
            host.slow(RATE, args.burst)
        result = run_part(args.part, args, hosts)
    lines = render_loss(result) if args.part == "loss" else render_speed(result, 2 * args.batch)
    print("\n".join(lines))
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
