"""Lightning: fit with validation and checkpoints (Lightning documentation: in 15 minutes)."""

import lightning
from lightning_parts import Module, loader, settings

lightning.seed_everything(0)

trainer = lightning.Trainer(max_epochs=3, logger=False, **settings)
trainer.fit(Module(), loader(256, batch_size=64, shuffle=True), loader(64, batch_size=16))
