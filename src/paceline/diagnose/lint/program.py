"""What a script expects of the job that starts it. Data only: filled by ``python``, judged by ``job``."""

from __future__ import annotations

from dataclasses import dataclass

# How a script comes by a number.
CONSTANT, ARGUMENT, VARIABLE, ALL_GPUS, ALL_CPUS = "constant", "argument", "variable", "all GPUs", "all CPUs"


@dataclass(frozen=True)
class Number:
    """A number in a script, as far as the script alone shows it.

    Attributes:
        kind: One of the constants above.
        value: The number itself; the default of an argument; None if there is none.
        names: The forms of the argument (``--num-workers``), or the variable.
    """

    kind: str
    value: int | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A line of a script.

    Attributes:
        line: Its number.
        text: What it says.
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
        single: True if with one device on one node it makes no process group at all.
        at: Where it is made.
    """

    title: str
    devices: Number | None
    num_nodes: Number | None
    single: bool
    at: Place


@dataclass(frozen=True)
class Program:
    """What a script expects of its start. What is not certain is left out.

    Attributes:
        name: The path of the script.
        runner: The Trainer or Fabric, if all that the script makes are the same.
        lightning: True if the script is one of Lightning's, also where ``runner`` is not known.
        workers: The largest number of loader workers that is known, and where.
        needs_ranks: Where the script takes its rank from a launcher's variables, and ends if there are none.
        adopts_ranks: Where it takes its rank from a launcher's variables, and trains alone if there are none.
        spawns: Where the script starts the processes of a node itself, and how many.
        port: The port that the script sets over the launcher's, and where.
        address: The address of its own node that the script sets over the launcher's, and where.
        selects: Where a GPU is selected by the ``global`` or ``local`` rank.
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
