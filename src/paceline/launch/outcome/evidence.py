"""Collect evidence about how ranks ended: their files, checkpoints, OOM kills, ``/dev/shm``.

A collector: it reads and returns plain values. A missing source (``/proc``, a cgroup) reads as
empty.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline import version
from paceline.errors import Finding
from paceline.launch.in_rank.meeting import open_changes
from paceline.launch.monitor.position import Frame
from paceline.launch.outcome.rank_exit import Failure
from paceline.launch.outcome.resume import Checkpoint
from paceline.machine.user_code import is_users
from paceline.rundir.committed import last_committed
from paceline.rundir.files import MOST_BYTES, RunDir, display_path, open_file, read_json, read_text
from paceline.signatures.lines import parse
from paceline.signatures.tracebacks import Tracebacks
from paceline.text.wording import shorten

_OTHER_THREAD = "a thread of a library crashed, while the main thread was in:"
# How torch begins the lines of a C++ stack.
_NATIVE_FRAMES = ("frame #", "<omitting python frames>")
_MOST_OF_LINE, _MOST_RAISED = 1000, 160


def read_failure(path: Path) -> Failure | None:
    """Return the exception that a rank's worker entry recorded; None if there is none."""
    try:
        content = read_json(path, most_bytes=MOST_BYTES)
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    ours = content.get("paceline")
    return _from_torch(content) if ours is None else failure_from(ours)


def failure_from(ours: Mapping[str, Any]) -> Failure:
    """Return the exception from the data that a rank's worker entry recorded."""
    return Failure(
        type=ours["type"],
        message=ours["message"],
        time_ns=ours["time_ns"],
        traceback=ours["traceback"],
        frames=tuple(Frame(**frame) for frame in ours["frames"]),
        finding=Finding.from_json(ours["finding"]) if ours.get("finding") else None,
        output=ours.get("output", ""),
        unprinted=ours.get("unprinted", False),
        notes=tuple(ours.get("notes", ())),
        parts=tuple(ours.get("parts", ())),
    )


def output_of(failure: Failure | None, file: Path | None, *, log: Path) -> str:
    """Return the file to look into, for messages; empty if there is none."""
    if failure is not None and failure.output:
        file = Path(failure.output)
    elif failure is not None and failure.unprinted:
        file = log
    return display_path(file) if file is not None else ""


def changes_of(meetings: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return in words what a rank's script had changed when it waited for the other ranks."""
    return tuple(text for entry in open_changes(meetings).values() for text in entry["changes"])


def describe_thread(entry: Mapping[str, Any]) -> str:
    """Return in words an exception that ended a thread of a rank."""
    failure = failure_from(entry)
    place = f" ({failure.place.file}:{failure.place.line})" if failure.place else ""
    return f"thread {entry['thread']} raised {failure.headline}{place}"


def _from_torch(content: dict[str, object]) -> Failure | None:
    """Read the error file of torch's ``@record``, for ranks without our worker entry."""
    message = content.get("message")
    if not isinstance(message, dict):
        return None
    kind, _, text = str(message.get("message", "")).partition(": ")
    extra = message.get("extraInfo", {})
    seconds = int(extra.get("timestamp", 0))  # torch writes no fractions, so ranks may tie
    return Failure(
        type=kind,
        message=text,
        time_ns=seconds * 10**9,
        traceback=str(extra.get("py_callstack", "")),
    )


def read_tail(path: Path, *, lines: int = 12, limit_bytes: int = 8192) -> tuple[str, ...]:
    """Return the last informative lines of a log file."""
    try:
        with open_file(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))  # the log of a long run has gigabytes
            return last_lines(file.read().decode("utf-8", errors="replace"), lines=lines)
    except OSError:
        return ()


def last_raised(text: str, *, but: str = "") -> str:
    """Return the exception of the last traceback in a log that is not in ``but``; else empty."""
    reader = Tracebacks()
    for number, line in enumerate(text.splitlines()):
        reader.feed(parse(line[:_MOST_OF_LINE], number))
    raised = [f"{each.type}: {each.message}" for each in reader.raised if each.shown]
    others = [shorten(each.rstrip(": "), _MOST_RAISED) for each in raised if each not in but]
    return others[-1] if others else ""


