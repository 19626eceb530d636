"""Choose the checkpoint that a fit or an evaluation begins with, and restore it."""

from __future__ import annotations

import os
from pathlib import Path

from paceline import env
from paceline.errors import UsageError, option_contradicted
from paceline.text import terminal
from paceline.train.session import Session

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
