"""Messages between the test process and its ranks: pickles over a socket between parent and child.

Both ends belong to programs that one user has started, and the sockets have no address, so what is
unpickled is trusted as the tests are.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from typing import Any

import cloudpickle

_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20


class Channel:
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
