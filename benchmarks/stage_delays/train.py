"""A training loop in one of five frameworks whose stages take known times, and one of them longer
on one rank.

    paceline run --nproc-per-node 2 train.py --framework ddp --rank 1 --stage data --delay-ms 10

The stages sleep, so that two cores can be four ranks; the gradients are exchanged for real.
"""

import argparse
import os
import time
import warnings
from collections import Counter
from random import Random

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STAGES_MS = {"data": 8.0, "forward": 10.0, "backward": 16.0, "optimizer": 4.0, "other": 0.0}
STAGES_MS["validation"] = 2.0  # a batch of it
BATCH, FEATURES = 16, 128
ALL = -2
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--framework", choices=("ddp", "fabric", "lightning", "accelerate", "transformers")
    )
    parser.add_argument(
        "--rank", type=int, default=-1, help="rank that is delayed; -1: none, -2: all"
    )
    parser.add_argument("--stage", choices=STAGES_MS, default="data")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1, help="steps between two delays")
    parser.add_argument("--chance", type=float, default=0.0, help="of a delay, instead of --every")
    parser.add_argument("--validate-every", type=int, default=0, help="steps; 0: never")
    parser.add_argument("--steps", type=int, default=150)
    return parser.parse_args()


OPTIONS = parse()


VALIDATION_BATCHES = 10
calls: Counter[str] = Counter()
chance = Random(RANK)


def pause(stage: str) -> None:
    """Sleep for as long as the stage takes on this rank."""
    calls[stage] += 1
    is_due = calls[stage] % OPTIONS.every == 0
    if OPTIONS.chance:
        is_due = chance.random() < OPTIONS.chance
    is_delayed = OPTIONS.stage == stage and OPTIONS.rank in (RANK, ALL) and is_due
    time.sleep((STAGES_MS[stage] + OPTIONS.delay_ms * is_delayed) / 1000)


def after_step() -> None:
    """What a script does between a step and the next batch."""
    pause("other")
    if OPTIONS.validate_every and calls["other"] % OPTIONS.validate_every == 0:
        held_out = torch.utils.data.Subset(Samples(), range(VALIDATION_BATCHES))
        for _ in DataLoader(held_out):
            pause("validation")


class Samples(Dataset):
    def __len__(self) -> int:
        return BATCH * WORLD * OPTIONS.steps

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return {
            "x": torch.rand(FEATURES, generator=generator),
            "labels": torch.rand(1, generator=generator),
        }


def collate(samples):
    pause("data")
    return torch.utils.data.default_collate(samples)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        pause("backward")
        return gradient


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, x, labels=None):
        pause("forward")
        y = self.layers[4](SlowBackward.apply(self.layers[:4](x)))
        return {"loss": nn.functional.mse_loss(y, labels)}


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        pause("optimizer")
        return loss


def loader(**options) -> DataLoader:
    return DataLoader(Samples(), batch_size=BATCH, collate_fn=collate, **options)


def ddp() -> None:
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(Net())
    optimizer = SlowSGD(net.parameters(), lr=0.01)
    sampler = torch.utils.data.DistributedSampler(Samples())
    for batch in loader(sampler=sampler):
        loss = net(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()
    torch.distributed.destroy_process_group()


def fabric() -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp")
    fabric.launch()
    net = Net()
    net, optimizer = fabric.setup(net, SlowSGD(net.parameters(), lr=0.01))
    for batch in fabric.setup_dataloaders(loader()):
        fabric.backward(net(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def lightning() -> None:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def on_train_batch_end(self, *_):
            after_step()

        def configure_optimizers(self):
            return SlowSGD(self.parameters(), lr=0.01)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader())


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = Net()
    net, optimizer, batches = accelerator.prepare(net, SlowSGD(net.parameters(), lr=0.01), loader())
    for batch in batches:
        loss = net(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        after_step()
    accelerator.end_training()


def transformers() -> None:
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class AfterStep(TrainerCallback):
        def on_step_end(self, *_, **__):
            after_step()

    net = Net()
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    optimizers = SlowSGD(net.parameters(), lr=0.01), None
    trainer = Trainer(
        net, arguments, train_dataset=Samples(), data_collator=collate, optimizers=optimizers
    )
    trainer.add_callback(AfterStep)
    trainer.train()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    globals()[OPTIONS.framework]()
