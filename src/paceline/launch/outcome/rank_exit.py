"""How ranks ended: the records that travel from each node to all others, and what they say by themselves.

Pure. Why a run failed is decided from all of them together, in ``outcome``.
"""

from __future__ import annotations

import re
import signal
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.errors import EXIT_UNFINISHED, Finding
from paceline.launch.monitor.position import Frame, Position

_CHAIN = re.compile(
    r"\n(?:The above exception was the direct cause of|During handling of the above exception, another exception)"
)
# What programs raise and handle on their normal way; no failure of theirs begins with it.
_CONTROL_FLOW = re.compile(r"(?:[\w.]+\.)?(?:StopIteration|StopAsyncIteration|Empty)(?::|$)")
# What may happen in the interpreter's teardown, when the script's work is done.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


@dataclass(frozen=True)
class Failure:
    """An exception that ended a rank.

    Attributes:
        type: Its class.
        message: Its text.
        time_ns: When it left the script, on the head's clock.
        traceback: As Python printed it.
        frames: Its frames, outermost first.
        finding: What it carries, if it is one of paceline's own.
    """

    type: str
    message: str
    time_ns: int
    traceback: str = ""
    frames: tuple[Frame, ...] = ()
    finding: Finding | None = None

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return next((frame for frame in reversed(self.frames) if frame.user), None)

    @property
    def chained(self) -> bool:
        """Another exception came before it."""
        return _CHAIN.search(self.traceback) is not None

    @property
    def root(self) -> str:
        """The exception that came first, in one line: the one that this was raised from, if there is one."""
        *earlier, _ = _CHAIN.split(self.traceback)
        texts = [text for text in map(_said_by, earlier) if text and not _CONTROL_FLOW.match(text)]
        return texts[0] if texts else f"{self.type}: {self.message}".replace("\n", " ")


def _said_by(traceback: str) -> str:
    """What the exception of a traceback says: all from the first line that is not indented, in one line."""
    lines = traceback.partition("Traceback (most recent call last):\n")[2].splitlines()
    start = next((place for place, line in enumerate(lines) if re.match(r"[\w.]+(?::|$)", line)), len(lines))
    return " ".join(lines[start:]).strip()


@dataclass(frozen=True)
class RankExit:
    """How one rank ended, with all that is known.

    Attributes:
        rank: Global rank.
        host: Its host.
        pid: Its process.
        code: Exit code; negative for a signal; None if it has not ended or was never heard of again.
        time_ns: When it ended, on the head's clock.
        finished: Its script had come to its end.
        left: Its script had ended itself to be resumed, with status 75.
        stopped: Why the launcher ended it, empty if it did not.
        stopped_ns: When the launcher told it to end, on the head's clock; 0 if it did not.
        steps: Optimizer steps that it had made.
        failure: Its exception.
        log: Its log file.
        log_tail: The last lines of that.
        stack: Where it stood when it crashed in native code.
        oom_kills: Kills for lack of memory that the kernel counted on its host during the run.
        position: Where it stood when it failed, or when it was told to end; None if that is not known.
        shm: Use of ``/dev/shm`` on its host, ``"98 % of 64 MB"``; empty if it was not near full.
        threads: Exceptions that ended threads of it, in words.
    """

    rank: int
    host: str = ""
    pid: int = 0
    code: int | None = 0
    time_ns: int = 0
    finished: bool = False
    left: bool = False
    stopped: str = ""
    stopped_ns: int = 0
    steps: int = 0
    failure: Failure | None = None
    log: str = ""
    log_tail: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    oom_kills: int = 0
    position: Position | None = None
    shm: str = ""
    threads: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """It ended well; a crash in the interpreter's teardown, after the script's end, is no failure."""
        return self.code == 0 or (self.finished and self.code in _CRASHES)

    @property
    def unfinished(self) -> bool:
        """It stopped before its end, to be resumed: neither a success nor a failure, also if it crashed after that."""
        if not self.left or self.code is None or self.code >= 0:
            return self.code == EXIT_UNFINISHED
        return bool(self.stopped) or self.code in _CRASHES

    @property
    def fell(self) -> bool:
        """It failed."""
        return not self.succeeded and not self.unfinished

    @property
    def killed_after_s(self) -> float:
        """Seconds from when it was told to end to when it was killed, because it had not; -1 if it was not."""
        killed = self.code == -signal.SIGKILL and self.stopped_ns and not self.left
        return (self.time_ns - self.stopped_ns) / 1e9 if killed else -1

    @property
    def first_ns(self) -> int:
        """When it failed: at its exception, or else when it ended."""
        return self.failure.time_ns if self.failure else self.time_ns

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RankExit:
        """Return the record that ``to_json`` made."""
        failure = values["failure"]
        if failure is not None:
            frames = tuple(Frame(**frame) for frame in failure["frames"])
            finding = failure["finding"] and Finding.from_json(failure["finding"])
            failure = Failure(**{**failure, "frames": frames, "finding": finding})
        position = values["position"] and Position.from_json(values["position"])
        lists = {name: tuple(values[name]) for name in ("log_tail", "stack", "threads")}
        return cls(**{**values, **lists, "failure": failure, "position": position})

    def shifted(self, offset_ns: int) -> RankExit:
        """Return the record with its times moved from this node's clock to the head's."""
        failure = self.failure and replace(self.failure, time_ns=self.failure.time_ns - offset_ns)
        stopped_ns = self.stopped_ns and self.stopped_ns - offset_ns
        return replace(self, time_ns=self.time_ns - offset_ns, stopped_ns=stopped_ns, failure=failure)
