"""Find a task's loaders in a data object, in DataLoaders, or in methods of the task itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, SequentialSampler

from paceline.errors import UsageError, option_contradicted, option_invalid
from paceline.train.session import Session
from paceline.train.trainer.combining import (
    SEQUENTIAL,
    Batches,
    CombinedLoader,
    InTurn,
    Together,
    combined,
    leaves,
)
from paceline.train.trainer.transfer import Transfer

STAGES = ("train", "val", "test", "predict")


class Data:
    """The loaders of a task."""

    def __init__(
        self,
        task: Any,  # searched last, because it may have the methods of a data object itself
        data: Any,  # has ``train_dataloader`` and similar methods
        loaders: dict[str, Any],  # by stage: "train", "val", "test"
    ) -> None:
        self._owners = [owner for owner in (data, task) if owner is not None]
        self._loaders = loaders
        self._found: dict[str, Any] = {}

    def prepare(self, session: Session, stage: str, *, seed: int) -> None:
        """Call ``prepare_data`` once a node, then ``setup`` with the same seed on all ranks."""
        for owner in self._owners:
            # All owners before any setup, which may read what another one has downloaded.
            if callable(getattr(owner, "prepare_data", None)):
                session.once(owner.prepare_data, scope="node")
        for owner in self._owners:
            if callable(getattr(owner, "setup", None)):
                with alike(seed):
                    owner.setup(stage)

    def train(
        self,
        session: Session,
        *,
        per_rank: bool,  # batch sizes are per rank
        in_order: bool,  # no loader shuffles, against what the script says
        former: Sequence[Any] = (),  # loaders of the session that the new ones take the place of
    ) -> Batches | Together | InTurn | None:
        """Return the training batches, divided among the ranks; None without a loader."""
        tree = self.find("train")
        if tree is None:
            return None
        # Lightning's mode for several loaders that are returned without one.
        mode = tree.mode if isinstance(tree, CombinedLoader) else "max_size_cycle"
        tree = tree.iterables if isinstance(tree, CombinedLoader) else tree
        own = [_unshuffled(loader) if in_order else loader for loader in leaves(tree)]
        _check_number(own, former, "train")
        loaders = self._divided(session, own, former, per_rank=per_rank)
        return combined(tree, mode, loaders)

    def evaluated(
        self,
        session: Session,
        stage: str,  # "val", "test" or "predict"
        *,
        per_rank: bool,  # batch sizes are per rank
        trains: bool,  # it is part of a training run
        former: Sequence[Any] = (),  # loaders of the session that the new ones take the place of
    ) -> list[Any]:
        """Return the loaders of an evaluation, divided among the ranks; empty without one."""
        tree = self.find(stage)
        if isinstance(tree, CombinedLoader):
            if tree.mode != SEQUENTIAL:
                raise _evaluated_together(tree.mode, stage)
            tree = tree.iterables
        loaders = [] if tree is None else leaves(tree)
        _check_number(loaders, former, stage)
        ready = self._divided(session, loaders, former, per_rank=per_rank)
        for loader in ready:
            loader.takes_any = True
            if not trains:  # a session's first loaders take the position of the training's
                loader.load_state_dict({"epoch": 0, "done": 0, "length": 0})
        return ready

    def makes(self, stage: str) -> bool:
        """Return whether the loader of a stage is made by a method, and was not passed."""
        methods = [getattr(owner, f"{stage}_dataloader", None) for owner in self._owners]
        return self._loaders.get(stage) is None and any(map(callable, methods))

    def find(self, stage: str) -> Any:
        """Return the user's loader of a stage, or a list or dict of them; None if there is none."""
        data = self._loaders.get(stage)
        for owner in self._owners:
            make = getattr(owner, f"{stage}_dataloader", None)
            if data is None and callable(make):
                data = make()
        if isinstance(data, list | tuple) and len(data) <= 1:
            data = data[0] if data else None
        self._found[stage] = data
        return data

    def found(self, stage: str) -> Any:
        """Return what ``find`` returned last for a stage; None before."""
        return self._found.get(stage)

    def call(self, method: str, *args: Any) -> None:
        """Call a method of the data object and the task, where they have it."""
        for owner in self._owners:
            if callable(getattr(owner, method, None)):
                getattr(owner, method)(*args)

    def owners(self) -> list[Any]:
        """Return the data object and the task, those that there are."""
        return list(self._owners)

    def transfer(self, session: Session) -> Transfer | None:
        """Return what passes batches through the script's hooks; None without hooks."""
        transfer = Transfer(self._owners, session.device)
        return None if transfer.is_plain else transfer

    def _divided(
        self, session: Session, loaders: Sequence[Any], former: Sequence[Any], **options: Any
    ) -> list[Any]:
        """Return the session's loaders of a stage, in place of former ones if there are any."""
        ready = [
            session.loader(loader, instead_of=before, **options)
            for loader, before in zip(loaders, former or [None] * len(loaders), strict=True)
        ]
        for loader in ready:
            loader.moves = not Transfer(self._owners, session.device).moves
        return ready


def _check_number(loaders: Sequence[Any], former: Sequence[Any], stage: str) -> None:
    """Refuse another number of loaders than those whose places they take."""
    if former and len(loaders) != len(former):
        raise option_contradicted(
            f"{stage}_dataloader returned {len(loaders)} loaders, and {len(former)} before",
            where="Trainer(reload_dataloaders_every_n_epochs=...)",
            fix="the same number of loaders each time, of other datasets or batch sizes",
        )


def no_loader(stage: str, method: str) -> UsageError:
    """Return the error that there is no loader for a stage."""
    return option_invalid(
        f"there is no loader for {stage}",
        where=f"trainer.{method}(...)",
        fix=f"def {stage}_dataloader(self): return DataLoader(...), or pass one",
    )


def _unshuffled(loader: Any) -> Any:
    """Return a DataLoader of the same batches in the dataset's order."""
    is_plain = isinstance(loader, DataLoader) and loader.batch_size is not None
    if not is_plain or isinstance(loader.sampler, SequentialSampler):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
    )


def is_data(thing: Any) -> bool:
    """Return whether an object is a data object, and not a loader."""
    return any(callable(getattr(thing, f"{stage}_dataloader", None)) for stage in STAGES)


def _evaluated_together(mode: str, stage: str) -> UsageError:
    return option_invalid(
        f"CombinedLoader(mode={mode!r}) for {stage}: an evaluation serves one loader after the"
        " other",
        where=f"{stage}_dataloader",
        why="each row counts once, and loaders of different lengths have no rows in common",
        fix=f"return a list from {stage}_dataloader: steps get dataloader_idx",
    )


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
