"""Lightning: all of it in a main function, with accumulation, clipping and CSV logs."""

import lightning
from lightning_parts import Module, loader, settings

lightning.seed_everything(0)


def main():
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=0.5,
        log_every_n_steps=1,
        logger=lightning.pytorch.loggers.CSVLogger("."),
        **settings,
    )
    trainer.fit(Module(), loader(256, batch_size=16, shuffle=True), loader(64, batch_size=16))


main()
