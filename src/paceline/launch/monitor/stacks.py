"""Collect where the ranks of this node are: stacks and collectives from their stack responders.

This module collects and decides nothing. All ranks of a node together take some milliseconds, or
half a second if one does not answer. As a last resort a rank gets a signal: only if its stack
responder does not answer, and ``is_harmless`` says that nothing notices. Children never get one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import linecache
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.launch.monitor import child_stacks, conditional_line, position
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.monitor.proof import Call, Stand
from paceline.launch.probe import stack_responder
from paceline.machine import processes, sockets, system
from paceline.machine.user_code import is_users
from paceline.text import wording

# How long a rank has to answer. The stack takes a few milliseconds; the stack responder may have to
# wait for the interpreter lock.
_ANSWER_S = 0.5
_QUIET_ANSWER_S = 1.5  # for looks without a signal, whose result is not urgent
# A dump is complete when it has not grown for this time.
_QUIET_S = 0.05
# The number of workers to look at, for a rank that waits for its loader.
_WORKERS = 4
_WORKERS_S = 3.0  # for all workers of one rank
# A rank that is still uses less than this share of a CPU, copies less than this (an answer to the
# launcher is smaller), and wakes less often: torch's wait for a worker wakes every 5 s.
_STILL_CPU, _MOVING_BYTES, _WAKES_EVERY_S = 0.05, 1 << 18, 2.5
_OUTSIDE_S = 1.5  # for py-spy at all ranks that do not answer
# The call's number; its commands without two flags: WAIT, LOCK_PI, WAIT_BITSET (linux/futex.h)
_FUTEX, _FUTEX_COMMAND, _FUTEX_WAITS = {"x86_64": "202", "aarch64": "98"}, ~(128 | 256), (0, 6, 9)
_GUARDED = 32  # lines of a stack for which an ``if`` around them is searched


@dataclass(frozen=True)
class Look:
    """The answer of one rank."""

    # its main thread's stack, outermost first, from the script on; empty if invisible
    frames: tuple[Frame, ...] = ()
    # its last collective, from the stack responder; empty without an answer
    recorded: dict[str, Any] = field(default_factory=dict)
    # place in the user's code of a DataLoader worker, as text; empty if none is visible
    worker: str = ""
    guard: str = ""  # the ``if`` around its place that selects ranks; empty if there is none
    cpu_s: float = 0.0  # CPU time that it and its children have used so far
    io_bytes: int = 0  # bytes that they have read and written so far
    # the kernel's letter for its main thread: S sleeps, R runs, T is stopped, D waits for a device
    state: str = ""
    switches: int = -1  # how often its main thread has stopped running so far; -1 if unknown
    socket_bytes: int = -1  # bytes that its TCP sockets have moved so far; -1 if unknown
    queued_bytes: int = -1  # bytes on their way on these sockets; -1 if unknown
    # the complete answer, as ``stack_responder.state`` returns it; empty without one
    answer: dict[str, Any] = field(default_factory=dict)
    # whether no other Python thread is in the user's code or in a collective
    others_idle: bool = False
    kept: str = ""  # the threads that keep it alive although its script is done, as text
    printed: str = ""  # the last exception in its log since its last progress, as text
    printed_ns: int = 0  # when its traceback began, on the monotonic clock


def look(
    pids: Mapping[int, int],  # process id of each rank, by local rank; all of them alive
    addresses: Mapping[int, str],  # where responders listen, by local rank
    # the file that faulthandler writes to, by local rank; others are not looked at from outside
    files: Mapping[int, Path],
    *,
    quiet: bool = False,  # send no signal, and skip DataLoader workers
    leave_out: Collection[int] = (),  # ports of connections that carry no collectives
) -> dict[int, Look]:
    """Return where ranks are."""
    statuses = {local: processes.status(pid) for local, pid in pids.items()}
    running = {
        local: pid for local, pid in pids.items() if statuses[local].get("State", "")[:1] != "T"
    }
    asked = {local: addresses[local] for local in running if addresses.get(local)}
    wait_s = _QUIET_ANSWER_S if quiet else _ANSWER_S
    answers = _ask_responders(asked, running, wait_s=wait_s)
    silent = {
        local: pid for local, pid in running.items() if local in files and local not in answers
    }
    outside = {} if quiet else _from_outside(silent, files, statuses)
    traffic = sockets.traffic(pids.values(), leave_out=leave_out)
    return {
        local: _look_at(
            pid,
            answers.get(local, {}),
            outside.get(local, ()),
            status=statuses[local],
            traffic=traffic.get(pid, (-1, -1)),
            quiet=quiet,
        )
        for local, pid in pids.items()
    }


def _look_at(
    pid: int,
    answer: dict[str, Any],
    outside: Sequence[tuple[str, int, str]],  # its main thread's stack, if it does not answer
    *,
    status: Mapping[str, str],
    traffic: tuple[int, int],
    quiet: bool,
) -> Look:
    threads = answer.get("threads", [])
    main = next((thread["frames"] for thread in threads if thread["main"]), None)
    frames = _frames(outside if main is None else main)
    in_data = position.classify(frames)[0] == position.DATA
    cpu_s, io_bytes = _work(pid)
    return Look(
        frames,
        answer.get("recorded", {}),
        worker=worker_place(pid, _frame) if in_data and not quiet else "",
        guard=_guard(frames),
        cpu_s=cpu_s,
        io_bytes=io_bytes,
        state=status.get("State", "")[:1],
        switches=processes.switches(status),
        socket_bytes=traffic[0],
        queued_bytes=traffic[1],
        answer=answer,
        others_idle=bool(threads)
        and all(is_idle(thread["frames"]) for thread in threads if not thread["main"]),
        kept=_kept_by_threads(threads),
    )


def _kept_by_threads(threads: Sequence[Mapping[str, Any]]) -> str:
    """Return which threads the interpreter waits for after the script's end, and where they are."""
    main = next((thread["frames"] for thread in threads if thread["main"]), ())
    if ("threading.py", "_shutdown") not in [(Path(file).name, name) for file, _, name in main]:
        return ""
    lasting = [thread for thread in threads if not (thread["main"] or thread.get("daemon", True))]
    places = [(thread["name"], Position(0, frames=_frames(thread["frames"]))) for thread in lasting]
    return "; ".join(f"thread {name!r} keeps it alive: {at.spot}" for name, at in places[:3])


