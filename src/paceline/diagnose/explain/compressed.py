"""Read logs compressed with gzip, xz, bzip2 or zstd, recognized by their first bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol, cast

from paceline.errors import UsageError

_GZIP, _XZ, _BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; empty at the end."""


class _ReadsParts(Protocol):
    """A stream that returns the bytes available now."""

    def read1(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; empty at the end."""


class _Unpacked:
    """A decompressed text, readable up to where it breaks off: a log may be truncated."""

    def __init__(self, stream: _ReadsParts) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        pieces: list[bytes] = []
        while size > 0:
            piece = self._piece(size)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _piece(self, size: int) -> bytes:
        try:
            # read() would raise at a broken end, and take along what was readable before it.
            return self._stream.read1(size)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
            return b""


@contextmanager
def unpacked(stream: BinaryIO, subject: str) -> Iterator[Readable]:
    """Yield a reader of a stream's text, decompressed if necessary.

    Raises UsageError if the stream is compressed with zstd, and neither Python nor a program can
    read it.
    """
    peek = getattr(stream, "peek", None)
    first = peek(8)[:8] if peek is not None else b""
    if first.startswith(_GZIP):
        with gzip.GzipFile(fileobj=stream) as plain:
            yield _Unpacked(plain)
    elif first.startswith(_XZ):
        with lzma.LZMAFile(stream) as plain:
            yield _Unpacked(plain)
    elif first.startswith(_BZIP2):
        with bz2.BZ2File(stream) as plain:
            yield _Unpacked(plain)
    elif first.startswith(_ZSTD):
        with _zstd(stream, subject) as plain:
            yield plain
    else:
        yield stream


@contextmanager
def _zstd(stream: BinaryIO, subject: str) -> Iterator[Readable]:
    """Read with the program zstd, because Python reads zstd only since 3.14."""
    program = shutil.which("zstd")
    if program is None or not stream.seekable():
        raise UsageError.of(
            "input-unreadable",
            f"{'standard input' if subject == '-' else subject} is compressed with zstd",
            fix=f"zstd -dc {'FILE' if subject == '-' else subject} | paceline explain -",
        )
    # The stream's own seek may move only within its buffer.
    os.lseek(stream.fileno(), 0, os.SEEK_SET)
    process = subprocess.Popen(
        [program, "-dcq"],
        stdin=stream,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        close_fds=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            yield _Unpacked(cast(_ReadsParts, process.stdout))
    finally:
        process.kill()
        process.wait()
