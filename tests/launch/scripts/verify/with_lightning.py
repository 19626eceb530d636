"""Training in Lightning, right unless ``--mistake`` names what is wrong with it."""

import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--mistake", default="")
mistake = parser.parse_args().mistake
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
lightning.seed_everything(7, verbose=False)
features = torch.randn(192, 8, generator=torch.Generator().manual_seed(1))
labels = (features.sum(dim=1) > 0).long()
train_set = TensorDataset(features, labels)
length = 101 if mistake == "padded" else 96
held_out = TensorDataset(features[:length] + 0.5, labels[:length])


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def on_train_batch_end(self, outputs, batch, number):
        if mistake == "drift" and rank == 1 and self.global_step == 3:
            with torch.no_grad():
                self.net[0].bias.add_(0.01)

    def validation_step(self, batch, number):
        x, y = batch
        right = (self.net(x).argmax(1) == y).float().mean()
        self.log("val_acc", right, sync_dist=mistake != "own-share")

    def on_validation_epoch_end(self):
        if mistake == "own-share" and rank == 0 and not self.trainer.sanity_checking:
            print(f"val_acc {float(self.trainer.callback_metrics.get('val_acc', 0)):.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if mistake == "no-set-epoch":

    class Sampler(DistributedSampler):
        def set_epoch(self, epoch):
            pass

    sampler = Sampler(train_set, num_replicas=world, rank=rank)
else:
    sampler = None
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=world,
    strategy="ddp" if world > 1 else "auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=True,
)
train = DataLoader(train_set, 16, shuffle=sampler is None, sampler=sampler)
trainer.fit(Module(), train, DataLoader(held_out, 16))
