"""Starts of real commands, each in a folder of its own, and a look at which processes are left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from preloaded import MARK, ForkedProcess, PreloadedPython

BIN = Path(sys.executable).parent
# How loader workers are started; what is not the default takes long.
METHODS = [
    "fork",
    *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver")),
]
# Frameworks whose unmodified scripts are measured, and what must be installed where the name differs.
FRAMEWORKS = ("raw", "fabric", "lightning", "accelerate", "transformers")
NEEDS = {"raw": "torch", "fabric": "lightning"}
# Variables of these families decide how a run starts, so commands do not inherit them.
_NOT_INHERITED = ("PET_", "OMP_", "SLURM_")


@dataclass
class Ended:
    """A command that has ended: its status, what it printed, how long it took."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def block(self) -> str:
        """The final block, without the rule above it."""
        return self.err.rpartition("── paceline")[2]

    @property
    def run_dir(self) -> str:
        return re.findall(r"run folder (\S+)", self.err)[-1]


@dataclass
class Running:
    """A command that is running."""

    process: subprocess.Popen | ForkedProcess
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout: float = 50) -> Ended:
        out, err = self.process.communicate(timeout=timeout)
        return Ended(self.process.returncode, out, err, time.monotonic() - self.started)

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)


@dataclass
class Command:
    """Starts commands in one folder and remembers them."""

    folder: Path  # where they start
    mark: str  # a variable by which their processes are found
    # what scripts are forked from; None if all commands are new processes
    preloaded: PreloadedPython | None = None
    is_cold: bool = False  # only torchrun is forked, whose ranks are new processes all the same
    running: list[Running] = field(default_factory=list)

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def start(
        self,
        *args,
        program: str = "paceline",
        env: dict | None = None,
        stdin=None,
        cwd=None,
        stdout=subprocess.PIPE,
    ) -> Running:
        first = [str(BIN / program)] + (["run"] if program == "paceline" else [])
        words = [*first, *map(str, args)]
        environ = {**inherited(), MARK: self.mark, **(env or {})}
        streams = {"stdin": stdin or subprocess.DEVNULL, "stdout": stdout}
        script = self._script_of(words)
        if script and self.preloaded is not None and self.preloaded.fits(environ):
            process = self.preloaded.start(
                script, cwd=cwd or self.folder, environ=environ, **streams
            )
        else:
            process = subprocess.Popen(
                words,
                cwd=cwd or self.folder,
                env=environ,
                stderr=subprocess.PIPE,
                text=True,
                **streams,
            )
        self.running.append(Running(process))
        return self.running[-1]

    def _script_of(self, words: list[str]) -> list[str]:
        """Return the Python script that a command runs, with its arguments; empty if it is not forked."""
        if words[0] == str(BIN / "torchrun"):
            return words
        if self.is_cold:
            return []
        if words[0] == str(BIN / "paceline"):
            return words
        runs_python = words[0] in (str(BIN / "python"), sys.executable)
        return words[1:] if runs_python and words[1].endswith(".py") else []

    def run(self, *args, timeout: float = 50, **kwargs) -> Ended:
        return self.start(*args, **kwargs).wait(timeout)

    def survivors(self, within_s: float = 0.0) -> list[str]:
        """Processes that still carry this test's mark after ``within_s``, as text."""
        return survivors(self.mark, within_s)

    def wait_for(self, path: Path, timeout: float = 30) -> str:
        """Wait until a rank has written a file whole (it ends with a line feed)."""
        return wait_for(path, timeout)


def inherited() -> dict[str, str]:
    """Return the environment of tests, as far as commands inherit it."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
    }


def paceline(
    folder: Path, *words: object, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``paceline`` in a folder as a new process, after some words; it must succeed."""
    ended = started(folder, *words, before=before)
    assert ended.returncode == 0, ended.stderr
    return ended


def started(
    folder: Path, *words: object, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``paceline`` as above, however it ends."""
    return subprocess.run(
        [*before, str(BIN / "paceline"), *map(str, words)],
        cwd=folder,
        env=inherited(),
        capture_output=True,
        text=True,
        check=False,
    )


def survivors(mark: str, within_s: float = 0.0) -> list[str]:
    """Processes that still carry a mark after ``within_s``, as text."""
    deadline = time.monotonic() + within_s
    while True:
        found = marked(mark)
        if not found or time.monotonic() > deadline:
            return [f"{pid} {line}" for pid, line in found.items()]
        time.sleep(0.05)


def wait_for(path: Path, timeout: float = 30) -> str:
    """Wait until a file was written whole (it ends with a line feed), and return its text."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written within {timeout} s")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def marked(mark: str) -> dict[int, str]:
    """Living processes whose environment carries the mark."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            pass  # it ended, or is a zombie
    return found


@contextmanager
def commands(
    folder: Path, preloaded: PreloadedPython | None = None, *, is_cold: bool = False
) -> Iterator[Command]:
    """Start commands in a folder; at the end all are ended, and it is an error if one has left a process behind."""
    made = Command(folder, uuid.uuid4().hex, preloaded, is_cold)
    try:
        yield made
    finally:
        for running in made.running:
            running.process.kill()  # does nothing if it has ended
            running.process.wait()
        left = made.survivors(within_s=1.0)
        for line in left:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        for running in (
            made.running
        ):  # now, because whoever is left holds them open, and a reader would wait for that
            if running.process.stdout is not None:
                running.process.stdout.close()
            running.process.stderr.close()
    assert not left, f"processes were left behind: {left}"
