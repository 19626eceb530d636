"""The stack responder: report a rank's position to its launcher, even if the rank hangs.

A thread that waits on a socket answers with the Python stacks of all threads and with the
collectives in torch's Flight Recorder. An answer needs the interpreter lock for a moment; without
requests the thread costs nothing. If it does not answer because C code holds the lock, a signal
makes faulthandler write the stacks to a file. That works in any native wait, but the signal
interrupts a blocking call of C code, so it is the last resort. Nothing here runs during a step.
"""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Any

from paceline import env
from paceline.machine import references

_POINT_TO_POINT = ("recv", "send")  # torch's functions that return when the transfer is done
# Limits of a report, which has to fit into one datagram.
_THREADS, _FRAMES, _MAIN_FRAMES = 24, 30, 100
_GROUPS, _PENDING, _RECENT = 16, 16, 32
# Entries of the Flight Recorder in a report: reading all 2,000 takes a rank some 40 ms.
_LATEST = 256
_ENTRY = b',{"collective_seq_id"'  # separator of the entries, whose fields are sorted

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: process, user, group

# A real-time signal that neither glibc, Python, torch nor NCCL uses; 0 where there is none (macOS).
SIGNAL = int(getattr(signal, "SIGRTMAX", 3)) - 3


def install(stacks: int) -> str:
    """Start answering requests for this rank's position; return the address, empty without one.

    ``stacks`` is the descriptor that faulthandler writes to, which must stay open. The address is
    an abstract socket, which leaves no file behind; nobody can guess it and bind it before.
    """
    if SIGNAL:
        faulthandler.register(SIGNAL, file=stacks, all_threads=True)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # no abstract sockets here: only the signal remains
            listener, address = signed_socket(), f"\0paceline-witness-{os.urandom(16).hex()}"
            listener.bind(address)
            threading.Thread(
                target=_answer, args=(listener, os.getuid()), name="paceline-witness", daemon=True
            ).start()
            return address
    return ""


def signed_socket() -> socket.socket:
    """Return a Unix datagram socket on which the kernel identifies senders by process and user."""
    datagram_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return datagram_socket


def receive(listener: socket.socket, num_bytes: int) -> tuple[bytes, Any, int, int]:
    """Return a message to a signed socket: content, and the sender's address, process and user id.

    Both ids are -1 if the kernel does not report them.
    """
    data, ancillary, _, sender = listener.recvmsg(num_bytes, socket.CMSG_SPACE(_CREDENTIALS.size))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = _CREDENTIALS.unpack_from(content)
            return data, sender, pid, uid
    return data, sender, -1, -1


def _answer(listener: socket.socket, user: int) -> None:
    """Answer requests of root and of this process's user; any user may send to the socket."""
    while True:
        _, sender, _, uid = receive(listener, 16)
        if uid in (user, 0) and sender:
            with contextlib.suppress(OSError):  # the sender has gone away
                listener.sendto(json.dumps(state()).encode(), sender)


def state() -> dict[str, Any]:
    """Return the position of this process, as plain data.

    Returns:
        ``recorded``: As ``recorded`` returns it.
        ``pending``: Collectives that have not returned, oldest first.
        ``recent``: The last collectives of each process group. Both lists have entries
        ``[group, seq, call, elements, record, dtype]``.
        ``members``: Global ranks of each process group.
        ``groups``: Number of process groups that it has named, in all ranks' order; -1 if unknown.
        ``destroyed``: Default groups that were destroyed, and that nothing can call any more.
        ``left``: Whether the last default group was destroyed; a DDP model may still call it.
        ``whole``: Whether ``recent`` has all groups.
        ``p2p``: Number of sends and receives that have not returned.
        ``threads``: Stacks of the Python threads, as ``stacks`` returns them.
    """
    ours = describe(entries(last=_LATEST), members=members(), threads=stacks())
    world = getattr(_c10d(), "_world", None)
    left = bool(references.kept()) and not ours["members"]
    groups = getattr(world, "group_count", -1)
    return {**ours, "destroyed": destroyed(), "left": left, "groups": groups}


def describe(
    records: Sequence[dict[str, Any]],  # oldest first
    *,
    members: dict[str, list[int]],  # global ranks of each process group
    threads: list[dict[str, Any]],  # stacks of the Python threads
) -> dict[str, Any]:
    """Return the result of ``state`` for entries of the Flight Recorder. Pure."""
    collectives = [entry for entry in records if not entry.get("is_p2p")]
    recent = _by_group(collectives)
    return {
        "recorded": _last(records),
        "pending": [_collective(entry) for entry in collectives if not entry["retired"]][:_PENDING],
        "p2p": sum(bool(entry.get("is_p2p")) and not entry["retired"] for entry in records),
        "recent": [call for group in list(recent)[-_GROUPS:] for call in recent[group][-_RECENT:]],
        "whole": len(recent) <= _GROUPS and (not records or records[0].get("record_id") == 0),
        "members": members,
        "threads": threads,
    }


