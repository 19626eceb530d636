"""Print warnings and notices of this node, and keep warnings for the final report."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import Finding, Notice
from paceline.launch.run.console import Console


class Notices:
    """Prints to the console of a run.

    Args:
        console: The console.
        is_quiet: Returns whether the head prints the warnings of all nodes to the same output.
    """

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
