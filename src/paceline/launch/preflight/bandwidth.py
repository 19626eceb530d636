"""Measure how fast the nodes are connected: one short all-reduce over gloo between launchers.

The measurement must neither fail nor delay a run. It works in a thread with a time limit, and after
an error in it the run only has no figure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, ReduceOp  # type: ignore[attr-defined]

from paceline.errors import Finding
from paceline.launch.preflight.facts import NodeFacts
from paceline.machine.deadline import within
from paceline.text.wording import few

_FIRST_BYTES = 64 << 10
_MOST_BYTES = 8 << 20
_ROUND_S = 0.2  # how long one measurement should take
_AGAIN = 6
_SURELY_FAST = 1e9  # bits per second: above every rate that counts as slow
_LIMIT_S = 5.0
_GROUP = 8
_ONE_GROUP = 16  # maximum number of nodes that measure together
# A link below this share of its possible rate has a fault.
_SLOW = 1 / 20
_LEAST_MBIT = 100  # below this a link is slow at any rated speed
_KNOWN_MBIT = 10_000  # gloo on one connection cannot measure faster links


@dataclass(frozen=True)
class Speed:
    """The measured speed between nodes."""

    bits_s: float  # bits per second that each node sent, and received, in an all-reduce
    latency_s: float  # duration of the smallest all-reduce, in seconds

    @property
    def rate(self) -> str:
        """The rate in words."""
        if self.bits_s >= 1e9:
            return f"{self.bits_s / 1e9:.1f} Gbit/s"
        if self.bits_s >= 1e7:
            return f"{self.bits_s / 1e6:.0f} Mbit/s"
        return f"{self.bits_s / 1e6:.2g} Mbit/s"

    @property
    def words(self) -> str:
        """The rate and the latency in words."""
        return f"link {self.rate}, {self.latency_s * 1000:.1f} ms"


def group_of(node: int, num_nodes: int) -> tuple[int, int, int]:
    """Return a node's group, its rank in it, and its size: all nodes, or eight neighbours."""
    if num_nodes <= _ONE_GROUP:
        return 0, node, num_nodes
    group = node // _GROUP
    return group, node % _GROUP, min(_GROUP, num_nodes - group * _GROUP)


def measure(store: Any, *, node: int, num_nodes: int, interface: str) -> Speed | None:
    """Measure with the other nodes of this node's group; return None without a result."""
    group, rank, size = group_of(node, num_nodes)
    if size < 2:
        return None
    return within(
        _LIMIT_S, lambda: _measure(PrefixStore(f"link/{group}", store), rank, size, interface), None
    )


def _measure(store: Any, rank: int, size: int, interface: str) -> Speed:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=_LIMIT_S)
    options._devices = [ProcessGroupGloo.create_device(interface=interface)]
    options._threads = 1
    gloo = ProcessGroupGloo(store, rank, size, options)
    try:
        _time(gloo, 4)  # connects
        latency_s = min(_time(gloo, 4) for _ in range(5))
        _time(gloo, _FIRST_BYTES)
        num_bytes, duration_s = _FIRST_BYTES, _time(gloo, _FIRST_BYTES)
        if duration_s < _ROUND_S / 2:
            num_bytes = min(_MOST_BYTES, int(_FIRST_BYTES * _ROUND_S / duration_s) // 4 * 4)
            # again, and more often if it seems slow: a busy machine is not a slow link
            duration_s = min(_time(gloo, num_bytes) for _ in range(2))
            for _ in range(_AGAIN):
                if 8 * num_bytes / duration_s > _SURELY_FAST:
                    break
                duration_s = min(duration_s, _time(gloo, num_bytes))
        bits = 8 * num_bytes * 2 * (size - 1) / size  # that each node sends
        return Speed(bits_s=bits / duration_s, latency_s=latency_s)
    finally:
        gloo.shutdown()


def _time(gloo: Any, num_bytes: int) -> float:
    """Return the time of an all-reduce on the slowest node, so that all nodes conclude the same."""
    start_s = time.monotonic()
    gloo.allreduce([torch.zeros(num_bytes // 4)]).wait()
    duration_s = torch.tensor([time.monotonic() - start_s])
    gloo.allreduce([duration_s], ReduceOp.MAX).wait()
    return float(duration_s)


def judge(speed: Speed, nodes: list[NodeFacts], mbit: dict[int, int]) -> Finding | None:
    """Return the finding that the link is slow for its rate, or for any run if the rate is unknown.

    ``speed`` is that of the slowest group, ``mbit`` the rate of each node's chosen interface in
    Mbit/s.
    """
    rate = min((mbit.get(node.node, 0) for node in nodes), default=0)
    least_mbit = _SLOW * min(rate, _KNOWN_MBIT) if rate > 0 else _LEAST_MBIT
    if speed.bits_s >= least_mbit * 1e6:
        return None
    rated = f", and their interfaces are rated at {rate / 1000:g} Gbit/s" if rate > 0 else ""
    return Finding(
        "slow-link",
        f"the link between the nodes carried {speed.rate}{rated}",
        where=few([node.words for node in nodes], 4),
        why="every step waits for its gradients to cross this link",
        fix=(
            "measure it with iperf3; another interface: export GLOO_SOCKET_IFNAME=NAME, for GPUs"
            " NCCL_SOCKET_IFNAME"
        ),
        severity="warning",
    )
