"""paceline.Trainer: fit with validation and the best checkpoint."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


class Task(paceline.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(count, **options):
    return DataLoader(
        TensorDataset(torch.randn(count, 8), torch.randn(count, 1)), batch_size=16, **options
    )


torch.manual_seed(0)
paceline.Trainer(max_epochs=3, monitor="val_loss").fit(
    Task(), loader(256, shuffle=True), loader(101)
)
