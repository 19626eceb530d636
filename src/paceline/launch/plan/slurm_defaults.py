"""The options of a run that follow from the Slurm step that a launcher is in. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Placed:
    """What is taken from Slurm.

    Attributes:
        values: Options of ``paceline run`` that hold where the user gave none.
        said: One phrase for the plan: what was taken, or what was seen and not used; empty outside Slurm.
        num_gpus: GPUs that Slurm gave the step on this node; 0 where it gave none or no step is used.
        one_voice: Whether all nodes print into one output, so that what all would say is for the head to say.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    said: str = ""
    num_gpus: int = 0
    one_voice: bool = False

    def left_to_head(self, node_rank: int) -> bool:
        """Whether a node keeps to itself what the head says for all."""
        return self.one_voice and node_rank > 0
