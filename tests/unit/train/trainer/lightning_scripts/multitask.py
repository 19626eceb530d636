"""Two tasks with a loader each, several validation loaders, and hooks around the batches."""

import lightning as L
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rows(length, slope):
    x = torch.linspace(-1, 1, 3 * length).view(-1, 3)
    return TensorDataset(x, slope * x.sum(1, keepdim=True))


class Tasks(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.heads = nn.ModuleDict({"a": nn.Linear(5, 1), "b": nn.Linear(5, 1)})

    def loss(self, name, batch):
        return nn.functional.mse_loss(self.heads[name](self.body(batch[0]).tanh()), batch[1])

    def on_before_batch_transfer(self, batch, dataloader_idx):
        if not isinstance(batch, dict):
            return batch
        return {name: [part.clamp(-2, 2) for part in each] for name, each in batch.items()}

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if isinstance(batch, dict):
            return batch
        return [batch[0], batch[1] / 2]

    def training_step(self, batch, batch_idx):
        losses = {name: self.loss(name, part) for name, part in batch.items()}
        self.log_dict(losses, on_step=False, on_epoch=True, batch_size=4)
        return sum(losses.values())

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val", self.loss("ab"[dataloader_idx], batch))

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), lr=0.01)


L.seed_everything(6)
train = CombinedLoader(
    {"a": DataLoader(rows(16, 1.0), batch_size=4), "b": DataLoader(rows(8, -1.0), batch_size=4)}, "max_size_cycle"
)
val = [DataLoader(rows(7, 1.0), batch_size=3), DataLoader(rows(5, -1.0), batch_size=3)]
trainer = L.Trainer(
    max_epochs=3, logger=False, enable_checkpointing=False, accelerator="cpu",
    num_sanity_val_steps=0,
)
model = Tasks()
trainer.fit(model, train, val)
trainer.validate(model, val)
