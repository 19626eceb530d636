"""The expectations of a training script about its job. Data only: `python` fills it, `job` checks
it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Where a script takes a number from.
CONSTANT, ARGUMENT, VARIABLE, ALL_GPUS, ALL_CPUS = (
    "constant",
    "argument",
    "variable",
    "all GPUs",
    "all CPUs",
)


@dataclass(frozen=True)
class Number:
    """The source of a number in a script, as far as the script alone shows it.

    Attributes:
        kind: One of the constants above.
        value: The number, or the default of an argument; None without one.
        names: The forms of the argument (``--num-workers``), or the name of the variable.
    """

    kind: str
    value: int | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A line of a script.

    Attributes:
        line: Its number.
        text: Its text.
    """

    line: int
    text: str


@dataclass(frozen=True)
class Runner:
    """A Trainer or Fabric of Lightning.

    Attributes:
        title: ``Trainer`` or ``Fabric``.
        devices: Processes on each node; None if not known.
        num_nodes: Nodes; None if not known.
        single: True if it creates no process group for one device on one node.
        at: Where it is created.
    """

    title: str
    devices: Number | None
    num_nodes: Number | None
    single: bool
    at: Place


@dataclass(frozen=True)
class Program:
    """The certain expectations of a script about its job.

    Attributes:
        name: The path of the script.
        runner: The Trainer or Fabric, if the script creates only equal ones.
        lightning: True if the script uses Lightning, also if ``runner`` is None.
        workers: The largest known number of loader workers, and where.
        needs_ranks: Where the script reads its rank from a launcher's variables, and fails without
            them.
        adopts_ranks: Where it reads its rank from a launcher's variables, and trains alone without
            them.
        spawns: Where the script starts the processes of a node itself, and how many.
        port: The port by which the script replaces the launcher's, and where.
        address: The local address by which the script replaces the launcher's, and where.
        selects: Whether the ``global`` or the ``local`` rank selects the GPU, and where.
        downloads: Where every rank downloads into the same folder.
    """

    name: str
    runner: Runner | None = None
    lightning: bool = False
    workers: tuple[Number, Place] | None = None
    needs_ranks: Place | None = None
    adopts_ranks: Place | None = None
    spawns: tuple[Number, Place] | None = None
    port: tuple[str, Place] | None = None
    address: tuple[str, Place] | None = None
    selects: tuple[str, Place] | None = None
    downloads: Place | None = None
