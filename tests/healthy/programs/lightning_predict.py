"""Lightning: predictions over an odd number of samples, without repetition."""

import lightning
from lightning_parts import Module, loader, settings

lightning.seed_everything(0)


class Predicting(Module):
    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


trainer = lightning.Trainer(logger=False, **settings)
parts = trainer.predict(Predicting(), loader(101, batch_size=10))
assert sum(map(len, parts)) in (50, 51)