def kept_by_hook(look: Look, *, returned: bool) -> str:
    """Return the atexit hook that keeps a rank alive whose script has returned; empty if none."""
    if not returned:
        return ""
    place, outer = Position(0, frames=look.frames), look.frames[:1]
    library = "".join(f"{first.function} ({first.file}:{first.line})" for first in outer)
    spot = place.spot if place.place else library or "native code"
    return f"an atexit hook keeps it alive: {spot}"


def is_active(looks: Sequence[Look], seconds: float) -> bool:
    """Return whether a rank and its children used the CPU or copied data between two looks."""
    before, now = looks[0], looks[-1]
    uses_cpu = now.cpu_s - before.cpu_s >= _STILL_CPU * seconds
    return uses_cpu or now.io_bytes - before.io_bytes > _MOVING_BYTES


def is_still(looks: Sequence[Look], seconds: float) -> bool:
    """Return whether a rank was inactive between the first look and the last.

    Its stack is unchanged, it is not active, and its main thread hardly ran.
    """
    before, now = looks[0], looks[-1]
    wakes_often = now.switches - before.switches > 1 + seconds / _WAKES_EVERY_S
    return before.frames == now.frames and not (is_active(looks, seconds) or wakes_often)


def bytes_moved(looks: Sequence[Look]) -> bool:
    """Return whether the sockets of a rank have sent or received bytes."""
    counts = {look.socket_bytes for look in looks if look.socket_bytes >= 0}
    return len(counts) > 1