def _by_group(collectives: list[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return the collectives of each process group; of the last group where a name was reused."""
    calls_by_group: dict[str, list[list[Any]]] = {}
    for entry in collectives:
        call = _collective(entry)
        calls = calls_by_group.setdefault(call[0], [])
        if calls and call[1] < calls[-1][1]:
            calls.clear()
        calls.append(call)
    return calls_by_group


def stacks() -> list[dict[str, Any]]:
    """Return the stacks of this process's Python threads.

    Each has ``name``, ``daemon``, ``main``, and ``frames`` from the outside in. A thread that
    Python has not started counts as a daemon: nothing waits for it.
    """
    known = {thread.ident: thread for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    threads: list[dict[str, Any]] = []
    for ident, frame in list(sys._current_frames().items()):
        if ident != own and len(threads) < _THREADS:
            limit = _MAIN_FRAMES if ident == main else _FRAMES
            thread = known.get(ident)
            threads.append(
                {
                    "name": thread.name if thread is not None else "",
                    "daemon": thread is None or thread.daemon,
                    "main": ident == main,
                    "frames": [*_frames(frame, limit), *_awaited(frame)],
                    "calls": _method_called(frame) if ident == main else "",
                    "peer": _peer_of(frame) if ident == main else -1,
                    **(_group_created(frame) if ident == main else {}),
                }
            )
    return threads


def _method_called(frame: Any) -> str:
    """Return the method that a frame has called without arguments: ``wait`` of ``work.wait()``."""
    before = ""
    for step in dis.get_instructions(frame.f_code):
        if step.offset >= frame.f_lasti:
            break
        if step.opname not in ("PRECALL", "CACHE", "PUSH_NULL"):
            is_method = step.opname in ("LOAD_METHOD", "LOAD_ATTR")
            before = str(step.argval) if is_method else ""
    return before


def _peer_of(frame: Any) -> int:
    """Return the global rank to which a frame sends, or from which it receives, by gloo.

    -1 if it does neither, or waits for any rank. gloo records no point-to-point transfers.
    """
    distributed = _c10d()
    is_torchs = frame.f_globals is getattr(distributed, "__dict__", None)
    if not is_torchs or frame.f_code.co_name not in _POINT_TO_POINT:
        return -1
    end = "src" if frame.f_code.co_name == "recv" else "dst"
    values = frame.f_locals
    with contextlib.suppress(KeyError, AttributeError, RuntimeError):
        world = distributed._world
        group = values["group"] or distributed.GroupMember.WORLD
        if world.pg_map[group][0] != "gloo":
            return -1
        if values[end] is not None:
            return int(values[end])
        ranks = {local: rank for rank, local in world.pg_group_ranks[group].items()}
        return int(ranks.get(values[f"group_{end}"], -1))
    return -1


def _group_created(frame: Any) -> dict[str, Any]:
    """Return the number and the ranks of the group that a frame waits to create by gloo.

    gloo connects all its ranks first, so none returns before all have called; unless it is lazy.
    """
    if frame.f_code.co_name != "_new_process_group_helper" or env.read(env.GLOO_LAZY):
        return {}
    outer = frame.f_back  # between the two is the function of ``default_group``
    while outer is not None and outer.f_code.co_name == "create_and_keep":
        outer = outer.f_back
    is_torchs = outer is not None and outer.f_globals is vars(_c10d())
    if not is_torchs or outer.f_code.co_name != "_new_group_with_tag":
        return {}
    values = outer.f_locals
    name, ranks, backend = str(values["group_name"]), values["ranks"], str(values["backend"])
    is_numbered = name.isdigit() and len(name) < 9  # otherwise it is a hash of its ranks
    by_gloo = "gloo" in backend or backend == "undefined"  # torch's default has gloo for CPUs
    is_waited_for = is_numbered and by_gloo and values["global_rank"] in ranks
    return {"creates": int(name), "needs": list(ranks)} if is_waited_for else {}


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _frames(frame: Any, limit: int) -> list[tuple[str, int, str]]:
    """Return the innermost frames of a stack, the innermost last."""
    frames: list[tuple[str, int, str]] = []
    while frame is not None and len(frames) < limit:
        frames.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]


def _awaited(frame: Any) -> list[tuple[str, int, str]]:
    """Return the frames of the coroutines that an idle event loop waits for, the innermost last.

    The stack of its thread shows only the loop: a coroutine that waits is on no stack.
    """
    if frame.f_globals.get("__name__") != "selectors":
        return []
    while frame is not None and frame.f_code.co_name != "run_until_complete":
        frame = frame.f_back
    frames: list[tuple[str, int, str]] = []
    waited = frame.f_locals.get("future") if frame is not None else None
    while waited is not None and len(frames) < _FRAMES:
        coroutine: Any = waited.get_coro() if hasattr(waited, "get_coro") else None
        while getattr(coroutine, "cr_frame", None) is not None:
            frames += _frames(coroutine.cr_frame, 1)
            coroutine = coroutine.cr_await
        of_gather = [child for child in getattr(waited, "_children", ()) if not child.done()]
        waited = getattr(waited, "_fut_waiter", None) or next(iter(of_gather), None)
    return frames


def members() -> dict[str, list[int]]:
    """Return the global ranks of each process group that this process belongs to."""
    world = getattr(_c10d(), "_world", None)
    if world is None:
        return {}
    # the script may be creating another group at this moment
    with contextlib.suppress(RuntimeError, AttributeError):
        ranks = dict(world.pg_group_ranks)
        return {
            str(name): sorted(ranks[group])
            for group, name in list(world.pg_names.items())
            if group in ranks
        }
    return {}


def destroyed() -> list[str]:
    """Return the names of destroyed default groups that only the launcher's hook still holds.

    That hook keeps a group's connections open, so that its other members wait on.
    """
    living = members()
    with contextlib.suppress(RuntimeError, AttributeError):
        names = {str(group.group_name) for group in references.held_alone()}
        return sorted(names - set(living))
    return []


def _group_of(entry: dict[str, Any]) -> str:
    return str(next(iter(entry.get("process_group", ())), ""))


def _name_of_group(entry: dict[str, Any]) -> str:
    """Return the script's ``group_desc`` of the group, else the name that torch gave."""
    name, description = (*map(str, entry.get("process_group", ())), "", "")[:2]
    return name if description in ("", "undefined") else description


def _call_of(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2]


def _collective(entry: dict[str, Any]) -> list[Any]:
    elements = sum(math.prod(sizes) for sizes in entry.get("input_sizes", ()))
    seq, record = int(entry["collective_seq_id"]), int(entry.get("record_id", -1))
    dtype = str(next(iter(entry.get("input_dtypes", ())), ""))
    return [_group_of(entry), seq, _call_of(entry), elements, record, dtype]


def recorded() -> dict[str, Any]:
    """Return the last collective that this process has begun, from torch's Flight Recorder.

    It has ``call`` (``"all_reduce"``), ``seq`` (its number in its process group), ``group``,
    ``backend``, ``timeout_s`` and ``flying`` (it has not returned); empty if there is none. A
    collective that has not returned takes precedence over later ones of other process groups.
    """
    return _last(entries())


def _last(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for entry in records:
        if not last or not entry["retired"] or last["retired"]:
            last = entry
    if not last:
        return {}
    return {
        "call": _call_of(last),
        "seq": int(last["collective_seq_id"]),
        "group": _group_of(last),
        "group_name": _name_of_group(last),
        "backend": str(last["profiling_name"]).rpartition(":")[0],
        "timeout_s": int(last.get("timeout_ms", 0)) / 1000,
        "flying": not last["retired"],
    }


def entries(*, last: int = 0) -> list[dict[str, Any]]:
    """Return the entries of the Flight Recorders of gloo and NCCL, oldest first.

    At least the ``last`` newest are there, if there are more; 0 is all.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    all_entries: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            with contextlib.suppress(RuntimeError, ValueError, TypeError):
                all_entries += _read(dump(True, False), last)
    return all_entries


def _read(dump: bytes, last: int) -> list[dict[str, Any]]:
    """Return the entries of a dump; with ``last`` only the newest, without parsing the others."""
    pieces = dump.rsplit(_ENTRY, last) if last else []
    if len(pieces) <= last or not last:
        entries: list[dict[str, Any]] = json.loads(dump).get("entries", [])
        return entries
    newest = b"[" + _ENTRY[1:] + _ENTRY.join(pieces[1:])
    return list(json.JSONDecoder().raw_decode(newest.decode())[0])


def records_groups() -> bool:
    """Return whether the Flight Recorder is on, and knows a process group."""
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    return dump is not None and bool(json.loads(dump(False, False)).get("pg_config"))


def averages_gradients() -> bool:
    """Return whether ranks have run reductions, and no point-to-point transfers as pipelines do."""
    records = entries()
    reduced = any("reduce" in str(entry["profiling_name"]) for entry in records)
    return reduced and not any(entry.get("is_p2p") for entry in records)
