"""The module and the data of the Lightning programs, beside the script as a user's own modules are."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

settings = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "enable_progress_bar": False}


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.net(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(count, **options):
    return DataLoader(TensorDataset(torch.randn(count, 8), torch.randn(count, 1)), **options)
