"""Explain why a folder cannot be used for the files of a run."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from paceline.errors import Finding


def unusable(folder: Path, error: OSError, *, option: str, severity: str = "error") -> Finding:
    """Return the finding that a folder cannot be used; ``option`` names another one."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Finding(
            "disk-full",
            f"there is no space for the files of this run in {folder}: {error.strerror}",
            where=str(folder),
            why="logs, exceptions of ranks and checkpoints are written there",
            fix=(
                f"free some (df -h {shlex.quote(str(folder.parent))}), or use another disk:"
                f" {option} FOLDER"
            ),
            severity=severity,
        )
    return Finding(
        "folder-not-writable",
        f"the folder {folder} cannot be written: {error.strerror}",
        where=str(folder),
        fix=f"give another folder with {option}",
        severity=severity,
    )
