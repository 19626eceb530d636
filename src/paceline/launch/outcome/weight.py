"""Weigh an exit: is it the cause of a failure, or does it follow from another rank's end? Pure.

A victim never outranks a cause, even with an earlier timestamp.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from paceline.launch.outcome.rank_exit import Failure, RankExit
from paceline.signatures import rank_errors, texts

# How far an exit is from being a cause; smaller is nearer.
CAUSE, UNCLEAR, EARLY_EXIT, SUSPECT, VICTIM = range(5)

# What scripts raise on a signal to stop: by Python, torch elastic, and handlers of frameworks.
STOP_EXCEPTIONS = ("KeyboardInterrupt", "SystemExit", "SignalException", "SIGTERMException")


def weigh(end: RankExit) -> int:
    """Return how far an exit is from being a cause, from ``CAUSE`` to ``VICTIM``."""
    if end.unfinished:
        return EARLY_EXIT  # innocent only if all ranks have ended like this
    if end.failure is not None:
        return _weigh_exception(end, end.failure)
    if end.stopped or end.code is None:
        return VICTIM
    # Without an exception, the last lines of its log may explain it: gloo and NCCL abort a process
    # whose peer is gone, and a program without our entry leaves its traceback only in the log.
    if end.code == -signal.SIGABRT:
        return weigh_texts(end.log_tail) or UNCLEAR
    if end.code > 0:
        return weigh_texts(end.log_tail) or CAUSE
    return CAUSE


def _weigh_exception(end: RankExit, failure: Failure) -> int:
    if end.stopped:
        came_later = failure.time_ns > end.stopped_ns > 0
        if came_later or failure.type in STOP_EXCEPTIONS:
            return VICTIM  # raised because of the signal to stop
    if failure.finding is not None and texts.FINITE_ITSELF in failure.finding.evidence:
        return UNCLEAR  # another rank is to blame, if one blames itself
    # of a group the part that is nearest to a cause
    return min(weigh_texts([text]) or CAUSE for text in error_texts(end))


def weigh_texts(texts: Sequence[str]) -> int | None:
    """Weigh error texts of a rank; None if they do not refer to another rank."""
    errors = [rank_errors.read(text) for text in texts]
    # A rank whose port was taken is itself the cause, also if it then waited in vain.
    errors = [error for error in errors if error.own_fault != rank_errors.PORT_IN_USE]
    if any(error.wait for error in errors):
        return SUSPECT
    if any(error.has_lost_peer for error in errors):
        return VICTIM
    return None


def error_texts(end: RankExit) -> Sequence[str]:
    """Return the texts that say why a rank failed: its exception, or the last lines of its log."""
    return (end.failure.parts or [end.failure.root]) if end.failure else end.log_tail


def texts_about(
    end: RankExit,
    wait: str,  # the kind, as ``rank_errors.read`` names it
) -> list[str]:
    """Return the error texts of a rank that speak of one kind of vain wait for other ranks."""
    return [text for text in error_texts(end) if rank_errors.read(text).wait == wait]
