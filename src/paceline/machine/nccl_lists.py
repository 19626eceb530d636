"""Parse NCCL's lists of interfaces and cards: ``eth``, ``=eth0,ib0``, ``^lo``, ``mlx5_0:1``. Pure.

The parser follows NCCL 2.30: ``parseStringList`` and ``matchIfList`` in src/misc/utils.cc, and
their callers for ``NCCL_SOCKET_IFNAME`` (src/os/linux.cc) and ``NCCL_IB_HCA``
(src/transport/net_ib/init.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ANY_PORT = -1


@dataclass(frozen=True)
class ListEntry:
    """One entry of a list."""

    prefix: str  # the start of a name, or a whole name in an exact list
    port: int = ANY_PORT  # the port of a card; ignored for interfaces


@dataclass(frozen=True)
class NameList:
    """A list of names."""

    entries: tuple[ListEntry, ...]  # the entries in order
    exact: bool = False  # whether the entries are whole names (``=``)
    excluded: bool = False  # whether the list excludes its names (``^``)

    def takes(self, name: str, port: int = ANY_PORT) -> bool:
        """Return whether NCCL selects an interface, or a port of a card."""
        fits = [self._names(entry, name, port) for entry in self.entries]
        is_listed = any(fits) or not fits  # a list without entries matches everything
        return is_listed != self.excluded

    def _names(self, entry: ListEntry, name: str, port: int) -> bool:
        is_same_port = ANY_PORT in (port, entry.port) or port == entry.port
        is_same_name = name == entry.prefix if self.exact else name.startswith(entry.prefix)
        return is_same_port and is_same_name


def parse(setting: str) -> NameList:
    """Parse a setting into a list; as in NCCL, blanks are part of a name."""
    excluded, text = setting.startswith("^"), setting.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    parts = [word.split(":") for word in text.split(",")]
    entries = tuple(ListEntry(part[0], _port(part[1:])) for part in parts if part[0])
    return NameList(entries, exact, excluded)


def _port(fields: list[str]) -> int:
    """Return the number after the colon, parsed like C's ``atoi``."""
    if not fields or not fields[0]:
        return ANY_PORT
    number = re.match(r"\s*[+-]?\d+", fields[0])
    return int(number[0]) if number else 0


def taken_interfaces(setting: str, names: Iterable[str]) -> list[str]:
    """Return the interfaces that ``NCCL_SOCKET_IFNAME`` selects."""
    name_list = parse(setting if len(setting) > 1 else "")  # NCCL ignores a single character
    return [name for name in names if name_list.takes(name)]
