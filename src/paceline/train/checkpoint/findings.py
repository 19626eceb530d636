"""Findings about checkpoints, with their texts. Pure, and without torch."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import Finding, PacelineError, RunError, SetupError, UsageError, option_invalid
from paceline.rundir.manifest import Saved
from paceline.text.wording import few_lines

_MOST = 8  # lines of evidence
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class CheckpointFailure:
    """A rank's failure, as sent to the other ranks; its exception may not be picklable."""

    kind: type[PacelineError]  # class of the exception to raise
    finding: Finding  # finding of the exception

    def error(self) -> PacelineError:
        """Return the exception."""
        return self.kind(self.finding)


def merge(failures: Mapping[int, CheckpointFailure]) -> CheckpointFailure:
    """Return the failure of the lowest failed rank, with the other failed ranks as evidence."""
    first = min(failures)
    others = [str(rank) for rank in sorted(failures) if rank != first]
    if not others:
        return failures[first]
    finding = failures[first].finding
    line = f"the same or worse on rank{'s' if len(others) > 1 else ''} {', '.join(others)}"
    return CheckpointFailure(
        failures[first].kind, replace(finding, evidence=(*finding.evidence, line))
    )


def of_exception(error: BaseException, *, where: str) -> CheckpointFailure:
    """Return the failure to send to the other ranks for any exception."""
    told = error if isinstance(error, PacelineError) else _unexpected(error, where=where)
    return CheckpointFailure(type(told), told.finding)


def _unexpected(error: BaseException, *, where: str) -> RunError:
    lines = [line.strip() for line in traceback.format_exception(error)[-2:]]
    return RunError.of(
        "script-error-on-one-rank",
        f"a checkpoint failed: {type(error).__name__}: {error}",
        where=where,
        evidence=tuple(part for line in lines for part in line.splitlines()),
        fix="paceline checkpoint list; the checkpoints that it shows are intact",
    )


def of_os_error(
    error: OSError,
    *,
    folder: Path,
    where: str,
    needed_bytes: int,
    free_bytes: int | None,
    has_earlier: bool,
) -> PacelineError:
    """Return the error for a file system error while a checkpoint is written."""
    if error.errno not in _FULL:
        return not_writable(folder, where=where, error=f"{type(error).__name__}: {error}")
    free = "unknown" if free_bytes is None else f"{free_bytes:,} bytes"
    if has_earlier:
        earlier = "earlier ones are intact"
        why = "they are deleted only after it is committed: keep_last=2 needs space for three"
    else:
        earlier = "there is no earlier one"
        why = "without it nothing of this run can be resumed"
    return RunError.of(
        "disk-full",
        f"no space left for a checkpoint; {earlier}",
        where=f"{where}, {folder}",
        evidence=(f"needed by this rank: {needed_bytes:,} bytes; free: {free}", str(error)),
        why=why,
        fix=f"free space, keep fewer, or write elsewhere; what fills the disk: du -sh {folder}/*",
    )


def not_writable(folder: Path, *, where: str, error: str) -> SetupError:
    """Return the error that the folder cannot be written to."""
    return SetupError.of(
        "folder-not-writable",
        "a checkpoint cannot be written",
        where=f"{where}, {folder}",
        evidence=(error,),
        why="without it nothing of this run can be resumed",
        fix="paceline run --run-dir FOLDER ..., a folder that this user may write to",
    )


def not_shared(folder: Path, *, blind: Sequence[str]) -> SetupError:
    """Return the error that ranks, each as ``"rank 3 on node-b"``, do not see the folder."""
    return SetupError.of(
        "run-folder-not-shared",
        f"{len(blind)} rank{'s do' if len(blind) > 1 else ' does'} not see the files that rank"
        " 0 writes",
        where=str(folder),
        evidence=few_lines(blind, _MOST),
        why=(
            "every rank writes a part of a checkpoint, and the parts have to come together in"
            " one folder"
        ),
        fix="paceline run --run-dir FOLDER ..., a folder on a file system that all nodes share",
    )


def other_model(saved: Saved, lines: Sequence[str]) -> UsageError:
    """Return the error that a checkpoint does not fit the model."""
    return UsageError.of(
        "checkpoint-other-model",
        f"the checkpoint {saved.path.name} is of another model: {len(lines)} "
        f"difference{'s' if len(lines) > 1 else ''} in names or shapes",
        where=str(saved.path),
        evidence=few_lines(lines, _MOST),
        why="nothing was loaded: the model is as it was",
        fix=(
            "build the model as it was when it was saved, or use another run folder: --run-dir"
            " FOLDER"
        ),
    )


def missing(path: Path, what: str, *, fix: str = "") -> UsageError:
    """Return the error that no checkpoint exists at a path."""
    return UsageError.of(
        "checkpoint-missing",
        what,
        where=str(path),
        fix=fix or f"paceline checkpoint list {path.parent}",
    )


def unfinished(path: Path) -> UsageError:
    """Return the error that a folder holds a checkpoint that was never committed."""
    return UsageError.of(
        "checkpoint-unfinished",
        "the checkpoint was not committed: the run ended before all of it was written",
        where=str(path),
        why="parts of it are missing or cut off",
        fix=f"use a committed one: paceline checkpoint list {path.parent}",
    )


def different_states(where: str, lines: Sequence[str]) -> UsageError:
    """Return the error that ranks save different states."""
    return UsageError.of(
        "collective-mismatch",
        "ranks save different states",
        where=where,
        evidence=few_lines(lines, _MOST),
        why="what is the same on all ranks is written once, by one of them",
        fix="register the same objects on all ranks, not under `if session.is_main`",
    )


def not_picklable(name: str, error: BaseException, *, where: str) -> UsageError:
    """Return the error that an object cannot be pickled."""
    return option_invalid(
        f"{name} cannot be saved: {type(error).__name__}: {error}",
        where=where,
        fix=(
            "leave out of its state_dict what cannot be pickled: files, locks, functions made"
            " in functions"
        ),
    )


def bad_option(name: str, value: object, allowed: str, *, fix: str) -> UsageError:
    """Return the exception for an invalid option of ``save``."""
    return option_invalid(f"{name}={value!r} is not {allowed}", where=f"save({name}=)", fix=fix)


def no_metric(path: Path, count: int) -> UsageError:
    """Return the error that no checkpoint has a metric, so there is no best one."""
    return UsageError.of(
        "checkpoint-missing",
        f"there is no best checkpoint: none of the {count} in the folder has a metric",
        where=str(path),
        fix=(
            "session.save(metric=...) from now on; to resume from the latest:"
            ' session.restore("latest")'
        ),
    )
