"""Choose the checkpoint that a fit or an evaluation begins with, and restore it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline import env
from paceline.errors import UsageError, option_contradicted
from paceline.text import terminal
from paceline.train.checkpoint import list_of
from paceline.train.session import Session

if TYPE_CHECKING:
    from paceline.train.trainer.attributes import Attributes


class RunCheckpoints:
    """What ``trainer.checkpoint_callback`` is without a ModelCheckpoint: the run folder's."""

    def __init__(self, trainer: Attributes) -> None:
        self._trainer = trainer

    @property
    def dirpath(self) -> str:
        """Folder of the checkpoints."""
        return str(self._trainer.session.run_dir.checkpoints)

    @property
    def monitor(self) -> str | None:
        """The metric by which the best are kept."""
        return self._trainer.monitor

    @property
    def mode(self) -> str:
        """Whether smaller values of it are better."""
        return self._trainer.mode

    @property
    def best_model_path(self) -> str:
        """The best checkpoint, or the last one without a metric; empty without any."""
        scores = self._scores()
        if not scores:
            return self.last_model_path
        pick = min if self.mode == "min" else max
        return pick(scores, key=lambda path: scores[path])

    @property
    def best_model_score(self) -> torch.Tensor | None:
        """Metric of the best checkpoint; None without one."""
        scores = self._scores()
        return torch.tensor(scores[self.best_model_path]) if scores else None

    @property
    def best_k_models(self) -> dict[str, torch.Tensor]:
        """Metrics of the checkpoints that have one, by path."""
        return {path: torch.tensor(score) for path, score in self._scores().items()}

    @property
    def last_model_path(self) -> str:
        """The last checkpoint; empty without any."""
        paths = list(self._metrics())
        return paths[-1] if paths else ""

    def _scores(self) -> dict[str, float]:
        return {path: metric for path, metric in self._metrics().items() if metric is not None}

    def _metrics(self) -> dict[str, float | None]:
        """Return the metrics of this training's checkpoints by path, the oldest first."""
        folder = self._trainer.session.run_dir.checkpoints
        if not folder.is_dir():
            return {}
        _, committed = list_of(folder)
        # A training that starts over writes into the same folder, beside an earlier one's.
        own = [saved for saved in committed if saved.manifest.run == committed[-1].manifest.run]
        return {str(saved.path): saved.manifest.metric for saved in own}


_fitted: set[Path] = set()  # run folders of this process's fits


def restore_for_fit(
    session: Session,
    ckpt_path: str | os.PathLike[str] | None,  # the latest one if None and the fit resumes
    *,
    resume: bool | None,  # None means in the folder of a ``paceline run`` only
    chose_folder: bool,  # the Trainer got a run folder
) -> None:
    """Restore the checkpoint from which a fit resumes, if it resumes.

    Raises UsageError if the checkpoint does not exist, or an earlier fit of this process has
    written it.
    """
    folder = session.run_dir.root
    has_fitted = folder.resolve() in _fitted
    _fitted.add(folder.resolve())
    if ckpt_path is not None:
        restore(session, ckpt_path)
        return
    is_launchers = env.read(env.RUN_DIR) is not None and not chose_folder
    if resume or (resume is None and is_launchers):
        if has_fitted and resume is None:
            _refuse_second_fit(session)
        session.restore("latest")
    elif session.is_main and _has_checkpoints(session):
        terminal.say(
            f"starts over beside the checkpoints in {folder}; resume=True continues from them"
        )


def restore(session: Session, ckpt_path: str | os.PathLike[str]) -> None:
    """Restore a checkpoint that the user named: ``"last"``, ``"best"`` or a path."""
    if not session.restore("latest" if ckpt_path == "last" else ckpt_path):
        raise UsageError.of(
            "checkpoint-missing",
            f"there is no checkpoint in {session.run_dir.checkpoints}",
            where=f"ckpt_path={os.fspath(ckpt_path)!r}",
            fix="give the path of one, or leave ckpt_path out",
        )


def _refuse_second_fit(session: Session) -> None:
    """Refuse a fit that would resume where an earlier one has ended, and so train nothing."""
    if session.reduce(int(session.is_main and _has_checkpoints(session))):  # rank 0 decides
        raise option_contradicted(
            f"this process has fitted in {session.run_dir.root} before, and would continue from its"
            " checkpoints",
            where="trainer.fit(...)",
            why="a second fit would begin with the weights and the epoch in which the first ended",
            fix=(
                "another Trainer for another training run (it has its own folder), or"
                " Trainer(resume=True)"
            ),
        )


def _has_checkpoints(session: Session) -> bool:
    return any(session.run_dir.checkpoints.glob("[0-9]*"))
