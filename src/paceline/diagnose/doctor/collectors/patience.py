"""How long a part of the machine may take to answer: a driver or a file server that hangs must not hang us."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def within(seconds: float, ask: Callable[[], _Found], otherwise: _Found) -> tuple[_Found, str]:
    """Return what ``ask`` returns, or ``otherwise`` if that takes too long or fails, and why.

    A thread that is stuck stays behind; it is a daemon, so that it keeps nobody from ending.
    """
    answer: queue.SimpleQueue[tuple[_Found, str]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put((ask(), ""))
        except Exception as error:  # whatever a library raises: one part that is missing must not hide the others
            answer.put((otherwise, f"{type(error).__name__}: {error}"[:120]))

    threading.Thread(target=work, name="paceline-doctor", daemon=True).start()
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return otherwise, f"no answer within {seconds:g} s"
