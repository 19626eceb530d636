"""A LightningModule under Lightning's Trainer."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(dim=1)
    model = Classifier()

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))

    if trainer.is_global_zero:
        with torch.no_grad():
            final = nn.functional.cross_entropy(model.net(x), y)
        print(f"ranks {trainer.world_size}")
        print(f"final loss {final.item()!r}")


if __name__ == "__main__":
    main()
