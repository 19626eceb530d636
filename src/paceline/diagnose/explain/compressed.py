"""Compressed logs, as rotation and artifact stores leave them: gzip, xz, bzip2 and zstd, told by their first bytes."""

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

from paceline.errors import Finding, UsageError

_GZIP, _XZ, _BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    """What a text is read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, none at the end."""


class _ReadsParts(Protocol):
    """A stream that gives what it has."""

    def read1(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, none at the end."""


class _Unpacked:
    """A compressed text, read to where it breaks off: a log may be cut off in the middle."""

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
            return self._stream.read1(size)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
            return b""


@contextmanager
def unpacked(stream: BinaryIO, subject: str) -> Iterator[Readable]:
    """Give the text of a stream, also if it is compressed.

    Raises:
        UsageError: It is compressed with zstd, and nothing here reads that.
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
    """Read with the program zstd, since Python reads it only from 3.14 on."""
    program = shutil.which("zstd")
    if program is None or not stream.seekable():
        raise UsageError(
            Finding(
                "input-unreadable",
                f"{'standard input' if subject == '-' else subject} is compressed with zstd",
                fix=f"zstd -dc {'FILE' if subject == '-' else subject} | paceline explain -",
            )
        )
    os.lseek(stream.fileno(), 0, os.SEEK_SET)  # the stream's own seek may move in its buffer only
    process = subprocess.Popen(
        [program, "-dcq"], stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            yield _Unpacked(cast(_ReadsParts, process.stdout))
    finally:
        process.kill()
        process.wait()
