"""An MLP classifier of 28x28 images, as Lightning's tutorials write it; scikit-learn's digits, upscaled."""

import os

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsDataModule(L.LightningDataModule):
    def __init__(self, data_dir: str = "./data", batch_size: int = 64):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        # download
        os.makedirs(self.hparams.data_dir, exist_ok=True)
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
        torch.save(
            (images, torch.tensor(digits.target)), os.path.join(self.hparams.data_dir, "digits.pt")
        )

    def setup(self, stage: str):
        images, labels = torch.load(os.path.join(self.hparams.data_dir, "digits.pt"))
        full = TensorDataset(images, labels)
        self.train_set, self.val_set, self.test_set = random_split(full, [1297, 200, 300])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=self.hparams.batch_size)


class LitMLP(L.LightningModule):
    def __init__(self, hidden_size: int = 128, learning_rate: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, self.hparams.hidden_size),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(self.hparams.hidden_size, 10),
        )

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def _evaluate(self, batch, stage):
        x, y = batch
        logits = self(x)
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        self.log(f"{stage}_loss", F.cross_entropy(logits, y), prog_bar=True, sync_dist=True)
        self.log(f"{stage}_acc", accuracy, prog_bar=True, sync_dist=True)

    def validation_step(self, batch, batch_idx):
        self._evaluate(batch, "val")

    def test_step(self, batch, batch_idx):
        self._evaluate(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


if __name__ == "__main__":
    torch.manual_seed(42)
    dm = DigitsDataModule()
    model = LitMLP(hidden_size=96)
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        precision="16-mixed",
        accumulate_grad_batches=2,
        log_every_n_steps=5,
    )
    trainer.fit(model, dm)
    results = trainer.test(model, datamodule=dm)
    if trainer.is_global_zero:
        print(f"ranks {trainer.world_size}")
        print(f"hidden size {model.hparams.hidden_size}")
        print(f"steps {trainer.global_step}")
        print(f"test accuracy {results[0]['test_acc']:.4f}")
