"""Summarise NCCL's log in three lines: interface, transport and algorithm. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

# Only the name: with addresses, every node would count as a different interface.
_INTERFACE = re.compile(r"(?:NET/(?:Socket|IB|OFI) |Bootstrap ?): Using (?:\[\d+\])?([\w.-]+)")
_NETWORK = re.compile(r"Using network (\S+)")
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .* via (\S+)")
_ALGORITHM = re.compile(r"(?:algorithm|Algo) (?P<a>\w+) .*?(?:protocol|proto) (?P<p>\w+)", re.I)
_RINGS = re.compile(r"Connected all (rings|trees)")


def summarise(
    texts: Sequence[str],  # the logs of all ranks, with ``NCCL_DEBUG=INFO``
) -> list[str]:
    """Return what NCCL chose, as lines to print; a single line if it logged nothing."""
    lines = [line for text in texts for line in text.splitlines() if "NCCL" in line]
    if not lines:
        return ["NCCL logged nothing: this run did not use it"]
    interfaces = Counter(m[1] for line in lines if (m := _INTERFACE.search(line)))
    networks = Counter(m[1] for line in lines if (m := _NETWORK.search(line)))
    transports = Counter(m[1] for line in lines if (m := _CHANNEL.search(line)))
    algorithms = Counter(f"{m['a']}/{m['p']}" for line in lines if (m := _ALGORITHM.search(line)))
    shapes = Counter(m[1] for line in lines if (m := _RINGS.search(line)))
    return [
        f"NCCL interface: {_most(interfaces)} · network: {_most(networks)}",
        f"NCCL transport between ranks: {_most(transports)}",
        f"NCCL algorithm: {_most(algorithms) if algorithms else _most(shapes)}",
    ]


def _most(counts: Counter[str]) -> str:
    names = [f"{name} ({count})" for name, count in counts.most_common(3)]
    return ", ".join(names) or "not in the log"
