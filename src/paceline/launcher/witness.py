"""The witness in a rank: answers its launcher about where the rank stands, also when the rank hangs.

Two ways, because either may be blocked. A signal makes faulthandler write the Python stacks of all threads to a
file; it needs neither the interpreter nor its lock, so it works in any native wait. And a thread that sleeps in a
socket answers with what torch's Flight Recorder has of the collectives; it needs the lock for a moment, and costs
nothing as long as nobody asks. Nothing here runs during a step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, TextIO

# A real-time signal that neither glibc, Python, torch nor NCCL uses; 0 where there is none (macOS).
SIGNAL = int(getattr(signal, "SIGRTMAX", 3)) - 3


def install(stacks: TextIO) -> None:
    """Let this rank answer.

    Args:
        stacks: Where faulthandler writes; must stay open.
    """
    if SIGNAL:
        faulthandler.register(SIGNAL, file=stacks, all_threads=True)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # no abstract sockets here: stacks have to do
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            ear.bind(address(os.getpid()))
            threading.Thread(target=_answer, args=(ear,), name="paceline-witness", daemon=True).start()


def address(pid: int) -> str:
    """Return where the witness of a process listens: an abstract socket, which leaves no file behind."""
    return f"\0paceline-witness-{pid}"


def _answer(ear: socket.socket) -> None:
    while True:
        _, asker = ear.recvfrom(16)
        with contextlib.suppress(OSError):  # it has stopped to listen
            ear.sendto(json.dumps(recorded()).encode(), asker)


def recorded() -> dict[str, Any]:
    """Return the last collective that this process has begun, as torch's Flight Recorder has it.

    Returns:
        ``call`` (``"all_reduce"``), ``seq`` (its number in its process group), ``group``, ``timeout_s``, ``flying``
        (it has not come back); empty if there is none. Of several process groups, the one whose collective has not
        come back.
    """
    last: dict[str, Any] = {}
    for entry in entries():
        if not last or not entry["retired"] or last["retired"]:
            last = entry
    if not last:
        return {}
    return {
        "call": str(last["profiling_name"]).rpartition(":")[2],
        "seq": int(last["collective_seq_id"]),
        "group": str(next(iter(last.get("process_group", ())), "")),
        "timeout_s": int(last.get("timeout_ms", 0)) / 1000,
        "flying": not last["retired"],
    }


def entries() -> list[dict[str, Any]]:
    """Return what the Flight Recorder has kept of collectives, oldest first; NCCL's are kept apart from gloo's."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    found: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            with contextlib.suppress(RuntimeError, ValueError, TypeError):
                found += json.loads(dump(True, False)).get("entries", [])
    return found


def averages_gradients() -> bool:
    """Return whether ranks have reduced something together, and sent nothing to single ones as pipelines do."""
    kept = entries()
    reduced = any("reduce" in str(entry["profiling_name"]) for entry in kept)
    return reduced and not any(entry.get("is_p2p") for entry in kept)