def is_blocked(before: Look, now: Look) -> bool:
    """Return whether a rank waits in a collective and has not moved between two looks.

    This needs all facts: the stack, the number of times that the kernel has let the main thread
    run, and the bytes on its sockets.
    """
    has_answers = bool(before.answer and now.answer and now.frames)
    has_counts = now.switches >= 0 and now.socket_bytes >= 0
    if not has_answers or not has_counts:
        return False
    may_call_more = not now.others_idle or now.answer["p2p"]
    if may_call_more or now.state != "S":
        return False
    is_waiting = bool(now.answer["pending"]) and (is_in_collective(now) or waits_for_work(now))
    is_waiting = is_waiting or peer_of(now) >= 0 or _main(now).get("creates", -1) >= 0
    return is_waiting and _traces(before) == _traces(now)


def stand_of(rank: int, before: Look | None, now: Look) -> Stand:
    """Return what a rank waits in, as far as two looks make it certain enough for a proof."""
    answer = now.answer
    if not answer:
        return Stand(rank)
    return Stand(
        rank,
        blocked=before is not None and is_blocked(before, now),
        pending=tuple(Call(*values) for values in answer["pending"]),
        recent=tuple(Call(*values) for values in answer["recent"]),
        whole=answer["whole"],
        members=answer["members"],
        destroyed=tuple(answer.get("destroyed", ())),
        in_work=not is_in_collective(now),
        peer=peer_of(now),
        sends=bool(now.frames) and now.frames[-1].function == "send",
        queued=now.queued_bytes != 0,
        groups=answer.get("groups", -1),
        creates=_main(now).get("creates", -1),
        needs=tuple(_main(now).get("needs", ())),
    )


def is_in_collective(look: Look) -> bool:
    """Return whether the main thread is in a call of torch that waits for other ranks."""
    last = look.frames[-1:]
    inside = bool(last) and "torch/distributed/" in last[0].file
    return inside or position.classify(last)[0] in position.WAITING


def waits_for_work(look: Look) -> bool:
    """Return whether the user's innermost line calls ``wait()``: of which work is not visible."""
    main = _main(look)
    return bool(look.frames) and look.frames[-1].user and main.get("calls") == "wait"


def peer_of(look: Look) -> int:
    """Return the rank that it receives from or sends to, in a call that waits; -1 for none."""
    return int(_main(look).get("peer", -1))


def members_of(look: Look) -> tuple[int, ...]:
    """Return the global ranks of the group of its last collective; empty if they are unknown."""
    return tuple(look.answer.get("members", {}).get(look.recorded.get("group"), ()))


def last_call_of(look: Look) -> str:
    """Return the last collective that it has called, with what it sends; empty if there is none."""
    calls = [Call(*values) for values in look.answer.get("recent", [])]
    return max(calls, key=lambda call: call.record).words if calls else ""


def _main(look: Look) -> dict[str, Any]:
    threads = look.answer.get("threads", [])
    return next((thread for thread in threads if thread["main"]), {})


def _traces(look: Look) -> tuple[Any, ...]:
    """Return what changes in a rank as soon as it moves."""
    calls = look.answer["pending"], look.answer["recent"]
    return (look.frames, look.switches, look.socket_bytes, *calls)


def is_idle(frames: Sequence[Sequence[Any]]) -> bool:
    """Return whether a thread cannot call a collective for the script.

    It belongs to a library, and is not in a collective now. A timer, or a loop of events, may call
    a function of the script later.
    """
    in_collective = bool(frames) and "torch/distributed/" in frames[-1][0]
    calls_later = _is_timer(frames) or any("asyncio/base_events" in file for file, *_ in frames)
    return not in_collective and not calls_later and not any(is_users(it) for it, *_ in frames)


