"""Lightning's example modules with their own data modules."""

import lightning as L
from lightning.pytorch.demos.boring_classes import (
    BoringDataModule,
    BoringModel,
    ManualOptimBoringModel,
)


class ShowsWeights:
    """The modules log nothing: their weights are what they come to."""

    def on_train_epoch_end(self):
        self.log("weights", self.layer.weight.abs().sum())


for kind in (BoringModel, ManualOptimBoringModel):
    L.seed_everything(9)
    model, data = type("Shows", (ShowsWeights, kind), {})(), BoringDataModule()
    trainer = L.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        accelerator="cpu",
        num_sanity_val_steps=0,
        limit_train_batches=8,
        limit_val_batches=4,
    )
    trainer.fit(model, datamodule=data)
    trainer.validate(model, datamodule=data)
    trainer.test(model, datamodule=data)
