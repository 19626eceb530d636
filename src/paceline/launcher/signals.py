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
            return info and Caught(signal.Signals(info.si_signo), info.si_pid)
        if not self._noted:
            time.sleep(timeout_s)
        return Caught(signal.Signals(self._noted.popleft()), None) if self._noted else None
