"""Signatures of Gloo."""

from __future__ import annotations

from paceline.signatures import texts
from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

_IFNAME = "export GLOO_SOCKET_IFNAME to the interface that all nodes share: ip -br addr"

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "gloo-loopback",
        "connect [127|remote=[127|connection refused|connection timed out",
        r"(?:connect|gloo|pair\.cc|connectFullMesh).*\[?(?P<address>127\.\d+\.\d+\.\d+)\]?:?\d*.*?"
        r"(?:Connection refused|timed out)"
        r"|connect.*remote=\[?(?P<remote>127\.\d+\.\d+\.\d+)",
        what=(
            "Gloo connects to {address}: another rank gave its loopback address",
            "Gloo connects to {remote}: another rank gave its loopback address",
        ),
        fix=_IFNAME + "; or take the 127.0.1.1 line of the host's own name out of /etc/hosts",
        why="the host name resolves to a loopback address, so other nodes connect to themselves",
        tier=Tier.COARSE,
        unless=r"socket\.cpp|http",
    ),
    cause(
        "gloo-loopback",
        "loopback address as fallback",
        r"Unable to resolve hostname to a \(local\) address",
        what=(
            "Gloo falls back to the loopback address: the host name does not resolve to one of its"
            " own addresses"
        ),
        fix=_IFNAME,
        tier=Tier.HINTED,
    ),
    cause(
        "interface-missing-on-node",
        "unable to find address for|unable to find interface|no such device|ifa != nullptr",
        r"Unable to find (?:address|interface) for:? *(?P<interface>[\w.-]+)|ifa != nullptr.*?:"
        r" *(?P<name>[\w.-]+)?",
        what=(
            "the interface {interface} does not exist on this node",
            "an interface that is named in a setting does not exist on this node",
        ),
        fix=(
            "ip -br addr lists those of the node; set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME)"
            " to one that every node has"
        ),
    ),
    cause(
        "collective-mismatch",
        "preamble.length|distributed collective mismatch|expected data size",
        r"preamble\.length <= \S+nbytes\.? *(?P<a>\d+) vs (?P<b>\d+)|preamble\.length"
        rf"|{texts.SIZES_DIFFER}",
        what=(
            (
                "a rank received {a} bytes where it waits for {b}: ranks are in different"
                " collectives, or sizes differ"
            ),
            (
                "a rank received another size than it waits for: ranks are in different"
                " collectives, or sizes differ"
            ),
        ),
        fix=(
            "every rank must make the same calls with the same shapes; paceline run names the two"
            " lines that differ"
        ),
        why="Gloo cannot go on after it, the process is aborted",
    ),
    cause(
        "collective-mismatch",
        "reduce op|expected all tensors|invalid tensor|tensor size|unequal|different sizes|mt19937"
        " state",
        r"(?:gloo|ProcessGroupGloo).*(?:invalid tensor|tensors? .*(?:equal|same) size)"
        rf"|{texts.RANDOM_STATE_INVALID}",
        what=(
            "a collective got something else than it expects: ranks are in different collectives"
            " (likely)"
        ),
        fix=(
            "every rank must make the same calls with the same shapes; paceline run names the two"
            " lines that differ"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "collective-timeout",
        "timed out waiting|operation timed out|gloo",
        rf"{texts.GLOO_TIMEOUT}|Operation timed out!",
        what=(
            "a rank waited {ms} ms for a {op} that did not come: another rank did not take part",
            "a rank waited for another one that did not take part, until the timeout",
        ),
        fix=(
            "py-spy dump on every rank shows which one is elsewhere; look for uneven batches and"
            " rank-0-only work"
        ),
        why="the other rank is alive: it left the loop earlier or does something else",
        tier=Tier.TIMEOUT,
    ),
    cause(
        "rendezvous-timeout",
        "connectfullmesh|full mesh",
        r"connectFullMesh failed|full mesh.*(?:timed out|failed)",
        what="Gloo could not connect all ranks with each other",
        fix=_IFNAME,
        why=(
            "a rank is missing, or ranks give each other addresses that are not routed between the"
            " nodes"
        ),
        tier=Tier.TIMEOUT,
        key="full-mesh",
    ),
    cause(
        "master-unreachable",
        "gloo::ioexception|gloo/transport",
        r"connect \[(?P<host>[^\]]+)\]:(?P<port>\d+): (?P<error>Connection (?:refused|timed out)|No"
        r" route to host)",
        what="Gloo cannot connect to {host}, port {port}: {error}",
        fix=_IFNAME,
        tier=Tier.TIMEOUT,
        unless=r"\[127\.",
    ),
    cause(
        "peer-rank-died",
        "connection closed by peer|connection reset by peer|broken pipe|read error|write"
        " error|remote worker crashing",
        r"Connection closed by peer(?: \[(?P<peer>[^\]]+)\])?|(?:Read|Write) error"
        r" \[(?P<reset>[^\]]+)\]"
        r"|pair\.cc.*(?:Connection reset by peer|Broken pipe)|remote worker (?:crashing|hanging)",
        what=(
            "the connection to {peer} was closed: the rank there ended first",
            "the connection to {reset} broke: the rank there ended first",
            "the connection to another rank was closed: that rank ended first",
        ),
        fix=(
            "look at the other ranks' output for the first that ended: its traceback, its exit"
            " code, dmesg on its node"
        ),
        why=(
            "this is what the surviving ranks say; the cause is in the output of the one that ended"
        ),
        tier=Tier.VICTIM,
    ),
)
