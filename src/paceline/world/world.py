"""The ranks of a run, as one of them sees it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

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
