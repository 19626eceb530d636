"""Query torch's Flight Recorder and NCCL about ranks that paceline did not start. This module only
collects.

A rank is queried only if its user has enabled that: by the Unix socket of torch's worker server
(``TORCH_WORKER_SERVER_SOCKET`` and ``torch.distributed.elastic.control_plane.worker_main``), or by
the pipe from which ProcessGroupNCCL reads requests to dump (``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``).
Neither needs the interpreter's lock, and neither sends a signal. A dump is a pickle, which is read
by an unpickler that refuses all classes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.launch.monitor import ras
from paceline.why.identity import RankIdentity

_ANSWER_S = 3.0
_MOST_BYTES = 1 << 26
_PATH = "/handler/fr_trace_json"
# The newest entries are enough for ``witness.describe``.
_LATEST = 256
# Linux stamps files with the time of its last tick, which is up to 10 ms ago (CONFIG_HZ=100).
_TICK_NS = 10_000_000


def dump(identity: RankIdentity) -> dict[str, Any]:
    """Return the dump of a rank's Flight Recorder, empty if it cannot be queried."""
    path = identity.settings.get("TORCH_WORKER_SERVER_SOCKET", "")
    if path:
        return _ask_server(path)
    stem = identity.settings.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
    return _dump_by_pipe(Path(f"{stem}{identity.rank}.pipe"), _dump_file(identity)) if stem else {}


def _ask_server(path: str) -> dict[str, Any]:
    """Query torch's worker server over HTTP."""
    request = (
        f"POST {_PATH} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\nConnection:"
        " close\r\n\r\n"
    )
    parts: list[bytes] = []
    deadline = time.monotonic() + _ANSWER_S
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_ANSWER_S)
        link.connect(path)
        link.sendall(request.encode())
        while (remaining_s := deadline - time.monotonic()) > 0 and sum(
            map(len, parts)
        ) < _MOST_BYTES:
            link.settimeout(remaining_s)
            part = link.recv(1 << 16)
            if not part:
                break
            parts.append(part)
    with contextlib.suppress(ValueError):
        trace = json.loads(b"".join(parts).partition(b"\r\n\r\n")[2])
        return trace if isinstance(trace, dict) else {}
    return {}


def _dump_file(identity: RankIdentity) -> Path:
    cache = Path(os.path.expanduser("~/.cache/torch/comm_lib_trace_rank_"))
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    stem = next(
        (identity.settings[name] for name in names if identity.settings.get(name)), str(cache)
    )
    return Path(f"{stem}{identity.rank}")


def _dump_by_pipe(pipe: Path, file: Path) -> dict[str, Any]:
    """Request a dump through the pipe that the rank reads, and return the dump once it is
    complete.
    """
    since_ns = time.time_ns() - _TICK_NS
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # fails where no rank reads
    except OSError:
        return {}
    with open(handle, "wb", buffering=0) as order, contextlib.suppress(OSError):
        order.write(b"1\n")
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        time.sleep(0.1)
        with contextlib.suppress(OSError, ValueError, EOFError, pickle.UnpicklingError):
            if file.stat().st_mtime_ns >= since_ns:
                return read(file.read_bytes())  # fails while the rank is still writing
    return {}


class _PlainOnly(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, and refuses classes and functions."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a dump must not name {module}.{name}")


def read(
    data: bytes,  # the bytes of the file
) -> dict[str, Any]:
    """Return the content of a dump that torch has pickled.

    Raises pickle.UnpicklingError if the dump contains more than plain data.
    """
    content = _PlainOnly(io.BytesIO(data)).load()
    return content if isinstance(content, dict) else {}


def entries(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the newest entries of a dump, oldest first. Pure."""
    records = trace.get("entries")
    return list(records)[-_LATEST:] if isinstance(records, list) else []


def members(trace: Mapping[str, Any], *, world_size: int) -> dict[str, list[int]]:
    """Return the global ranks of each process group in a dump. Pure.

    gloo's dumps omit the groups, so only the default group is known there.
    """
    groups: dict[str, list[int]] = {}
    for name, group in dict(trace.get("pg_config") or {}).items():
        if name and isinstance(group, dict):
            groups[str(name)] = sorted(map(int, re.findall(r"\d+", str(group.get("ranks", "")))))
    for entry in entries(trace):
        group_name, *described = entry.get("process_group") or ("",)
        if described[:1] == ["default_pg"]:
            groups[str(group_name)] = list(range(world_size))
    return groups


def ask_nccl(identity: RankIdentity) -> list[str]:
    """Return the faults that NCCL's RAS reports, in at most two lines."""
    return ras.notable(ras.ask(identity.settings.get("NCCL_RAS_ADDR") or ras.DEFAULT))
