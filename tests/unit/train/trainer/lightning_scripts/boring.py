"""Lightning's example modules, with less data, and what scripts around them use."""

import argparse

import torch
from torch.utils.data import DataLoader

import lightning as L
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    Timer,
)
from lightning.pytorch.demos.boring_classes import (
    BoringModel,
    DemoModel,
    ManualOptimBoringModel,
    RandomDataset,
)
from lightning.pytorch.loggers import CSVLogger


class Logs(BoringModel):
    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch))


def main(args):
    L.seed_everything(args.seed)
    tasks = (DemoModel(), ManualOptimBoringModel())
    train = DataLoader(RandomDataset(32, 24), batch_size=4)
    val = DataLoader(RandomDataset(32, 12), batch_size=4)
    checkpoint = ModelCheckpoint(
        monitor="val_loss", filename="{epoch}-{val_loss:.2f}", save_last=True
    )
    stopping = EarlyStopping(monitor="val_loss", patience=2, stopping_threshold=0.01)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        callbacks=[checkpoint, stopping, LearningRateMonitor("epoch"), Timer("00:01:00:00")],
        logger=CSVLogger("logs", name="boring"),
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
        log_every_n_steps=1,
        accelerator="cpu",
    )
    trainer.fit(Logs(), train, val)
    assert checkpoint.best_model_path.startswith("logs/boring/version_0/checkpoints/epoch=")
    best = Logs.load_from_checkpoint(checkpoint.best_model_path)
    assert trainer.checkpoint_callback is checkpoint
    trainer.validate(best, val)
    trainer.validate(dataloaders=val, ckpt_path="best")
    trainer.predict(best, val)
    for task in tasks:
        other = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, accelerator="cpu")
        other.fit(task, train)
        other.predict(task, val)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=3)
    main(parser.parse_args())
