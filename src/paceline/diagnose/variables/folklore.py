"""Names of variables that circulate although no library reads them, and what to do instead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Folklore:
    """A name that is often set in vain."""

    names: tuple[str, ...]  # the most frequent names
    pattern: str  # regular expression that matches all such names in full
    instead: str  # a line to paste, or an action, with the effect that the name promises
    why: str = "it is silently ignored"  # what happens to the variable


TIMEOUT = (
    "dist.init_process_group(timeout=datetime.timedelta(minutes=30)), or paceline run"
    " --hang-timeout 1800"
)
UNIT = r"(_S|_SEC|_SECS|_SECONDS|_MS|_MSEC|_MILLISECONDS|_MIN|_MINUTES)?"
OF_WHAT = (
    r"((SOCKET|COMM|COMMUNICATION|COLLECTIVE|OP|OPERATION|CONNECT|WATCHDOG|INIT|BARRIER|BLOCKING_WAIT|"
    r"ASYNC_ERROR_HANDLING|LAUNCH|DIST|CHECK|DEFAULT|ALLREDUCE|WAIT)_)?"
)
FOLKLORE = (
    Folklore(
        ("NCCL_HEARTBEAT_TIMEOUT", "TORCH_NCCL_HEARTBEAT_TIMEOUT"),
        r"(TORCH_)?NCCL_HEARTBEAT_TIMEOUT(_S|_SECONDS|_MS)?",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC for the watchdog's own hangs; for collectives:"
        f" {TIMEOUT}",
        "the timeout of collectives is an argument of the program, not a variable",
    ),
    Folklore(
        (
            "NCCL_TIMEOUT",
            "NCCL_SOCKET_TIMEOUT",
            "TORCH_NCCL_TIMEOUT",
            "TORCH_DISTRIBUTED_TIMEOUT",
            "GLOO_TIMEOUT",
        ),
        rf"((TORCH_)?NCCL_{OF_WHAT}TIMEOUT|(TORCH_)?(DISTRIBUTED|DIST)(_NCCL)?(_DEFAULT|_COLLECTIVE|_INIT)?_TIMEOUT|"
        rf"GLOO(_SOCKET|_CONNECT)?_TIMEOUT|TORCHELASTIC_TIMEOUT|DDP_TIMEOUT){UNIT}",
        TIMEOUT,
        "the timeout stays as it is: 10 minutes with nccl, 30 with gloo, or what the program"
        " passes",
    ),
    Folklore(
        ("NCCL_MIN_CHANNELS",),
        r"NCCL_MIN_CHANNELS",
        "NCCL_MIN_CTAS (NCCL_MIN_NCHANNELS before 2.17), or leave it out",
    ),
    Folklore(
        ("NCCL_MAX_CHANNELS",),
        r"NCCL_MAX_CHANNELS",
        "NCCL_MAX_CTAS (NCCL_MAX_NCHANNELS before 2.17), or leave it out",
    ),
    Folklore(
        ("NCCL_NCHANNELS", "NCCL_NRINGS"),
        r"NCCL_N(UM_)?(CHANNELS|RINGS)",
        "NCCL_MIN_CTAS and NCCL_MAX_CTAS, or leave it out",
    ),
    Folklore(
        ("NCCL_LOG_LEVEL", "NCCL_VERBOSE"),
        r"NCCL_(LOG_LEVEL|LOGLEVEL|VERBOSE|DEBUG_LEVEL)",
        "NCCL_DEBUG=INFO",
    ),
    Folklore(
        ("NCCL_SOCKET_INTERFACE", "NCCL_IFNAME", "NCCL_NET_IFNAME"),
        r"NCCL_SOCKET_(INTERFACE|IF|IFACE|NIC|IFNAMES|DEVICE)|NCCL_(IFNAME|INTERFACE|IFACE|NIC|NET_IFNAME|NETWORK)",
        "NCCL_SOCKET_IFNAME=NAME",
    ),
    Folklore(
        ("NCCL_OOB_SOCKET_IFNAME", "NCCL_COMM_IFNAME"),
        r"NCCL_(OOB|COMM|BOOTSTRAP)_(SOCKET_)?(IFNAME|INTERFACE)",
        "NCCL_SOCKET_IFNAME=NAME, which ranks also meet through",
    ),
    Folklore(
        ("NCCL_IB_DEVICE", "NCCL_HCA"),
        r"NCCL_IB_(IFNAME|DEVICES?|NIC|CARDS?|NAME|INTERFACE)|NCCL_(HCA|IB)",
        "NCCL_IB_HCA=NAME",
    ),
    Folklore(
        ("NCCL_IB_ENABLE", "NCCL_USE_IB"),
        r"NCCL_(USE_IB|ENABLE_IB|IB_ENABLE|IB_ENABLED|USE_INFINIBAND|USE_RDMA|RDMA_ENABLE)",
        "leave it out: InfiniBand is used where it is; NCCL_IB_DISABLE=1 switches it off",
    ),
    Folklore(
        ("NCCL_P2P_ENABLE",),
        r"NCCL_(P2P_ENABLE|ENABLE_P2P|USE_P2P|P2P_ENABLED)",
        "leave it out: P2P is used where it works; NCCL_P2P_DISABLE=1 switches it off",
    ),
    Folklore(
        ("NCCL_SHM_ENABLE",),
        r"NCCL_(SHM_ENABLE|ENABLE_SHM|USE_SHM)",
        "leave it out: shared memory is used where it works; NCCL_SHM_DISABLE=1 switches it off",
    ),
    Folklore(
        ("NCCL_GDR_ENABLE", "NCCL_GDR_LEVEL", "NCCL_NET_GDR_DISABLE"),
        r"NCCL_(GDR_ENABLE|USE_GDR|ENABLE_GDR|GDR|GPUDIRECT|GPU_DIRECT|NET_GDR_ENABLE|GDR_LEVEL|GDR_DISABLE|"
        r"NET_GDR_DISABLE|IB_GDR_ENABLE)",
        "NCCL_NET_GDR_LEVEL=SYS for GPU Direct RDMA at any distance, LOC for none",
    ),
    Folklore(
        ("NCCL_BUFFER_SIZE",),
        r"NCCL_(BUFFER_SIZE|BUFF_SIZE|BUF_SIZE|BUFSIZE)",
        "NCCL_BUFFSIZE in bytes, or leave it out",
    ),
    Folklore(("NCCL_ALGORITHM",), r"NCCL_ALGORITHMS?", "NCCL_ALGO"),
    Folklore(("NCCL_PROTOCOL",), r"NCCL_PROTOCOLS?", "NCCL_PROTO"),
    Folklore(
        ("NCCL_TREE_DISABLE",),
        r"NCCL_TREE_DISABLE|NCCL_DISABLE_TREE",
        "NCCL_ALGO=^Tree",
    ),
    Folklore(
        ("NCCL_NVLINK_DISABLE",),
        r"NCCL_(NVLINK_DISABLE|DISABLE_NVLINK|NVLINK_ENABLE)",
        "NCCL_P2P_LEVEL: LOC for no direct transfer at all, NVL for NVLink alone",
    ),
    Folklore(
        ("TORCH_DISTRIBUTED_DETAIL", "TORCH_DISTRIBUTED_LOG_LEVEL"),
        r"TORCH_DISTRIBUTED_(DETAIL|DEBUG_LEVEL|LOG_LEVEL|DEBUG_DETAIL|DEBUG_MODE)",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    Folklore(
        ("GLOO_IFNAME", "GLOO_SOCKET_INTERFACE"),
        r"GLOO_(IFNAME|INTERFACE|SOCKET_INTERFACE|SOCKET_IF|NETWORK)",
        "GLOO_SOCKET_IFNAME=NAME",
    ),
)


@cache
def folklore(name: str) -> Folklore | None:
    """Return the entry for a name that no library reads, None if there is none."""
    return next((entry for entry in FOLKLORE if re.fullmatch(entry.pattern, name)), None)
