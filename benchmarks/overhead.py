"""What one training step costs beside a loop written by hand, in microseconds.

    python benchmarks/overhead.py              # one process
    python benchmarks/overhead.py --ranks 2    # DDP: starts itself under torchrun
    python benchmarks/overhead.py --only raw,again,probe --rounds 15
    python benchmarks/overhead.py --gpu --only raw,again,probe,session  # batches are copied to it

A two-layer net (32-64-10), batches of 64 per rank, one thread, SGD, on the CPU.

All sides live in one process and take turns every few steps, so that a machine that gets slower or
faster on the way slows all of them alike; each turn has another order. "over raw" is the difference
to the raw loop's block of the same turn. Medians over the blocks of a round, then over the rounds;
min and max are of the rounds. "raw loop, again" is the raw loop a second time: what it shows over
raw is the noise, and differences of that size mean nothing. What a side does once for an epoch is
not in these figures.

It can also be started by torchrun or ``paceline run --no-probe``; with ``paceline run``'s probe in
place there would be no raw loop to compare with, and a note says so.
"""

import argparse
import gc
import itertools
import json
import logging
import os
import platform
import subprocess
import sys
import warnings
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import median
from tempfile import mkdtemp
from threading import Semaphore, Thread
from time import monotonic_ns, perf_counter, sleep

# Before torch: the step is measured on one thread of the CPU also where there is a GPU, and
# Accelerate would choose a number of threads itself if none is set.
os.environ["OMP_NUM_THREADS"] = "1"
ON_GPU = "--gpu" in sys.argv
if not ON_GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torch.distributed as dist
from torch import autograd, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, dataloader

NOWHERE = open(os.devnull, "w")  # noqa: SIM115  # open as long as the process lives
BATCH = 64
BLOCK = 30  # steps that a side is timed for in a turn
SETTLE = (
    20  # steps before them, not timed: the other sides have emptied caches, also the interpreter's
)
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


class WholeBatches(TensorDataset):
    """Gives all samples of a batch at once, which leaves little of the step to the loader."""

    def __getitems__(self, indices):
        return tuple(tensor[indices] for tensor in self.tensors)


def as_it_is(batch):
    return batch


def make_data(fetch):
    """The dataset, and what every loader of it needs besides batch size and order."""
    generator = torch.Generator().manual_seed(1)
    length = 500 * BATCH * WORLD
    inputs = torch.randn(length, 32, generator=generator)
    targets = torch.randint(10, (length,), generator=generator)
    if fetch == "batch":
        return WholeBatches(inputs, targets), {"collate_fn": as_it_is}
    return TensorDataset(inputs, targets), {}


def make_net():
    """The net, the same at the start of every side."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def whole(dataset, options):
    """The data as paceline's loader fetches whole batches: a plain TensorDataset, which it takes
    in one piece.
    """
    return TensorDataset(*dataset.tensors), {
        key: value for key, value in options.items() if key != "collate_fn"
    }


def plain_loader(dataset, options):
    """The loader that Fabric, Accelerate and Lightning are given, and shard themselves."""
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, **options)


def endless(loader, *, set_epoch=None):
    """Batches of one epoch after the other."""
    for epoch in itertools.count():
        if set_epoch:
            set_epoch(epoch)
        yield from loader


def timed(step, batches):
    """Return a function that makes a number of steps and returns seconds per step."""

    def steps(number):
        for x, y in itertools.islice(batches, number):
            step(x.to(DEVICE), y.to(DEVICE))
        if ON_GPU:
            torch.cuda.synchronize()

    def seconds_per_step(num_steps):
        steps(SETTLE)
        begin = perf_counter()
        steps(num_steps)
        return (perf_counter() - begin) / num_steps

    return seconds_per_step


def raw(dataset, options):
    """The loop by hand."""
    model = make_net()
    if WORLD > 1:
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(dataset, shuffle=True)
        loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, **options)
        batches = endless(loader, set_epoch=sampler.set_epoch)
    else:
        batches = endless(plain_loader(dataset, options))
    optimizer = make_optimizer(model)

    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, batches)


def probe(dataset, options):
    """The loop by hand, seen by paceline's launcher; the other sides are not."""
    run, switch = raw(dataset, options), probe_switch()

    def seconds_per_step(num_steps):
        switch(True)
        try:
            return run(num_steps)
        finally:
            switch(False)

    return seconds_per_step


