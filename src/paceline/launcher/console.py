"""What ranks print: every rank has its log file, and some are shown on the console too.

A rank that is not shown writes straight into its file. One that is shown writes into a pipe (or, where the
console is a terminal, a pseudo-terminal, so that progress bars work) that a thread copies to both.
"""

from __future__ import annotations

import os
import select
import selectors
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.launcher.options import Options, streams_of

OUT, ERR = 1, 2


@dataclass(frozen=True)
class StreamPlan:
    """Where one stream of one rank goes.

    Attributes:
        path: Its file.
        shown: Whether the console shows it.
        prefix: What stands before each line there; empty copies as it comes.
        filters: Lines that contain one of these also go to ``filtered``.
        filtered: File for those lines.
    """

    path: str
    shown: bool
    prefix: str = ""
    filters: tuple[str, ...] = ()
    filtered: str = ""


def plan_streams(
    options: Options,
    *,
    rank: int,
    local_rank: int,
    paths: tuple[str, str],
    prefix: str,
    filtered: tuple[str, str],
) -> tuple[StreamPlan, StreamPlan]:
    """Decide where a rank's stdout and stderr go.

    As in torchrun, ``--redirects`` keeps a stream off the console, ``--tee`` shows it with a prefix, and
    ``--local-ranks-filter`` says whose are shown at all. Unlike in torchrun, without these the console
    shows global rank 0, and every stream has a file. With ``--nccl-debug`` stderr goes to the files only.

    Args:
        options: What was asked for.
        rank: Global rank.
        local_rank: Rank on this node.
        paths: Files of stdout and stderr.
        prefix: Prefix of teed lines.
        filtered: Files for filtered lines of stdout and stderr.
    """
    chosen = local_rank in options.local_ranks_filter if options.local_ranks_filter else None
    plans = []
    for place, bit in enumerate((OUT, ERR)):
        teed = bool(streams_of(options.tee, local_rank) & bit) and chosen is not False
        redirected = bool(streams_of(options.redirects, local_rank) & bit)
        redirected |= options.nccl_debug and bit == ERR  # torch's debug output would bury the console
        plain = (rank == 0 if chosen is None else chosen) and not redirected
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
    """Fill in torchrun's ``${role_name}``, ``${rank}`` and ``${local_rank}``."""
    from string import Template

    return Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)


@dataclass
class _Copy:
    """One descriptor that is copied: from a rank to its file and to the console."""

    source: int
    file: int
    console: int
    plan: StreamPlan
    pending: bytes = b""
    terminal: bool = False

    def take(self, data: bytes) -> None:
        _write(self.file, data)
        if not self.plan.prefix and not self.plan.filters:
            _write(self.console, data)
            return
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            self._show(line + b"\n")

    def finish(self) -> None:
        if self.pending:
            self._show(self.pending + b"\n")
            self.pending = b""

    def _show(self, line: bytes) -> None:
        _write(self.console, self.plan.prefix.encode() + line)
        if any(word.encode() in line for word in self.plan.filters):
            with open(self.plan.filtered, "ab") as file:
                file.write(self.plan.prefix.encode() + line)


def _write(handle: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(handle, data) :]
        except BlockingIOError:  # somebody has made the terminal non-blocking
            select.select([], [handle], [])
        except OSError:
            return  # the console was closed (paceline run ... | head), or the disk is full: the run goes on


@dataclass
class Console:
    """The copying thread of a launcher and the descriptors that it serves.

    Attributes:
        out: Descriptor of the console's stdout.
        err: Descriptor of its stderr.
    """

    out: int = 1
    err: int = 2
    _copies: dict[int, _Copy] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _wake: tuple[int, int] | None = None

    def open(self, plans: tuple[StreamPlan, StreamPlan]) -> tuple[int, int]:
        """Return descriptors for a rank's stdout and stderr; the caller closes them once the rank has them.

        Raises:
            OSError: A log file cannot be opened.
        """
        out, err = plans
        one, other = self.out, self.err
        if out == err and _same_place(one, other):  # one pipe keeps the order of the two
            handle = self._open_one(out, console=one)
            return handle, os.dup(handle)
        return self._open_one(out, console=one), self._open_one(err, console=other)

    def say(self, text: str) -> None:
        """Print a line of paceline's own, in one write so that ranks' output cannot split it."""
        _write(self.err, f"paceline: {text}\n".encode())

    def write(self, lines: Sequence[str]) -> None:
        """Print lines to stderr, as they are."""
        _write(self.err, ("\n".join(lines) + "\n").encode())

    def _open_one(self, plan: StreamPlan, *, console: int) -> int:
        Path(plan.path).parent.mkdir(parents=True, exist_ok=True)
        file = os.open(plan.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not plan.shown:
            return file
        terminal = os.isatty(console)
        source, given = _open_terminal(console) if terminal else os.pipe()
        self._serve(_Copy(source, file, console, plan, terminal=terminal))
        return given

    def _serve(self, copy: _Copy) -> None:
        os.set_blocking(copy.source, False)
        with self._lock:
            self._copies[copy.source] = copy
            self._selector.register(copy.source, selectors.EVENT_READ)
        if self._thread is None:
            self._wake = os.pipe()
            self._selector.register(self._wake[0], selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._run, name="paceline-console", daemon=True)
            self._thread.start()
        else:
            assert self._wake is not None
            os.write(self._wake[1], b".")

    def resize(self) -> None:
        """Pass a new size of the console on to the ranks' terminals."""
        for copy in list(self._copies.values()):
            if copy.terminal:
                _copy_size(copy.console, copy.source)

    def drain(self, timeout_s: float = 1.0) -> None:
        """Copy what ranks that have ended still left in their pipes; then forget them."""
        deadline = time.monotonic() + timeout_s
        while self._copies and time.monotonic() < deadline:
            time.sleep(0.01)
        with self._lock:  # a descendant that lives on holds its end open: take what is there
            for source in list(self._copies):
                self._pump(source, last=True)

    def _run(self) -> None:
        assert self._wake is not None
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake[0]:
                    os.read(self._wake[0], 4096)
                else:
                    with self._lock:
                        self._pump(int(key.fd))

    def _pump(self, source: int, *, last: bool = False) -> None:
        copy = self._copies.get(source)
        if copy is None:
            return
        while True:
            try:
                data = os.read(source, 1 << 16)
            except BlockingIOError:
                if last:
                    break
                return
            except OSError:  # a terminal says EIO when the last writer has gone
                data = b""
            if not data:
                break
            copy.take(data)
        copy.finish()
        del self._copies[source]
        self._selector.unregister(source)
        os.close(source)
        os.close(copy.file)


def _same_place(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _open_terminal(console: int) -> tuple[int, int]:
    """Return master and slave of a pseudo-terminal that passes bytes through as they are."""
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST  # the real terminal turns line feeds into new lines itself
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
