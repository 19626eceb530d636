"""The ranks of a test process: started with the first job, forked again after a failure."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.launch.monitor import stacks
from paceline.launch.monitor.position import Frame, Position, shown_path
from paceline.testing import rank, report
from paceline.testing.job import (
    AS_PLANNED,
    BARE,
    DIED_ON_PURPOSE,
    ENDED,
    GROUP,
    HANGS_ON_PURPOSE,
    RETURNED,
    STUCK,
    VARIABLES,
    ModuleSource,
    RankChannel,
    RankJob,
    RankOutcome,
    RankStart,
    pack,
    unpack,
)
from paceline.testing.mark import DEFAULT_COLLECTIVE_TIMEOUT_S, DEFAULT_TIMEOUT_S
from paceline.testing.processes import RankOutput, RankProcesses, Style

# How long other ranks may continue after one has failed: gloo notices within milliseconds.
GRACE_S = 5.0
# How long a rank may have ended before its last message is read.
_LAST_MESSAGE_S = 0.2


class Answers:
    """The answers to one job."""

    def __init__(
        self,
        channels: Mapping[int, RankChannel],  # of each rank
        pids: Mapping[int, int],  # of each rank
        *,
        control: RankChannel,  # of the server, which says which rank has ended
        folder: Path,  # of the ranks' files
    ) -> None:
        self._channels, self._pids = channels, pids
        self._control, self._folder = control, folder
        self.outcomes: dict[int, RankOutcome] = {}
        self._statuses: dict[int, int] = {}

    def collect(self, deadline_s: float) -> None:
        """Wait until all ranks have ended their part, or the deadline; look at those that do not.

        Raises EOFError if the server has ended.
        """
        __tracebackhide__ = True
        while self._missing():
            left_s = self._deadline(deadline_s) - time.monotonic()
            if left_s <= 0:
                break
            self._receive(left_s)
        self.look()

    def look(self) -> None:
        """Note for each rank that has not answered where it is."""
        pids = {rank: self._pids[rank] for rank in self._missing()}
        for stuck, frames in _positions(pids, self._folder).items() if pids else ():
            self.outcomes[stuck] = _stuck(stuck, frames)

    def _missing(self) -> list[int]:
        return [rank for rank in self._channels if rank not in self.outcomes]

    def _deadline(self, deadline_s: float) -> float:
        failed = [
            outcome.time_s for outcome in self.outcomes.values() if outcome.kind not in AS_PLANNED
        ]
        return min([deadline_s, *(time_s + GRACE_S for time_s in failed)])

    def _receive(self, wait_s: float) -> None:
        """Read what is there; a rank's own last message counts more than its end."""
        __tracebackhide__ = True
        sources = {self._channels[rank].fileno(): rank for rank in self._missing()}
        control = self._control.fileno()
        ready, _, _ = select.select([*sources, control], [], [], wait_s)
        for handle in ready:
            if handle != control:
                self._read(sources[handle])
        if control in ready:
            _, pid, status = self._control.receive()
            ranks = [rank for rank, its_pid in self._pids.items() if its_pid == pid]
            for rank in ranks:
                self._note_end(rank, status)

    def _read(self, rank: int) -> None:
        try:
            message = self._channels[rank].receive()
        except EOFError:
            select.select([self._control], [], [], _LAST_MESSAGE_S)  # the server says how it ended
            return
        kind = message if isinstance(message, str) else ""
        now = RankOutcome(kind, time.monotonic())
        self.outcomes[rank] = now if kind else message

    def _note_end(self, rank: int, status: int) -> None:
        if select.select([self._channels[rank]], [], [], 0)[0]:
            self._read(rank)
        if rank in self.outcomes:
            return
        crash = stacks.read_crash(_stacks_file(self._folder, rank))
        place = Position(rank, frames=crash).place
        text = _listed(crash)
        self.outcomes[rank] = RankOutcome(
            ENDED, time.monotonic(), headline=_end(status), text=text, place=place
        )


def _positions(pids: Mapping[int, int], folder: Path) -> dict[int, tuple[Frame, ...]]:
    """Return the stack of each rank, outermost frame first, from the test's own first frame on."""
    files = {rank: _stacks_file(folder, rank) for rank in pids}
    return {rank: look.frames for rank, look in stacks.look(pids, {}, files).items()}


