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
    """One rank's work."""

    local_rank: int  # rank on this node
    kind: str  # ``script``, ``module``, ``path`` (``runpy.run_path``), ``program`` or ``function``
    target: str  # the script, module or program; empty for a function, which is inherited in memory
    args: tuple[str, ...] = ()  # arguments of the script
    env: dict[str, str] = field(default_factory=dict)  # variables to set
    method: str = "fork"  # ``fork``, ``spawn`` or ``exec``
    python: str = ""  # the interpreter for ``spawn`` and ``exec``
    error_file: str = ""  # file for an exception
    crash: int = -1  # descriptor that faulthandler writes stacks to, -1 for none
    # descriptor that faulthandler writes stacks to when the launcher requests them, -1 for none
    stacks: int = -1
    # descriptor that exceptions are also written to, -1 for none; writing the error file may fail
    report: int = -1
    pulse: int = -1  # descriptor of the counters' memory, -1 for no probe
    num_local_ranks: int = 1  # ranks on this node: the number of slots in that memory
    check_finite: bool = False  # end the run if a loss or gradient is not finite
    check_replicas: int = 0  # steps between two further fingerprints of the parameters, 0 for none
    parameters_file: str = ""  # file for the fingerprints
    numa_binding: str = ""  # mode of ``--numa-binding``, empty for none

    def to_json(self) -> str:
        """Return the task as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankTask:
        """Return the task that ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "args": tuple(values["args"])})
