"""Find a task's loaders in a data object, in DataLoaders, or in methods of the task itself."""

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
        task: Searched last, because it may have the methods of a data object itself.
        data: An object with ``train_dataloader`` and similar methods; None without one.
        loaders: Loaders by stage: ``"train"``, ``"val"``, ``"test"``.
    """

    def __init__(self, task: Any, data: Any, loaders: dict[str, Any]) -> None:
        self._owners = [owner for owner in (data, task) if owner is not None]
        self._loaders = loaders

    def prepare(self, session: Session, stage: str, *, seed: int) -> None:
        """Call ``prepare_data`` once a node, then ``setup`` with the same seed on all ranks."""
        for owner in self._owners:
            if callable(getattr(owner, "prepare_data", None)):
                session.once(owner.prepare_data, scope="node")
        for owner in self._owners:
            if callable(getattr(owner, "setup", None)):
                with alike(seed):
                    owner.setup(stage)

    def loader(
        self, session: Session, stage: str, *, per_rank: bool, evaluates: bool = False
    ) -> Any:
        """Return the loader of a stage, divided among the ranks; None if there is none.

        Args:
            session: Divides the data.
            stage: ``"train"``, ``"val"`` or ``"test"``.
            per_rank: Whether the batch size is per rank.
            evaluates: Whether to begin with the first sample, even after a restore.
        """
        data = self._find(stage)
        if data is None:
            return None
        if not evaluates:
            return session.loader(data, per_rank=per_rank)
        # A session's first loader takes the checkpoint's position of the training loader, or is
        # refused because of it. The second one has no position to take.
        try:
            loader = session.loader(data, per_rank=per_rank)
        except UsageError as error:
            if error.finding.name != "data-changed":
                raise
            loader = session.loader(data, per_rank=per_rank)
        loader.load_state_dict({"epoch": 0, "done": 0, "length": 0})
        return loader

    def _find(self, stage: str) -> Any:
        """Return the user's loader of a stage; None if there is none."""
        data = self._loaders.get(stage)
        for owner in self._owners:
            make = getattr(owner, f"{stage}_dataloader", None)
            if data is None and callable(make):
                data = make()
        return _single(data, stage) if isinstance(data, list | tuple) else data


def is_data(thing: Any) -> bool:
    """Return whether an object is a data object, and not a loader."""
    return any(
        callable(getattr(thing, f"{stage}_dataloader", None)) for stage in ("train", "val", "test")
    )


def _single(loaders: list[Any] | tuple[Any, ...], stage: str) -> Any:
    if len(loaders) > 1:
        method = "validate" if stage == "val" else stage
        other = "" if stage == "train" else f", or trainer.{method} for each of them"
        raise UsageError(
            Finding(
                "option-invalid",
                f"there are {len(loaders)} loaders for {stage}, and the Trainer takes one",
                where=f"{stage}_dataloader",
                fix=f"torch.utils.data.ConcatDataset(datasets){other}",
            )
        )
    return loaders[0] if loaders else None


@contextmanager
def alike(seed: int) -> Iterator[None]:
    """Draw the same random numbers on all ranks inside the context, and restore the generators.

    Otherwise ``random_split`` would make other parts on each rank, so that ranks train on
    validation samples of other ranks. It would also differ in each run, so that a resumed run
    trains on samples that it validated with.
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
