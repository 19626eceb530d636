"""Options of a run that come from what started its launcher. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import Finding

SLURM = "slurm"  # a task of a Slurm step
MPI = "mpi"  # a task of mpirun
POD = "pod"  # a pod of Kubernetes
LSF = "lsf"  # a task of blaunch


@dataclass(frozen=True)
class StarterDefaults:
    """Defaults of options from Slurm, mpirun, Kubernetes, PBS or LSF."""

    # options of ``paceline run`` that apply if the user gives none
    values: Mapping[str, str] = field(default_factory=dict)
    # what the run uses of its starter, or detected and does not use, as one phrase for the plan;
    # empty if there is nothing to say
    source: str = ""
    # GPUs that Slurm gave the step on this node; 0 if there are none or no step is used
    num_gpus: int = 0
    # whether all nodes print to one output, so that only the head (node 0) prints what they have in
    # common
    shared_output: bool = False
    # ``SLURM``, ``MPI``, ``POD`` or ``LSF`` if that started this launcher, else empty
    starter: str = ""
    port_reason: str = "the step's number"  # why the port in ``values`` was chosen
    hosts: tuple[str, ...] = ()  # host name of each node rank; empty if unknown
    warnings: tuple[Finding, ...] = ()  # what is likely not meant

    @property
    def starts_together(self) -> bool:
        """Whether the launchers of all nodes start at the same time."""
        return self.starter in (SLURM, MPI, LSF)

    def head_reports(self, node_rank: int) -> bool:
        """Return whether a node prints nothing because the head reports for all nodes."""
        return self.shared_output and node_rank > 0