def probe_switch():
    """Install the probe; return a function that sets or removes its three hooks of every step.

    It stays the same probe from block to block: a new one would time many of its first steps. How
    often it times the stages of a step depends on the time of a step, without that of other sides.
    """
    from paceline.counters import SLOT_BYTES
    from paceline.launch.probe import probe
    from paceline.launch.probe.stage_clock import StageClock

    elsewhere_ns, left_ns = 0, monotonic_ns()

    class Stages(StageClock):
        def advance(self, steps, step_ns, **times):
            return super().advance(steps, step_ns=step_ns - elsewhere_ns // steps, **times)

    probe.StageClock = Stages
    iterators = dataloader._BaseDataLoaderIter
    without = autograd.backward, iterators.__next__
    probe.install(memoryview(bytearray(SLOT_BYTES)).cast("q"))
    hooked = autograd.backward, iterators.__next__
    key, after_step = _global_optimizer_post_hooks.popitem()

    def switch(is_on):
        nonlocal elsewhere_ns, left_ns
        autograd.backward, iterators.__next__ = hooked if is_on else without
        if is_on:
            _global_optimizer_post_hooks[key] = after_step
            elsewhere_ns += monotonic_ns() - left_ns
        else:
            left_ns = monotonic_ns()
            del _global_optimizer_post_hooks[key]

    autograd.backward, iterators.__next__ = without
    return switch


def session(dataset, options):
    """paceline's Session and its loader, whose batch size is that of all ranks together."""
    from paceline import Session

    session, model = Session(seed=0), make_net()
    model, optimizer = session.setup(model, make_optimizer(model))
    dataset, options = whole(dataset, options)
    loader = session.loader(
        dataset, batch_size=BATCH * WORLD, shuffle=True, num_workers=0, **options
    )

    def step(x, y):
        loss = cross_entropy(model(x), y)
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, endless(loader))


def fabric(dataset, options):
    """Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto")
    fabric.launch()
    model = make_net()
    model, optimizer = fabric.setup(model, make_optimizer(model))
    loader = fabric.setup_dataloaders(plain_loader(dataset, options))

    def step(x, y):
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, endless(loader))


def accelerate(dataset, options):
    """Hugging Face Accelerate."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), make_net()
    model, optimizer, loader = accelerator.prepare(
        model, make_optimizer(model), plain_loader(dataset, options)
    )

    def step(x, y):
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, endless(loader))


class Turns:
    """Blocks of steps of a loop that somebody else owns: it runs in a thread of its own and
    waits between them.
    """

    def __init__(self):
        self._go, self._done = Semaphore(0), Semaphore(0)
        self._at, self._num_steps = 0, 0
        self._begin = self._end = 0.0

    def step(self):
        """To be called first in each step."""
        if self._at == SETTLE:
            self._begin = perf_counter()
        elif self._at == SETTLE + self._num_steps:
            self._end = perf_counter()
            self._at = 0
            self._done.release()
        if self._at == 0:
            self._go.acquire()
        self._at += 1

    def of(self, fit):
        """Return a function that lets ``fit`` make a number of steps and returns seconds per
        step.
        """

        def seconds_per_step(num_steps):
            if not self._num_steps:
                Thread(target=fit, daemon=True).start()
            self._num_steps = num_steps
            self._go.release()
            self._done.acquire()
            return (self._end - self._begin) / num_steps

        return seconds_per_step


def timed_module(base, turns, *, log):
    """Return a module for a Trainer, Lightning's or ours."""

    class Module(base):
        def __init__(self):
            super().__init__()
            self.net = make_net()

        def training_step(self, batch, batch_idx):
            turns.step()
            x, y = batch
            loss = cross_entropy(self.net(x), y)
            if log:
                self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return make_optimizer(self)

    return Module()


def our_trainer(dataset, options):
    """paceline's Trainer with a CSV file, to which it logs every 50 steps, and a progress bar,
    drawn into nowhere.
    """
    from rich.console import Console

    import paceline

    folder, turns = mkdtemp(), Turns()
    dataset, options = whole(dataset, options)
    loader = DataLoader(dataset, batch_size=BATCH * WORLD, shuffle=True, **options)
    trainer = paceline.Trainer(max_epochs=-1, enable_checkpointing=False, run_dir=folder, seed=0)
    trainer.console = Console(file=NOWHERE, force_terminal=True)
    module = timed_module(paceline.Module, turns, log=True)
    return turns.of(lambda: trainer.fit(module, loader))


def trainer(dataset, options):
    """Lightning's Trainer with logger, progress bar, checkpoint and summary off."""
    return lightning_trainer(dataset, options, full=False)


def full_trainer(dataset, options):
    """Lightning's Trainer with a CSV file, to which it logs every 50 steps, and a progress bar."""
    return lightning_trainer(dataset, options, full=True)


def lightning_trainer(dataset, options, *, full):
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    turns = Turns()
    loader = plain_loader(dataset, options)
    trainer = lightning.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        logger=CSVLogger(mkdtemp()) if full else False,
        enable_progress_bar=full,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    module = timed_module(lightning.LightningModule, turns, log=full)
    return turns.of(lambda: trainer.fit(module, loader))


SIDES = {
    "raw": ("raw loop", raw),
    "again": ("raw loop, again", raw),
    "probe": ("raw loop, probe", probe),
    "session": ("paceline.Session", session),
    "our-trainer": ("paceline.Trainer", our_trainer),
    "fabric": ("Lightning Fabric", fabric),
    "accelerate": ("Accelerate", accelerate),
    "trainer": ("Lightning Trainer", trainer),
    "full-trainer": ("same, log and bar", full_trainer),
}


