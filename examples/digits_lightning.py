"""Classify scikit-learn's 1,797 handwritten digits with Lightning's Trainer.

    python examples/digits_lightning.py
    torchrun --standalone --nproc-per-node 2 examples/digits_lightning.py
    paceline run --nproc-per-node 2 examples/digits_lightning.py
    paceline submit --nodes 2 examples/digits_lightning.py

At least 95 % of the 360 held-out digits are classified correctly, on CPUs and on GPUs.
"""

from os import environ  # where a launcher says how many ranks there are; else a CPU is one rank

import lightning as L
from sklearn.datasets import load_digits
from torch import arange, nn, optim, tensor
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Digits(L.LightningDataModule):
    def setup(self, stage):
        x, y = map(tensor, load_digits(return_X_y=True))  # [1797, 64] from 0 to 16, [1797]
        x, held_out = x.float().view(-1, 1, 8, 8) / 16, arange(len(x)) % 5 == 0
        self.train_set = TensorDataset(x[~held_out], y[~held_out])
        self.test_set = TensorDataset(x[held_out], y[held_out])

    def train_dataloader(self):
        part = DistributedSampler(self.train_set, self.trainer.world_size, self.trainer.global_rank)
        return DataLoader(self.train_set, batch_size=32 // self.trainer.world_size, sampler=part)

    def test_dataloader(self):  # Lightning's own sampler may repeat samples; here each counts once
        part = range(self.trainer.global_rank, len(self.test_set), self.trainer.world_size)
        return DataLoader(Subset(self.test_set, part), batch_size=256)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")
        conv = nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU()
        head = nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)
        self.net = nn.Sequential(*conv, *head)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return optim.AdamW(self.parameters(), lr=2e-3)


L.seed_everything(0)
local, nodes = (int(environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
trainer = L.Trainer(devices=local, num_nodes=nodes, max_epochs=10, use_distributed_sampler=False)
trainer.fit(model := Classifier(), data := Digits())
(means,) = trainer.test(model, data)
model.print(f"{len(data.test_set)} samples, accuracy {100 * means['accuracy']:.2f} %")
