"""A regression on a table: a data module with splits, argparse, and a search for the best epoch."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Table(L.LightningDataModule):
    def __init__(self, rows: int = 60, batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        x = torch.linspace(-1, 1, self.hparams.rows * 3).view(-1, 3).sin()
        parts = TensorDataset(x, x.prod(1, keepdim=True)), [40, 12, 8]
        whole, sizes = parts
        starts = [0, 40, 52]
        self.parts = [
            torch.utils.data.Subset(whole, range(start, start + size))
            for start, size in zip(starts, sizes, strict=True)
        ]

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=5)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=5)

    predict_dataloader = test_dataloader


class Regressor(L.LightningModule):
    def __init__(self, hidden: int = 16, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)

    def _shared_step(self, batch, stage):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log(f"{stage}_loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        self.log(f"{stage}_worst", (self(x) - y).abs().max(), on_epoch=True, reduce_fx="max")
        return loss

    def training_step(self, batch, batch_idx):
        return self._shared_step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self._shared_step(batch, "val")

    def test_step(self, batch, batch_idx):
        self._shared_step(batch, "test")

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
        }


def main(args):
    L.seed_everything(1)
    best = ModelCheckpoint(monitor="val_loss", mode="min", save_top_k=1)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        callbacks=[best, EarlyStopping("val_loss", patience=3), LearningRateMonitor()],
        logger=CSVLogger("logs"),
        accelerator="cpu",
        enable_progress_bar=False,
        log_every_n_steps=2,
    )
    data = Table()
    trainer.fit(Regressor(), datamodule=data)
    trainer.test(datamodule=data, ckpt_path="best")
    again = Regressor.load_from_checkpoint(best.best_model_path)
    again.freeze()
    trainer.predict(again, datamodule=data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    main(parser.parse_args())
