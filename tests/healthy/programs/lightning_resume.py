"""Lightning: a second trainer continues from the checkpoint of the first."""

import lightning
from lightning_parts import Module, loader, settings

lightning.seed_everything(0)

first = lightning.Trainer(max_epochs=1, logger=False, default_root_dir=".", **settings)
first.fit(Module(), loader(128, batch_size=16, shuffle=True))
path = first.checkpoint_callback.best_model_path
second = lightning.Trainer(max_epochs=2, logger=False, **settings)
second.fit(Module(), loader(128, batch_size=16, shuffle=True), ckpt_path=path)
