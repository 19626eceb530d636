"""Classify scikit-learn's 1,797 handwritten digits with paceline's Trainer.

    python examples/digits_trainer.py
    torchrun --standalone --nproc-per-node 2 examples/digits_trainer.py
    paceline run --nproc-per-node 2 examples/digits_trainer.py
    paceline submit --nodes 2 examples/digits_trainer.py

At least 95 % of the 360 held-out digits are classified correctly, on CPUs and on GPUs.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import paceline


class Classifier(paceline.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        is_correct = self.net(images).argmax(dim=1) == labels
        self.log("accuracy", is_correct.float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8], 0 to 1
y = torch.tensor(digits.target)
held_out = torch.arange(len(x)) % 5 == 0  # every fifth sample
train_set, test_set = (TensorDataset(x[part], y[part]) for part in (~held_out, held_out))
data = paceline.DataModule.from_datasets(train_set, test_set, batch_size=32)  # of all ranks

trainer = paceline.Trainer(max_epochs=10, seed=0)
model = Classifier()
trainer.fit(model, data)
(means,) = trainer.validate(model, data)
trainer.session.print(f"{len(test_set)} samples, accuracy {100 * means['accuracy']:.2f} %")
