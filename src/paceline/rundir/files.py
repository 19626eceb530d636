"""The run folder: the name of every file in it, and how to read what anybody may have written.

``launch.run.node`` writes the plan, ``launch.run.ranks`` the logs, ``train.checkpoint`` the
checkpoints. Reports read everything that they show from here. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
import time
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from paceline.errors import SetupError
from paceline.rundir import owned
from paceline.text.quoting import word

SECRET_MODE = 0o600  # of files that have, or may have, secrets: job scripts, arguments of functions
_SECRET_BYTES = 4096
SPEED_VERSION = 1  # of speed.json and of the lines of speed.jsonl
# Whether a path in a run folder is one below, but of no metrics and checkpoints.
is_run_file = re.compile(
    r"(\d+/)?"  # of an element of a sweep
    r"(|(logs|ranks)/|slurm\.out@?|(local|queue)\.out|cancelled|lease\.next|job\.sh|speed\.jsonl"
    r"|(plan(\.attempt-\d+)?|speed|timed_steps|trackers|training|lease|job|sweep|local|queue)\.json"
    r"|events(\.node-\d+)?\.jsonl|(function|arguments|result)\.pkl|\.[\w.-]+[.-][0-9a-f]{16}"
    r"|logs/((rank|launcher)-\d+|filtered_std(out|err)|nccl-ras)(\.attempt-\d+)?"
    r"\.(out|nccl|log|txt)"
    r"|ranks/rank-\d+(\.attempt-\d+)?"
    r"\.((error|parameters|trial)\.json|(observed|values)\.jsonl|crash|stacks|exception\.pkl))"
).fullmatch
whole, write_whole = owned.whole, owned.write_whole
MOST_BYTES = 1 << 26  # to read of a file that is long in a large run
_LEAST_BYTES = 65536  # space for a plan, short logs and the last events
# Not "runs": scripts use that name, as TensorBoard's writer does by default.
RUNS = Path("paceline-runs")
EARLIER_RUNS = Path("runs")  # until paceline 0.1; still searched
# In the folder of a checkpoint; written last, so it proves that the other files are complete.
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class RunDir:
    """Names of the files of one run."""

    root: Path  # the folder, ``paceline-runs/<id>`` by default

    def plan(self, attempt: int = 0) -> Path:
        """The decisions before a start, with reasons (JSON); numbered by its first attempt."""
        return self.root / f"plan{_attempt(attempt)}.json"

    def events(self, node_rank: int) -> Path:
        """Events of one node's launcher (JSON lines); a file each, as appends on a shared folder
        can mix.
        """
        node = f".node-{node_rank:03d}" if node_rank else ""
        return self.root / f"events{node}.jsonl"

    def log(self, rank: int, attempt: int = 0) -> Path:
        """Everything that a rank wrote to stdout and stderr."""
        return self.root / "logs" / f"rank-{rank:03d}{_attempt(attempt)}.out"

    def launcher_log(self, node_rank: int, attempt: int = 0) -> Path:
        """Output of libraries inside a node's launcher; numbered by the first attempt of its
        start.
        """
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
        """Python stacks of a rank that its launcher has requested."""
        return self.root / "ranks" / f"rank-{rank:03d}{_attempt(attempt)}.stacks"

    def parameters(self, rank: int, attempt: int = 0) -> Path:
        """Fingerprints of a rank's parameters at the last checks (JSON)."""
        return self.root / "ranks" / f"rank-{rank:03d}{_attempt(attempt)}.parameters.json"

    def trial(self, rank: int) -> Path:
        """Losses and sizes that a rank of a trial has written at its end (JSON)."""
        return self.root / "ranks" / f"rank-{rank:03d}.trial.json"

    def observed(self, rank: int) -> Path:
        """What ``paceline verify`` compares of a rank (a JSON object a line)."""
        return self.root / "ranks" / f"rank-{rank:03d}.observed.jsonl"

    def values(self, rank: int) -> Path:
        """Sums of a rank's values in its first steps, for ``paceline verify`` (likewise)."""
        return self.root / "ranks" / f"rank-{rank:03d}.values.jsonl"

    def nccl(self, rank: int, attempt: int = 0) -> Path:
        """NCCL's log, with ``--nccl-debug``."""
        return self.root / "logs" / f"rank-{rank:03d}{_attempt(attempt)}.nccl"

    @property
    def nccl_ras(self) -> Path:
        """NCCL's report on its communicators when the ranks hung."""
        return self.root / "logs" / "nccl-ras.txt"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, a folder each; one whose name begins with a dot was not committed."""
        return self.root / "checkpoints"

    @property
    def keep(self) -> Path:
        """A file by which the user keeps the folder, of a run or a checkpoint."""
        return self.root / "keep"

    @property
    def metrics(self) -> Path:
        """Metrics that the script logged (CSV)."""
        return self.root / "metrics.csv"

    @property
    def speed(self) -> Path:
        """The speed of the running attempt, with every rank (JSON); written again and again."""
        return self.root / "speed.json"

    @property
    def speed_log(self) -> Path:
        """The speed over time, without ranks (a JSON object a line)."""
        return self.root / "speed.jsonl"

    @property
    def timed_steps(self) -> Path:
        """The durations of stages of all steps of a trial (JSON)."""
        return self.root / "timed_steps.json"

    @property
    def bench(self) -> Path:
        """The result of ``paceline bench`` (JSON)."""
        return self.root / "bench.json"

    @property
    def forecast(self) -> Path:
        """The result of ``paceline forecast`` (JSON)."""
        return self.root / "forecast.json"

    @property
    def tensorboard(self) -> Path:
        """Metrics that the script logged (TensorBoard)."""
        return self.root / "tensorboard"

    @property
    def trackers(self) -> Path:
        """Names of the run in experiment trackers (JSON): wandb, mlflow, trackio."""
        return self.root / "trackers.json"

    @property
    def training(self) -> Path:
        """Identity of the training run (JSON): script, arguments, array element."""
        return self.root / "training.json"

    @property
    def lease(self) -> Path:
        """The living run that owns the folder (JSON)."""
        return self.root / "lease.json"

    @property
    def job_script(self) -> Path:
        """The script that ``paceline submit`` passed to sbatch."""
        return self.root / "job.sh"

    @property
    def job(self) -> Path:
        """The run's Slurm job (JSON): its id, its name, how often it was queued again."""
        return self.root / "job.json"

    @property
    def sweep(self) -> Path:
        """The elements of a sweep and their values (JSON); its run folders are below this one."""
        return self.root / "sweep.json"

    @property
    def job_output(self) -> Path:
        """Output of the job: the console of its launchers."""
        return self.root / "slurm.out"

    def next_attempt(self) -> int:
        """Return the first unused attempt number: a run that resumes in this folder continues the
        numbering.

        So the files of an earlier start are neither overwritten nor mistaken for those of a later
        one.
        """
        names = [
            path.name
            for pattern in ("plan*", "logs/*", "ranks/*")
            for path in self.root.glob(pattern)
        ]
        matches = [
            re.match(r"(?:rank-\d+|launcher-\d+|plan)(?:\.attempt-(\d+))?\.", name)
            for name in names
        ]
        return max((int(match[1] or 0) + 1 for match in matches if match), default=0)

    def create(self, *, new: bool = False) -> None:
        """Create the folders.

        A ``new`` folder must not exist yet, so that only one of two runs gets the same name. Raises
        FileExistsError if it does, OSError if the folder cannot be created or written.
        """
        if new:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.root.mkdir()
        for folder in (self.root / "logs", self.root / "ranks"):
            folder.mkdir(parents=True, exist_ok=True)
        require_space(self.root)


