"""Parse the values of options: a text in, a value or a Finding out. Pure. Standard library only.

What a value such as ``auto`` means on this machine is decided in ``plan``.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from paceline.errors import closest
from paceline.launch.plan.option import Option, invalid

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNCATCHABLE = ("SIGKILL", "SIGSTOP")


def choice(*choices: str) -> Callable[[Option, str], str]:
    """Return a parser of one of some words."""

    def parse(option: Option, text: str) -> str:
        if text in choices:
            return text
        near = closest(text, choices)
        rule = f"is one of {', '.join(choices)}"
        raise invalid(option.name, text, rule, f"{option.long} {near or choices[0]}")

    return parse


def whole(low: int) -> Callable[[Option, str], int]:
    """Return a parser of whole numbers from ``low``."""

    def parse(option: Option, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text) or int(text) < low:
            raise invalid(
                option.name, text, f"is a whole number from {low}", f"{option.long} {low}"
            )
        return int(text)

    return parse


def seconds(option: Option, text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise invalid(
            option.name, text, "is a number of seconds above 0", f"{option.long} {option.default}"
        )
    return value


def duration(example: str) -> Callable[[Option, str], float]:
    """Return a parser of times, as ``seconds_of`` reads them; errors suggest the example."""

    def parse(option: Option, text: str) -> float:
        value = seconds_of(text)
        if not value > 0:
            rule = "is a time above 0: seconds, 90m, 2h, or as Slurm writes it, 1-12:00:00"
            raise invalid(option.name, text, rule, f"{option.long} {example}")
        return value

    return parse


def seconds_of(text: str, *, bare_s: int = 1) -> float:
    """Return the seconds of a time, 0 if the text is not a time.

    A time is ``90s``, ``90m``, ``2h``, ``1d``, or Slurm's ``M:S``, ``H:M:S`` and ``D-H[:M[:S]]``. A
    number without a unit counts ``bare_s`` seconds; Slurm's own options count minutes.
    """
    if plain := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text):
        return float(plain[1]) * (_UNIT_S[plain[2]] if plain[2] else bare_s)
    if not re.fullmatch(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        return 0.0
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    missing = [0] * (3 - len(parts))
    hours, minutes, rest = parts + missing if dash else missing + parts
    return float(int(days or 0) * _UNIT_S["d"] + hours * 3600 + minutes * 60 + rest)


def node_range(option: Option, text: str) -> tuple[int, int]:
    """Return the least and the greatest number of nodes."""
    low, colon, high = text.partition(":")
    if not _is_number(low) or (colon and not _is_number(high)):
        raise invalid(option.name, text, "is a number or a range MIN:MAX", "--nnodes 2")
    least, most = int(low), int(high or low)
    if least < 1 or most < least:
        raise invalid(
            option.name, text, "needs at least one node and MIN not above MAX", "--nnodes 1"
        )
    return least, most


def ranks_per_node(option: Option, text: str) -> str:
    """Return a number of ranks, or the kind of device that is counted."""
    words = ("gpu", "cpu", "xpu", "auto")
    if text in ("", *words):
        return text
    if not re.fullmatch(r"-?[0-9]+", text):
        near = closest(text, words)
        raise invalid(
            option.name, text, "is a number, gpu, cpu, xpu or auto", f"--nproc-per-node {near or 2}"
        )
    if int(text) < 1:
        raise invalid(option.name, text, "needs at least one rank", "--nproc-per-node 1")
    return text


def port(example: int) -> Callable[[Option, str], int | None]:
    """Return a parser of ports; an empty text names none."""

    def parse(option: Option, text: str) -> int | None:
        if not text:
            return None
        if not _is_number(text) or int(text) > 65535:
            raise invalid(
                option.name, text, "is a number from 0 to 65535", f"{option.long} {example}"
            )
        return int(text)

    return parse


def split_endpoint(endpoint: str, default_port: int) -> tuple[str, int]:
    """Split ``HOST[:PORT]`` or ``[IPV6]:PORT``.

    Raises UsageError if the port is not a number from 0 to 65535, or the host is empty.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::(\d{1,6}))?", endpoint.strip())
    if not match or int(match[3] or 0) > 65535:
        raise invalid(
            "rdzv_endpoint", endpoint, "is HOST:PORT", f"--rdzv-endpoint head:{default_port}"
        )
    return match[1] or match[2], int(match[3]) if match[3] else default_port


def settings(option: Option, text: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of ``K1=V1,K2=V2``."""
    pairs = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise invalid(option.name, part, "is KEY=VALUE,...", "--rdzv-conf join_timeout=600")
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


def local_ranks(option: Option, text: str) -> tuple[int, ...]:
    """Return the numbers of a list of local ranks."""
    plain = text.replace(" ", "")
    if not plain:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", plain):
        raise invalid(option.name, text, "is a list of local ranks", "--local-ranks-filter 0,1")
    return tuple(sorted({int(part) for part in plain.split(",")}))


def streams(option: Option, text: str) -> str:
    """Return a valid value of ``--tee`` or ``--redirects``; ``streams_of`` reads it."""
    if not re.fullmatch(r"[0-3]|(\d+:[0-3],)*\d+:[0-3]", text):
        rule = "is 0 (none), 1 (stdout), 2 (stderr), 3 (both) or 0:1,1:2"
        raise invalid(option.name, text, rule, f"{option.long} 3")
    return text


def streams_of(text: str, local_rank: int) -> int:
    """Return a local rank's streams in ``--redirects`` or ``--tee``: bit 1 stdout, bit 2 stderr."""
    if ":" not in text:
        return int(text)
    pairs = (part.split(":") for part in text.split(","))
    return {int(rank): int(value) for rank, value in pairs}.get(local_rank, 0)


def words(option: Option, text: str) -> tuple[str, ...]:
    """Split at commas; a doubled comma stands for one, as in torchrun."""
    marker = "\0"
    parts = (part.replace(marker, ",") for part in text.replace(",,", marker).split(","))
    return tuple(part for part in parts if part)


def signals(option: Option, text: str) -> tuple[str, ...]:
    """Return the names of signals, all of which a process can handle."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    catchable = [entry.name for entry in signal.Signals if entry.name not in _UNCATCHABLE]
    for name in names:
        if name not in catchable:
            near = closest(name, catchable) or "SIGTERM"
            raise invalid(option.name, name, "cannot be handled", f"{option.long} {near}")
    return names


def _is_number(text: str) -> bool:
    return re.fullmatch("[0-9]+", text) is not None  # str.isdigit also takes what int() does not
