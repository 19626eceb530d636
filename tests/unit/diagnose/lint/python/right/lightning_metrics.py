"""Metrics of torchmetrics bring their state together by themselves; Hugging Face's model sits inside the module."""

import pytorch_lightning as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification


class Finetune(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
        self.model.gradient_checkpointing_enable()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)

    def training_step(self, batch, batch_idx):
        return self.model(**batch).loss

    def validation_step(self, batch, batch_idx):
        out = self.model(**batch)
        self.accuracy(out.logits.argmax(-1), batch["labels"])
        self.log("val_acc", self.accuracy, on_epoch=True)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["config"] = self.model.config.to_dict()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        }


if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="gpu", devices=-1, strategy="ddp", accumulate_grad_batches=4, max_epochs=3
    )
    trainer.fit(
        Finetune(),
        DataLoader(torch.load("train.pt"), shuffle=True),
        DataLoader(torch.load("dev.pt")),
    )
    if trainer.global_rank == 0:
        trainer = pl.Trainer(devices=1, num_nodes=1, logger=False)
        trainer.validate(
            Finetune.load_from_checkpoint("best.ckpt"), DataLoader(torch.load("dev.pt"))
        )
