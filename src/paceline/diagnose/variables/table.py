"""The table of known variables: the library and versions that read them, and the meaning of their
values.

The facts are in JSON files beside this one, one variable in each line.
``scripts/nccl_variables.py`` generates ``nccl.json`` from the libraries; its meanings and limits,
and the other files, are written manually.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.diagnose.variables.versions import newest


@dataclass(frozen=True)
class KnownVariable:
    """A variable that a library reads, or once read."""

    name: str  # its name
    library: str  # the library that reads it: ``"nccl"``, ``"torch"`` or another name
    # the first version that is known to read it; empty if older than the versions of the table
    since: str = ""
    until: str = ""  # the last version that read it; empty if the newest still does
    # type of its value: ``flag``, ``number``, ``size``, ``level``, ``choice``, ``bool`` and so on;
    # empty if any value may be right
    kind: str = ""
    default: str = ""  # its default
    meaning: str = ""  # one line
    values: tuple[str, ...] = ()  # the valid words, for a ``choice``
    low: int | None = None  # the least valid number, None without a limit
    high: int | None = None  # the greatest valid number, None without a limit
    fatal: bool = False  # whether an invalid value ends the program


@cache
def known() -> Mapping[str, KnownVariable]:
    """Return every variable that we know, by name."""
    return MappingProxyType(
        {**_read("others", ""), **_read("torch", "torch"), **_read("nccl", "nccl")}
    )


def _read(file: str, library: str) -> dict[str, KnownVariable]:
    return {
        name: _variable(name, library, entry) for name, entry in _load(file)["variables"].items()
    }


def newest_version(library: str) -> str:
    """Return the newest version of NCCL or torch in the table."""
    return newest(_load(library)["versions"])


@cache
def _load(file: str) -> dict[str, Any]:
    path = Path(__file__).with_name(f"{file}.json")
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


def _variable(name: str, library: str, entry: dict[str, Any]) -> KnownVariable:
    words = {key: value for key, value in entry.items() if key not in ("values", "library")}
    return KnownVariable(
        name, entry.get("library", library), values=tuple(entry.get("values", ())), **words
    )
