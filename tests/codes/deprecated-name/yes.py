import lightning as L
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM


class Finetuning(L.LightningModule):
    def __init__(self, name: str):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(name)

    def training_step(self, batch, batch_idx):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)


model = Finetuning("distilgpt2")
model.train()
trainer = L.Trainer(gpus=2, strategy="ddp", max_epochs=1)
trainer.fit(model, DataLoader(torch.load("tokens.pt"), batch_size=8, shuffle=True))
