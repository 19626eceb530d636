"""Decide which cause ``explain`` names first: the order of tiers, the most direct first.

A signature names its tier. Pairs of faults that explain each other regardless of their tiers are in
``paceline.diagnose.explain.pairs``.
"""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


@total_ordering
class Tier(Enum):
    """Tiers from the likeliest cause down: ``Tier.CAUSE > Tier.TIMEOUT``.

    Within a tier, the earliest text ranks first.
    """

    meaning: str

    ORIGIN = "names a fault from which others that name themselves follow, such as a broken driver"
    CAUSE = "names the fault; the text can mean nothing else"
    COARSE = "names the fault, but another text about the same fault may name it more finely"
    BROAD = "names the fault in general words; any other text about it says more"
    OUTSIDE = (
        "something outside the program ended the run, or the run was already in trouble when that"
        " happened"
    )
    EXCEPTION = "an exception that no signature knows; an end by a scheduler's limit"
    DOUBTFUL_EXCEPTION = (
        "an exception that was handled, or without a traceback through the user's code"
    )
    MENTIONED_EXCEPTION = "an exception in the middle of a line, or one that an installation met"
    WORKER_CRASH = "a signal ended a DataLoader worker, as its rank reports"
    CRASH = "a signal ended a process: mostly a fault of its own"
    LASTING = "a warning that names a fault, which stays although the run continues"
    HINTED = "a warning that names a fault, which the run may have overcome"
    WAIT_EXPLAINED = "says why ranks waited in vain"
    TIMEOUT = "a rank waited in vain: mostly the fault is elsewhere"
    SUSPECTED = "makes a fault likely without naming it"
    UNCLEAR = "an error without a cause"
    WARNED = "names a fault in a line that its logger calls a warning or an information"
    INTERRUPTED = "a person or a command cancelled the run"
    STOPPED = "a signal from outside stopped the run"
    RETRIED = "a step of the start that failed and is tried again"
    ABORTED = "a process or a transfer broke off; another line says why"
    VICTIM = "a consequence of another process's end"
    AFTERMATH = "a consequence of what a victim reports"
    UNEXPLAINED = "an end whose cause is not in the text"
    SUMMARY = "what a launcher reports at the end"
    STEP_ENDED = "a scheduler reports the end of a step or of a task"
    TASKS_ENDED = "a scheduler ends the other tasks of a step"
    RANKS_ENDED = "a launcher ends the other ranks"
    SURVIVED = "training continued after it"
    REMARK = "harmless, or only a note for a rule"

    def __new__(cls, meaning: str) -> Tier:
        """Number the tiers in the order of their definition."""
        tier = object.__new__(cls)
        tier._value_ = len(cls.__members__)
        tier.meaning = meaning
        return tier

    def __lt__(self, other: Tier) -> bool:
        """Return whether a text of the other tier is more likely the cause."""
        return bool(self.value > other.value)