def _is_timer(frames: Sequence[Sequence[Any]]) -> bool:
    """Return whether a thread is in ``threading.Timer.run``, which itself calls ``wait``."""
    inner = [(os.path.basename(file), function) for file, _, function in frames]
    return (("threading.py", "run"), ("threading.py", "wait")) in itertools.pairwise(inner)


def _from_outside(
    pids: Mapping[int, int], files: Mapping[int, Path], before: Mapping[int, Mapping[str, str]]
) -> dict[int, Sequence[tuple[str, int, str]]]:
    """Return the stacks of ranks that do not answer: by a signal if it is harmless, or py-spy."""
    deadline = time.monotonic() + _ANSWER_S  # for all together
    starts = {local: _size(files[local]) for local in pids}
    signalled = [local for local, pid in pids.items() if _signal(pid, before[local])]
    dumps = {local: appended(files[local], starts[local], deadline) for local in signalled}
    found: dict[int, Sequence[tuple[str, int, str]]] = {}
    deadline = time.monotonic() + _OUTSIDE_S
    for local, pid in pids.items():
        found[local] = position.parse(dumps.get(local, ""))
        if not found[local]:
            threads, _ = child_stacks.threads(pid, limit_s=deadline - time.monotonic())
            found[local] = child_stacks.main_thread(pid, threads)
    return found


def at(frames: tuple[Frame, ...]) -> Look:
    """Return a look for a rank with only a stack: that of its exception, or of its crash."""
    return Look(frames, guard=_guard(frames))


def read_crash(file: Path) -> tuple[Frame, ...]:
    """Return the stack of a rank that crashed in native code, from faulthandler's file."""
    return _frames(position.parse(_text(file, 0)))


def _signal(pid: int, before: Mapping[str, str]) -> bool:
    """Send the signal to a main thread if that can do no harm; return whether it was sent."""
    call = ""
    with contextlib.suppress(OSError):
        call = Path(f"/proc/{pid}/syscall").read_text()
    harmless = is_harmless(call, before, processes.status(pid), machine=os.uname().machine)
    return harmless and system.signal_main_thread(pid, stack_responder.SIGNAL)


def is_harmless(
    call: str,  # the ``/proc/PID/syscall`` of a main thread; empty if it cannot be read
    before: Mapping[str, str],  # its ``/proc/PID/status`` when it was asked
    now: Mapping[str, str],  # the same when it has not answered
    *,
    machine: str,
) -> bool:
    """Return whether the signal is certain to end no call of C code early. Pure.

    A library may take an interrupted ``sleep`` or ``poll`` for the end of its wait. So the thread
    has computed all the time, or has waited for a lock without a limit, and waits on afterwards.
    """
    caught, blocked = (int(now.get(name, "0"), 16) for name in ("SigCgt", "SigBlk"))
    mask = 1 << (stack_responder.SIGNAL - 1)
    waits = "voluntary_ctxt_switches"
    has_stayed = waits in now and before.get(waits) == now[waits]
    if not caught & mask or blocked & mask or not has_stayed:
        return False
    states = {fields.get("State", "")[:1] for fields in (before, now)}
    words = call.split()
    if states != {"S"} or len(words) < 5 or words[0] != _FUTEX.get(machine):
        return states == {"R"}
    command, limit = int(words[2], 16) & _FUTEX_COMMAND, int(words[4], 16)
    return command in _FUTEX_WAITS and not limit


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal; what the handler does is not visible."""
    caught = processes.status(pid).get("SigCgt", "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def appended(file: Path, start: int, deadline: float) -> str:
    """Return what was appended to a file after ``start``, once it has stopped to grow."""
    size, since = _size(file), time.monotonic()
    while time.monotonic() < deadline and (size == start or time.monotonic() - since < _QUIET_S):
        time.sleep(0.005)
        now = _size(file)
        if now != size:
            size, since = now, time.monotonic()
    return _text(file, start)


def _text(file: Path, start: int) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _frames(stack: Sequence[Sequence[Any]]) -> tuple[Frame, ...]:
    """Return the frames of the script, without those inherited from the launcher."""
    return below_launcher([_frame(*entry) for entry in stack])


def below_launcher(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames from the user's first frame on."""
    first = next((place for place, frame in enumerate(frames) if frame.user), 0)
    return tuple(frames[first:])


