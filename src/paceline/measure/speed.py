"""Find the run that a user names, and its speed, as its launcher describes it in the run folder.

The launcher of node 0 writes the description every few seconds (``launch.monitor.speed_log``), so
it can be read on every machine that sees the folder, and for scripts of every framework.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import Finding, SetupError
from paceline.launch.monitor import bottleneck
from paceline.launch.monitor.bottleneck import RunFacts
from paceline.rundir import events, files, identity
from paceline.rundir.files import RunDir


def named(run: str, *, advice: Finding) -> RunDir:
    """Return the folder of a run: a run folder, or the name of one below ``paceline-runs``.

    Raises ``advice``, with another ``what``, if the folder does not exist.
    """
    places = [Path(run), *(folder / run for folder in files.run_folders())]
    for place in places:
        if place.is_dir():
            return RunDir(place)
    raise SetupError(_about(advice, f"there is no run folder {run}"))


def latest(*names: str, advice: Finding) -> RunDir:
    """Return the run in ``paceline-runs`` in which one of some files was written last.

    Names may be patterns of ``glob``. Raises ``advice`` with another ``what`` if no run has one
    of them.
    """
    written = [
        (path.stat().st_mtime, folder / path.relative_to(folder).parts[0])
        for folder in files.run_folders()
        for name in names
        for path in folder.glob(f"*/{name}")
    ]
    if not written:
        raise SetupError(advice)
    return RunDir(max(written)[1])


def _about(finding: Finding, what: str) -> Finding:
    return Finding(finding.name, what, evidence=finding.evidence, fix=finding.fix)


_MOST_BYTES = 1 << 24


def find(run: str) -> RunDir:
    """Return the folder of a run: a run folder, or the name of one below ``paceline-runs``.

    Empty means the run there whose speed was written last. Raises SetupError if the folder does not
    exist, or no run has written its speed.
    """
    if run:
        return named(run, advice=_unreadable(""))
    what = "no run in paceline-runs has written its speed"
    return latest("speed.json", advice=_unreadable(what))


def read(run_dir: RunDir) -> dict[str, Any]:
    """Return the last description of a run's speed, and the figures that follow from it.

    ``findings`` has what most steps wait for, if it costs much (``monitor.bottleneck``).
    ``age_s`` is the age of the description in seconds, ``samples_per_s`` and ``tokens_per_s`` are
    rates of all ranks together, ``loop_left_s`` is the time to the end of the current training
    loop (None if it is unknown), and ``outcome`` is how the run ended: "" while it runs, else
    "succeeded", "failed", "unfinished" or "stopped".

    Raises SetupError if the run has written none, or the file is damaged.
    """
    try:
        description = files.read_json(run_dir.speed, most_bytes=_MOST_BYTES)
    except FileNotFoundError:
        what = f"{files.display_path(run_dir.root)} holds no speed.json"
        raise SetupError(_unreadable(what)) from None
    except (OSError, ValueError) as error:
        raise _damaged(run_dir, str(error)) from None
    if not isinstance(description, dict) or description.get("version") != files.SPEED_VERSION:
        raise _damaged(run_dir, f"it is not a description of version {files.SPEED_VERSION}")
    try:
        speed = with_rates(description, now_s=time.time(), script=_script(run_dir))
    except (KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise _damaged(run_dir, f"{type(error).__name__}: {error}") from None
    outcome = events.read_history(run_dir.root).outcome
    # A run that resumes in this folder leaves the end of the run before in the events.
    is_over = outcome is not None and outcome.time_ns * 1e-9 >= speed["time_s"] - 1
    return {**speed, "outcome": outcome.word if outcome is not None and is_over else ""}


def _script(run_dir: RunDir) -> str:
    """Return the script of a run with its arguments, to paste; empty if it is not a script."""
    training = identity.read(run_dir)
    if training is None or not training.script.endswith(".py"):
        return ""
    return shlex.join((training.script, *training.arguments))


def with_rates(description: Mapping[str, Any], *, now_s: float, script: str = "") -> dict[str, Any]:
    """Return a description, which the launcher wrote, and what follows from it. Pure.

    ``script`` has its arguments, to paste; empty if unknown.
    """
    batches_per_s = description["steps_per_s"] * description["batches_per_step"]
    return {
        **description,
        "age_s": max(0.0, now_s - description["time_s"]),
        "samples_per_s": description["samples_per_batch"] * batches_per_s,
        "tokens_per_s": description["tokens_per_batch"] * batches_per_s,
        "loop_left_s": _loop_left_s(description["ranks"][0], batches_per_s),
        "findings": [finding.to_json() for finding in _findings(description, script)],
    }


def _findings(description: Mapping[str, Any], script: str) -> list[Finding]:
    facts = RunFacts.of_ranks(description["ranks"], num_steps=description["steps"], script=script)
    hint = bottleneck.finding_of(description["step"], facts)
    of_ranks = bottleneck.hints_of_ranks(description["ranks"])
    return of_ranks if hint is None else [hint, *of_ranks]


def _loop_left_s(first: Mapping[str, Any], batches_per_s: float) -> float | None:
    """Return the seconds to the end of the current training loop; None if they are unknown."""
    num_left = first["loop_length"] - first["open_batches"]
    is_known = first["open_batches"] > 0 and num_left >= 0 and batches_per_s > 0
    return num_left / batches_per_s if is_known else None


def _damaged(run_dir: RunDir, error: str) -> SetupError:
    return SetupError(_unreadable(f"{files.display_path(run_dir.speed)} cannot be read", error))


def _unreadable(what: str, *evidence: str) -> Finding:
    written = "a launcher writes speed.json 5 s after its ranks have started, unless --no-probe"
    return Finding(
        "input-unreadable",
        what,
        evidence=(*evidence, written),
        fix="paceline top RUN, with the run folder that the launcher printed",
    )
