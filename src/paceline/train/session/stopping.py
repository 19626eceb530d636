"""Stop cleanly, and finish a script that used a Session.

A signal only sets a flag, and all ranks agree at a step boundary to stop there. Handlers are
installed when a script first uses checkpoints; until then signals act as before. At the end of the
script, pending writes are finished, and a line says what the session has proven.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from paceline import counters
from paceline.errors import EXIT_FAILED, PacelineError
from paceline.machine import agreement
from paceline.rundir import proofs
from paceline.text import terminal
from paceline.text.wording import few
from paceline.train import logging
from paceline.train.checkpoint import Checkpoints
from paceline.train.session.rank_check import RankCheck

MEETING_EVERY_S = 1.0  # a collective takes some 100 µs; a stop need not be exact to the step

_newest: list[CleanStop] = []  # at most one: the session that handles signals
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGINT")


class CleanStop:
    """Whether this rank was asked to stop, and when ranks next agree about it."""

    def __init__(
        self,
        # element-wise maximum of ints over all ranks; a collective
        greatest: Callable[[list[int]], list[int]],
        *,
        alone: bool,  # there is only one rank
        is_late: Callable[[], bool] = lambda: False,  # a checkpoint is due by this rank's clock
    ) -> None:
        self.asked_by = ""  # a signal's name, or the script; empty without a request
        self.saves_now = False  # ranks have just agreed that a checkpoint is due
        self._is_late = is_late
        self._greatest, self._alone = greatest, alone
        self._armed = False
        self._groups = 0  # groups since the last agreement
        self._until = 1  # groups from the last agreement to the next
        self._met_at_s = 0.0

    def arm(self) -> None:
        """Handle signals that the script does not handle itself; only in the main thread."""
        if self._armed:
            return
        self._armed = True
        if counters.mine is not None:
            counters.mine[counters.ARMED] = 1  # the launcher then waits for this rank in any case
        self._met_at_s = time.monotonic()
        _newest[:] = [self]
        if threading.current_thread() is not threading.main_thread():
            return
        handled: list[signal.Signals] = []
        for name in _SIGNALS:
            number = getattr(signal, name, None)  # Windows has no SIGUSR1
            if number is None or signal.getsignal(number) not in _DEFAULTS:
                continue
            signal.signal(number, _note)
            handled.append(number)
        # Children must not inherit a handler that only sets a flag: SIGTERM must end loader
        # workers.
        os.register_at_fork(after_in_child=lambda: give_back(handled))

    def ask(self, by: str) -> None:
        """Request a stop at the next boundary."""
        self.asked_by = self.asked_by or by

    def agreed(self, *, now: bool = False) -> bool:
        """Return whether all ranks stop here; all ranks call it at the same boundaries.

        ``now`` runs the collective in any case, as between epochs.
        """
        if not self._armed and not now:
            return False  # a script that has not saved or restored agrees between epochs only
        self.saves_now = self._alone and self._is_late()
        if self._alone:
            return bool(self.asked_by)
        self._groups += 1
        if self._groups < self._until and not now:
            return False
        now_s = time.monotonic()
        group_us = int((now_s - self._met_at_s) / max(1, self._groups) * 1e6)
        stop, slowest_us, late = self._greatest([bool(self.asked_by), group_us, self._is_late()])
        self.saves_now = bool(late)
        self._groups, self._met_at_s = 0, now_s
        # Computed from figures that all ranks have, so all choose the same next boundary.
        self._until = max(1, int(MEETING_EVERY_S * 1e6) // max(1, slowest_us))
        return bool(stop)


def _note(number: int, _frame: FrameType | None) -> None:
    stop = _newest[0]
    if stop.asked_by and number == signal.SIGINT:
        raise KeyboardInterrupt  # a second Ctrl-C ends the script at once
    stop.ask(signal.Signals(number).name)
    if number == signal.SIGINT and sys.stderr.isatty():
        os.write(
            2,
            b"paceline: stopping after this step, to save a checkpoint; Ctrl-C again to end at"
            b" once\n",
        )


def give_back(numbers: Iterable[signal.Signals]) -> None:
    """Reset signals to their handlers in a fresh Python."""
    for number in numbers:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )


@dataclass(frozen=True)
class Proven:
    """What a session on several ranks has proven about its result."""

    check: RankCheck
    whole_epochs: Mapping[int, int]  # epochs that served each sample once, by number of samples
    limits: Sequence[str]  # what depends on the number of ranks


def finish(
    checkpoints: Checkpoints,  # their writes
    loggers: logging.Loggers | None,  # what they have not written yet
    proven: Proven | None = None,  # what to print in the last line; None without one
) -> None:
    """Finish the pending writes of a script that succeeded; exit with status 1 if one fails."""
    if hasattr(sys, "last_type"):
        return
    try:
        checkpoints.close()
        if loggers is not None:
            loggers.close()
        if proven is not None and proven.check.num_steps:
            terminal.say(describe(proven))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, PacelineError):
            text = error.finding.render()
        terminal.show(text, sys.stderr)
        get_error_handler().record_exception(error)  # for the launcher, also torchrun
        sys.stdout.flush()
        os._exit(EXIT_FAILED)  # an exception in an exit handler would leave the exit status at 0


def describe(proven: Proven) -> str:
    """Return the last line of a run, for the script that runs."""
    epochs = [
        f"{'1 epoch' if count == 1 else f'{count} epochs'} of {samples:,}"
        for samples, count in proven.whole_epochs.items()
        if count
    ]
    parts = [f"every sample once ({', '.join(epochs)})"] if epochs else []
    if proven.limits:
        parts.append(f"depends on the number of ranks: {few(list(dict.fromkeys(proven.limits)))}")
    check = proven.check
    return agreement.last_line(
        checks=check.count,
        step=check.last_step,
        differs=bool(check.differs_since),
        others=parts,
        **proofs.part_of_last_line(sys.argv[0], sys.argv[1:]),
    )
