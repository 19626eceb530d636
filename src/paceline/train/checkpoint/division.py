"""Decide which rank writes, reads and checks what, alike on every rank. Pure, and without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from paceline.rundir.manifest import FileInfo, Saved

_RANK = re.compile(r"rank/(\d+)/")


def rank_of(name: str) -> int | None:
    """Return the rank that alone has an entry of the state; None if it is the same on all ranks."""
    match = _RANK.match(name)
    return int(match[1]) if match else None


def names_for(saved: Saved, rank: int) -> list[str]:
    """Return the names that a rank loads: all except those of other ranks."""
    return [
        name for name in [*saved.tensors, *sorted(saved.objects)] if rank_of(name) in (None, rank)
    ]


def share_out(sizes: Mapping[str, int], num_ranks: int) -> dict[str, int]:
    """Return the rank that writes each entry, so that all ranks write about as many bytes.

    The largest entries are assigned first, to the rank with the fewest bytes. Every rank computes
    the same result.
    """
    loads = [0] * num_ranks
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners


def share_files(files: Mapping[str, FileInfo], rank: int, num_ranks: int) -> list[str]:
    """Return the files that a rank reads to check them; together the ranks check all files."""
    owners = share_out({name: file.num_bytes for name, file in files.items()}, num_ranks)
    return sorted(name for name, owner in owners.items() if owner == rank)


def differences(names: Sequence[Sequence[str]]) -> list[str]:
    """Return the entries that only some ranks hold, or that differ in shape."""
    everything = sorted({name for held in names for name in held})
    held_by = {
        name: [rank for rank, held in enumerate(names) if name in set(held)] for name in everything
    }
    return [
        f"{name}: on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} only"
        for name, ranks in held_by.items()
        if len(ranks) < len(names)
    ]
