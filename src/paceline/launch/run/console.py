"""Route the output of ranks: every rank has a log file, and some are shown on the console too.

Every rank writes into a pipe that a thread copies. A rank shown on a terminal gets a
pseudo-terminal, so that progress bars work. No rank writes into a file of ours: with a full disk, a
print would raise in the user's script.
"""

from __future__ import annotations

import contextlib
import os
import socket
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import Notice
from paceline.launch.plan.option_values import streams_of
from paceline.launch.plan.options import Options
from paceline.launch.run.log_file import DELETED, LogFile
from paceline.launch.run.pump import Copy, Pump, begin_line, write
from paceline.text import terminal

OUT, ERR = 1, 2
DEFAULT_PREFIX = "[${role_name}${local_rank}]:"  # torchrun's
# Output of hidden ranks is copied in intervals of at least this length.
_GATHER_S = 0.02
# The pipe holds what a rank prints between two copies. Larger pipes would use up the pages that a
# user's pipes may have together.
_PIPE_BYTES = 1 << 18


@dataclass(frozen=True)
class StreamPlan:
    """Where one stream of one rank is copied to."""

    path: str  # its log file
    shown: bool  # whether the console shows it
    prefix: str = ""  # prefix of each line on the console; empty copies the bytes unchanged
    filters: tuple[str, ...] = ()  # lines that contain one of these also go to ``filtered``
    filtered: str = ""  # file for those lines


def plan_streams(
    options: Options,
    *,
    rank: int,  # global rank
    local_rank: int,  # rank on this node
    paths: tuple[str, str],  # files of stdout and stderr
    prefix: str,  # prefix of teed lines
    filtered: tuple[str, str],  # files for filtered lines of stdout and stderr
) -> tuple[StreamPlan, StreamPlan]:
    """Decide where a rank's stdout and stderr are copied to.

    As in torchrun, ``--redirects`` keeps a stream off the console, ``--tee`` shows it with a
    prefix, and ``--local-ranks-filter`` selects the ranks to show. Unlike torchrun, the console
    shows global rank 0 by default, and every stream has a file. With ``--nccl-debug``, stderr goes
    only to the files.
    """
    selected = local_rank in options.local_ranks_filter if options.local_ranks_filter else None
    plans = []
    for place, bit in enumerate((OUT, ERR)):
        teed = bool(streams_of(options.tee, local_rank) & bit) and selected is not False
        redirected = bool(streams_of(options.redirects, local_rank) & bit)
        # torch's debug output would bury the console
        redirected |= options.nccl_debug and bit == ERR
        plain = (rank == 0 if selected is None else selected) and not redirected
        several = len(options.local_ranks_filter) > 1
        filters = (options.duplicate_stdout_filters, options.duplicate_stderr_filters)[place]
        plans.append(
            StreamPlan(
                path=paths[place],
                shown=teed or plain,
                prefix=prefix if teed or several else "",
                filters=filters if teed else (),
                filtered=filtered[place],
            )
        )
    return plans[0], plans[1]


def fill_prefix(template: str, *, role: str, rank: int, local_rank: int) -> str:
    """Fill in torchrun's ``${role_name}``, ``${rank}``, ``${local_rank}`` and ``${hostname}``."""
    from string import Template

    values = {
        "role_name": role,
        "rank": rank,
        "local_rank": local_rank,
        "hostname": socket.gethostname(),
    }
    return Template(template).safe_substitute(values)


