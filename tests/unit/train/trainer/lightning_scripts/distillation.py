"""A student learns from a frozen teacher, whose weights come from a checkpoint of a first training."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.linspace(-1, 1, 64).view(-1, 2)


def loader(batch_size):
    return DataLoader(TensorDataset(X, X.square().sum(1, keepdim=True)), batch_size=batch_size)


class Teacher(L.LightningModule):
    def __init__(self, width=12):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Student(L.LightningModule):
    def __init__(self, teacher):
        super().__init__()
        self.teacher, self.net = teacher, nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            target = self.teacher(batch[0])
        loss = nn.functional.mse_loss(self.net(batch[0]), target)
        self.log_dict({"loss": loss, "target": target.mean()}, on_step=False, on_epoch=True)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("error", (self.net(batch[0]) - batch[1]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.SGD([each for each in self.parameters() if each.requires_grad], 0.1)


L.seed_everything(5)
common = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False}
kept = ModelCheckpoint("teacher", filename="last", save_weights_only=True)
first = L.Trainer(max_epochs=3, callbacks=[kept], **common)
first.fit(Teacher(), loader(8))
teacher = Teacher.load_from_checkpoint(kept.best_model_path)
teacher.freeze()
second = L.Trainer(max_steps=10, enable_checkpointing=False, **common)
L.seed_everything(6)  # another model, made after a training
student = Student(teacher)
second.fit(student, loader(8))
second.test(student, loader(5))