def discard(root: Path) -> None:
    """Delete the run folder of a job or a sweep, unless it holds any other file than theirs."""
    with contextlib.suppress(OSError):
        owned.delete_folder(root, is_run_file)


def require_space(folder: Path) -> None:
    """Create a folder, and check that a file with some content can be written there.

    Raises OSError if the folder cannot be created or written, or its disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        num_written = file.write(b"\0" * _LEAST_BYTES)
        if num_written < _LEAST_BYTES:  # on an almost full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def display_path(path: Path) -> str:
    """Return a path for messages: relative to the working directory if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _attempt(attempt: int) -> str:
    return f".attempt-{attempt}" if attempt else ""


def new_run_id(script: str, *, now_s: float, salt: str, job: str = "") -> str:
    """Return an id that sorts by time and names script and job:
    ``20261120-233309-digits-job-4711-3f2a``.

    ``script`` may be the name of a function, ``job`` is ``4711`` or ``4711_2`` for an array
    element, empty outside of Slurm. ``salt`` makes ids of the same second differ.
    """
    start = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    words = (start, script_stem(script), f"job-{job}" if job else "", salt[:4])
    return "-".join(filter(None, words))


def script_stem(script: str) -> str:
    """Return the name of a script as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"


def run_folders() -> list[Path]:
    """Return the existing default folders of runs, the current one first."""
    return [folder for folder in (RUNS, EARLIER_RUNS) if folder.is_dir()]


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading: a FIFO would wait for a writer, and a device may have no
    end.

    Raises OSError if the file cannot be opened, or is not a regular file.
    """
    # The kind comes first: some devices act when they are opened.
    if stat.S_ISREG(os.stat(path).st_mode):
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def not_permitted(
    error: PermissionError, *, name: str = "input-unreadable", what: str = "a file cannot be read"
) -> SetupError:
    """Return the error for a file that the system keeps from this user, such as another's."""
    path = str(error.filename)
    fix = f"ask its owner: ls -ld {word(path)} {word(os.path.dirname(path) or '.')}"
    return SetupError.of(name, f"{what}: {error.strerror}", where=path, fix=fix)


def read_json(path: Path, *, most_bytes: int = 1 << 20) -> Any:
    """Return the JSON content of a file of a run folder, which is not trusted.

    Raises OSError if the file cannot be read; ValueError if the content is not JSON, longer than
    ``most_bytes``, or nested too deeply.
    """
    content = read_bytes(path, most_bytes=most_bytes)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_bytes(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of a file that anybody may have written.

    Raises OSError if the file cannot be read; ValueError if the file is longer than ``most_bytes``.
    """
    with open_file(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes")
    return content


def read_text(path: Path) -> str:
    """Return the start of a text that anybody may have written; raise OSError if it cannot be
    read.
    """
    with open_file(path) as file:
        return file.read(MOST_BYTES).decode("utf-8", errors="replace")


def write_secret(path: Path, text: str) -> None:
    """Write a new file that only this user can read.

    Raises OSError if the file exists, or cannot be written.
    """
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, SECRET_MODE)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: Path) -> str:
    """Return the content of a file that only this user can read.

    Raises PermissionError if the file belongs to another user, or others may read or write it;
    OSError if the file cannot be read.
    """
    with path.open(encoding="utf-8") as file:
        attributes = os.fstat(file.fileno())
        is_ours = attributes.st_uid == os.getuid()
        if not is_ours or stat.S_IMODE(attributes.st_mode) & 0o077:
            raise PermissionError(errno.EPERM, "others may read or write it", str(path))
        return file.read(_SECRET_BYTES)
