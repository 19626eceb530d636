"""Signals to the launcher, taken one by one by its main thread.

Where the system has ``sigtimedwait`` they stay blocked and are fetched, with who sent them; elsewhere (macOS)
handlers take them down, and the sender is not known.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

# Notices that come some time before the end (Slurm's --signal=USR1@120). They ask the launcher to stop the run
# well; ranks get SIGTERM for them, because a script that has no handler for SIGUSR1 would be killed by it at once.
NOTICES = ("SIGUSR1", "SIGUSR2")
# One event may come as several signals: `timeout` sends to the process and to its group.
_ECHO_S = 0.25


def for_ranks(number: signal.Signals, handed_on: Sequence[str]) -> signal.Signals:
    """Return what the ranks get for a signal to the launcher: the same if it is to be handed on, else SIGTERM."""
    return number if number.name in handed_on else signal.SIGTERM


class Insistence:
    """Tells the signal that wants the ranks ended at once from those that say what is known already. Pure.

    A notice never wants it, and SIGTERM after a notice (or after ``--max-time``) is what it was about: ranks still
    have their time. SIGINT comes from a person who does not want to wait.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._in_earnest_s: float | None = None

    def hears(self, name: str, now_s: float) -> bool:
        """Take down what asked for the end, the first time or again; True if ranks are to be ended at once.

        Args:
            name: Name of the signal; empty for the launcher's own clock.
            now_s: When it came.
        """
        before = self._first_s if name == "SIGINT" else self._in_earnest_s
        self._first_s = now_s if self._first_s is None else self._first_s
        if not name or name in NOTICES:
            return False
        self._in_earnest_s = now_s if self._in_earnest_s is None else self._in_earnest_s
        return before is not None and now_s - before > _ECHO_S


class Caught(NamedTuple):
    """A signal that came.

    Attributes:
        number: Which.
        sender: Process that sent it, 0 for the terminal or the kernel, None where that is not known.
    """

    number: signal.Signals
    sender: int | None


class Signals:
    """Takes signals from the moment it is made; in the main thread.

    Args:
        numbers: Those to take.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._noted: deque[int] = deque()
        self._fetch = getattr(signal, "sigtimedwait", None)
        if self._fetch is not None:
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        else:
            for number in numbers:
                signal.signal(number, lambda caught, _: self._noted.append(caught))

    def next(self, timeout_s: float) -> Caught | None:
        """Return the next signal, None if none comes within ``timeout_s``."""
        if self._fetch is not None:
            info = self._fetch(self._numbers, timeout_s)
            # A process that was stopped and goes on (Ctrl-Z and fg) may be handed an answer that nobody has filled in.
            if not info or info.si_signo not in self._numbers:
                return None
            return Caught(signal.Signals(info.si_signo), info.si_pid)
        if not self._noted:
            time.sleep(timeout_s)
        return Caught(signal.Signals(self._noted.popleft()), None) if self._noted else None