@dataclass
class Console:
    """Copies the output of ranks; their prints depend on neither a disk nor a folder."""

    out: int = 1  # descriptor of the console's stdout
    err: int = 2  # descriptor of the console's stderr
    _shown: Pump = field(default_factory=lambda: Pump("paceline-console"))
    _hidden: Pump = field(default_factory=lambda: Pump("paceline-logs", pause_s=_GATHER_S))
    _files: dict[str, LogFile] = field(default_factory=dict)
    _has_warned: bool = False

    def open(self, plans: tuple[StreamPlan, StreamPlan]) -> tuple[int, int]:
        """Return descriptors for a rank's stdout and stderr; the caller closes them afterwards.

        Raises OSError if no descriptors are left.
        """
        out, err = plans
        one, other = self.out, self.err
        if out == err and (not out.shown or _same_place(one, other)):  # one pipe keeps their order
            handle = self._open_one(out, console=one)
            return handle, os.dup(handle)
        return self._open_one(out, console=one), self._open_one(err, console=other)

    def say(self, text: str) -> None:
        """Print a line of paceline's, in one write so that ranks' output cannot split it."""
        self._show(f"paceline: {text}")

    def write(self, lines: Sequence[str]) -> None:
        """Print lines to stderr."""
        self._show("\n".join(lines))

    def _show(self, text: str) -> None:
        begin_line(self.err)
        write(self.err, (terminal.fitted(text, terminal.columns_of(self.err)) + "\n").encode())

    def tail(self, path: str) -> str:
        """Return the last lines for a log file, even if the file was not writable."""
        self._hidden.catch_up()
        self._shown.catch_up()
        return self._files[path].tail if path in self._files else ""

    def traceback_ns(self, path: str) -> int:
        """Return when a traceback last began in a log file, on the monotonic clock; 0 if never."""
        return self._files[path].traceback_ns if path in self._files else 0

    def forget_closed(self) -> None:
        """Forget the log files that nobody writes to, with their last lines."""
        self._files = {path: file for path, file in self._files.items() if file.users}

    def resize(self) -> None:
        """Pass a new size of the console on to the ranks' terminals."""
        for copy in list(self._shown.copies.values()):
            if copy.terminal:
                _copy_size(copy.console, copy.source)

    def drain(self, timeout_s: float = 1.0) -> None:
        """Copy the remaining output in the pipes of ranks that have ended."""
        deadline_s = time.monotonic() + timeout_s
        for pump in (self._shown, self._hidden):
            pump.drain(deadline_s)

    def release(self) -> list[Copy]:
        """Return the streams that descendants of the ranks still hold, and stop copying them."""
        return self._shown.release() + self._hidden.release()

    def _open_one(self, plan: StreamPlan, *, console: int) -> int:
        terminal = plan.shown and os.isatty(console)
        source, sink = _open_terminal(console) if terminal else os.pipe()
        file = self._log_file(plan.path)
        filtered = self._log_file(plan.filtered) if plan.filters else None
        if not plan.shown:
            _enlarge(sink)
            self._hidden.serve(Copy(source, file))
            return sink
        copy = Copy(source, file, console, plan.prefix, plan.filters, filtered, terminal=terminal)
        self._shown.serve(copy)
        return sink

    def _log_file(self, path: str) -> LogFile:
        file = self._files.setdefault(path, LogFile(path, self._warn))
        file.open()
        return file

    def _warn(self, path: str, reason: str) -> None:
        """Print once that logs are being lost; called from a copying thread."""
        if self._has_warned:
            return
        self._has_warned = True
        self.say(describe_loss(os.path.dirname(path), reason).render())


def describe_loss(folder: str, reason: str) -> Notice:
    """Return the notice that the output of ranks cannot be stored."""
    if reason == DELETED:
        return Notice(
            f"the log folder {folder} was deleted while the run writes to it",
            details=("the run continues; what its ranks print from now on is not kept",),
            advice=(
                "keep it: paceline run --run-dir FOLDER ..., a folder that the script does not"
                " clear"
            ),
        )
    return Notice(
        f"the logs in {folder} cannot be written: {reason}",
        details=(
            (
                "the run continues; what its ranks print is dropped there until it can be written"
                " again"
            ),
        ),
        advice=f"what fills the disk: df -h {folder}",
    )


def _enlarge(pipe: int) -> None:
    """Enlarge a pipe, so that a rank can print while the copying thread is busy elsewhere."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):  # this user has too many pipes, or not Linux
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _same_place(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _open_terminal(console: int) -> tuple[int, int]:
    """Return master and slave of a pseudo-terminal that passes bytes through unchanged."""
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST  # the real terminal converts line feeds
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    _copy_size(console, master)
    return master, slave


def _copy_size(console: int, terminal: int) -> None:
    import fcntl

    try:
        size = fcntl.ioctl(console, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    except OSError:
        pass  # a console without a size
