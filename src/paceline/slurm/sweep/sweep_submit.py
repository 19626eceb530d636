"""Submit a sweep as one Slurm array."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.errors import (
    EXIT_OK,
    Finding,
    SetupError,
    option_contradicted,
    option_invalid,
)
from paceline.launch.plan.option import long_form
from paceline.launch.plan.submit_options import DIRECT
from paceline.rundir import ownership, sweeps
from paceline.rundir.files import SECRET_MODE, RunDir, discard, write_whole
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import option_rules, profile_files, request, sbatch
from paceline.slurm.batch import JobPlace
from paceline.slurm.record import JobRecord
from paceline.slurm.request import SubmitRequest
from paceline.slurm.sweep import definition, sweep_folder, sweep_rows
from paceline.slurm.sweep.definition import Element, Sweep
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.text.quoting import printable, word
from paceline.text.wording import has_or_have

FAILED = "failed"
# What --again may change: sbatch prefers its command line to the lines of the script.
_CHANGEABLE = ("time", "mem", "account", "partition", *(option.name for option in DIRECT))
_WITH_AGAIN = ("again", "json", "dry_run", *_CHANGEABLE)


def choose(typed: Mapping[str, Any], arguments: Sequence[str]) -> Sweep | None:
    """Return the sweep that a command line asks for, None for a single job.

    Raises UsageError if a value is invalid.
    """
    array = typed.get("array", "")
    if not typed.get("param"):
        return definition.choose(arguments, None, array=array) if "array" in typed else None
    points = definition.from_command_line(typed["param"])
    requested = definition.choose(arguments, points, array=array)
    if notice := definition.repeated(requested.elements):
        terminal.say(notice)
    return requested


def submit(
    requested: SubmitRequest,
    place: JobPlace,
    text: str,
    *,
    environ: Mapping[str, str],
) -> JobRecord:
    """Create the folder of a sweep with those of its elements, and call sbatch once."""
    assert requested.sweep is not None
    elements = {element.index: element.values for element in requested.sweep.elements}
    folder = Path(place.run_dir)
    _require_new(folder)
    try:
        sweep_folder.create(folder, list(elements))
        write_whole(RunDir(folder).job_script, text, mode=SECRET_MODE)
    except OSError as error:
        discard(folder)
        raise SetupError(not_writable(folder, error)) from None
    answer = sbatch.submit(place.script, environ=environ)
    if not answer.job_id:
        if not sbatch.unsure(answer.reply):
            discard(folder)
        raise SetupError(sbatch.refusal(answer.reply, known_options=sbatch.sbatch_options))
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
        print_json({**values, "sweep": str(folder), "elements": rows})
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


def again(
    subject: str,  # the folder of the sweep, its name, or the id of one of its arrays
    arguments: Sequence[str],  # there must be none
    *,
    typed: Mapping[str, Any],
) -> int:
    """Submit elements of a sweep again, as a new array of the same job script."""
    _refuse_ineffective(typed, arguments)
    folder, sweep_record = sweep_folder.require(subject, places=profile_files.run_folders())
    is_found = folder != Path(subject)
    folder = folder.absolute()
    if is_found:
        fix = f"paceline submit --again {typed['again']} {word(str(folder))}"
        ownership.require(RunDir(folder).job_script, fix=fix, trusts_group=True)
    rows = sweep_rows.gather(folder, sweep_record)
    if rows.silent:
        raise SetupError(_no_answer(folder))
    indices, limit = _chosen(typed["again"], rows.elements)
    if not indices:
        alive = [element for element in rows.elements if element.is_alive]
        rest = f", and {len(alive)} {has_or_have(alive)} not ended" if alive else ""
        terminal.say(f"no element of {folder} has failed or is missing{rest}: nothing is submitted")
        if cancelled := sweep_rows.say_cancelled(folder, rows.elements):
            terminal.say(printable(cancelled))
        return EXIT_OK
    directives = directives_of(RunDir(folder).job_script)
    limit = limit or _limit(directives.get("array", ""))
    selection = Sweep(
        tuple(Element(index, sweep_record.elements[index], ()) for index in indices), limit
    )
    words = [f"--array={selection.array}", *_changed(typed)]
    words.append(str(RunDir(folder).job_script))
    if typed.get("dry_run"):
        print(" ".join(map(word, ("sbatch", *words))))
        return EXIT_OK
    changed = {name.replace("_", "-") for name in typed if name in _CHANGEABLE}
    environ = sbatch.environ({"job-name", "requeue", *directives, *changed})
    answer = _submit_again(folder, indices, words, environ)
    sweep_record = replace(
        sweep_record, jobs=(*sweep_record.jobs, answer.job_id), cluster=answer.cluster
    )
    common = replace(rows.elements[0].job, job_id=answer.job_id, cluster=answer.cluster)
    common = replace(common, earlier_ids=(), requeues=(), submitted_ns=time.time_ns())
    sweep_folder.record_array(folder, sweep_record, indices, job=common)
    report(common, folder, selection, bool(typed.get("json")))
    return EXIT_OK


def _submit_again(
    folder: Path, indices: Sequence[int], words: Sequence[str], environ: Mapping[str, str]
) -> sbatch.SbatchAnswer:
    """Create the run folders that were deleted, and call sbatch."""
    try:
        sweep_folder.create(folder, indices)
    except OSError as error:
        raise SetupError(not_writable(folder, error)) from None
    answer = sbatch.submit(*words, environ=environ)
    if not answer.job_id:
        raise SetupError(sbatch.refusal(answer.reply, known_options=sbatch.sbatch_options))
    answer.show_warnings()
    return answer


def _refuse_ineffective(typed: Mapping[str, Any], arguments: Sequence[str]) -> None:
    other = next((name for name in typed if name not in _WITH_AGAIN), "")
    if other:
        option = long_form(other)
        what = f"--again submits the job script of the sweep as it is: {option} has no effect"
        raise option_contradicted(
            what, fix=f"leave out {option}; it takes --time, --mem and the like"
        )
    if arguments:
        extra = " ".join(map(word, arguments))
        what = f"--again takes one sweep, with options before it and nothing after it: {extra}"
        raise option_contradicted(
            what, fix=f"paceline submit --again {typed['again']} {extra} SWEEP"
        )
    option_rules.check(typed)


def _chosen(typed: str, elements: Sequence[sweep_rows.ElementRow]) -> tuple[tuple[int, ...], int]:
    """Return the elements to submit again, which have ended, and how many run at a time at most."""
    if typed == FAILED:
        return tuple(element.index for element in elements if element.is_to_repeat), 0
    indices, limit = definition.parse_array(typed)
    by_index = {element.index: element for element in elements}
    for index in indices or ():
        element = by_index.get(index)
        if element is None:
            what = f"--again {typed}: the sweep has no element {index}"
        elif element.is_alive:
            what = f"--again {typed}: element {index} is {element.row.state}"
        else:
            continue
        raise option_invalid(what, fix="--again failed")
    return indices or (), limit


def _limit(array: str) -> int:
    """Return how many elements of an array run at a time, 0 without a limit."""
    _, _, limit = array.partition("%")
    return int(limit) if limit.isdecimal() else 0


def directives_of(script: Path) -> dict[str, str]:
    """Return the options of sbatch in a job script, by their long names.

    Raises SetupError if the script cannot be read.
    """
    try:
        lines = script.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SetupError.of(
            "sweep-invalid",
            f"the job script cannot be read: {error.strerror}",
            where=str(script),
            fix="submit the sweep as a new one",
        ) from None
    matches = (re.fullmatch(r"#SBATCH --([\w-]+)(?:=\"?(.*?)\"?)?", line) for line in lines)
    return {match[1]: match[2] or "" for match in matches if match}


def _changed(typed: Mapping[str, Any]) -> list[str]:
    """Return the options of sbatch that are typed with ``--again``."""
    words = []
    for name, value in typed.items():
        if name not in _CHANGEABLE:
            continue
        option = long_form(name)
        text = request.sbatch_time(value) if name == "time" else value
        words.append(option if value is True else f"{option}={text}")
    return words


def _no_answer(folder: Path) -> Finding:
    return Finding(
        "slurm-unavailable",
        "squeue does not answer: which elements have ended is not known",
        where=str(folder),
        why="an element that still runs would be started a second time",
        fix="squeue --me",
    )