def _stacks_file(folder: Path, rank: int) -> Path:
    """Return the file that faulthandler writes to in a rank."""
    return folder / f"rank-{rank}.stacks"


def _stuck(rank: int, frames: tuple[Frame, ...]) -> RankOutcome:
    position = Position(rank, frames=frames)
    return RankOutcome(STUCK, time.monotonic(), headline=position.doing, text=_listed(frames))


def _listed(frames: tuple[Frame, ...]) -> str:
    """Return a stack as lines, the innermost call last."""
    lines = []
    for frame in frames:
        path = frame.file.rpartition("/site-packages/")[2]
        lines.append(f"  {shown_path(path)}:{frame.line} {frame.function}")
        if frame.user and frame.code:
            lines.append(f"    {frame.code}")
    return "\n".join(lines)


def _end(status: int) -> str:
    """Return how a process ended, in words."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.WEXITSTATUS(status)}"


def is_unusable(outcomes: Mapping[int, RankOutcome]) -> bool:
    """Return whether ranks have to be forked again: one failed, is gone or does not answer."""
    needs_new = (DIED_ON_PURPOSE, HANGS_ON_PURPOSE)
    return any(
        outcome.kind in needs_new or outcome.kind not in AS_PLANNED for outcome in outcomes.values()
    )


@dataclass(frozen=True)
class RankCall:
    """What ranks are asked to do."""

    function: Callable[..., Any]  # a function
    args: Sequence[Any] = ()  # its arguments
    kwargs: Mapping[str, Any] | None = None  # its keyword arguments
    # modules to import before it is unpickled, besides those that are recognised
    module_names: Sequence[str] = ()


class RanksFailed(AssertionError):
    """Some ranks have failed.

    Attributes:
        outcomes: The outcomes of all ranks.
        headline: The failure in one line.
    """

    def __init__(self, outcomes: Mapping[int, RankOutcome], limit_s: float) -> None:
        super().__init__(report.render(outcomes, limit_s=limit_s))
        self.outcomes = outcomes
        self.headline = report.headline(outcomes)


class Ranks:
    """Processes of this machine that run functions together, over gloo.

    The fixture ``ranks`` is one. They are started by the first call and serve all tests of this
    process; after a failure they are forked again.

    Args:
        style: How pytest shows failures.
        preload: Names of modules that are imported before ranks are forked, so that all ranks
            import them once.
        timeout_s: How long a call may take by default, in seconds.

    Attributes:
        output: What ranks have printed during the last call: ``{"stdout of rank 0": text}``.
    """

    def __init__(
        self,
        style: Style | None = None,
        *,
        preload: Iterable[str] = (),
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._style, self._preload, self._timeout_s = style or Style(), tuple(preload), timeout_s
        self._processes: RankProcesses | None = None
        self._num_jobs = 0
        self.output: dict[str, str] = {}

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        world_size: int,
        group: bool = True,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Return what ``function(*args, **kwargs)`` returns on each rank.

        Args:
            function: A function; it is pickled by name if it is at the top of a module.
            *args: Its arguments, which are pickled.
            world_size: Number of ranks.
            group: Whether the default process group is there when the function begins; without it
                the ranks have torchrun's variables only.
            timeout_s: How long it may take, in seconds; None for the ini option's value.
            **kwargs: Its keyword arguments, which are pickled.

        Returns:
            One value for each rank; None for a rank that a fault has ended.

        Raises:
            RanksFailed: A rank failed, ended, or was not done in time.
            UsageError: Something cannot be pickled.
            SetupError: The ranks cannot be started.
        """
        __tracebackhide__ = True
        outcomes = self.call(
            RankCall(function, args, kwargs),
            world_size=world_size,
            kind=GROUP if group else VARIABLES,
            timeout_s=timeout_s,
        )
        return [_value(outcomes[rank]) for rank in sorted(outcomes)]

    def call(
        self,
        call: RankCall,
        *,
        world_size: int,
        kind: str = BARE,  # how ranks begin: ``GROUP``, ``VARIABLES`` or ``BARE``
        fresh: bool = False,  # in new processes
        timeout_s: float | None = None,
        collective_timeout_s: float = DEFAULT_COLLECTIVE_TIMEOUT_S,
    ) -> dict[int, RankOutcome]:
        """Let ranks make a call; return the outcome of each."""
        __tracebackhide__ = True
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        content, sources = _packed(call)
        processes = self._started()
        processes.require(world_size, fresh=fresh)
        self._num_jobs += 1
        with _reserved_port() as port:
            store = processes.folder / f"store-{self._num_jobs}"
            start = RankStart(world_size, kind, str(store), port, collective_timeout_s)
            outcomes = self._perform(self._job(start, content, sources), limit_s)
        if fresh or is_unusable(outcomes):
            processes.stop_ranks()
        if report.failures(outcomes):
            raise RanksFailed(outcomes, limit_s)
        _warn_again(outcomes)
        return outcomes

    def start(self) -> None:
        """Start, and return before torch is imported; else the first call starts.

        Raises SetupError if this system cannot fork, or torch is not installed.
        """
        self._started().start()

    def close(self) -> None:
        """Kill all ranks and end the server."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _started(self) -> RankProcesses:
        if self._processes is None:
            self._processes = RankProcesses(self._style, self._preload)
        return self._processes

    def _perform(self, job: RankJob, limit_s: float) -> dict[int, RankOutcome]:
        """Send a job to its ranks; on an interruption, note where they are and end them."""
        __tracebackhide__ = True
        processes, ranks = self._started(), range(job.start.world_size)
        channels = {rank: processes.channels[rank] for rank in ranks}
        pids = {rank: processes.pids[rank] for rank in ranks}
        answers = Answers(channels, pids, control=processes.control, folder=processes.folder)
        output = RankOutput(processes.folder, ranks)
        self.output = {}
        try:
            for channel in channels.values():
                with contextlib.suppress(OSError):  # the server says that the rank has ended
                    channel.send(job)
            answers.collect(time.monotonic() + limit_s)
        except BaseException:  # Ctrl-C, pytest-timeout, or the server has ended
            with contextlib.suppress(Exception):
                answers.look()
                where = "\n".join(report.states(answers.outcomes))
                self.output["ranks, when interrupted"] = f"{where}\n"
            processes.stop_ranks()  # answers may still be on their way
            raise
        finally:
            self.output.update(output.read())
        return answers.outcomes

    def _job(self, start: RankStart, content: bytes, sources: tuple[ModuleSource, ...]) -> RankJob:
        return RankJob(
            start=start,
            # No GPU: their group is on CPUs, and several ranks need several GPUs.
            environ={env.OMP_THREADS: "1", **env.snapshot(), env.CUDA_DEVICES: ""},
            folder=os.getcwd(),
            path=tuple(sys.path),
            modules=sources,
            call=content,
            shows_locals=self._style.shows_locals,
            is_short=self._style.is_short,
        )


def _packed(call: RankCall) -> tuple[bytes, tuple[ModuleSource, ...]]:
    """Pickle a call with the warning filters of this moment."""
    kwargs = dict(call.kwargs or {})
    whole = (list(warnings.filters), call.function, tuple(call.args), kwargs)
    try:
        content, names = pack(whole)
    except Exception as error:
        raise UsageError(_not_picklable(call, error)) from None
    return content, rank.describe((*call.module_names, *names))


def _not_picklable(call: RankCall, error: Exception) -> Finding:
    culprits = []
    named = [*((str(place), value) for place, value in enumerate(call.args, start=1))]
    for name, value in (*named, *(call.kwargs or {}).items()):
        try:
            pack(value)
        except Exception:
            culprits.append(f"argument {name}, a {type(value).__module__}.{type(value).__name__}")
    what = " and ".join(culprits) or "the test function"
    return Finding(
        "not-picklable",
        f"{what} cannot be sent to the ranks",
        evidence=(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}",),
        why="the body runs in other processes, to which arguments and fixtures are pickled",
        fix="make the object in the body of the test",
    )


def _value(outcome: RankOutcome) -> Any:
    return unpack(outcome.value) if outcome.kind == RETURNED else None


def _warn_again(outcomes: Mapping[int, RankOutcome]) -> None:
    """Raise the warnings of ranks in this process, each once, so that pytest lists them."""
    for warning in dict.fromkeys(
        warning for outcome in outcomes.values() for warning in outcome.warnings
    ):
        category = unpack(warning.category)
        warnings.warn_explicit(warning.message, category, warning.file, warning.line)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Yield a port that nobody else gets meanwhile, and on which a rank may listen.

    The socket is bound and does not listen, so that a socket with ``SO_REUSEADDR``, as torch's
    store has it, may be bound beside it; the system chooses another port for everybody else.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
