"""Where the loaders of a task come from: a data object, DataLoaders, or methods of the task itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.errors import Finding, UsageError
from paceline.train.session import Session


class Data:
    """The loaders of a task.

    Args:
        task: Asked last, if it has the methods of a data object itself.
        data: An object with ``train_dataloader`` and the like; None if there is none.
        loaders: Loaders by the stage that they are for: ``"train"``, ``"val"``, ``"test"``.
    """

    def __init__(self, task: Any, data: Any, loaders: dict[str, Any]) -> None:
        self._owners = [owner for owner in (data, task) if owner is not None]
        self._loaders = loaders

    def prepare(self, session: Session, stage: str, *, seed: int) -> None:
        """Call ``prepare_data`` once on each node, then ``setup`` on all ranks with the same random numbers."""
        for owner in self._owners:
            if callable(getattr(owner, "prepare_data", None)):
                session.once(owner.prepare_data, scope="node")
        for owner in self._owners:
            if callable(getattr(owner, "setup", None)):
                with alike(seed):
                    owner.setup(stage)

    def loader(self, session: Session, stage: str, *, per_rank: bool, evaluates: bool = False) -> Any:
        """Return the loader of a stage, shared out among the ranks; None if there is none.

        Args:
            session: Shares it out.
            stage: ``"train"``, ``"val"`` or ``"test"``.
            per_rank: Whether its batch size is that of each rank.
            evaluates: Whether it is to begin with its first sample, also after a restore.
        """
        given = self._loaders.get(stage)
        makers = [getattr(owner, f"{stage}_dataloader", None) for owner in self._owners]
        for make in makers:
            if given is None and callable(make):
                given = make()
        if isinstance(given, list | tuple):
            given = _the_one(given, stage)
        if given is None or not evaluates:
            return None if given is None else session.loader(given, per_rank=per_rank)
        # The first loader of a session takes the position that a checkpoint has for the one that was trained on, or
        # is refused with it; the second has none to take.
        try:
            loader = session.loader(given, per_rank=per_rank)
        except UsageError as error:
            if error.finding.name != "data-changed":
                raise
            loader = session.loader(given, per_rank=per_rank)
        loader.load_state_dict({"epoch": 0, "done": 0, "length": 0})
        return loader


def is_data(thing: Any) -> bool:
    """Return whether something is a data object, and not a loader."""
    return any(callable(getattr(thing, f"{stage}_dataloader", None)) for stage in ("train", "val", "test"))


def _the_one(loaders: list[Any] | tuple[Any, ...], stage: str) -> Any:
    if len(loaders) > 1:
        raise UsageError(
            Finding(
                "option-invalid",
                f"there are {len(loaders)} loaders for {stage}, and the Trainer takes one",
                where=f"{stage}_dataloader",
                fix="torch.utils.data.ConcatDataset(datasets)"
                + ("" if stage == "train" else f", or trainer.{stage.replace('val', 'validate')} for each of them"),
            )
        )
    return loaders[0] if loaders else None


@contextmanager
def alike(seed: int) -> Iterator[None]:
    """Let everything inside draw the same random numbers on all ranks, and nothing outside notice.

    Without it ``random_split`` would cut another part out on each rank, so that samples of one rank's validation
    are trained on by the others; and in each run, so that a resumed one trains on what it validated with.
    """
    numpy = sys.modules.get("numpy")
    states = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])
