"""Training under Lightning's Trainer that saves when it is told to stop: by its auto-requeue, or by a callback.

Its argument is ``requeue`` or ``callback``. Only its first start is slow.
"""

import os
import sys
import time
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 40
STOPPED = "checkpoints/stopped.ckpt"
warnings.filterwarnings("ignore", message=".*does not have many workers.*")
warnings.filterwarnings("ignore", message=".*is supported for historical reasons.*")


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), index / 8)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def on_train_start(self):
        self.goes_on = self.global_step > 0
        print(f"starts at step {self.global_step}", flush=True)

    def on_train_batch_end(self, *_):
        if self.global_step == 3 and not self.goes_on:
            with open(f"up-{self.global_rank}", "w") as file:
                file.write("1\n")
        time.sleep(0 if self.goes_on else 0.5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    if sys.argv[1] == "requeue":
        extra = {"plugins": [SLURMEnvironment(auto_requeue=True)], "devices": 1, "num_nodes": 1}
    else:
        devices, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
        extra = {
            "callbacks": [OnExceptionCheckpoint(*os.path.split(STOPPED[:-5]))],
            "devices": devices,
            "num_nodes": nodes,
        }
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=sys.argv[1] == "callback",
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **extra,
    )
    path = STOPPED if sys.argv[1] == "callback" and os.path.exists(STOPPED) else None
    try:
        trainer.fit(Net(), DataLoader(Samples(), 4), ckpt_path=path)
    except SIGTERMException:
        sys.exit(75)
    print(f"trained to step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
