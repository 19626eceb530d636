"""Lightning: manual optimization with two optimizers (Lightning documentation: manual optimization)."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gan(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 8), nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        g_optimizer, c_optimizer = self.optimizers()
        fake = self.generator(torch.randn(len(batch[0]), 4))
        c_optimizer.zero_grad()
        self.manual_backward(self.critic(fake.detach()).mean() - self.critic(batch[0]).mean())
        c_optimizer.step()
        g_optimizer.zero_grad()
        self.manual_backward(-self.critic(fake).mean())
        g_optimizer.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(
            self.critic.parameters()
        )


trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=2,
    strategy="ddp_find_unused_parameters_true",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Gan(), DataLoader(TensorDataset(torch.randn(128, 8)), 16, shuffle=True))
