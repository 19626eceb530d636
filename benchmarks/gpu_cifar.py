"""Seconds of an epoch of ResNet-18 on CIFAR-10: the usual recipe beside paceline's, on one GPU.

    python benchmarks/gpu_cifar.py                                   # some minutes on a GPU
    python benchmarks/gpu_cifar.py --device cpu --images 512 --tiny  # the same code, under a minute

"recipe" is the ResNet-18 of cluster tutorials: pictures in CIFAR-10's binary files (made up here),
crop, flip and normalization per picture in DataLoader workers, float32, batches of 128, SGD. It
gets what tutorials recommend: pinned memory, copies that do not block, workers that are kept
between epochs. Convolutions may use TF32, which is torch's default.

"paceline" reads the same files with ``paceline.data.arrays``, which transforms batches on the GPU,
and computes with channels_last and bfloat16 (``Session(precision="bf16-mixed")``). The same with
``torch.compile`` is measured beside it, alone and with CUDA graphs (``reduce-overhead``). That one
is compared with the recipe that ends a training of ``--training-epochs`` first, start-up included.

After a first epoch each, which is reported alone, epochs take turns, in another order every time.
Medians; ratios with their bootstrap interval (95 %). The rate of large bfloat16 matrix products is
measured in the same run. The share of it is the arithmetic of the convolutions and of the last
layer, forward and backward as ``torch.utils.flop_counter`` counts it, over the epoch's time.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
import torch
from pictures import MEAN, STD, PilPictures
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import paceline
from paceline.data import Normalize, RandomCrop, RandomFlip, arrays
from paceline.measure.intervals import ratio

BATCH, CLASSES, FILES = 128, 10, 5
PIXELS = (3, 32, 32)
WIDTH, TINY_WIDTH = 64, 8
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
MATRIX_SIZE, TINY_MATRIX_SIZE = 8192, 512
RECIPE, PLAIN = "recipe", "paceline"
MODES = ("default", "reduce-overhead")  # of torch.compile


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al., 2015, the basic block)."""

    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.first = convolution(num_in, num_out, 3, stride)
        self.second = convolution(num_out, num_out, 3)
        is_same = stride == 1 and num_in == num_out
        self.shortcut = nn.Identity() if is_same else convolution(num_in, num_out, 1, stride)

    def forward(self, x):
        inner = self.second(functional.relu(self.first(x)))
        return functional.relu(inner + self.shortcut(x))


def convolution(num_in, num_out, size, stride=1):
    layer = nn.Conv2d(num_in, num_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(num_out))


def resnet18(width):
    """Return ResNet-18 for pictures of 32x32: a first convolution of 3x3, and no pooling after it."""
    blocks, num_in = [], width
    for stage in range(4):
        num_out = width << stage
        blocks += [Block(num_in, num_out, 2 if stage else 1), Block(num_out, num_out, 1)]
        num_in = num_out
    return nn.Sequential(
        convolution(3, width, 3),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(num_in, CLASSES),
    )


def write_files(folder, num_images):
    """Write pictures in CIFAR-10's binary format: a byte with the label, then the three planes."""
    source = np.random.default_rng(0)
    for number, length in enumerate(np.diff(np.linspace(0, num_images, FILES + 1, dtype=int))):
        labels = source.integers(0, CLASSES, (length, 1), dtype=np.uint8)
        noise = source.integers(0, 128, (length, int(np.prod(PIXELS))), dtype=np.uint8)
        records = np.concatenate([labels, noise + 12 * labels], axis=1)  # brighter with the label
        records.tofile(folder / f"data_batch_{number + 1}.bin")


def read_files(folder):
    """Return the images, ``[samples, 3, 32, 32]``, and the labels."""
    paths = sorted(folder.glob("data_batch_*.bin"))
    flat = np.concatenate([np.fromfile(path, dtype=np.uint8) for path in paths])
    records = flat.reshape(-1, 1 + int(np.prod(PIXELS)))
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, *PIXELS)
    return images, records[:, 0].astype(np.int64)


class Recipe:
    """A training as tutorials write it."""

    def __init__(self, folder, device, args):
        images, labels = read_files(folder)
        is_gpu = device.type == "cuda"
        self.device = device
        self.loader = DataLoader(
            PilPictures(np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels),
            BATCH,
            shuffle=True,
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
            pin_memory=is_gpu,
        )
        torch.manual_seed(0)
        self.model = resnet18(args.width).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), **SGD)

    def epoch(self):
        """Train on all pictures; return the mean loss, on the device."""
        losses = []
        for images, labels in self.loader:
            x = images.to(self.device, non_blocking=True)
            y = labels.to(self.device, non_blocking=True)
            loss = functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()


