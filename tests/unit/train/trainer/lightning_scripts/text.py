"""A classifier of texts: a collate function, weights of classes, accumulation and a warm-up by step."""

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader

TEXTS = ["good fine", "bad", "fine good good", "bad poor", "good", "poor poor bad"] * 4
WORDS = {word: number for number, word in enumerate(["", "good", "fine", "bad", "poor"])}


def collate(samples):
    rows = [[WORDS[word] for word in text.split()] for text, _ in samples]
    longest = 3
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return {"ids": padded, "label": torch.tensor([label for _, label in samples])}


def dataset():
    return [(text, int("good" in text)) for text in TEXTS]


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 6, padding_idx=0)
        self.head = nn.Linear(6, 2)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch["ids"]), batch["label"])
        self.log("loss", loss, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        right = self(batch["ids"]).argmax(1) == batch["label"]
        self.log("accuracy", right.float().mean(), batch_size=len(right))
        self.log("right", right.sum().float(), reduce_fx="sum")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=12)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    L.seed_everything(2)
    model = Classifier()
    train = DataLoader(dataset(), batch_size=4, collate_fn=collate)
    val = DataLoader(dataset()[:10], batch_size=3, collate_fn=collate)
    trainer = L.Trainer(
        max_epochs=3,
        callbacks=[GradientAccumulationScheduler({0: 1, 1: 2, 2: 3})],
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(model, train, val)
    trainer.validate(model, val)