def last_lines(text: str, *, lines: int = 12) -> tuple[str, ...]:
    """Return the last informative lines of a log; C++ stack frames are left out."""
    nonempty = (line.rstrip()[:300] for line in text.splitlines() if line.strip())
    informative = [line for line in nonempty if not line.startswith(_NATIVE_FRAMES)]
    return tuple(informative[-lines:])


def read_stack(path: Path) -> tuple[str, ...]:
    """Return the stack of the thread that crashed, from faulthandler's dump.

    Each entry is ``file:line in function``, innermost first. If a library's own thread crashed, a
    line that says so comes before the frames of the main thread, from the user's on.
    """
    try:
        text = read_text(path)
    except OSError:
        return ()
    threads = re.findall(r"^(?:Current t|T)hread .*(?:\n  .*)+", text, re.M)
    current = next((it for it in threads if it.startswith("Current")), "")
    main = threads[-1] if threads and not current else ""
    frames = re.findall(r'File "(.+?)", line (\d+) in (\S+)', current or main)
    # frames above our worker entry belong to the launcher that the rank was forked from
    theirs = list(
        itertools.takewhile(lambda frame: not frame[0].startswith(version.FOLDER), frames)
    )
    if main:
        theirs = list(itertools.dropwhile(lambda frame: not is_users(frame[0]), theirs))
    stack = [f"{file}:{line} in {function}" for file, line, function in theirs]
    return (*[_OTHER_THREAD] * bool(main and stack), *stack)


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the last committed checkpoint; None if there is none or the folder is not readable."""
    last = last_committed(folder)
    if last is None:
        return None
    return Checkpoint(
        display_path(last.path), last.serial, last.manifest.step, last.manifest.seconds
    )


def read_nccl_logs(run_dir: RunDir, *, since: int) -> list[str]:
    """Return NCCL's logs from attempt ``since`` on; older ones belong to an earlier start."""
    attempts = range(since, run_dir.next_attempt())
    names = {n: run_dir.nccl(0, n).name.partition("000")[2] for n in attempts}
    logs = [
        path
        for path in _entries(run_dir.root / "logs")
        if re.sub(r"^rank-\d+", "", path.name) in names.values()
    ]
    return [read_text(path) for path in logs]


def half_saved(folder: Path, *, since_ns: int) -> str:
    """Return the folder of an uncommitted checkpoint; empty if there is none.

    Only folders that were written to after ``since_ns`` count.
    """
    for path in _entries(folder):
        if (
            path.name.startswith(".")  # a checkpoint gets its name when it is committed
            and not path.name.startswith(".trash")
            and _changed_ns(path) >= since_ns
        ):
            return display_path(path)
    return ""


def _changed_ns(path: Path) -> int:
    newest = 0
    for place in (path, *path.rglob("*")) if path.is_dir() else ():
        with contextlib.suppress(OSError):  # a file may be renamed or removed meanwhile
            newest = max(newest, place.stat().st_mtime_ns)
    return newest


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def count_oom_kills() -> int:
    """Return how many processes the kernel killed for lack of memory: in the cgroup, else the host.

    Only the difference of two readings means something. The cgroup's count includes processes of
    the cgroup that the host's OOM killer ended.
    """
    count = _cgroup_oom_kills()
    return count if count is not None else _host_oom_kills() or 0


def _cgroup_oom_kills() -> int | None:
    try:
        line = next(
            line
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
        events = Path("/sys/fs/cgroup", line[3:].lstrip("/"), "memory.events").read_text()
    except (OSError, StopIteration):
        return None
    match = re.search(r"^oom_kill (\d+)", events, re.M)
    return int(match[1]) if match else None


def _host_oom_kills() -> int | None:
    try:
        match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return None
    return int(match[1]) if match else None


def shm_pressure(path: str = "/dev/shm", *, threshold: float = 0.9) -> str:
    """Return how full ``/dev/shm`` is, ``"98 % of 64 MB"``; empty below ``threshold``."""
    try:
        stats = os.statvfs(path)
    except OSError:
        return ""
    total = stats.f_blocks * stats.f_frsize
    used = 1 - stats.f_bavail / stats.f_blocks if stats.f_blocks else 0.0
    return f"{used:.0%} of {total / 2**20:.0f} MB" if used >= threshold else ""
