"""The ranks of a run, as one of them sees it, and how a number of a variable is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import option_invalid

DEFAULT_PORT = 29500  # of the store, torch's


@dataclass(frozen=True)
class World:
    """The ranks of a run, as one of them sees it."""

    rank: int = 0  # global rank, 0 to ``world_size - 1``
    world_size: int = 1  # number of ranks
    local_rank: int = 0  # rank on this node
    local_world_size: int = 1  # number of ranks on this node
    node_rank: int = 0  # rank of this node
    num_nodes: int = 1  # number of nodes
    master_addr: str = ""  # address of the store where ranks meet; empty in a world of one
    master_port: int = 0  # port of that store; 0 in a world of one
    launcher: str = "none"  # one of ``paceline.world.detection.LAUNCHERS``
    # which variables were used and why, one line to print
    reason: str = "no launcher: a world of one"
    # where ``master_addr`` comes from if nobody has said it, as a phrase; empty if it was given
    head_source: str = ""


def whole(environ: Mapping[str, str], name: str) -> int:
    """Return the value of a variable that is set as a whole number from 0 on.

    Raises UsageError if it is something else.
    """
    text = environ[name].strip()
    if not text.isdecimal():
        raise option_invalid(
            f"{name}={environ[name]} is not a whole number",
            where=f"environment variable {name}",
            fix=f"unset {name}, if nothing but this shell has set it",
        )
    return int(text)
