"""Training under Lightning's Trainer, whose ranks are the tasks that srun started."""

import os
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

length, epochs = 32, 3
# at: settings
warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def leave(name, text):
    """Write a file whole: a test waits for its line feed."""
    with open(name, "w") as file:
        file.write(f"{text}\n")


class Samples(Dataset):
    def __len__(self):
        return length

    def __getitem__(self, index):
        return torch.full((16,), (index % 7) / 7), index % 4


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def on_train_epoch_end(self):
        epoch, model = self.current_epoch, self.net
        rank, world_size = self.global_rank, self.trainer.world_size
        # at: epoch
        del epoch, model, rank, world_size

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    nodes, tasks = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS"])
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=tasks // nodes,
        num_nodes=nodes,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(Samples(), 32 // tasks, shuffle=True))


if __name__ == "__main__":
    main()
