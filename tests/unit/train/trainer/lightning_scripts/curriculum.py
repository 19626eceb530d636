"""Harder data in later epochs: loaders made again, and a callback that counts what it sees."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Curriculum(L.LightningDataModule):
    def train_dataloader(self):
        length = 8 + 4 * self.trainer.current_epoch
        x = torch.linspace(-2, 2, 2 * length).view(-1, 2)
        return DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=4)

    def val_dataloader(self):
        x = torch.linspace(-1, 1, 14).view(-1, 2)
        return DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=4)


class Counts(L.Callback):
    def __init__(self):
        self.rows = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rows += len(batch[0])

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("rows", float(self.rows))


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.l1_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.l1_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


L.seed_everything(4)
trainer = L.Trainer(
    max_epochs=5,
    reload_dataloaders_every_n_epochs=2,
    callbacks=[Counts()],
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    accelerator="cpu",
)
trainer.fit(Net(), datamodule=Curriculum())
