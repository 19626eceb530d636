"""Ask a question with a deadline: a driver or a server that hangs must not hang us."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")
_EXPECTED: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError)


def within(seconds: float, ask: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """Return what ``ask`` returns, or ``otherwise`` if that takes too long or fails."""
    answer, _ = within_why(seconds, ask, otherwise, errors=_EXPECTED)
    return answer


def within_why(
    seconds: float,
    ask: Callable[[], _Answer],
    otherwise: _Answer,
    *,
    errors: tuple[type[Exception], ...] = (Exception,),
) -> tuple[_Answer, str]:
    """Return what ``ask`` returns and an empty text, or ``otherwise`` and why there is no answer.

    A thread that hangs is left behind. It is a daemon: the process can end all the same.

    Args:
        seconds: How long to wait.
        ask: What is called in a thread of its own.
        otherwise: What stands for an answer where there is none.
        errors: Exceptions that are a reason. Of others the thread prints the traceback.
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
