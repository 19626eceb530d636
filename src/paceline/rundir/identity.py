"""Identify the training run that a folder belongs to: its record, the folder's default name, and
what differs between two training runs.

The name of a default folder is made of script, arguments, array element and number of the Session
in the process, so that two training runs share a folder only on request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import Finding
from paceline.rundir import owned
from paceline.rundir.files import EARLIER_RUNS, RUNS, RunDir, read_json, read_text, script_stem
from paceline.text.secret_texts import HIDDEN, hidden

VERSION = 1
# A number of five digits that equals the job's id is that id; a shorter one may be a batch size.
_SURE_DIGITS = 5
# Flags that request a resume: `train.py --resume` is the same training run as `train.py`.
_CONTINUES = re.compile(
    r"--?(auto[-_]?)?(resume|restore|continue)([-_]training)?(=(1|yes|true|auto|latest|last))?$",
    re.I,
)
_CONTINUES_FROM = re.compile(r"(1|yes|true|auto|latest|last)$", re.I)
_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher")


@dataclass(frozen=True)
class Training:
    """The identity of a training run."""

    script: str  # the script, relative to the working folder
    # its arguments, without the job's id, flags that request a resume, and secrets
    arguments: tuple[str, ...] = ()
    array_job: str = ""  # the Slurm array of which it is an element; empty if there is none
    array_task: str = ""  # the element
    session: int = 1  # number of the Session in its process, from 1
    job: str = ""  # the last Slurm job of the training run. It is not part of the identity.
    # checksum of script and arguments with their secrets, so that these belong to the identity
    # though nobody reads them here
    digest: str = ""

    @property
    def line(self) -> str:
        """The script and its arguments, for messages."""
        return " ".join((self.script, *self.arguments))

    @property
    def element(self) -> str:
        """The array element, for messages; empty if there is none."""
        return f"element {self.array_task} of array {self.array_job}" if self.array_task else ""

    @property
    def is_plain(self) -> bool:
        """Whether the script's name alone identifies the training run."""
        is_first = not self.array_task and self.session == 1
        return is_first and not self.arguments and os.sep not in self.script

    def same_as(self, other: Training) -> bool:
        """Whether this is the same training run, perhaps under another job."""
        return _key(self) == _key(other)


def _key(training: Training) -> tuple[object, ...]:
    return (
        training.script,
        training.digest,
        training.array_job,
        training.array_task,
        training.session,
    )


def of_command(
    script: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    folder: str,
    session: int = 1,
) -> Training:
    """Return the training run that a command starts. Pure."""
    job = environ.get(env.JOB_ID, "")
    array_task = environ.get(env.ARRAY_TASK_ID, "") if job else ""
    array_job = environ.get(env.ARRAY_JOB_ID, "") if array_task else ""
    if Path(script).stem in _NOTEBOOKS:
        arguments = ()  # a file name that the notebook server creates for each kernel
    if os.path.isabs(script):
        script = os.path.relpath(script, folder)
    return _without_secrets(
        Training(
            script=os.path.normpath(script or "session"),
            arguments=tuple(meaningful(arguments, [job, array_job])),
            array_job=array_job,
            array_task=array_task,
            session=session,
            job=job,
        )
    )


def _without_secrets(training: Training) -> Training:
    """Return a training run whose arguments may be shown, with the digest of all of them."""
    content = json.dumps([training.script, training.arguments])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return replace(training, arguments=hidden(training.arguments), digest=digest)


def working_folder() -> str:
    """Return the working folder; the root if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return os.sep


def meaningful(arguments: Sequence[str], job_ids: Sequence[str]) -> list[str]:
    """Return arguments without those that differ between starts of one training run: job ids,
    resume flags. Pure.
    """
    remaining: list[str] = []
    was_flag = False
    for word in arguments:
        is_flag = bool(_CONTINUES.match(word))
        is_its_value = was_flag and bool(_CONTINUES_FROM.match(word))
        was_flag = is_flag and "=" not in word
        if not is_flag and not is_its_value:
            remaining.append(_without_job(word, job_ids))
    return remaining


def _without_job(word: str, job_ids: Sequence[str]) -> str:
    for job_id in filter(None, job_ids):
        if len(job_id) < _SURE_DIGITS and re.fullmatch(r"(-[^=]*=)?\d+", word):
            continue
        word = re.sub(rf"(?<![\d.]){job_id}(?![\d.])", "JOB", word)
    return word


def default_folder(training: Training) -> Path:
    """Return the default run folder of a training run. Pure."""
    name = script_stem(training.script) if training.script.strip("-c") else "session"
    if training.arguments or os.sep in training.script:
        words = re.sub(r"[^A-Za-z0-9._=+]+", "-", "-".join(training.arguments))
        words = words.strip("-.")[:32].strip("-.")
        name = "-".join(filter(None, (name, words, training.digest)))
    if training.array_task:
        name += f"-array-{training.array_job}_{training.array_task}"
    return RUNS / (name + of_session(training.session))


def of_session(number: int) -> str:
    """Return the suffix of a folder's name; empty for the first Session of a process."""
    return f"-session-{number}" if number > 1 else ""


