"""Read what a bundle holds of a run: texts of its folder, of long ones the beginning and the end.

Only files with the names of a run folder are read, no links, and nothing that is pickled.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from paceline.diagnose.explain import compressed, reading
from paceline.rundir.files import open_file

# Of each file; a start-up and a traceback with its surroundings are shorter.
HEAD_BYTES, TAIL_BYTES = 32 << 10, 224 << 10
# Of all files together, before compression: trackers of issues take attachments of 10 MB and more.
TOTAL_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16

# The names that a run folder has, the most useful first.
NAMES = (
    *("plan*.json", "training.json", "events*.jsonl", "job.json", "job.sh", "sweep.json"),
    *("speed.json", "ranks/rank-*.error.json", "ranks/rank-*.crash", "ranks/rank-*.stacks"),
    *("slurm.out", "local.out", "queue.out", "logs/launcher-*.out", "logs/nccl-ras.txt"),
    *("logs/rank-*.out", "speed.jsonl", "metrics.csv", "logs/rank-*.nccl", "lease.json"),
    *("local.json", "queue.json", "bench.json", "forecast.json"),
    *("ranks/rank-*.parameters.json", "logs/filtered_*.log"),
)


@dataclass(frozen=True)
class Part:
    """A text in a bundle."""

    name: str  # its name in the archive
    text: str  # its content, redacted when it is written
    num_bytes: int = 0  # size of the file that it comes from; 0 for a text that the bundle makes
    cut: bool = False  # whether the middle of the file is left out


@dataclass(frozen=True)
class LeftOut:
    """A file or folder that is not in a bundle."""

    name: str  # its name in the run folder
    reason: str  # why


def of_folder(folder: Path) -> tuple[list[Part], list[LeftOut]]:
    """Return the texts of a run folder, and what is left out."""
    names = sorted(_names(folder), key=_place)
    parts, left_out = [], []
    space = TOTAL_BYTES
    for name in names:
        if not any(fnmatch(name, pattern) for pattern in NAMES):
            left_out.append(LeftOut(name, "not among the texts of a run folder"))
            continue
        part = _of_file(folder / name, name)
        if isinstance(part, LeftOut):
            left_out.append(part)
        elif len(part.text) > space:
            left_out.append(LeftOut(name, f"the bundle is full ({TOTAL_BYTES >> 20} MiB)"))
        else:
            space -= len(part.text)
            parts.append(part)
    return parts, left_out


def of_log(subject: str) -> Part:
    """Return the text of a log file, decompressed if necessary."""
    with reading.open_subject(subject) as file, compressed.unpacked(file, subject) as stream:
        chunks = reading.chunks(stream, subject)
        return _part("log.txt", chunks, file if stream is file else None)


def _names(folder: Path) -> Iterator[str]:
    """Yield the files of a run folder and of its folders of texts; other folders as such."""
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.name in ("logs", "ranks"):
            yield from (f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path))
        else:
            yield f"{entry.name}/" if is_folder else entry.name


def _place(name: str) -> tuple[int, str]:
    places = [place for place, pattern in enumerate(NAMES) if fnmatch(name, pattern)]
    return (places[0] if places else len(NAMES)), name


def _of_file(path: Path, name: str) -> Part | LeftOut:
    if path.is_symlink():  # it may lead anywhere
        return LeftOut(name, "a link")
    try:
        with open_file(path) as file:
            return _part(f"run/{name}", iter(lambda: file.read(_CHUNK_BYTES), b""), file)
    except OSError as error:
        return LeftOut(name, f"cannot be read: {(error.strerror or str(error)).lower()}")


def _part(name: str, chunks: Iterable[bytes], file: IO[bytes] | None) -> Part:
    """Return a text as far as it fits: its beginning and its end, in whole lines.

    A secret that is cut in two is not recognized, so a line is kept whole or not at all. The middle
    of a file whose bytes are the chunks is not read.
    """
    recent: collections.deque[bytes] = collections.deque()
    head, num_tail, size = b"", 0, 0
    for chunk in chunks:
        size += len(chunk)
        missing = max(0, HEAD_BYTES - len(head))
        head += chunk[:missing]
        recent.append(chunk[missing:])
        num_tail += len(recent[-1])
        if file is not None and num_tail and (num_skipped := _skip_middle(file)):
            size, num_tail, file = size + num_skipped, 0, None
            recent.clear()
            continue
        while num_tail - len(recent[0]) >= TAIL_BYTES:
            num_tail -= len(recent.popleft())
    tail = b"".join(recent)
    if size == len(head) + len(tail) and len(tail) <= TAIL_BYTES:
        return Part(name, _text(head + tail), size)
    head = head[: head.rfind(b"\n") + 1]
    tail = _after_first_line(tail[-TAIL_BYTES:])
    num_left_out = size - len(head) - len(tail)
    marker = f"\n[... {num_left_out:,} bytes are left out here ...]\n\n"
    return Part(name, _text(head) + marker + _text(tail), size, cut=True)


def _skip_middle(file: IO[bytes]) -> int:
    """Go to the last bytes of a file, and return how many were skipped."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    num_skipped = (left - TAIL_BYTES) & ~1  # even, since a character of UTF-16 has two bytes
    file.seek(max(0, num_skipped), os.SEEK_CUR)
    return max(0, num_skipped)


def _after_first_line(data: bytes) -> bytes:
    _, newline, rest = data.partition(b"\n")
    return rest if newline else b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def listing(parts: Sequence[Part], left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Yield lines that say what a bundle holds, and what not."""
    width = max((len(part.name) for part in parts), default=0)
    for part in parts:
        cut = f", of {part.num_bytes:,}" if part.cut else ""
        yield f"  {part.name:<{width}}  {len(part.text.encode()):,} bytes{cut}"
    if left_out:
        yield ""
        yield "Left out:"
    for item in left_out:
        yield f"  {item.name}: {item.reason}"
