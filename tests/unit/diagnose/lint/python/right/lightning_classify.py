"""A LightningModule and a DataModule: metrics are synchronised, the best checkpoint is tested on one device."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms


class Digits(L.LightningDataModule):
    def __init__(self, folder: str = "data"):
        super().__init__()
        self.folder = folder

    def prepare_data(self):
        datasets.MNIST(self.folder, train=True, download=True)
        datasets.MNIST(self.folder, train=False, download=True)

    def setup(self, stage: str):
        full = datasets.MNIST(self.folder, transform=transforms.ToTensor())
        self.train_set, self.val_set = random_split(
            full, [55000, 5000], generator=torch.Generator().manual_seed(1)
        )

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=256)


class Classifier(L.LightningModule):
    def __init__(self, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y), sync_dist=True)

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            print("epoch", self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    best = ModelCheckpoint(monitor="val_loss")
    trainer = L.Trainer(devices=4, num_nodes=2, strategy="ddp", max_epochs=10, callbacks=[best])
    model, data = Classifier(), Digits()
    trainer.fit(model, datamodule=data)
    trainer.strategy.barrier()
    trainer.save_checkpoint("last.ckpt")
    if trainer.is_global_zero:
        torch.save(model.net.state_dict(), "net.pt")
        print(best.best_model_path, trainer.callback_metrics["val_loss"])


if __name__ == "__main__":
    main()
