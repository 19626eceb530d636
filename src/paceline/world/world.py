"""The ranks of a run, as one of them sees it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PORT = 29500  # of the store, torch's


@dataclass(frozen=True)
class World:
    """The ranks of a run, as one of them sees it.

    Attributes:
        rank: Global rank, 0 to ``world_size - 1``.
        world_size: Number of ranks.
        local_rank: Rank on this node.
        local_world_size: Number of ranks on this node.
        node_rank: Rank of this node.
        num_nodes: Number of nodes.
        master_addr: Address of the store where ranks meet; empty in a world of one.
        master_port: Port of that store; 0 in a world of one.
        launcher: One of ``paceline.world.detection.LAUNCHERS``.
        reason: Which variables were used and why, one line to print.
        head_source: Where ``master_addr`` comes from if nobody has said it, as a phrase; empty if
            it was given.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    master_addr: str = ""
    master_port: int = 0
    launcher: str = "none"
    reason: str = "no launcher: a world of one"
    head_source: str = ""
