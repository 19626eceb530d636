"""Copy what ranks write into their pipes, in a thread: to their log files and to the console."""

from __future__ import annotations

import os
import select
import selectors
import threading
import time
from dataclasses import dataclass, field

from paceline.launch.run.log_file import LogFile

_CHUNK = 1 << 16
# Chunks to copy at once from a rank that never stops printing: other ranks must get their turn.
_CHUNKS_AT_ONCE = 16
# How long a reader of the last lines waits for a console that accepts no output.
_LOCK_S = 0.5


@dataclass
class Copy:
    """A descriptor that is copied from a rank to its log file, and to the console if shown."""

    source: int  # the reading end of the rank's pipe, or the master of its terminal
    file: LogFile  # its log file
    console: int = -1  # descriptor of the console; -1 if this stream is not shown
    prefix: str = ""  # prefix of each line on the console
    filters: tuple[str, ...] = ()  # lines that contain one of these also go to ``filtered``
    filtered: LogFile | None = None  # file for those lines
    terminal: bool = False  # whether the source is a terminal
    _pending: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> None:
        """Copy what the rank has written."""
        self.file.write(data)
        if self.console < 0:
            return
        if not self.prefix and not self.filters:
            write(self.console, data)
            return
        first, *lines = data.split(b"\n")  # only what is new: a line may have megabytes
        self._pending += first
        for line in lines:
            self._show(bytes(self._pending) + b"\n")
            self._pending = bytearray(line)

    def finish(self) -> None:
        """Show a last line without a line feed, and close everything."""
        if self._pending:
            self._show(bytes(self._pending) + b"\n")
            self._pending.clear()
        os.close(self.source)
        self.file.close()
        if self.filtered is not None:
            self.filtered.close()

    def _show(self, line: bytes) -> None:
        write(self.console, self.prefix.encode() + line)
        if self.filtered is not None and any(word.encode() in line for word in self.filters):
            self.filtered.write(self.prefix.encode() + line)


# Files and terminals whose last line is not ended, such as that of a progress bar; (device, inode).
_unended: set[tuple[int, int]] = set()


def begin_line(handle: int) -> None:
    """End the open line of a rank on the console, so that a message starts on a new line."""
    if _place(handle) in _unended:
        write(handle, b"\n")


def _place(handle: int) -> tuple[int, int]:
    try:
        status = os.fstat(handle)
    except OSError:
        return -1, handle
    return status.st_dev, status.st_ino


def write(handle: int, data: bytes) -> None:
    """Write all data to the console; data for a closed console is dropped."""
    if data:
        (_unended.discard if data.endswith(b"\n") else _unended.add)(_place(handle))
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(handle, rest) :]
        except BlockingIOError:  # another process has made the terminal non-blocking
            select.select([], [handle], [])
        except OSError:
            return  # paceline run ... | head: the run continues


@dataclass
class Pump:
    """A copying thread and the descriptors that it serves; it starts with the first of them."""

    name: str  # name of the thread
    # how long output gathers before it is copied, in seconds. Hidden output need not be copied at
    # once, and a thread that wakes for every line would take time from the ranks.
    pause_s: float = 0.0
    copies: dict[int, Copy] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _wake: tuple[int, int] | None = None

    def serve(self, copy: Copy) -> None:
        """Start copying a descriptor."""
        self._add(copy)
        if self._thread is None:
            self._wake = os.pipe()
            self._selector.register(self._wake[0], selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        else:
            assert self._wake is not None
            os.write(self._wake[1], b".")

    def _add(self, copy: Copy) -> None:
        os.set_blocking(copy.source, False)
        with self._lock:
            self.copies[copy.source] = copy
            self._selector.register(copy.source, selectors.EVENT_READ)

    def catch_up(self) -> None:
        """Copy what is there now."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            for source in list(self.copies):
                self._copy(source)
        finally:
            self._lock.release()

    def drain(self, deadline_s: float) -> None:
        """Copy until all writers have gone, or until ``deadline_s`` of the monotonic clock."""
        while self.copies and time.monotonic() < deadline_s:
            self.catch_up()
            time.sleep(0.005)

    def release(self) -> list[Copy]:
        """Return the descriptors whose other end is still open, and stop serving them."""
        with self._lock:
            for source in list(self.copies):
                self._copy(source, rounds=1 << 20)
            still_open = list(self.copies.values())
            for copy in still_open:
                self._selector.unregister(copy.source)
            self.copies.clear()
        return still_open

    def serve_until_end(self, copies: list[Copy]) -> None:
        """Copy in this thread until all writers have gone."""
        for copy in copies:
            self._add(copy)
        while self.copies:
            self._serve_ready()

    def _run(self) -> None:
        while True:
            self._serve_ready()
            if self.pause_s:
                time.sleep(self.pause_s)

    def _serve_ready(self) -> None:
        for key, _ in self._selector.select():
            if self._wake is not None and key.fd == self._wake[0]:
                os.read(self._wake[0], 4096)
                continue
            with self._lock:
                self._copy(int(key.fd))

    def _copy(self, source: int, *, rounds: int = _CHUNKS_AT_ONCE) -> None:
        copy = self.copies.get(source)
        if copy is None:
            return
        for _ in range(rounds):
            try:
                data = os.read(source, _CHUNK)
            except BlockingIOError:
                return
            except OSError:  # a terminal raises EIO when the last writer has gone
                data = b""
            if not data:
                self._selector.unregister(source)
                del self.copies[source]
                copy.finish()
                return
            copy.take(data)


def describe(copy: Copy) -> dict[str, object]:
    """Return a copy as plain data, without its descriptors."""
    return {
        "file": copy.file.path,
        "prefix": copy.prefix,
        "filters": list(copy.filters),
        "filtered": copy.filtered.path if copy.filtered else "",
        "shown": copy.console >= 0,
    }


def restore(values: dict[str, object], source: int, console: int) -> Copy:
    """Return the copy from ``describe``'s data, in another process; lost logs are not reported."""

    def on_loss(*_: str) -> None:
        pass

    filters = values["filters"]
    assert isinstance(filters, list)
    copy = Copy(
        source,
        LogFile(str(values["file"]), on_loss),
        console=console if values["shown"] else -1,
        prefix=str(values["prefix"]),
        filters=tuple(filters),
        filtered=LogFile(str(values["filtered"]), on_loss) if values["filtered"] else None,
    )
    copy.file.open()
    if copy.filtered is not None:
        copy.filtered.open()
    return copy
