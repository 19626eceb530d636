"""Receive signals to the launcher, one by one, in its main thread, and decide which of them ends
the ranks at once.

``launcher`` acts on them; in a rank that trains with a Session, ``train.session.stopping`` does.
With ``sigtimedwait`` the signals stay blocked and are fetched together with their sender. Without
it (macOS), handlers record them, and the sender is unknown.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

# Notices that come some time before the end (Slurm's --signal=USR1@120). They ask the launcher to
# stop the run in order. Ranks get SIGTERM instead: SIGUSR1 would kill a script without a handler.
NOTICES = ("SIGUSR1", "SIGUSR2")
# One event may arrive as several signals: `timeout` signals the process and its group.
_ECHO_S = 0.25


def for_ranks(number: signal.Signals, forwarded: Sequence[str]) -> signal.Signals:
    """Return the signal for the ranks: the same if the user wants it forwarded, else SIGTERM."""
    return number if number.name in forwarded else signal.SIGTERM


class RepeatPolicy:
    """Decides which signals end the ranks at once, and which repeat what is already known. Pure.

    A notice never ends them at once. SIGTERM after a notice, or after ``--max-time``, was expected:
    ranks keep their grace period. SIGINT comes from a person who does not want to wait.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._serious_s: float | None = None

    def record(
        self,
        name: str,  # name of the signal; empty for the launcher's own clock
        now_s: float,  # when it came, in seconds
    ) -> bool:
        """Record a request to end, the first or a repeated one; True if ranks must end at once."""
        before = self._first_s if name == "SIGINT" else self._serious_s
        self._first_s = now_s if self._first_s is None else self._first_s
        if not name or name in NOTICES:
            return False
        self._serious_s = now_s if self._serious_s is None else self._serious_s
        return before is not None and now_s - before > _ECHO_S


class Caught(NamedTuple):
    """A signal that came."""

    number: signal.Signals  # the signal
    sender: int | None  # process that sent it; 0 for the terminal or the kernel, None if unknown


class Signals:
    """Receives signals from its creation on; use it in the main thread."""

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
        """Return the next signal; None if none comes within ``timeout_s``."""
        if self._fetch is not None:
            info = self._fetch(self._numbers, timeout_s)
            # After a stop (Ctrl-Z and fg), the call may return a result that was never filled in.
            if not info or info.si_signo not in self._numbers:
                return None
            return Caught(signal.Signals(info.si_signo), info.si_pid)
        if not self._noted:
            time.sleep(timeout_s)
        return Caught(signal.Signals(self._noted.popleft()), None) if self._noted else None
