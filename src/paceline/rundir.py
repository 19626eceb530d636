"""The run folder: the name of every file in it, the schema of its events, and how to write a file whole.

Everything that a report shows is read from here. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENT_VERSION = 1
MANIFEST = "manifest.json"  # in the folder of a checkpoint; written last, so that it vouches for the other files

# kind -> the fields beside version, time_ns, node and kind
EVENTS: Mapping[str, frozenset[str]] = {
    "start": frozenset({"attempt", "ranks", "pids", "world_size", "host", "launcher"}),
    "end": frozenset({"attempt", "ends"}),
    "restart": frozenset({"attempt", "why"}),
    "outcome": frozenset({"exit_status", "findings", "summary"}),
}


@dataclass(frozen=True)
class RunDir:
    """Names of the files of one run.

    Attributes:
        root: The folder, ``runs/<id>`` by default.
    """

    root: Path

    def plan(self, attempt: int = 0) -> Path:
        """What was decided before a start, with reasons (JSON); with the number of its first attempt."""
        return self.root / f"plan{_attempt(attempt)}.json"

    def events(self, node_rank: int) -> Path:
        """Events of one node's launcher (JSON lines); a file each, as appends on a shared folder can mix."""
        return self.root / ("events.jsonl" if node_rank == 0 else f"events.node-{node_rank:03d}.jsonl")

    def log(self, rank: int, attempt: int = 0) -> Path:
        """Everything that a rank wrote to stdout and stderr."""
        return self.root / "logs" / f"rank-{rank:03d}{_attempt(attempt)}.out"

    def launcher_log(self, node_rank: int, attempt: int = 0) -> Path:
        """What libraries printed inside a node's launcher; with the number of its start's first attempt."""
        return self.root / "logs" / f"launcher-{node_rank:03d}{_attempt(attempt)}.out"

    def filtered(self, stream: str, attempt: int = 0) -> Path:
        """Lines of ``"stdout"`` or ``"stderr"`` that filters have picked."""
        return self.root / "logs" / f"filtered_{stream}{_attempt(attempt)}.log"

    def error(self, rank: int, attempt: int = 0) -> Path:
        """The exception that ended a rank (JSON)."""
        return self.root / "ranks" / f"rank-{rank:03d}{_attempt(attempt)}.error.json"

    def crash(self, rank: int, attempt: int = 0) -> Path:
        """Python stacks of a rank that crashed in native code."""
        return self.root / "ranks" / f"rank-{rank:03d}{_attempt(attempt)}.crash"

    def stacks(self, rank: int, attempt: int = 0) -> Path:
        """Python stacks of a rank that its launcher has asked for."""
        return self.root / "ranks" / f"rank-{rank:03d}{_attempt(attempt)}.stacks"

    def parameters(self, rank: int, attempt: int = 0) -> Path:
        """Checksums of a rank's parameters, with ``--check-replicas`` (JSON)."""
        return self.root / "ranks" / f"rank-{rank:03d}{_attempt(attempt)}.parameters.json"

    def nccl(self, rank: int, attempt: int = 0) -> Path:
        """What NCCL logged, with ``--nccl-debug``."""
        return self.root / "logs" / f"rank-{rank:03d}{_attempt(attempt)}.nccl"

    @property
    def nccl_ras(self) -> Path:
        """What NCCL said of its communicators when the ranks hung."""
        return self.root / "logs" / "nccl-ras.txt"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, a folder each; one whose name begins with a dot was not committed."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """What the script logged (CSV)."""
        return self.root / "metrics.csv"

    @property
    def tensorboard(self) -> Path:
        """What the script logged (TensorBoard)."""
        return self.root / "tensorboard"

    @property
    def job_script(self) -> Path:
        """The script that ``paceline submit`` handed to sbatch."""
        return self.root / "job.sh"

    @property
    def job(self) -> Path:
        """What is known of the run's Slurm job (JSON): its id, its name, how often it was queued again."""
        return self.root / "job.json"

    @property
    def job_output(self) -> Path:
        """What the job printed: the console of its launchers."""
        return self.root / "slurm.out"

    def next_attempt(self) -> int:
        """Return the number that no attempt has had yet: a run that goes on in this folder counts on.

        So the files of an earlier start are neither written over nor taken for those of a later one.
        """
        names = [path.name for pattern in ("plan*", "logs/*", "ranks/*") for path in self.root.glob(pattern)]
        found = [re.match(r"(?:rank-\d+|launcher-\d+|plan)(?:\.attempt-(\d+))?\.", name) for name in names]
        return max((int(match[1] or 0) + 1 for match in found if match), default=0)

    def create(self) -> None:
        """Make the folders.

        Raises:
            OSError: The folder cannot be made or written to.
        """
        for folder in (self.root / "logs", self.root / "ranks"):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.root):
            pass  # a folder that exists may still refuse files


def _attempt(attempt: int) -> str:
    return f".attempt-{attempt}" if attempt else ""


def new_run_id(script: str, *, now_s: float, salt: str) -> str:
    """Return an id that sorts by time and names the script: ``20261120-233309-digits-3f2a``."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now_s))}-{stem}-{salt[:4]}"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or the one before: temporary name, fsync, rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def append_event(path: Path, *, node: int, kind: str, **fields: Any) -> None:
    """Append one event.

    Raises:
        ValueError: The kind is unknown or its fields are not those of the schema.
    """
    if EVENTS.get(kind) != frozenset(fields):
        raise ValueError(f"event {kind!r} does not take the fields {sorted(fields)}")
    event = {"version": EVENT_VERSION, "time_ns": time.time_ns(), "node": node, "kind": kind, **fields}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file; a last line that was cut off is left out."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return events
