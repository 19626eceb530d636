"""What a checkpoint costs: the stall of training, a save that is waited for, and the shares of two
ranks.

    python benchmarks/checkpoint.py                  # 1 GB, under /tmp
    python benchmarks/checkpoint.py --folder /scratch/me --rounds 9
    python benchmarks/checkpoint.py --gpu            # the state is on a GPU

The state is like that of a transformer with Adam: matrices of 1 to 17 MB, vectors of a few kB and
scalars.
The sides take turns in every round, in another order each time; medians over the rounds, with the
least and the greatest. Each file is deleted and the disk synchronised before the next side begins.
Ratios are given of the medians, of the least figures (the machine at its quietest) and as the
median of each round's own.

"stall" is the time inside save, from the second one on: the first allocates the buffers. "copy" is
the floor of it: one copy of the state into memory that is allocated already. "torch.save" writes
one file and fsyncs it, as our files are; "torch.save, no fsync" is shown beside it. The "excess" is
what the training steps from the end of save to the commit took longer than steps without a save,
summed up: the background and training share the CPUs.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from paceline.train.checkpoint import Checkpoints
from paceline.world import World, from_environ

ROOT = Path(__file__).parent.parent
STEPS = 30  # training steps without a save, to compare with


def make_state(num_bytes, device):
    """Names to tensors: parameters of transformer blocks, and two moments and a step for each."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        **dict.fromkeys(("attn.q", "attn.k", "attn.v", "attn.out"), (1024, 1024)),
        "mlp.up": (4096, 1024),
        "mlp.down": (1024, 4096),
        **dict.fromkeys(("mlp.up.bias",), (4096,)),
        **dict.fromkeys(
            ("norm1", "norm1.bias", "norm2", "norm2.bias", "attn.bias", "mlp.down.bias"), (1024,)
        ),
    }
    state, total, block = {}, 0, 0
    while total < num_bytes:
        for name, shape in shapes.items():
            tensor = torch.randn(shape, generator=generator).to(device)
            state[f"model/{block}.{name}"] = tensor
            state[f"optimizer/0/{block}.{name}/exp_avg"] = tensor * 2
            state[f"optimizer/0/{block}.{name}/exp_avg_sq"] = tensor * tensor
            state[f"optimizer/0/{block}.{name}/step"] = torch.tensor(1.0)
            total += 3 * tensor.nbytes
        block += 1
    return state


def size_of(state):
    return sum(tensor.nbytes for tensor in state.values())


