"""The expectations of a training script about its job. Data only: `python` fills it, `job` checks
it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Where a script takes a number from.
CONSTANT, ARGUMENT, VARIABLE = "constant", "argument", "variable"
ALL_GPUS, ALL_CPUS = "all GPUs", "all CPUs"


@dataclass(frozen=True)
class Number:
    """The source of a number in a script, as far as the script alone shows it."""

    kind: str  # one of the constants above
    value: int | None = None  # the number, or the default of an argument; None without one
    # the forms of the argument (``--num-workers``), or the name of the variable
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A line of a script."""

    line: int  # its number
    text: str  # its text


@dataclass(frozen=True)
class Runner:
    """A Trainer or Fabric of Lightning."""

    title: str  # ``Trainer`` or ``Fabric``
    devices: Number | None  # processes on each node; None if not known
    num_nodes: Number | None  # nodes; None if not known
    single: bool  # True if it creates no process group for one device on one node
    at: Place  # where it is created


@dataclass(frozen=True)
class Program:
    """The certain expectations of a script about its job."""

    name: str  # the path of the script
    runner: Runner | None = None  # the Trainer or Fabric, if the script creates only equal ones
    lightning: bool = False  # True if the script uses Lightning, also if ``runner`` is None
    # the largest known number of loader workers, and where
    workers: tuple[Number, Place] | None = None
    # where the script reads its rank from a launcher's variables, and fails without them
    needs_ranks: Place | None = None
    # where it reads its rank from a launcher's variables, and trains alone without them
    adopts_ranks: Place | None = None
    # where the script starts the processes of a node itself, and how many
    spawns: tuple[Number, Place] | None = None
    launches: Place | None = None  # where it calls ``launch()`` of Lightning Fabric
    # the port by which the script replaces the launcher's, and where
    port: tuple[str, Place] | None = None
    # the local address by which the script replaces the launcher's, and where
    address: tuple[str, Place] | None = None
    # whether the ``global`` or the ``local`` rank selects the GPU, and where
    selects: tuple[str, Place] | None = None
    # its text if it alone reads variables; empty if a module of the user or another program may
    alone: str = ""
    downloads: Place | None = None  # where every rank downloads into the same folder
