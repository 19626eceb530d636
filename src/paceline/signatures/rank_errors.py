"""Read what the error of a rank says about the rank itself and about other ranks. Pure.

A line of a log may come from any program, so the signatures guess, and rank their guesses. Here the
text is an error of a rank that paceline has started, and the report names the rank that it accuses.
So these patterns are fewer and narrower than the signatures, and differ from them on purpose:

- A time-out at the store is a missed collective: at the start of a run, ranks wait for clients.
- Gloo and NCCL connect ranks that have met, so a refused connection means that a rank has gone, and
  not that the master was never there.
- A broken connection counts only in a line that names a library of torch, because the user's own
  connections break too.

What means the same in both is in ``texts``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from paceline.signatures import texts
from paceline.signatures.libraries import signatures
from paceline.signatures.signature import Signature

PORT_IN_USE = "port-in-use"
# What a rank says that waited in vain for others, or met them in another collective. The first
# match counts.
_WAITS = tuple(
    (re.compile("|".join(parts), re.IGNORECASE), name)
    for name, parts in (
        ("master-unreachable", (texts.STORE_UNREACHABLE,)),
        ("rendezvous-timeout", (texts.CLIENTS_MISSING,)),
        (
            "collective-timeout",
            (
                texts.GLOO_TIMEOUT,
                # a refusal is of a lost peer
                r"timed out connecting: SO_ERROR: (?!Connection re)|gloo/\S+\] Connect timeout",
                texts.NCCL_TIMEOUT,
                texts.BARRIER_TIMEOUT,
                texts.STORE_WAIT_TIMEOUT,
                r"Socket Timeout",
            ),
        ),
        (
            "collective-mismatch",
            (
                texts.SIZES_DIFFER,
                texts.COLLECTIVES_DIFFER,
                # Accelerate read another collective's data as a random state.
                texts.RANDOM_STATE_INVALID,
            ),
        ),
    )
)
# Texts of gloo, NCCL and torch's store in torch 2.11-2.13.
_PEER_GONE = re.compile(
    rf"(?i:{texts.NCCL_REMOTE}|{texts.NCCL_ABORTED}|{texts.STORE_CLOSED})|ncclCommAbort"
    r"|Connection (?:closed|reset) by peer|Broken pipe|Socket closed|No route to host"
    r"|Connection refused|Failed to recv|Read error|Write error"
)
_LIBRARY = re.compile(
    r"gloo|nccl|c10d|TCPStore|ProcessGroup|Dist\w*Error|RendezvousConnectionError", re.IGNORECASE
)
# What gloo, NCCL and a monitored barrier say of their limit.
_TIMEOUT = re.compile(r"(?:waiting|timeout after|Barrier in) (\d+) ?ms|Timeout\(ms\)=(\d+)")
_MOST_TEXTS = 256  # every rank of a large run may raise another text


@dataclass(frozen=True)
class RankError:
    """What an error text of a rank says."""

    own_fault: str  # PORT_IN_USE if it names that fault of the rank itself; else empty
    wait: str  # the name of its vain wait for other ranks; empty if it does not speak of one
    has_lost_peer: bool  # whether the rank has lost its connection to another one


@lru_cache(_MOST_TEXTS)
def read(text: str) -> RankError:
    """Return what one line of an error says; the same text is examined once."""
    wait = next((name for pattern, name in _WAITS if pattern.search(text)), "")
    has_lost_peer = bool(_PEER_GONE.search(text) and _LIBRARY.search(text))
    lower = text.lower()
    is_taken = any(signature.match(text, lower) is not None for signature in _of_ports())
    return RankError(PORT_IN_USE if is_taken else "", wait, has_lost_peer)


@cache
def _of_ports() -> tuple[Signature, ...]:
    return tuple(signature for signature in signatures() if signature.name == PORT_IN_USE)


def timeout_s(text: str) -> float:
    """Return the timeout that an error about a vain wait names, in seconds; 0 if it names none."""
    match = _TIMEOUT.search(text)
    return int(match[1] or match[2]) / 1000 if match else 0.0
