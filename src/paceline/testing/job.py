"""What both sides share: jobs, their outcomes, and the channel between the test and its ranks."""

from __future__ import annotations

import io
import pickle
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from paceline.launch.monitor.proof import Call

# How a job begins. GROUP: torchrun's variables are set and the default group is there. VARIABLES:
# only the variables. BARE: no variables, and a group where there are several ranks, which is what
# the tests of paceline's own Session need.
GROUP, VARIABLES, BARE = "group", "variables", "bare"

# How a rank's part of a job ends.
RETURNED, FAILED, SKIPPED, XFAILED = "returned", "failed", "skipped", "xfailed"
ENDED, STUCK = "ended", "stuck"
# Faults that a test injects, after which the rank gives no answer.
DIED_ON_PURPOSE, HANGS_ON_PURPOSE = "died on purpose", "hangs on purpose"
AS_PLANNED = (RETURNED, SKIPPED, XFAILED, DIED_ON_PURPOSE, HANGS_ON_PURPOSE)


@dataclass(frozen=True)
class RankStart:
    """How the ranks of a job find each other."""

    world_size: int  # number of ranks
    kind: str  # ``GROUP``, ``VARIABLES`` or ``BARE``
    store: str  # file of the store in which the group meets
    port: int  # the port that ``MASTER_PORT`` names
    collective_timeout_s: float  # timeout of the group's collectives, in seconds


@dataclass(frozen=True)
class ModuleSource:
    """A module of the tests, as the test process has imported it."""

    name: str  # its full name
    file: str  # its file; empty for a package without one
    # where a package looks for its modules; None if it is not a package
    search: tuple[str, ...] | None
    is_rewritten: bool  # whether pytest has rewritten its assertions


@dataclass(frozen=True)
class RankJob:
    """One call that ranks make."""

    start: RankStart  # how they find each other
    environ: dict[str, str] = field(repr=False)  # environment of the test process
    folder: str  # its working folder
    path: tuple[str, ...]  # its ``sys.path``
    # modules to import before ``call`` is unpickled, parents first
    modules: tuple[ModuleSource, ...]
    # ``(warning filters, function, arguments, keyword arguments)``, pickled
    call: bytes = field(repr=False)
    shows_locals: bool = False  # tracebacks show local variables
    is_short: bool = False  # tracebacks show single lines


@dataclass(frozen=True)
class RankWarning:
    """A warning that a rank has raised: what ``warnings.warn_explicit`` takes."""

    message: str
    category: bytes
    file: str
    line: int


@dataclass(frozen=True)
class RankOutcome:
    """How one rank's part of a job has ended."""

    kind: str  # ``RETURNED`` or another of the constants above
    time_s: float = 0.0  # when, on the monotonic clock of this machine
    # what the function has returned, pickled; empty without a value
    value: bytes = field(default=b"", repr=False)
    headline: str = ""  # the exception in one line, or the reason of a skip
    text: str = ""  # the traceback, or the stacks of a rank that is stuck
    place: str = ""  # ``test_x.py:12``, the innermost line of the test's own code; empty if unknown
    # the exception, pickled; empty if it cannot be
    exception: bytes = field(default=b"", repr=False)
    # the collectives that a rank which failed had called
    calls: tuple[Call, ...] = ()
    warnings: tuple[RankWarning, ...] = ()  # warnings that were raised and not turned into errors


@dataclass(frozen=True)
class PerRank:
    """Stands for an argument that each rank makes for itself."""

    name: str  # ``rank`` or ``monkeypatch``


_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20


class RankChannel:
    """One end of a connection: a connected stream socket, which the channel owns."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def fileno(self) -> int:
        """Return the descriptor, so that ``select`` accepts the channel."""
        return self.socket.fileno()

    def send(self, message: Any) -> None:
        """Send an object; raise OSError if the other end is closed."""
        content = pickle.dumps(message)
        self.socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self) -> Any:
        """Return the next object; wait for it. Raise EOFError if the other end is closed."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))

    def close(self) -> None:
        """Close this end."""
        self.socket.close()

    def _read(self, num_bytes: int) -> bytes:
        content = bytearray()
        while len(content) < num_bytes:
            try:
                chunk = self.socket.recv(min(num_bytes - len(content), _CHUNK_BYTES))
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError("the other end is closed")
            content += chunk
        return bytes(content)


class _RecordingPickler(cloudpickle.Pickler):  # type: ignore[misc]  # has no annotations
    """Pickles, and records the modules whose functions, classes and instances it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, None] = {}

    def reducer_override(self, obj: Any) -> Any:
        module = getattr(obj, "__module__", None)
        if isinstance(module, str):
            self.modules[module] = None
        return super().reducer_override(obj)


def pack(value: Any) -> tuple[bytes, tuple[str, ...]]:
    """Pickle an object for another process; return the names of the modules that it needs too.

    Functions and classes of modules are pickled by name, others such as lambdas by value. A
    ``__reduce__`` may raise anything.
    """
    file = io.BytesIO()
    pickler = _RecordingPickler(file)
    pickler.dump(value)
    return file.getvalue(), tuple(pickler.modules)


def unpack(content: bytes) -> Any:
    """Return the object that ``pack`` has pickled; raises what unpickling raises."""
    return pickle.loads(content)