class Sides:
    """What takes turns."""

    def __init__(self, state, folder, device):
        self.state, self.folder, self.device = state, folder, device
        self.checkpoints = Checkpoints(folder / "checkpoints", world=World(), device=device)
        pin = device.type == "cuda"
        self.copies = {
            name: torch.zeros_like(each, device="cpu", pin_memory=pin)
            for name, each in state.items()
        }
        self.x = torch.randn(512, 512, device=device)
        self.step_number = 0
        self.by_name = {
            "async": self.save_async,
            "blocking": self.save_blocking,
            "torch.save": self.torch_save,
            "torch.save, no fsync": self.torch_save_unsynced,
            "first": self.first_saves,
            "first, not prepared": self.first_save_unprepared,
        }

    def sync(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self):
        """A training step of some 10 ms that keeps the CPUs busy."""
        begin = perf_counter()
        y = self.x
        for _ in range(4):
            y = torch.tanh(y @ self.x)
        self.sync()
        return perf_counter() - begin

    def copy(self):
        begin = perf_counter()
        for name, tensor in self.state.items():
            self.copies[name].copy_(tensor, non_blocking=True)
        self.sync()
        return perf_counter() - begin

    def save(self, **options):
        self.step_number += 1
        begin = perf_counter()
        self.checkpoints.save(
            self.state, step=self.step_number, epoch=0, keep_last=1, keep_best=0, **options
        )
        return perf_counter() - begin

    def save_async(self):
        usual = median(self.step() for _ in range(STEPS))
        copy = self.copy()
        begin = perf_counter()
        stall = self.save()
        excess = num_steps = 0
        while self.checkpoints._background.is_busy:
            excess += self.step() - usual
            num_steps += 1
        self.checkpoints.wait()
        return {
            "copy": copy,
            "stall": stall,
            "until commit": perf_counter() - begin,
            "excess of steps": excess,
            "steps meanwhile": num_steps,
            "usual step": usual,
        }

    def save_blocking(self):
        return {"blocking": self.save(wait=True)}

    def of_a_new_session(self, *, prepares):
        """Stalls of three saves, a second after its first steps."""
        shutil.rmtree(self.folder / "new", ignore_errors=True)
        here = Checkpoints(self.folder / "new", world=World(), device=self.device)
        here.find("latest")  # imports, as the restore at the start of a script does
        if prepares:
            here.prepare(size_of(self.state))
        stalls, begin = [], perf_counter()
        while perf_counter() - begin < 1:
            self.step()
        for number in range(3):
            begin = perf_counter()
            here.save(self.state, step=number, epoch=0, keep_last=1, keep_best=0)
            stalls.append(perf_counter() - begin)
            here.wait()
        here.close()
        return stalls

    def first_saves(self):
        first, second, third = self.of_a_new_session(prepares=True)
        return {"first save": first, "second save": second, "third save": third}

    def first_save_unprepared(self):
        return {"first save, not prepared": self.of_a_new_session(prepares=False)[0]}

    def torch_save(self, *, sync=True):
        path = self.folder / "state.pt"
        begin = perf_counter()
        with path.open("wb") as file:
            torch.save(self.state, file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        seconds = perf_counter() - begin
        path.unlink()
        return {"torch.save" if sync else "torch.save, no fsync": seconds}

    def torch_save_unsynced(self):
        return self.torch_save(sync=False)


def measure(sides, rounds):
    """Return the seconds of each figure, a list over the rounds."""
    seconds, order = {}, Random(0)
    sides.save_async()  # allocates the buffers
    for _ in range(rounds):
        for name in order.sample(list(sides.by_name), len(sides.by_name)):
            shutil.rmtree(sides.folder / "checkpoints", ignore_errors=True)
            (sides.folder / "checkpoints").mkdir(exist_ok=True)
            os.sync()
            for figure, value in sides.by_name[name]().items():
                seconds.setdefault(figure, []).append(value)
    sides.checkpoints.close()
    return seconds


def share_of_ranks(folder, num_bytes):
    """Start two ranks that save together; return what each has written."""
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
        "--as-rank",
    ]
    words = ["--folder", str(folder), "--gigabytes", str(num_bytes / 1e9)]
    subprocess.run(
        [sys.executable, "-m", *command, *words],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    (path,) = (folder / "of-ranks").glob("0*")
    told = json.loads((path / "manifest.json").read_text())
    return {name: file["bytes"] for name, file in told["files"].items() if name.endswith(".distcp")}


def as_rank(args):
    """One of those two."""
    dist.init_process_group("gloo")
    here = Checkpoints(
        args.folder / "of-ranks", world=from_environ(os.environ), device=torch.device("cpu")
    )
    here.save(make_state(args.gigabytes * 1e9, "cpu"), step=1, epoch=0)
    here.close()
    dist.barrier()
    dist.destroy_process_group()


def render(header, seconds, shares):
    """The table, as lines."""
    yield " · ".join(f"{key} {value}" for key, value in header.items())
    yield ""
    yield f"{'':<24}{'median s':>10}{'min':>9}{'max':>9}"
    for figure, values in seconds.items():
        yield f"{figure:<24}{median(values):>10.4f}{min(values):>9.4f}{max(values):>9.4f}"
    yield ""
    yield f"{'ratio of':<34}{'medians':>8}{'least':>9}{'each round':>11}   target"
    for what, left, right, target in (
        ("stall / copy", "stall", "copy", "at most 1.3"),
        ("stall / torch.save", "stall", "torch.save", "at most 0.2"),
        ("blocking / torch.save", "blocking", "torch.save", "at most 1"),
        ("blocking / torch.save, no fsync", "blocking", "torch.save, no fsync", ""),
        ("first save / third", "first save", "third save", "at most 2"),
        ("not prepared / third", "first save, not prepared", "third save", ""),
    ):
        ratios = [a / b for a, b in zip(seconds[left], seconds[right], strict=True)]
        of_medians, of_least = (
            median(seconds[left]) / median(seconds[right]),
            min(seconds[left]) / min(seconds[right]),
        )
        yield f"{what:<34}{of_medians:>8.3f}{of_least:>9.3f}{median(ratios):>11.3f}   {target}"
    for name, count in shares.items():
        yield f"{name:<34}{count / sum(shares.values()):>8.3f}   of the bytes of two ranks"


def describe(args, state, device):
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "cpu": f"{model or platform.processor()}, {os.cpu_count()} CPUs",
        **({"gpu": torch.cuda.get_device_name()} if device.type == "cuda" else {}),
        "torch": torch.__version__,
        "bytes": size_of(state),
        "tensors": len(state),
        "threads": torch.get_num_threads(),
        "rounds": args.rounds,
        "load before": round(os.getloadavg()[0], 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="on the disk to measure (default a new one in /tmp)",
    )
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "raw" / "checkpoint.json", help="raw numbers"
    )
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        return as_rank(args)
    device = torch.device("cuda" if args.gpu else "cpu")
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="checkpoint-") as folder:
        state = make_state(args.gigabytes * 1e9, device)
        header = describe(args, state, device)
        seconds = measure(Sides(state, Path(folder), device), args.rounds)
        del state
        shares = share_of_ranks(Path(folder), args.gigabytes * 1e9)
    print("\n".join(render(header, seconds, shares)))
    args.output.write_text(
        json.dumps({**header, "seconds": seconds, "bytes_of_ranks": shares}, indent=1) + "\n"
    )
    return None


if __name__ == "__main__":
    main()
