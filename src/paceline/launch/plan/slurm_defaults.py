"""Options of a run that come from the Slurm step of its launcher. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SlurmDefaults:
    """Defaults of options from Slurm.

    Attributes:
        values: Options of ``paceline run`` that apply if the user gives none.
        source: What of Slurm the run uses, or detected and does not use, as one phrase for the
            plan; empty outside Slurm.
        num_gpus: GPUs that Slurm gave the step on this node; 0 if there are none or no step is
            used.
        shared_output: Whether all nodes print to one output, so that only the head (node 0) prints
            what they have in common.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    num_gpus: int = 0
    shared_output: bool = False

    def head_reports(self, node_rank: int) -> bool:
        """Return whether a node prints nothing because the head reports for all nodes."""
        return self.shared_output and node_rank > 0
