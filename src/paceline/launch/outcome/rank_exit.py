"""Rank exits: the records of how ranks ended, which every node sends to all others.

Pure. ``root_cause`` decides from all records together why a run failed.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace

from paceline.errors import EXIT_UNFINISHED, Finding
from paceline.launch.monitor.position import Frame, Position
from paceline.text.wording import shorten

_CHAIN = re.compile(
    r"\n(?:The above exception was the direct cause of|During handling of the above exception,"
    r" another exception)"
)
_LAST_ERROR = re.compile(r"\bNCCL\b[\s\S]*^Last error:\s*(\S.*)", re.M)
# Exceptions that programs raise and handle in normal operation; no failure begins with one.
_CONTROL_FLOW = re.compile(r"(?:[\w.]+\.)?(?:StopIteration|StopAsyncIteration|Empty)(?::|$)")
# Signals of crashes in the interpreter's teardown, when the script has ended.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


@dataclass(frozen=True)
class Failure:
    """An exception that ended a rank."""

    type: str  # name of its class
    message: str  # its text
    time_ns: int  # when it left the script, in nanoseconds on the head's clock
    traceback: str = ""  # the traceback as Python printed it
    frames: tuple[Frame, ...] = ()  # its frames, outermost first
    # the finding that it carries, if it is one of paceline's exceptions; else None
    finding: Finding | None = None
    output: str = ""  # the file to which the script has sent its traceback; empty for its log
    unprinted: bool = False  # whether the rank left it to the launcher to print it
    notes: tuple[str, ...] = ()  # what was added to it with ``add_note``
    parts: tuple[str, ...] = ()  # the exceptions of a group, a line each

    @property
    def place(self) -> Frame | None:
        """The innermost frame in the user's code; None if there is none."""
        return next((frame for frame in reversed(self.frames) if frame.user), None)

    @property
    def first_line(self) -> str:
        """The first line of its message; of NCCL's, the one after ``Last error:``, the reason."""
        said = _LAST_ERROR.search(self.message)
        return said[1] if said else next(iter(self.message.strip().splitlines()), "")

    @property
    def headline(self) -> str:
        """Its type and the first line of its message."""
        return shorten(f"{self.type}: {self.first_line}", 1000).rstrip(": ")

    @property
    def chained(self) -> bool:
        """Whether the traceback shows another exception before it."""
        return _CHAIN.search(self.traceback) is not None

    @property
    def root(self) -> str:
        """The first exception of the chain in one line; this one if it was raised alone."""
        *earlier, _ = _CHAIN.split(self.traceback)
        texts = [text for text in map(_said_by, earlier) if text and not _CONTROL_FLOW.match(text)]
        return texts[0] if texts else f"{self.type}: {self.message}".replace("\n", " ")


def _said_by(traceback: str) -> str:
    """Return the message of a traceback's exception, in one line.

    It begins at the first line without indentation.
    """
    lines = traceback.partition("Traceback (most recent call last):\n")[2].splitlines()
    start = next(
        (place for place, line in enumerate(lines) if re.match(r"[\w.]+(?::|$)", line)), len(lines)
    )
    return " ".join(lines[start:]).strip()


@dataclass(frozen=True)
class RankExit:
    """How one rank ended, with all evidence."""

    rank: int  # global rank
    host: str = ""  # its host
    pid: int = 0  # its process id
    # exit code; negative for a signal; None if it has not ended or its end is unknown
    code: int | None = 0
    time_ns: int = 0  # when it ended, in nanoseconds on the head's clock
    finished: bool = False  # whether its script had reached its end
    left: bool = False  # whether its script had ended early to be resumed, with status 75
    stopped: str = ""  # why the launcher ended it; empty if it did not
    # when the launcher signalled it to end, on the head's clock; 0 if it did not
    stopped_ns: int = 0
    steps: int = 0  # number of optimizer steps
    failure: Failure | None = None  # its exception; None if there was none
    log: str = ""  # path of its log file
    log_tail: tuple[str, ...] = ()  # the last lines of the log file
    stack: tuple[str, ...] = ()  # its stack when it crashed in native code
    # kills for lack of memory that the kernel counted on its host during the run
    oom_kills: int = 0
    # where it was when it failed, or when it was signalled to end; None if unknown
    position: Position | None = None
    # use of ``/dev/shm`` on its host, ``"98 % of 64 MB"``; empty if it was not near full
    shm: str = ""
    log_shows: str = ""  # the last exception in its log that is not its own, or empty
    threads: tuple[str, ...] = ()  # exceptions that ended threads of the rank, in words
    # variables that its script had changed when it waited for the other ranks, in words
    changes: tuple[str, ...] = ()
    # where it was when the run was asked to end; None if the ranks of its node made progress
    standing: Position | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it ended well.

        A crash in the interpreter's teardown, after the script's end, is not a failure.
        """
        return self.code == 0 or (self.finished and self.code in _CRASHES)

    @property
    def swallowed(self) -> bool:
        """Whether an exception ended its script and its process has ended well: by a hook."""
        return self.code == 0 and self.failure is not None

    @property
    def unfinished(self) -> bool:
        """Whether it stopped before its end to be resumed.

        This is neither a success nor a failure, even if it crashed after the stop.
        """
        if not self.left or self.code is None or self.code >= 0:
            return self.code == EXIT_UNFINISHED
        return bool(self.stopped) or self.code in _CRASHES

    @property
    def failed(self) -> bool:
        """Whether it failed."""
        return not self.succeeded and not self.unfinished

    @property
    def killed_after_s(self) -> float:
        """Seconds between the signal to end and SIGKILL; -1 if it was not killed.

        A rank is killed if it has not ended when its grace period is over.
        """
        killed = self.code == -signal.SIGKILL and self.stopped_ns and not self.left
        return (self.time_ns - self.stopped_ns) / 1e9 if killed else -1

    @property
    def first_ns(self) -> int:
        """When it failed: the time of its exception, or of its end without one."""
        return self.failure.time_ns if self.failure else self.time_ns

    def shifted(self, offset_ns: int) -> RankExit:
        """Return the record with its times on the head's clock, which is ``offset_ns`` behind."""
        failure = self.failure and replace(self.failure, time_ns=self.failure.time_ns - offset_ns)
        stopped_ns = self.stopped_ns and self.stopped_ns - offset_ns
        return replace(
            self, time_ns=self.time_ns - offset_ns, stopped_ns=stopped_ns, failure=failure
        )