def build(names, fetch):
    """Return the sides that can run here, warmed up, and for each other the reason why it can't."""
    dataset, options = make_data(fetch)
    sides, skipped = {}, {}
    for name in names:
        try:
            sides[name] = SIDES[name][1](dataset, options)
            sides[name](100)
        except ImportError as error:
            skipped[name] = f"not available: {error}"
    torch.set_num_threads(1)  # a framework may have set another number
    return sides, skipped


def measure(sides, *, rounds, steps):
    """Return each side's seconds per step, as a list of blocks for each round."""
    seconds = {name: [[] for _ in range(rounds)] for name in sides}
    order = Random(0)  # the same on all ranks
    gc.freeze()  # what was imported and built is garbage of no block
    for number in range(rounds):
        gc.collect()
        for _ in range(max(1, steps // BLOCK)):
            for name in order.sample(list(sides), len(sides)):
                seconds[name][number].append(sides[name](BLOCK))
    return seconds


def describe_cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None
    )
    return f"{model or platform.processor()}, {os.cpu_count()} CPUs"


def describe(args):
    """Where and with what the numbers were measured."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "cpu": describe_cpu(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "ranks": WORLD,
        "steps": args.steps,
        "rounds": args.rounds,
        "fetch": args.fetch,
    }


def of_rounds(blocks):
    """Median, least and greatest of the rounds' medians, in microseconds."""
    medians = [median(each) * 1e6 for each in blocks]
    return median(medians), min(medians), max(medians)


def over_raw(blocks, raw_blocks):
    """What each block took more than the raw loop's of the same turn."""
    rounds = zip(blocks, raw_blocks, strict=True)
    return [[ours - raws for ours, raws in zip(*pair, strict=True)] for pair in rounds]


def render(header, seconds, skipped):
    """The table, as lines."""
    yield " · ".join(f"{key} {value}" for key, value in header.items())
    yield ""
    yield f"{'loop':<18}{'µs/step':>10}{'min':>9}{'max':>9}{'over raw':>12}{'min':>9}{'max':>9}"
    for name, (title, _) in SIDES.items():
        if name in seconds:
            line = "{:<18}{:>10.1f}{:>9.1f}{:>9.1f}".format(title, *of_rounds(seconds[name]))
            if name != "raw":
                difference = of_rounds(over_raw(seconds[name], seconds["raw"]))
                line += "{:>+12.1f}{:>+9.1f}{:>+9.1f}".format(*difference)
            yield line
        elif name in skipped:
            yield f"{title:<18}   {skipped[name]}"


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, default=WORLD, help="processes that train together (default 1)"
    )
    parser.add_argument(
        "--steps", type=int, default=2000, help="timed steps of each side in a round"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--fetch",
        choices=("batch", "sample"),
        default="batch",
        help=(
            "sample: a plain TensorDataset, read sample by sample, which takes longer than the step"
            " itself (paceline reads whole batches of it in any case)"
        ),
    )
    parser.add_argument(
        "--gpu", action="store_true", help="on a GPU; only paceline's sides know it"
    )
    parser.add_argument("--only", default=",".join(SIDES), help="some of " + ",".join(SIDES))
    parser.add_argument(
        "--json", action="store_true", help="print the raw numbers, in seconds per step"
    )
    args = parser.parse_args(argv)
    args.names = ["raw", *(name for name in args.only.split(",") if name != "raw")]
    unknown = [name for name in args.names if name not in SIDES]
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}; there are {', '.join(SIDES)}")
    return args


def run(args):
    """Measure in this process, a rank or the only one; rank 0 prints."""
    logging.disable(logging.WARNING)  # Lightning's words on every fit
    warnings.simplefilter("ignore")
    if WORLD > 1:
        dist.init_process_group(
            "gloo"
        )  # one for all sides: each of them takes up a group that is there
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        print(
            "note: optimizer hooks are in place already, the raw loop pays for them too",
            file=sys.stderr,
        )
    header = describe(args)
    sides, skipped = build(args.names, args.fetch)
    seconds = measure(sides, rounds=args.rounds, steps=args.steps)
    if WORLD == 1 or dist.get_rank() == 0:
        if args.json:
            text = json.dumps({**header, "seconds_per_step": seconds, "skipped": skipped})
        else:
            text = "\n".join(render(header, seconds, skipped))
        print(text, file=sys.__stdout__, flush=True)  # a progress bar has taken the other one
    if WORLD > 1:
        # Without the pause torch can hang: a gloo group that is freed right after a backward waits,
        # with the interpreter's lock held, for its own thread, which needs the lock to let go of
        # that backward.
        sleep(0.1)
        dist.destroy_process_group()


def main():
    args = parse(sys.argv[1:])
    if args.ranks == WORLD:
        run(args)
    elif "RANK" in os.environ:
        sys.exit(f"--ranks {args.ranks}, but the launcher that started this has {WORLD}")
    else:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
        sys.exit(subprocess.call([sys.executable, "-m", *torchrun, *sys.argv]))


if __name__ == "__main__":
    main()
