"""Call a function with a deadline, because a driver or a server may hang."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")
_EXPECTED: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError)


def within(seconds: float, ask: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """Return the result of ``ask``, or ``otherwise`` if the call takes too long or fails."""
    answer, _ = within_why(seconds, ask, otherwise, errors=_EXPECTED)
    return answer


def within_why(
    seconds: float,
    ask: Callable[[], _Answer],  # called in a separate thread
    otherwise: _Answer,  # the result if ``ask`` fails or does not return in time
    *,
    # returned as the reason; for others, the thread prints the traceback
    errors: tuple[type[Exception], ...] = (Exception,),
) -> tuple[_Answer, str]:
    """Return the result of ``ask`` and an empty text, or ``otherwise`` and the reason.

    A thread that hangs is left running. It is a daemon thread, so the process can still exit.
    """
    answers: queue.SimpleQueue[tuple[_Answer, str]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((ask(), ""))
        except errors as error:
            answers.put((otherwise, f"{type(error).__name__}: {error}"[:120]))

    thread = threading.Thread(target=work, name="paceline-ask", daemon=True)
    thread.start()
    thread.join(seconds)
    return (otherwise, f"no answer within {seconds:g} s") if answers.empty() else answers.get()
