"""Averages of weights, a stop by the clock or by the step, and a training that is continued."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback, Timer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.smooth_l1_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.smooth_l1_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


def loader(batch_size):
    x = torch.linspace(-1, 1, 96).view(-1, 4)
    return DataLoader(TensorDataset(x, x.cos().sum(1, keepdim=True)), batch_size=batch_size)


def trainer(epochs, *callbacks):
    return L.Trainer(
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        accelerator="cpu",
    )


L.seed_everything(7)
epochs = []
count = LambdaCallback(on_train_epoch_end=lambda trainer, module: epochs.append(1))
model, first = Net(), trainer(3, EMAWeightAveraging(decay=0.8), Timer(duration={"minutes": 5}), count)
first.fit(model, loader(6), loader(5))
first.save_checkpoint("first.ckpt")
assert len(epochs) == 3
first.validate(model, loader(5))
L.seed_everything(7)  # another model, made after a training
other = Net()
second = trainer(5)
second.fit(other, loader(6), loader(5))
