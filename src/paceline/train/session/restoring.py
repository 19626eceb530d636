"""Decide which checkpoint a Session resumes from, and describe it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.errors import Finding, RunError, option_invalid
from paceline.rundir.manifest import Saved
from paceline.train.checkpoint import Checkpoints

LATEST, BEST = "latest", "best"
REFUSE, SKIP = "refuse", "skip"
_DAMAGED = "checkpoint-damaged"


def read_damaged(value: str | None) -> str:
    """Return the policy for a damaged checkpoint, ``"refuse"`` by default."""
    if value is None or value in (REFUSE, SKIP):
        return value or REFUSE
    what = f"damaged={value!r} is neither 'refuse' nor 'skip'"
    raise option_invalid(
        what, where="session.restore(...)", fix='session.restore("latest", damaged="skip")'
    )


def find_intact(
    checkpoints: Checkpoints,
    which: str | os.PathLike[str],  # as for ``Session.restore``
    damaged: str,  # "refuse" or "skip", for a damaged latest checkpoint
    *,
    load: Callable[[Saved], dict[str, Any]],  # one checkpoint
    inform: Callable[[Finding], None],  # prints a warning on rank 0
) -> tuple[Saved, dict[str, Any]] | None:
    """Find and load a checkpoint; return it with its values, or None if there is none.

    Damage is reported alike on all ranks, so all ranks try an older checkpoint together. Raises
    RunError if the checkpoint is damaged and must not be skipped, or no older one is intact.
    """
    skipped: list[Finding] = []
    while True:
        try:
            saved = checkpoints.find(which, without=[skip.where for skip in skipped])
            if saved is None and skipped:
                raise RunError(_all_damaged(skipped))
            return None if saved is None else (saved, load(saved))
        except RunError as error:
            finding = error.finding
            is_repeated = any(skip.where == finding.where for skip in skipped)
            if finding.name != _DAMAGED or which != LATEST or is_repeated:
                raise
            if damaged != SKIP:
                raise RunError(_with_older(finding, checkpoints)) from error
            skipped.append(finding)
            inform(
                replace(
                    finding,
                    severity="warning",
                    why="the latest intact checkpoint is used instead; the steps after it are"
                    " repeated",
                    fix="check the disk or file system that it is on",
                )
            )


def _with_older(finding: Finding, checkpoints: Checkpoints) -> Finding:
    older = checkpoints.find_intact_before(finding.where)
    if older is None:
        fix = (
            "no older one is intact: start over in another run folder (--run-dir FOLDER,"
            " Session(run_dir=...))"
        )
        return replace(finding, fix=fix)
    path, step = older
    return replace(
        finding,
        evidence=(*finding.evidence, f"intact: {path}, step {step}"),
        fix=(
            'session.restore("latest", damaged="skip"), or: export PACELINE_DAMAGED=skip;'
            f" continues from {path.name}"
        ),
    )


def _all_damaged(skipped: list[Finding]) -> Finding:
    what = "the only checkpoint is damaged"
    if len(skipped) > 1:
        what = f"all {len(skipped)} checkpoints are damaged"
    return replace(
        skipped[0],
        what=what,
        evidence=tuple(finding.where for finding in skipped),
        fix="start over in another run folder: --run-dir FOLDER, Session(run_dir=...)",
    )


def describe(saved: Saved, which: str | os.PathLike[str]) -> str:
    """Return the line that reports what was loaded. Pure."""
    ranks = f"{saved.world_size} rank{'s' * (saved.world_size != 1)}"
    what = f"{saved.path}: step {saved.step}, saved by {ranks}"
    if which == LATEST:
        return f"resuming from {what}"
    if which == BEST:
        return f"loaded the best checkpoint {what}"
    return f"loaded the checkpoint {what}"
