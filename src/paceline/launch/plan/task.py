"""The task of a rank, which the launcher sends to it.

Sent as JSON: to a forked rank over a socket, to a rank in a fresh interpreter in a variable.
Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

SCRIPT, MODULE, PATH, PROGRAM, FUNCTION = "script", "module", "path", "program", "function"


@dataclass(frozen=True)
class RankTask:
    """One rank's work.

    Attributes:
        local_rank: Rank on this node.
        kind: ``script``, ``module``, ``path`` (``runpy.run_path``), ``program`` or ``function``.
        target: The script, module or program; empty for a function, which is inherited in memory.
        args: Arguments of the script.
        env: Variables to set.
        method: ``fork``, ``spawn`` or ``exec``.
        python: The interpreter for ``spawn`` and ``exec``.
        error_file: File for an exception.
        crash: Descriptor that faulthandler writes stacks to, -1 for none.
        stacks: Descriptor that faulthandler writes stacks to when the launcher requests them, -1
            for none.
        report: Descriptor that exceptions are also written to, -1 for none; writing the error file
            may fail.
        pulse: Descriptor of the counters' memory, -1 for no probe.
        num_local_ranks: Ranks on this node: the number of slots in that memory.
        check_finite: End the run if a loss or gradient is not finite.
        check_replicas: Optimizer steps between two checksums of the parameters, 0 for none.
        parameters_file: File for those checksums.
        numa_binding: Mode of ``--numa-binding``, empty for none.
    """

    local_rank: int
    kind: str
    target: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    method: str = "fork"
    python: str = ""
    error_file: str = ""
    crash: int = -1
    stacks: int = -1
    report: int = -1
    pulse: int = -1
    num_local_ranks: int = 1
    check_finite: bool = False
    check_replicas: int = 0
    parameters_file: str = ""
    numa_binding: str = ""

    def to_json(self) -> str:
        """Return the task as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankTask:
        """Return the task that ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "args": tuple(values["args"])})
