"""Options of a run that come from the Slurm step of its launcher. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SlurmDefaults:
    """Defaults of options from Slurm.

    Attributes:
        values: Options of ``paceline run`` that apply if the user gives none.
        said: One phrase for the plan: what is used of Slurm, or detected and not used; empty
            outside Slurm.
        num_gpus: GPUs that Slurm gave the step on this node; 0 if there are none or no step is
            used.
        one_voice: Whether all nodes print to one output, so that only the head prints what they
            have in common.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    said: str = ""
    num_gpus: int = 0
    one_voice: bool = False

    def left_to_head(self, node_rank: int) -> bool:
        """Return whether a node stays silent because the head prints for all nodes."""
        return self.one_voice and node_rank > 0