class Ours:
    """The same training with paceline; ``mode`` is one of torch.compile's, or None."""

    def __init__(self, folder, args, mode):
        images, labels = read_files(folder)
        run_dir = folder / f"run-{mode}"
        self.session = paceline.Session(precision="bf16-mixed", seed=0, run_dir=run_dir, loggers=())
        transform = [RandomCrop(32, padding=4), RandomFlip(), Normalize(MEAN, STD)]
        dataset = arrays(images, labels, transform=transform)
        self.loader = self.session.loader(dataset, BATCH, shuffle=True)
        torch.manual_seed(0)
        model = resnet18(args.width).to(memory_format=torch.channels_last)
        if mode:
            # Without the module's hooks: Session enters autocast in them, and Dynamo compiles these
            # anew in every step. The last batch is shorter; dynamic shapes would be slower for all.
            model.forward = torch.compile(model.forward, mode=mode, dynamic=False)
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        self.model, self.optimizer = self.session.setup(model, optimizer)

    def epoch(self):
        """Train on all pictures; return the mean loss, on the device."""
        losses = []
        for images, labels in self.loader:
            x = images.to(memory_format=torch.channels_last)
            loss = functional.cross_entropy(self.model(x), labels)
            self.session.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed_epoch(side, device):
    """Return the seconds and the mean loss of an epoch."""
    synchronize(device)
    begin = time.perf_counter()
    loss = float(side.epoch())  # waits for the device
    return time.perf_counter() - begin, loss


def measure(sides, num_epochs, device):
    """Return of each side a list of seconds and losses, the first epoch first."""
    epochs, order = {name: [] for name in sides}, Random(0)
    for _ in range(1 + num_epochs):
        for name in order.sample(list(sides), len(sides)):
            epochs[name].append(timed_epoch(sides[name], device))
    return epochs


def matrix_rate(size, device, num_repeats=10):
    """Return the FLOP/s of square bfloat16 matrix products, the median of five measurements."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    seconds = []
    for _ in range(6):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(num_repeats):
            left @ right
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 * num_repeats / statistics.median(seconds[1:])  # the first warms up


def flop_of_image(width):
    """Return the FLOP of a picture's forward and backward; a multiply-add is two."""
    with torch.device("meta"):
        model, images = resnet18(width), torch.empty(BATCH, *PIXELS)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    return counter.get_total_flops() / BATCH


def later_seconds(epochs, name):
    return [seconds for seconds, _ in epochs[name][1:]]


def training_seconds(epochs, name, num_epochs):
    """Return the seconds of a training: its first epoch with the start-up, and the others."""
    first_s, _ = epochs[name][0]
    return first_s + (num_epochs - 1) * statistics.median(later_seconds(epochs, name))


def render(epochs, args, flop, rate):
    """The table, as lines."""
    total = f"{args.training_epochs} epochs s"
    yield f"{'':<26}{'first s':>9}{'epoch s':>9}{total:>13}{'matrix rate':>13}{'loss':>8}"
    totals = {name: training_seconds(epochs, name, args.training_epochs) for name in epochs}
    for name, figures in epochs.items():
        epoch_s = statistics.median(later_seconds(epochs, name))
        share = flop * args.images / epoch_s / rate
        yield (
            f"{name:<26}{figures[0][0]:>9.2f}{epoch_s:>9.2f}{totals[name]:>13.1f}"
            f"{share:>13.1%}{figures[-1][1]:>8.3f}"
        )
    del totals[RECIPE]
    chosen = min(totals, key=totals.get)
    gain = ratio([later_seconds(epochs, RECIPE)], [later_seconds(epochs, chosen)])
    yield (
        f"an epoch, recipe over {chosen}: {gain.value:.2f}x ({gain.low:.2f} to {gain.high:.2f});"
        " asked on a GPU: 5x"
    )


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5, help="timed, after the first of each side")
    parser.add_argument(
        "--workers",
        type=int,
        default=min(4, os.cpu_count() or 1),
        help="of the recipe's DataLoader",
    )
    parser.add_argument("--tiny", action="store_true", help="a narrow model, small matrices")
    parser.add_argument(
        "--compile",
        nargs="*",
        choices=MODES,
        metavar="MODE",
        help=f"modes of torch.compile; on a GPU all by default: {', '.join(MODES)}",
    )
    parser.add_argument("--training-epochs", type=int, default=50)
    args = parser.parse_args()
    if min(args.images, args.epochs, args.training_epochs) < 1:
        parser.error("images and epochs are numbers from 1 on")
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Session takes a GPU if it sees one
    elif not torch.cuda.is_available():
        parser.error("torch sees no GPU; on a CPU: --device cpu --images 512 --tiny")
    args.width = TINY_WIDTH if args.tiny else WIDTH
    if args.compile is None:
        args.compile = MODES if args.device == "cuda" else ()
    return args


def main():
    args = parsed()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    flop = flop_of_image(args.width)
    size = TINY_MATRIX_SIZE if args.tiny else MATRIX_SIZE
    rate = matrix_rate(size, device)
    print(f"torch {torch.__version__}, {name}, {os.cpu_count()} CPUs")
    print(f"{args.images:,} images, batches of {BATCH}; recipe with {args.workers} workers")
    print(f"bfloat16 products of {size} x {size}: {rate / 1e12:.3g} TFLOP/s")
    print(f"ResNet-18 of width {args.width}: {flop / 1e9:.3f} GFLOP an image")
    with tempfile.TemporaryDirectory(prefix="cifar-") as path:
        folder = Path(path)
        write_files(folder, args.images)
        sides = {RECIPE: Recipe(folder, device, args), PLAIN: Ours(folder, args, mode=None)}
        for mode in args.compile:
            sides[f"{PLAIN}, {mode}"] = Ours(folder, args, mode)
        epochs = measure(sides, args.epochs, device)
    print("\n".join(render(epochs, args, flop, rate)))


if __name__ == "__main__":
    main()
