"""Collect GPU errors from the kernel log, if this user may read it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator

from paceline.diagnose.doctor.facts_gpu import Xid

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:,|:|\b)")
_TIME = re.compile(r"\[\s*(\d+)\.\d+\]")
_MOST = 50
_READ_ALL = 3  # of syslog(2)
_SIZE = 1 << 20


def gather_xids() -> tuple[Xid, ...] | None:
    """Return the errors since boot, the last of each kind and GPU; None if they cannot be read."""
    lines = list(_lines())
    return find_xids("\n".join(lines), now_s=time.monotonic()) if lines else None


def find_xids(text: str, *, now_s: float) -> tuple[Xid, ...]:
    """Return the errors in a kernel log, the last of each kind and GPU. Pure.

    Each line has the seconds since boot: ``[12.3] NVRM: Xid (PCI:0000:3b:00): 79, ...``.
    """
    xids = {}
    for line in text.splitlines():
        match = _XID.search(line)
        if match is None:
            continue
        stamp = _TIME.search(line)
        age = max(0, int(now_s - int(stamp[1]))) if stamp else None
        place = match[1].lower()
        place = place if "." in place else f"{place}.0"
        xids[place, int(match[2])] = Xid(int(match[2]), place, line[match.start() :][:200], age)
    return tuple(xids.values())[-_MOST:]


def _lines() -> Iterator[str]:
    if not sys.platform.startswith("linux"):
        return
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        yield from _ask_syslog()
        return
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    record = os.read(handle, 8192).decode(errors="replace")
                except BrokenPipeError:  # overwritten during the read; the next record is whole
                    continue
                head, _, message = record.partition(";")
                micros = head.split(",")[2] if head.count(",") >= 2 else "0"
                yield f"[{int(micros) // 1_000_000}.0] {message.splitlines()[0] if message else ''}"
    except (OSError, ValueError):
        return
    finally:
        os.close(handle)


def _ask_syslog() -> Iterator[str]:
    buffer = ctypes.create_string_buffer(_SIZE)
    length = ctypes.CDLL(None).klogctl(_READ_ALL, buffer, _SIZE)
    if length > 0:
        yield from buffer.raw[:length].decode(errors="replace").splitlines()