def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(
        file, line, function, code=linecache.getline(file, line).strip(), user=is_users(file)
    )


def content_of(frames: Sequence[Frame]) -> str:
    """Return a hash of the file of the user's innermost frame; empty if it is not readable."""
    file = next((frame.file for frame in reversed(frames) if frame.user), "")
    text = "".join(linecache.getlines(file))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def _guard(frames: tuple[Frame, ...]) -> str:
    """Return the innermost ``if`` that selects ranks, around the user's frames.

    A recursion has many frames and few lines; of many lines the innermost and outermost count.
    """
    places = list(dict.fromkeys((it.file, it.line) for it in reversed(frames) if it.user))
    for file, line in wording.ends_of(places, _GUARDED):
        guard = conditional_line.guard_of("".join(linecache.getlines(file)), line)
        if guard is not None:
            number, text = guard
            return f"{text} ({position.shown_path(file)}:{number})"
    return ""


def worker_place(
    pid: int,  # process id of the rank
    read_frame: Callable[[str, int, str], Frame],  # creates a frame from file, line and function
) -> str:
    """Return the place of the first worker in the user's code, or else a worker's system call."""
    import psutil

    deadline = time.monotonic() + _WORKERS_S
    workers: list[int] = []
    with contextlib.suppress(psutil.Error):
        workers = [child.pid for child in psutil.Process(pid).children()[:_WORKERS]]
    for worker in workers:
        stack = child_stacks.stack(worker, read_frame, limit_s=deadline - time.monotonic())
        # the stack of a forked worker begins with the stack of its rank
        inside = [place for place, frame in enumerate(stack) if frame.function == "_worker_loop"]
        place = position.Position(rank=0, frames=stack[inside[-1] :] if inside else ()).place
        if place:
            return place
    return child_stacks.describe(workers)


def _work(pid: int) -> tuple[float, int]:
    """Return the CPU seconds and the bytes of a process and its descendants."""
    import psutil

    cpu_s, io_bytes = 0.0, 0
    with contextlib.suppress(psutil.Error):
        rank = psutil.Process(pid)
        for process in (rank, *rank.children(recursive=True)):
            cpu_s += sum(process.cpu_times()[:4])  # with that of its ended children
            if hasattr(process, "io_counters"):
                counts = process.io_counters()
                io_bytes += getattr(counts, "read_chars", 0) + getattr(counts, "write_chars", 0)
    return cpu_s, io_bytes


def _ask_responders(
    addresses: Mapping[int, str], pids: Mapping[int, int], *, wait_s: float
) -> dict[int, dict[str, Any]]:
    """Return the answers of the ranks' stack responders, by local rank."""
    answers: dict[int, dict[str, Any]] = {}
    if sys.platform != "linux":
        return answers
    with contextlib.closing(stack_responder.signed_socket()) as asker:
        asker.settimeout(0.05)
        locals_by_pid: dict[int, int] = {}  # of the ranks that were asked
        with contextlib.suppress(OSError):
            asker.bind(f"\0paceline-asker-{os.urandom(16).hex()}")
        for local, address in addresses.items():
            with contextlib.suppress(OSError):
                asker.sendto(b"where", address)
                locals_by_pid[pids[local]] = local
        deadline = time.monotonic() + wait_s
        while len(answers) < len(locals_by_pid) and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError, ValueError):
                answer, _, sender, _ = stack_responder.receive(asker, 1 << 18)
                if sender in locals_by_pid:  # any process may send here unasked
                    answers[locals_by_pid[sender]] = json.loads(answer)
    return answers
