"""Check whether a checkpoint fits into the grace period, and warn as soon as one was measured.

``judge`` decides; ``SaveWatch`` reads the run folder from time to time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from paceline.errors import Finding
from paceline.launch.outcome import evidence, resume
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand

_EVERY_S = 15.0  # the folder has few entries, but may be on a file server
_STEP_S = 2.0  # time for ranks with short steps to reach a step boundary


def judge(
    last: Checkpoint | None, *, grace_s: int, resume_command: ResumeCommand
) -> Finding | None:
    """Return the warning that a stop would leave an unfinished checkpoint; None if it would not.

    It is None too if no save was measured. A final save may take half as long again as an earlier
    one: all ranks wait for it, and the disk is shared.
    """
    if last is None or 1.5 * last.seconds + _STEP_S <= grace_s:
        return None
    return Finding(
        "grace-too-short",
        f"a checkpoint took {last.seconds:.0f} s, and ranks have {grace_s} s to end when the run is"
        " stopped",
        where=last.path,
        why=(
            "they would be killed while they save, and the steps since the previous checkpoint"
            " would be lost"
        ),
        fix=resume.describe_short_grace(grace_s, resume_command, needed_s=last.seconds),
        severity="warning",
    )


class SaveWatch:
    """Looks at the newest checkpoint, and warns once."""

    def __init__(
        self,
        folder: Path,  # the checkpoints of the run
        *,
        grace_s: int,  # seconds that ranks have between the signal and SIGKILL
        resume_command: ResumeCommand,  # the resume command of the run
        notice: Callable[[Finding], None],  # prints a warning
    ) -> None:
        self._folder, self._grace_s, self._notice = folder, grace_s, notice
        self._resume_command = resume_command
        self._next_s = 0.0
        self._has_warned = False

    def tick(self) -> None:
        """Look at the newest checkpoint, if a look is due."""
        now_s = time.monotonic()
        if self._has_warned or now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        last = evidence.last_checkpoint(self._folder)
        warning = judge(last, grace_s=self._grace_s, resume_command=self._resume_command)
        if warning is not None:
            self._has_warned = True
            self._notice(warning)
