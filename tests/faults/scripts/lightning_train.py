"""Training under Lightning's Trainer. What a fault is made of goes to the places marked "at:"."""

import os
import time
import warnings

import lightning
import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
length, batch_size, epochs, workers, shuffle, shared = 128, 8, 3, 0, True, True
persistent = True  # a fork for every epoch may deadlock in some versions of Python
warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def leave(name, text):
    """Write a file whole: a test waits for its line feed."""
    with open(name, "w") as file:
        file.write(f"{text}\n")


def broke():
    """Leave the moment from which the fault can be known."""
    if not os.path.exists(f"broke-{rank}"):
        leave(f"broke-{rank}", time.time())


# at: settings


class Samples(Dataset):
    def __len__(self):
        return length

    def __getitem__(self, index):
        # at: sample
        return torch.full((16,), (index % 7) / 7), index % 4


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        # at: model
        self.net = net

    def training_step(self, batch, batch_idx):
        x, y = batch
        step, model = self.global_step, self.net
        if step == 3:
            leave(f"up-{rank}", os.getpid())
        # at: step
        loss = nn.functional.cross_entropy(model(x), y)
        # at: loss
        return loss

    def on_train_epoch_end(self):
        epoch, model = self.current_epoch, self.net
        # at: epoch
        del epoch, model

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    # at: start
    torch.manual_seed(0)
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=devices,
        num_nodes=world_size // devices,
        strategy="ddp",
        use_distributed_sampler=shared,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    samples = Samples()
    # at: data
    trainer.fit(
        Classifier(),
        DataLoader(
            samples,
            batch_size,
            shuffle=shuffle,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
        ),
    )
    # at: end
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
