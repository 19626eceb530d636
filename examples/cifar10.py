"""Train ResNet-18 on CIFAR-10, from one process to many nodes (docs/guides/cifar10.md).

    paceline run examples/cifar10.py --precision bf16-mixed          # on GPUs: one rank for each
    paceline run --nproc-per-node 2 examples/cifar10.py --small      # on CPUs, without a network

Plain python, torchrun and srun run it too. It stops and resumes at any step. The learning rate
follows the batch size, which is that of all ranks together: more ranks alone change neither.
"""

import argparse
import sys
from pathlib import Path

import torch
from cifar10_data import NUM_CLASSES, TEST, TRAIN, prepare, read
from rich.console import Console
from rich.progress import track
from torch import nn
from torch.nn.functional import cross_entropy, relu

import paceline
from paceline.data import Normalize, RandomCrop, RandomFlip, arrays

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images
BASE_BATCH_SIZE, BASE_LR = 128, 0.05  # a learning rate that is known to work for this batch size
WARMUP_EPOCHS = 5
SMALL = {"synthetic": 1000, "width": 8, "epochs": 6, "batch_size": 64}


class Block(nn.Module):
    """Two convolutions and a shortcut: the basic block of He et al., 2015."""

    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.first = convolution(num_in, num_out, size=3, stride=stride)
        self.second = convolution(num_out, num_out, size=3)
        is_same = stride == 1 and num_in == num_out
        self.shortcut = (
            nn.Identity() if is_same else convolution(num_in, num_out, size=1, stride=stride)
        )

    def forward(self, x):
        inner = self.second(relu(self.first(x)))
        return relu(inner + self.shortcut(x))


def convolution(num_in, num_out, *, size, stride=1):
    layer = nn.Conv2d(num_in, num_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(num_out))


def resnet18(width):
    """Return ResNet-18 for images of 32 x 32: the first convolution is 3 x 3, without pooling."""
    blocks, num_in = [], width
    for stage in range(4):
        num_out = width << stage
        blocks += [Block(num_in, num_out, 2 if stage else 1), Block(num_out, num_out, 1)]
        num_in = num_out
    return nn.Sequential(
        convolution(3, width, size=3),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(num_in, NUM_CLASSES),
    )


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help=f"to try it out: {SMALL}")
    parser.add_argument("--data", type=Path, default="data", help="folder of data sets")
    parser.add_argument("--synthetic", type=int, default=0, metavar="N", help="make up N images")
    parser.add_argument("--limit", type=int, metavar="N", help="train on the first N images")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=512, help="of all ranks together")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--precision", default="32-true", help="such as bf16-mixed, 16-mixed")
    parser.add_argument("--sync-batchnorm", action="store_true", help="statistics of all ranks")
    parser.add_argument("--recompute", action="store_true", help="less memory, more time")
    parser.add_argument("--tensorboard", action="store_true", help="beside metrics.csv")
    parser.add_argument("--save-every", type=int, default=10, metavar="EPOCHS")
    parser.add_argument("--seed", type=int, default=0)
    if parser.parse_known_args()[0].small:
        parser.set_defaults(**SMALL)
    return parser.parse_args()


def loaders(session, args):
    """Return the loaders of training and test images, which one process of each node prepares."""
    folder = session.once(lambda: prepare(args.data, args.synthetic), scope="node")
    normalize = Normalize(MEAN, STD)
    augmentation = [RandomCrop(32, padding=4), RandomFlip(), normalize]
    train_set = arrays(*read(folder, TRAIN, args.limit), transform=augmentation)
    test_set = arrays(*read(folder, TEST, args.limit), transform=normalize)
    train = session.loader(train_set, batch_size=args.batch_size, shuffle=True)
    return train, session.loader(test_set, batch_size=1000)


def prepared(session, args, num_steps):
    """Return the model, its optimizer, and two schedules that multiply: warm-up and cosine."""
    model = resnet18(args.width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=BASE_LR, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    if args.recompute:
        session.recompute(model, layers=(Block,))
    warmup = session.scale_lr(
        optimizer,
        batch_size=args.batch_size,
        base_batch_size=BASE_BATCH_SIZE,
        warmup_steps=min(WARMUP_EPOCHS * num_steps // args.epochs, num_steps // 5),
    )
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)
    session.register(warmup=warmup, cosine=cosine)
    return *session.setup(model, optimizer), (warmup, cosine)


def evaluate(session, model, test):
    """Return mean loss and accuracy over each test image once, on any number of ranks."""
    model.eval()
    sums = {"loss": 0.0, "correct": 0}
    with torch.no_grad():
        for images, labels in test:
            scores = model(images)
            sums["loss"] += cross_entropy(scores, labels, reduction="sum").item()
            sums["correct"] += int((scores.argmax(dim=1) == labels).sum())
    model.train()
    sums = session.reduce(sums)
    return sums["loss"] / len(test.dataset), sums["correct"] / len(test.dataset)


def main():
    args = parsed()
    session = paceline.Session(
        precision=args.precision,
        seed=args.seed,
        strategy=paceline.DDP(sync_batchnorm=args.sync_batchnorm),
        loggers=("csv", "tensorboard") if args.tensorboard else ("csv",),
    )
    train, test = loaders(session, args)
    model, optimizer, schedules = prepared(session, args, args.epochs * len(train))
    session.restore("latest")
    console, silent = Console(stderr=True), not (session.is_main and sys.stderr.isatty())

    for epoch in session.epochs(args.epochs):
        losses = []
        for images, labels in track(train, f"epoch {epoch + 1}", console=console, disable=silent):
            loss = cross_entropy(model(images), labels)
            session.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            for schedule in schedules:
                schedule.step()
            losses.append(loss.detach())
        train_loss = session.mean(losses)
        test_loss, accuracy = evaluate(session, model, test)
        rate = optimizer.param_groups[0]["lr"]
        numbers = {"train/loss": train_loss, "test/loss": test_loss, "lr": rate}
        session.log({**numbers, "test/accuracy": accuracy}, step=epoch + 1)
        session.print(
            f"epoch {epoch + 1}: train loss {train_loss:.4f}, test loss {test_loss:.4f},"
            f" accuracy {100 * accuracy:.2f} % of {len(test.dataset)}"
        )
        if (epoch + 1) % args.save_every == 0 or epoch + 1 == args.epochs:
            session.save(metric=accuracy)


if __name__ == "__main__":
    main()
