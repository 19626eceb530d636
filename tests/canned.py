"""Commands on PATH that give the answers they were told to, one after the other, and note what they were asked."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_PROGRAM = """#!/bin/bash
cd {folder}
echo "{name} $*" >> calls
count=$(cat {name}.count 2> /dev/null || echo 0)
echo $((count + 1)) > {name}.count
while [ $count -gt 0 ] && [ ! -e {name}.$count ]; do count=$((count - 1)); done
. ./{name}.$count
"""


class Canned:
    """A folder of commands."""

    def __init__(
        self,
        folder: Path,  # to be put first into PATH
    ) -> None:
        self.folder = folder

    def answers(self, name: str, *texts: str) -> None:
        """Let a command print these texts, a call each; the last one is printed from then on."""
        self.does(name, *(f"printf %s {shlex.quote(text)}" for text in texts))

    def fails(self, name: str, text: str, status: int = 1) -> None:
        """Let a command fail with a text on stderr."""
        self.does(name, f"echo {shlex.quote(text)} >&2; exit {status}")

    def does(self, name: str, *scripts: str) -> None:
        """Let a command be these lines of bash, a call each."""
        for old in self.folder.glob(f"{name}.*"):
            old.unlink()
        for number, script in enumerate(scripts):
            (self.folder / f"{name}.{number}").write_text(script + "\n")
        program = self.folder / name
        program.write_text(_PROGRAM.format(folder=shlex.quote(str(self.folder)), name=name))
        program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        """What was asked, in order."""
        noted = self.folder / "calls"
        return noted.read_text().splitlines() if noted.exists() else []


SLURM = ("sbatch", "squeue", "sinfo", "scontrol", "sacct", "scancel")


def slurm(folder: Path, monkeypatch) -> Canned:
    """Return Slurm's commands, of which none answers until it is told what, whatever this machine has."""
    folder.mkdir()
    canned = Canned(folder)
    for name in SLURM:
        canned.fails(name, f"{name}: error: Unable to contact slurm controller (connect failure)")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return canned
