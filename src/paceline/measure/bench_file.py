"""The result of ``paceline bench`` as a file: what ``forecast`` and ``report`` read.

``bench.json`` in a run folder. Steps of the warm-up are left out of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import SetupError
from paceline.launch.monitor import timed_steps
from paceline.launch.monitor.timed_steps import Durations
from paceline.rundir import files
from paceline.rundir.files import RunDir
from paceline.text.secret_texts import hidden

VERSION = 1
KIND = "bench"
SCALINGS = ("weak", "strong")
_MOST_BYTES = 1 << 28

Round = Mapping[int, Mapping[int, Durations]]


@dataclass(frozen=True)
class WorldBench:
    """The measured steps of one number of ranks."""

    num_nodes: int  # number of nodes
    samples_per_step: int  # samples of an optimizer step over all ranks; 0 if unknown
    hosts: Mapping[int, str]  # host by rank
    # durations of stages in nanoseconds by step and rank, for each start of the script
    rounds: Sequence[Round]

    def to_json(self) -> dict[str, Any]:
        """Return the steps as plain data, in microseconds."""
        return {
            "num_nodes": self.num_nodes,
            "samples_per_step": self.samples_per_step,
            "hosts": {str(rank): host for rank, host in self.hosts.items()},
            "rounds": [timed_steps.to_json(steps) for steps in self.rounds],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WorldBench:
        """Return the steps from the data that ``to_json`` returned."""
        return cls(
            num_nodes=int(values["num_nodes"]),
            samples_per_step=int(values["samples_per_step"]),
            hosts={int(rank): str(host) for rank, host in values["hosts"].items()},
            rounds=[timed_steps.from_json(steps) for steps in values["rounds"]],
        )


@dataclass(frozen=True)
class BenchFile:
    """A bench."""

    command: tuple[str, ...]  # the script and its arguments
    scaling: str  # ``"weak"``: the batch of a rank stays; ``"strong"``: that of all ranks stays
    backend: str  # backend of the process group, ``"gloo"`` or ``"nccl"``
    warmup_steps: int  # optimizer steps that were left out at the start of each round
    worlds: Mapping[int, WorldBench]  # measured steps by number of ranks
    # bytes of gradients that are reduced in a step; None if unknown
    gradient_bytes: int | None = None
    # sizes of the buckets that they are reduced in; None if unknown
    bucket_bytes: tuple[int, ...] | None = None
    # what each setting is worth, as ``paceline bench --settings`` prints it
    settings: Sequence[Mapping[str, Any]] = ()
    # what ``paceline bench network`` printed; None if it was not measured
    network: Mapping[str, Any] | None = None
    oversubscribed: bool = False  # whether ranks shared CPUs or GPUs

    def to_json(self) -> dict[str, Any]:
        """Return the bench as plain data."""
        return {
            "version": VERSION,
            "kind": KIND,
            "command": list(hidden(self.command)),
            "scaling": self.scaling,
            "backend": self.backend,
            "warmup_steps": self.warmup_steps,
            "worlds": {str(size): world.to_json() for size, world in self.worlds.items()},
            "gradient_bytes": self.gradient_bytes,
            "bucket_bytes": None if self.bucket_bytes is None else list(self.bucket_bytes),
            "settings": [dict(setting) for setting in self.settings],
            "network": self.network,
            "oversubscribed": self.oversubscribed,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BenchFile:
        """Return the bench from the data that ``to_json`` returned.

        Raises ValueError if the data are of another kind or version; KeyError if a field is
        missing.
        """
        if values["kind"] != KIND:
            raise ValueError(f"not a bench but {values['kind']!r}")
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r}, and not {VERSION}")
        if values["scaling"] not in SCALINGS:
            raise ValueError(f"unknown scaling {values['scaling']!r}")
        sizes = values["bucket_bytes"]
        return cls(
            command=hidden(values["command"]),
            scaling=values["scaling"],
            backend=str(values["backend"]),
            warmup_steps=int(values["warmup_steps"]),
            worlds={
                int(size): WorldBench.from_json(world) for size, world in values["worlds"].items()
            },
            gradient_bytes=values["gradient_bytes"],
            bucket_bytes=None if sizes is None else tuple(sizes),
            settings=tuple(values["settings"]),
            network=values["network"],
            oversubscribed=bool(values.get("oversubscribed", False)),
        )


def read(run_dir: RunDir) -> BenchFile:
    """Return the bench of a run folder."""
    try:
        return BenchFile.from_json(files.read_json(run_dir.bench, most_bytes=_MOST_BYTES))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        place = files.display_path(run_dir.bench)
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise SetupError.of(
            "input-unreadable",
            f"{place} cannot be read as the result of a bench",
            evidence=(reason,),
            fix="paceline bench train.py writes one into its run folder",
        ) from None


def write(bench: BenchFile, run_dir: RunDir) -> None:
    """Write a bench into its run folder; raise OSError if the folder cannot be written."""
    files.write_whole(run_dir.bench, json.dumps(bench.to_json()) + "\n")
