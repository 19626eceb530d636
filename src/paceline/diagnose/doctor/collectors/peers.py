"""Collect what affects traffic between GPUs: bridges above them, and a copy between every two.

The copies run in a child process, because a broken link can hang forever.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from paceline.diagnose.doctor.facts_gpu import AcsBridge, Gpu
from paceline.machine import files, own_process

# Access control of PCI bridges, and the mode of the IOMMU

_PCI = Path("/sys/bus/pci/devices")
_ACS_CAPABILITY = 0x000D
_ACS_CONTROL = 6  # offset of the control register in the capability
# Redirections that send traffic between GPUs up to the CPU.
# Source: PCI Express base specification, ACS control register.
_REDIRECTS = ((2, "request"), (3, "completion"), (4, "upstream"))


def gather_bridges(gpus: Sequence[Gpu], pci: Path = _PCI) -> tuple[AcsBridge, ...] | None:
    """Return the bridges with access control above GPUs; None if this user may not read them."""
    above: dict[str, list[int]] = {}
    for gpu in gpus:
        for bridge in _bridges_above(pci / gpu.bus_id) if gpu.bus_id else ():
            above.setdefault(bridge, []).append(gpu.index)
    with_control, readable = [], 0
    for bridge, below in sorted(above.items()):
        config = _read_config(pci / bridge / "config")
        readable += len(config) > 256  # without privileges only the first 64 bytes are readable
        control = acs_control(config)
        if control is not None:
            words = tuple(word for bit, word in _REDIRECTS if control >> bit & 1)
            with_control.append(AcsBridge(bridge, tuple(below), words))
    return tuple(with_control) if readable or not above else None


def _bridges_above(device: Path) -> list[str]:
    """Return the bridges between a device and the CPU: the parents of the device's folder."""
    try:
        parts = Path(os.path.realpath(device)).parts[:-1]
    except OSError:
        return []
    return [part for part in parts if part.count(":") == 2]


def _read_config(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register in a PCI configuration space; None if absent or cut off."""
    offset = 0x100
    for _ in range(48):  # a longer list would be circular
        if offset < 0x100 or offset + 8 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + _ACS_CONTROL)[0])
        if header in (0, 0xFFFFFFFF):
            return None
        offset = header >> 20
    return None


def gather_iommu(gpus: Sequence[Gpu], pci: Path = _PCI) -> str:
    """Return how the IOMMU treats the GPUs' traffic: ``translated``, ``passthrough`` or ``off``."""
    kinds = {
        files.text(pci / gpu.bus_id / "iommu_group" / "type")
        for gpu in gpus
        if gpu.bus_id and (pci / gpu.bus_id).exists()
    }
    if not kinds:
        return ""
    if any(kind.startswith("DMA") for kind in kinds):
        return "translated"
    if "identity" in kinds:
        return "passthrough"
    return "off" if kinds == {""} else ""


LIMIT_S = 20.0
# A copy of some megabytes takes milliseconds. One that the timeout cuts off is not a hang.
_HANGS_S = 4.0
_OUTCOMES = ("hang", "wrong-data", "not-possible", "ok")  # from the worst to the best
_PROGRAM = "paceline.diagnose.doctor.collectors.peer_trial"


@dataclass(frozen=True)
class PeerTrial:
    """The result of copies between two GPUs, in both directions."""

    outcome: str  # ``ok``, ``wrong-data``, ``hang`` or ``not-possible``
    gigabytes_per_s: float | None = None  # the rate of the slower direction


def try_pairs(
    uuids: Sequence[str],  # in NVML's order; CUDA's may differ
    *,
    limit_s: float = LIMIT_S,  # for all copies together
    command: Sequence[str] = (),  # replaces the trial in a test
) -> dict[Any, PeerTrial]:
    """Try a copy between every two GPUs; return the results by pair, without the untried pairs."""
    arguments = list(command) or own_process.command(module=_PROGRAM)
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
    except OSError:
        return {}
    try:
        lines, silent_s = _read(child, limit_s)
    finally:  # Ctrl-C does not reach the child's session
        _end(child)
    return read_trials(lines, uuids, silent_s=silent_s)


def _read(child: subprocess.Popen[str], limit_s: float) -> tuple[list[str], float]:
    """Return the lines that the child wrote in time, and the seconds of silence at the end."""
    output: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def work(stream: IO[str]) -> None:
        with stream:
            for line in stream:
                output.put(line)
        output.put(None)

    assert child.stdout is not None
    threading.Thread(target=work, args=(child.stdout,), name="paceline-trial", daemon=True).start()
    lines: list[str] = []
    last = time.monotonic()
    deadline = last + limit_s
    with contextlib.suppress(queue.Empty):
        while (line := output.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            lines.append(line)
            last = time.monotonic()
        return lines, 0.0
    return lines, time.monotonic() - last


def _end(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    # A process that waits inside the driver dies only when the driver answers: leave it to the
    # kernel.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=2)


def read_trials(
    lines: Iterable[str],
    uuids: Sequence[str],  # in NVML's order
    *,
    silent_s: float,  # without output when the timeout expired; 0 if the trial ended normally
) -> dict[tuple[int, int], PeerTrial]:
    """Parse the output of the trial into results by pair of GPU indices. Pure.

    Each line is a JSON object with the ids of two GPUs (``from``, ``to``) and ``state``: ``begin``,
    ``ok``, ``wrong-data`` or ``not-possible``.
    """
    number = {uuid: place for place, uuid in enumerate(uuids)}
    trials: dict[tuple[int, int], PeerTrial] = {}
    begun: tuple[int, int] | None = None
    for line in lines:
        try:
            record = json.loads(line)
            one, other = number[record["from"]], number[record["to"]]
        except (ValueError, KeyError, TypeError):
            continue
        pair = (min(one, other), max(one, other))
        begun = pair if record.get("state") == "begin" else None
        if begun is None:
            trial = PeerTrial(str(record.get("state")), record.get("gigabytes_per_s"))
            trials[pair] = _worse(trials.get(pair), trial)
    if begun is not None and silent_s >= _HANGS_S:
        trials[begun] = PeerTrial("hang")
    return trials


def _worse(one: PeerTrial | None, other: PeerTrial) -> PeerTrial:
    if one is None:
        return other
    outcome = min(one.outcome, other.outcome, key=_badness)
    rates = [trial.gigabytes_per_s for trial in (one, other) if trial.gigabytes_per_s is not None]
    return PeerTrial(outcome, min(rates, default=None))


def _badness(outcome: str) -> int:
    """Return the position of an outcome among all outcomes, from the worst to the best."""
    return _OUTCOMES.index(outcome) if outcome in _OUTCOMES else len(_OUTCOMES)
