"""Submit a sweep as one Slurm array."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import Finding, SetupError, UsageError, option_contradicted
from paceline.rundir import sweeps
from paceline.rundir.files import SECRET_MODE, RunDir, write_whole
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import (
    refusal,
    sbatch,
    sweep,
    sweep_file,
    sweep_folder,
)
from paceline.slurm.batch import Place
from paceline.slurm.record import JobRecord
from paceline.slurm.request import Request
from paceline.slurm.sweep import Sweep
from paceline.text import terminal
from paceline.text.quoting import word


def choose(typed: Mapping[str, Any], arguments: Sequence[str]) -> Sweep | None:
    """Return the sweep that a command line asks for, None for a single job.

    Raises:
        UsageError: The sweep file cannot be read, or a value is invalid.
    """
    array = typed.get("array", "")
    if typed.get("sweep"):
        content = _read_file(typed["sweep"])
        requested = sweep.choose(arguments, content.points, array=array, parallel=content.parallel)
    elif typed.get("param"):
        requested = sweep.choose(arguments, sweep.from_command_line(typed["param"]), array=array)
    else:
        return sweep.choose(arguments, None, array=array) if "array" in typed else None
    if notice := sweep.repeated(requested.elements):
        terminal.say(notice)
    return requested


def _read_file(name: str) -> sweep_file.SweepFile:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise UsageError.of(
            "sweep-invalid",
            f"the sweep file cannot be read: {why}",
            where=name,
            fix="--sweep FILE, a TOML file with [parameters]; or --param lr=0.1,0.01",
        ) from None
    return sweep_file.read(text, path=name)


def submit(
    requested: Request,
    place: Place,
    text: str,
    *,
    environ: Mapping[str, str],
    fill: Callable[[Path], None] | None = None,
) -> JobRecord:
    """Create the folder of a sweep with those of its elements, and call sbatch once.

    Args:
        requested: The request.
        place: Where the folder of the sweep is.
        text: The job script.
        environ: Environment of sbatch.
        fill: Writes further files into the folder before sbatch is called; None writes none.

    Returns:
        What the records of all elements have in common.

    Raises:
        UsageError: The folder is already in use.
        SetupError: The folder cannot be written, or sbatch does not accept the array.
    """
    assert requested.sweep is not None
    elements = {element.index: element.values for element in requested.sweep.elements}
    folder = Path(place.run_dir)
    _require_new(folder)
    try:
        sweep_folder.create(folder, list(elements))
        write_whole(RunDir(folder).job_script, text, mode=SECRET_MODE)
        if fill is not None:
            fill(folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SetupError(not_writable(folder, error)) from None
    answer = sbatch.submit(place.script, environ=environ)
    if not answer.job_id:
        if not refusal.unsure(answer.reply):
            shutil.rmtree(folder, ignore_errors=True)
        raise SetupError(refusal.judge(answer.reply, known_options=refusal.sbatch_options))
    answer.show_warnings()
    job = answer.record(requested)
    sweep_folder.record_array(folder, _sweep_record(job, elements), list(elements), job=job)
    return job


def _sweep_record(job: JobRecord, elements: Mapping[int, Mapping[str, str]]) -> SweepRecord:
    return SweepRecord(
        jobs=(job.job_id,),
        cluster=job.cluster,
        name=job.name,
        script=job.script,
        submitted_ns=job.submitted_ns,
        elements=elements,
    )


def _require_new(folder: Path) -> None:
    """Refuse a folder that has something in it: another sweep would be mixed with this one."""
    if not folder.exists():
        return
    is_sweep = RunDir(folder).sweep.exists()
    if not is_sweep and folder.is_dir() and not any(folder.iterdir()):
        return
    kind = "is the folder of a sweep" if is_sweep else "is not empty"
    again = f"paceline submit --again failed {word(str(folder))}, or " if is_sweep else ""
    raise option_contradicted(
        f"{folder} {kind}, and a new sweep needs an empty folder",
        where="--run-dir",
        fix=f"{again}another --run-dir",
    )


def not_writable(folder: Path, error: OSError) -> Finding:
    """Return the finding for a sweep whose folder cannot be written."""
    return Finding(
        "folder-not-writable",
        f"the folder of the sweep {folder} cannot be written: {error.strerror}",
        where=str(folder),
        fix="give another folder with --run-dir",
    )


def report(job: JobRecord, folder: Path, selection: Sweep, as_json: bool) -> None:
    """Print what was submitted, and what to type next."""
    relative = os.path.relpath(folder)
    if relative.startswith(".."):
        relative = str(folder)
    if as_json:
        rows = [
            {
                "index": element.index,
                "job_id": f"{job.job_id}_{element.index}",
                "values": dict(element.values),
                "run_dir": str(sweeps.folder_of(folder, element.index)),
            }
            for element in selection.elements
        ]
        values = {"job_id": job.job_id, "cluster": job.cluster, "name": job.name}
        print(json.dumps({**values, "sweep": str(folder), "elements": rows}, indent=1))
        return
    on = f" on {job.cluster}" if job.cluster else ""
    limit = f", {selection.parallel} at a time" if selection.parallel else ""
    num_elements = len(selection.elements)
    elements = "1 element" if num_elements == 1 else f"{num_elements} elements"
    first = os.path.join(relative, str(selection.elements[0].index))
    print(f"array {job.job_id}, {job.name}, is queued{on}: {elements}{limit}")
    print(f"their state: paceline jobs {word(relative)}")
    print(f"follow one:  paceline follow {word(first)}")
    sys.stdout.flush()
