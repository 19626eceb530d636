"""The record of a sweep: a Slurm array whose elements are runs with different arguments.

``sweep.json`` is in the sweep's folder; the run folder of element 12 is ``12`` in the same folder.
Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.rundir.files import RunDir, read_json, write_whole
from paceline.text.secret_texts import hidden_values

VERSION = 1
MOST_ELEMENTS = 10_000
_MOST_BYTES = 1 << 25  # ten thousand elements with a dozen values each


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as it was submitted."""

    # ids of its arrays, in the order of submission; the first has all elements
    jobs: tuple[str, ...]
    cluster: str = ""  # the cluster that sbatch printed; empty if it printed none
    name: str = ""  # name of the jobs
    script: str = ""  # the training script
    submitted_ns: int = 0  # time of the first submission
    # values of each element by its index: name of a parameter, and its text
    elements: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, in the order of their first use."""
        return list(dict.fromkeys(name for values in self.elements.values() for name in values))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        elements = {index: hidden_values(values) for index, values in self.elements.items()}
        return {"version": VERSION, **asdict(self), "elements": elements}


def folder_of(sweep: Path, index: int) -> Path:
    """Return the run folder of an element."""
    return sweep / str(index)


def job_script(run_dir: RunDir, job_id: str) -> Path:
    """Return the job script of a run; that of an element is in the folder of its sweep."""
    own_script = run_dir.job_script
    if not element_option(job_id) or own_script.exists():
        return own_script
    return RunDir(run_dir.root.parent).job_script


def element_option(job_id: str) -> tuple[str, ...]:
    """Return the option with which sbatch submits one element of an array; empty for other jobs."""
    _, _, element = job_id.partition("_")
    return (f"--array={element}",) if element else ()


def write(folder: Path, record: SweepRecord) -> None:
    """Write the record of a sweep into its folder.

    Raises OSError if the folder cannot be written.
    """
    write_whole(RunDir(folder).sweep, json.dumps(record.to_json(), indent=1) + "\n")


def load(folder: Path) -> SweepRecord | None:
    """Return the record of a sweep, None if the folder is not that of a sweep.

    Raises OSError if the file cannot be read; ValueError if the file is not a record.
    """
    try:
        values = read_json(RunDir(folder).sweep, most_bytes=_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _parse(values)


def read(folder: Path) -> SweepRecord | None:
    """Return the record of a sweep, None if it cannot be read."""
    try:
        return load(folder)
    except (OSError, ValueError):
        return None


def _parse(values: Any) -> SweepRecord:
    if not isinstance(values, Mapping) or values.get("version") != VERSION:
        raise ValueError(f"not the record of a sweep in version {VERSION}")
    try:
        elements = {
            int(index): {str(name): str(text) for name, text in own_values.items()}
            for index, own_values in values["elements"].items()
        }
        jobs = tuple(str(job) for job in values["jobs"])
        submitted_ns = int(values["submitted_ns"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not the record of a sweep: {error}") from None
    # they are passed to Slurm's commands
    if not all(job.isdecimal() for job in jobs) or any(index < 0 for index in elements):
        raise ValueError("not the record of a sweep: a job or an element is not a number")
    texts = {name: str(values.get(name, "")) for name in ("cluster", "name", "script")}
    return SweepRecord(jobs=jobs, submitted_ns=submitted_ns, elements=elements, **texts)