def choose_folder(training: Training) -> Path:
    """Return the default run folder of a training run, or the folder that an earlier version
    created for it.
    """
    folder = default_folder(training)
    if training.is_plain and not folder.exists():
        earlier = EARLIER_RUNS / folder.name
        owner = read(RunDir(earlier))
        if has_checkpoints(earlier) and (owner is None or owner.same_as(training)):
            return earlier
    if HIDDEN in " ".join(training.arguments) and not folder.exists():
        # an earlier version had the secrets in the names of folders
        end = folder.name.rpartition(training.digest)[2]
        alike = folder.parent.glob(f"*-{training.digest}{end}")
        return next((path for path in alike if _belongs_to(path, training)), folder)
    return folder


def _belongs_to(folder: Path, training: Training) -> bool:
    owner = read(RunDir(folder))
    return owner is not None and owner.same_as(training)


def has_checkpoints(folder: Path) -> bool:
    """Return whether checkpoints were committed in a run folder."""
    try:
        return any(RunDir(folder).checkpoints.glob("[0-9]*"))
    except OSError:
        return False


def differences(recorded: Training, mine: Training) -> list[str]:
    """Return a line for each difference between a folder's training run and this one. Pure."""
    lines = []
    if recorded.script != mine.script:
        lines.append(f"script {recorded.script}, now {mine.script}")
    if recorded.arguments != mine.arguments:
        before, now = _without_common(recorded.arguments, mine.arguments)
        lines.append(f"arguments {before or 'without'}, now {now or 'without'}")
    elif recorded.digest != mine.digest and recorded.script == mine.script:
        lines.append("the value of a secret argument")
    if (recorded.array_job, recorded.array_task) != (mine.array_job, mine.array_task):
        lines.append(f"{recorded.element or 'no array'}, now {mine.element or 'no array'}")
    return lines


def _without_common(before: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """Return the words that differ, each option together with its value."""
    first, second = _options(before), _options(now)
    return (
        " ".join(option for option in first if option not in second),
        " ".join(option for option in second if option not in first),
    )


def _options(words: Sequence[str]) -> list[str]:
    options: list[str] = []
    for word in words:
        last = options[-1] if options else ""
        takes_value = last.startswith("-") and " " not in last and "=" not in last
        is_flag = word.startswith("-") and not re.match(r"-[\d.]", word)
        if takes_value and not is_flag:
            options[-1] += f" {word}"
        else:
            options.append(word)
    return options


def conflict(folder: Path, recorded: Training | None, mine: Training) -> Finding | None:
    """Return why a training run must not use the folder that the user chose; None if it may. Pure.

    Changed arguments are not a conflict: a user who chooses a folder wants to continue there.
    """
    if recorded is None or not recorded.array_task or not mine.array_task:
        return None
    if recorded.array_task == mine.array_task:
        return None
    return Finding(
        "run-folder-of-other-training",
        f"{folder} belongs to {recorded.element}, this is {mine.element}",
        where=str(folder),
        evidence=(f"recorded in {RunDir(folder).training}: {recorded.line}",),
        why="this element would load the other one's model and overwrite its checkpoints",
        fix=(
            "a folder for each element, $SLURM_ARRAY_TASK_ID in its name; or none, each element"
            " then has its own"
        ),
    )


def siblings(training: Training) -> list[tuple[Path, Training | None]]:
    """Return other folders of the same script that have checkpoints, the most similar and newest
    first.
    """
    stem = default_folder(Training(training.script)).name.partition("-")[0]
    folders = []
    for runs in (RUNS, EARLIER_RUNS):
        for path in sorted(runs.glob(f"{stem}*")):
            owner = read(RunDir(path))
            if _is_sibling(path, owner, training) and has_checkpoints(path):
                folders.append((path, owner))
    return sorted(folders, key=lambda entry: _distance(entry[0], entry[1], training))


def _is_sibling(path: Path, owner: Training | None, mine: Training) -> bool:
    if owner is None:
        return path.parent == EARLIER_RUNS and path.name == script_stem(mine.script)
    if owner.script != mine.script or owner.session != mine.session or owner.same_as(mine):
        return False
    same_array = owner.array_job == mine.array_job and bool(mine.array_job)
    return not same_array and owner.array_task in ("", mine.array_task)


def _distance(path: Path, owner: Training | None, mine: Training) -> tuple[int, float]:
    num_different = len(set(owner.arguments) ^ set(mine.arguments)) if owner else 1000
    try:
        return num_different, -path.stat().st_mtime
    except OSError:
        return num_different, 0.0


def read(run_dir: RunDir) -> Training | None:
    """Return the training run that a folder belongs to, None if that was not recorded."""
    try:
        values: dict[str, Any] = read_json(run_dir.training)
        names = Training.__dataclass_fields__
        fields = {name: value for name, value in values.items() if name in names}
        training = Training(**{**fields, "arguments": tuple(fields["arguments"])})
        # one of an earlier version has its secrets
        return training if training.digest else _without_secrets(training)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def record(run_dir: RunDir, training: Training) -> None:
    """Record the training run that a folder belongs to. A folder that cannot be written must not
    end it.
    """
    text = json.dumps({"version": VERSION, **asdict(training)}, indent=1) + "\n"
    with contextlib.suppress(OSError):
        if not run_dir.training.exists() or read_text(run_dir.training) != text:
            owned.write_whole(run_dir.training, text)
