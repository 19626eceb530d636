"""paceline's Trainer with a Module of its own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import paceline


class Net(paceline.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)

    def training_step(self, batch, index):
        x, y = batch
        return cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    data = TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
    trainer = paceline.Trainer(max_epochs=3, devices=2)
    trainer.fit(Net(), DataLoader(data, batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        print(trainer.callback_metrics)
