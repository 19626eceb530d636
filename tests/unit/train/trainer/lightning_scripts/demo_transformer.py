"""Lightning's module around its Transformer, on random words, without dropout."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import lightning as L
from lightning.pytorch.demos.transformer import LightningTransformer


class Words(LightningTransformer):
    def prepare_data(self):
        """Nothing is downloaded."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("test_loss", super().training_step(batch, batch_idx))


L.seed_everything(8)
model = Words(vocab_size=20)
for part in model.modules():
    if isinstance(part, torch.nn.Dropout):
        part.p = 0.0
    if isinstance(part, torch.nn.MultiheadAttention):
        part.dropout = 0.0
words = torch.randint(0, 20, (12, 9))
data = TensorDataset(words[:, :-1].contiguous(), words[:, 1:].contiguous())
trainer = L.Trainer(
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    accelerator="cpu",
    num_sanity_val_steps=0,
)
trainer.fit(model, DataLoader(data, batch_size=4))
trainer.test(model, DataLoader(data, batch_size=4))
