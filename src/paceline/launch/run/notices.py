"""Print warnings and notices of this node, and keep warnings for the final report."""

from __future__ import annotations

import socket
from collections.abc import Callable

from paceline.errors import Finding, Notice
from paceline.launch.run.console import Console


class Notices:
    """Prints to the console of a run; not warnings if the head prints them to the same output."""

    def __init__(self, console: Console, *, is_quiet: Callable[[], bool] = lambda: False) -> None:
        self._console, self._is_quiet = console, is_quiet
        # warnings of this node so far, repeated in the final report
        self.warnings: list[Finding] = []

    def warn(self, finding: Finding) -> None:
        """Print a warning, once, and keep it for the final report."""
        if finding not in self.warnings:
            self.warnings.append(finding)
            if self._is_quiet():
                return
            self._console.say(finding.render())

    def inform(self, notice: Notice) -> None:
        """Print a notice. The final report repeats warnings, but not notices."""
        self._console.say(notice.render())


def unkillable(rank: int, pid: int, place: str) -> Notice:
    """Return the notice that a rank does not end because it waits in the kernel."""
    return Notice(
        f"rank {rank} (pid {pid}) on {socket.gethostname()} cannot be ended now: it waits in the"
        " kernel (state D)",
        details=(f"it waits in {place}: a file system, a disk or a device does not answer",),
        advice=f"no signal ends it before that; look at it: cat /proc/{pid}/stack; dmesg | tail",
    )
