"""Read a path or standard input as lines of bytes, with only a piece of the text in memory."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from paceline.diagnose.explain.compressed import Readable
from paceline.errors import UsageError, closest
from paceline.rundir.files import RunDir

_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 16 << 10  # maximum length; the rest of a longer line is skipped
_LEAST_PAIRS = 4  # of high bytes, to take a text for Chinese
_BINARY_SHARE = 0.1
_LEAST_COLUMNS, _MOST_COLUMNS = 60, 240  # of a terminal
_LEAST_FULL = 3  # different lines as wide as the terminal
# A line of the same sign, or a bar, fills the width by itself.
_RULER = re.compile(rb"(.)\1\1$|it/s[\])]|s/it[\])]|[|\xe2].{0,3}$")
# What begins a line in a log: a label, a time, a source line, an exception, a level.
_START = re.compile(
    rb"\s{2}|\s*$|[\[({<|*=#+-]|Traceback |\S+: |\d{4}[-/]\d\d|[A-Z][a-z]+ing\b|\s*File \""
    rb"|(?:DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL|During|The above|[\w.]+(?:Error|Exception))\b"
)
_CONTROL = bytes(byte for byte in range(32) if byte not in (7, 8, 9, 10, 12, 13, 27))


def open_subject(subject: str) -> BinaryIO:
    """Open the text to explain.

    Raises UsageError if the file does not exist or cannot be read.
    """
    if subject == "-":
        return sys.stdin.buffer
    path = Path(subject)
    try:
        if RunDir(path).sweep.exists():
            what = f"{subject} is the folder of a sweep, and each of its elements is a run"
            raise _unreadable(what, fix=f"paceline jobs {subject}   (it says why some failed)")
        if path.is_dir():
            raise _unreadable(f"{subject} is a folder", fix=f"name a file in it: ls {subject}")
        return path.open("rb")
    except FileNotFoundError:
        raise _missing(subject) from None
    except (OSError, ValueError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise _unreadable(
            f"{subject} cannot be read: {reason.lower()}", fix=f"ls -l {subject}"
        ) from None


def _missing(subject: str) -> UsageError:
    from paceline.codes import CODES

    if "/" in subject or "." in subject:
        return _unreadable(
            f"the file {subject} does not exist",
            fix="give the path of a log, or - to read standard input",
        )
    near = closest(subject.lower(), CODES) or closest(subject.upper(), CODES.values())
    fix = (
        f"paceline explain {near}"
        if near
        else "give the path of a log, - for standard input, or a code such as NET001"
    )
    return _unreadable(f"there is neither a file nor a finding called {subject}", fix=fix)


def _unreadable(what: str, *, fix: str) -> UsageError:
    return UsageError.of("input-unreadable", what, fix=fix)


def chunks(stream: Readable, subject: str) -> Iterator[bytes]:
    """Yield the text as pieces of UTF-8.

    Raises UsageError if the content is not text.
    """
    try:
        first = stream.read(_CHUNK_BYTES)
        decoder = _wide(first)
        if decoder is None and _binary(first):
            raise _unreadable(
                f"{'standard input' if subject == '-' else subject} is not text",
                fix="give the printed output of the run: torchrun ... 2>&1 | tee run.log",
            )
        chunk = first
        while chunk:
            yield decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
            chunk = stream.read(_CHUNK_BYTES)
    except OSError as error:
        raise _unreadable(
            f"{subject} cannot be read: {(error.strerror or str(error)).lower()}", fix=""
        ) from None


def _wide(first: bytes) -> codecs.IncrementalDecoder | None:
    """Return the decoder of UTF-16 text, which PowerShell's redirection writes, or of GB18030; None
    for others.
    """
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if first.startswith(mark):
            return codecs.getincrementaldecoder(name)("replace")
    sample = first[: 64 << 10].rpartition(b"\n")[0] or first
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError:
        # A frequent Chinese character has two high bytes; an accent of Latin-1 mostly has one.
        runs = re.findall(rb"[\x81-\xfe]+", sample)
        frequent = len(re.findall(rb"[\xb0-\xd7][\xa1-\xfe]", sample))
        pairs = sum(len(run) for run in runs) // 2
        if (
            all(len(run) % 2 == 0 for run in runs)
            and pairs >= _LEAST_PAIRS
            and 2 * frequent > pairs
        ):
            return codecs.getincrementaldecoder("gb18030")("replace")
    return None


def _binary(first: bytes) -> bool:
    if not first:
        return False
    control = len(first) - len(first.translate(None, _CONTROL))
    if control / len(first) > _BINARY_SHARE:
        return True
    sample = first[: 64 << 10]
    odd = sample.decode("utf-8", "replace").count("\ufffd")
    return odd / len(sample) > _BINARY_SHARE * 2


def split(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of non-empty lines; carriage returns end lines too."""
    rest, skipping = b"", False
    complete: list[bytes] = []
    for piece in pieces:
        text = piece.replace(b"\r", b"\n") if b"\r" in piece else piece
        if skipping:
            _, newline, text = text.partition(b"\n")
            skipping = not newline
        lines = (rest + text).split(b"\n")
        rest = lines.pop()
        if len(rest) > _LINE_BYTES:
            lines.append(rest[:_LINE_BYTES])
            rest, skipping = b"", True
        yield complete
        complete = lines
    yield [*complete, rest] if rest else complete


def unwrapped(lines: list[bytes]) -> list[bytes]:
    """Join lines that a terminal broke at its width; return other lines as they are.

    Several different lines must be as wide as the widest, and what follows begin no line itself.
    """
    width = max(map(len, lines), default=0)
    if not _LEAST_COLUMNS <= width <= _MOST_COLUMNS:
        return lines
    full = [line for line in lines if len(line) == width and not _RULER.search(line)]
    if len({line.translate(None, b"0123456789") for line in full}) < _LEAST_FULL:
        return lines
    joined = lines[:1]
    for before, line in pairwise(lines):
        is_broken = len(before) == width and not _RULER.search(before) and not _START.match(line)
        if is_broken:
            joined[-1] += line
        else:
            joined.append(line)
    return joined
