"""The loaders of a fit, which are made again every few epochs if the script wants that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import option_contradicted
from paceline.train.trainer.data import Data, alike, no_loader

if TYPE_CHECKING:
    from paceline.train.trainer.attributes import Attributes
    from paceline.train.trainer.combining import Batches, InTurn, Together


class FitLoaders:
    """Makes the loaders of a fit, and passes their numbers of batches to the trainer.

    Loaders made again take the place of the ones before: they continue with the next epoch's order,
    and in a checkpoint with its position. In a fit that resumes within ``every`` epochs they are
    made for the epoch in which the interrupted fit had made them. Raises UsageError if there is no
    training loader, or none that could be made again.
    """

    train: Batches | Together | InTurn  # the training batches

    def __init__(
        self,
        trainer: Attributes,  # has the Session
        data: Data,
        *,
        per_rank: bool,  # batch sizes are per rank
        in_order: bool,  # no training loader shuffles
        validates: bool,  # the task validates
        seed: int,  # of what a script draws while it makes loaders again
        every: int,  # epochs after which loaders are made again; 0 for never
    ) -> None:
        self._trainer, self._data = trainer, data
        self._per_rank, self._in_order, self._validates = per_rank, in_order, validates
        self._seed, self._every = seed, every
        self._made_for = 0  # epoch
        self.val: list[Any] = []  # the validation loaders
        if every and not any(map(data.makes, ("train", "val"))):
            raise option_contradicted(
                "there is no train_dataloader() to call again every"
                f" {every} epochs: loaders were passed",
                where="Trainer(reload_dataloaders_every_n_epochs=...)",
                fix="def train_dataloader(self): return DataLoader(...), in the data object",
            )
        self._make(("train", "val"), train=(), val=())

    def renew(self, epoch: int) -> bool:
        """Make the loaders again if that is due in an epoch; return whether it was."""
        due = epoch - epoch % self._every if self._every else 0
        if due == self._made_for:
            return False
        self._trainer.current_epoch = self._made_for = due
        stages = tuple(filter(self._data.makes, ("train", "val")))
        with alike(self._seed + due):  # ranks and resumed runs draw the same
            self._make(stages, train=self.train.loaders, val=self.val)
        return True

    def _make(self, stages: tuple[str, ...], **former: Any) -> None:
        trainer, data, per_rank = self._trainer, self._data, self._per_rank
        if "train" in stages:
            train = data.train(
                trainer.session, per_rank=per_rank, in_order=self._in_order, former=former["train"]
            )
            if train is None:
                raise no_loader("train", "fit")
            self.train = train
        if "val" in stages and self._validates:
            self.val = data.evaluated(
                trainer.session, "val", per_rank=per_rank, trains=True, former=former["val"]
            )
        trainer.take_loaders(self.train.num_batches, self.val, data)
