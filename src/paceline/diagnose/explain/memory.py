"""Infer which process holds the GPU memory that ran out. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from paceline.diagnose.explain.candidates import Candidate, changed
from paceline.diagnose.explain.scan import Scanned

_HOLDER = re.compile(r"\bProcess (?P<pid>\d+) has (?P<held>\d+(?:\.\d+)? [KMGT]?i?B) memory in use")
_OURS = re.compile(r"this process has \d+(?:\.\d+)? [KMGT]?i?B memory in use")
_TOTAL = re.compile(r"total capaci?ty of (?P<size>\d+(?:\.\d+)? [KMGT]?i?B)")
_ALLOCATED = re.compile(
    r"allocated memory (?P<size>\d+(?:\.\d+)? [KMGT]?i?B) is allocated by PyTorch"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MUCH = 0.25  # of the GPU: if others hold less, the program itself needs too much


def name_holder(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name the other process that holds much of the GPU that ran out of memory."""
    for match in scanned.of("gpu-holder"):
        holders = _others(match.line.text)
        if holders:
            return changed(candidates, partial(_named, holders=holders), name="cuda-oom")
    return list(candidates)


def _others(text: str) -> list[tuple[str, str]]:
    """Return the process id and size of other holders, the largest first.

    The result is empty if they hold little or may be the program itself.
    """
    total = _TOTAL.search(text)
    if total is None:
        return []
    listed = [(match["pid"], match["held"]) for match in _HOLDER.finditer(text)]
    holders = sorted(listed, key=_size, reverse=True)
    # In a container a process does not know its id on the host: one of these is the program.
    if not _OURS.search(text):
        allocated = _ALLOCATED.search(text)
        least = _bytes(allocated["size"]) if allocated else 0.0
        own = next((holder for holder in reversed(holders) if _size(holder) >= least), None)
        holders = [holder for holder in holders if own is not None and holder is not own]
    return holders if sum(map(_size, holders)) >= _MUCH * _bytes(total["size"]) else []


def _size(holder: tuple[str, str]) -> float:
    return _bytes(holder[1])


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit.rstrip("iB")]


def _named(candidate: Candidate, holders: Sequence[tuple[str, str]]) -> Candidate:
    (pid, size), *others = holders
    and_others = f", and {len(others)} more hold memory" if others else ""
    return replace(
        candidate,
        what=(
            f"another process holds much of it: process {pid} holds {size}{and_others};"
            f" {candidate.what}"
        ),
        fix=(
            f"nvidia-smi and ps -fp {pid} on that node: end it if it is left over; if it is another"
            " rank, give each rank its own GPU (torch.cuda.set_device(local_rank))"
        ),
    )
