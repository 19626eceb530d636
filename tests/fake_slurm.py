"""Slurm's commands as programs on PATH that answer from files in a folder.

``FakeSlurm(folder)`` writes them to ``folder/bin``. What ``folder/answers/NAME`` holds, the command NAME prints; with
``NAME.status`` beside it, it ends with that status, and prints ``NAME.err`` to stderr. An answer to some words only is
in ``NAME WORD WORD`` and is used where all these words are among the command's; the longest such name counts. Every
call is noted in ``folder/calls``, one JSON list of its words a line. A command without an answer fails, as one does
that finds no controller.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "sinfo", "scontrol", "sacctmgr", "sacct", "scancel", "srun")

_PROGRAM = """#!{python} -S
import json, os, sys
folder = {folder!r}
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.path.join(folder, "calls"), "a") as file:
    file.write(json.dumps([name, *words]) + "\\n")
with open(os.path.join(folder, "environ." + name), "w") as file:
    json.dump(dict(os.environ), file)
answers = os.path.join(folder, "answers")
fitting = [
    each for each in os.listdir(answers)
    if each.split(" ")[0] == name and all(word in words for word in each.split(" ")[1:])
]
if not fitting:
    sys.stderr.write(name + ": error: Unable to contact slurm controller (connect failure)\\n")
    sys.exit(1)
best = os.path.join(answers, max(fitting, key=len))
def read(suffix):
    path = best + suffix
    return open(path).read() if os.path.exists(path) else ""
sys.stdout.write(read(""))
sys.stderr.write(read(".err"))
sys.exit(int(read(".status") or 0))
"""


@dataclass
class FakeSlurm:
    """A folder of commands and their answers."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "answers").mkdir()

    def answer(self, command: str, text: str = "", *, status: int = 0, err: str = "") -> None:
        """Let a command, ``squeue`` or ``scontrol show job``, print a text from now on."""
        name = command.split(" ", maxsplit=1)[0]
        program = self.folder / "bin" / name
        if not program.exists():
            program.write_text(_PROGRAM.format(python=sys.executable, folder=str(self.folder)))
            program.chmod(0o755)
        path = self.folder / "answers" / command
        path.write_text(text)
        for suffix, value in ((".status", str(status)), (".err", err)):
            path.with_name(path.name + suffix).write_text(value)

    def silence(self, name: str) -> None:
        """Let a command fail, as it does without a controller."""
        self.answer(name)
        for path in (self.folder / "answers").iterdir():
            if path.name.split(" ")[0].split(".")[0] == name:
                path.unlink()

    def calls(self, name: str = "") -> list[list[str]]:
        """Return the calls so far, of one command or of all, each as its words."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if not name or call[0] == name]

    def environ_of(self, name: str) -> dict[str, str]:
        """Return the environment of the last call of a command."""
        return json.loads((self.folder / f"environ.{name}").read_text())

    @property
    def path(self) -> str:
        """``PATH`` with these commands first; without any that a machine may have of its own where none is faked."""
        rest = os.environ["PATH"].split(os.pathsep)
        return os.pathsep.join([str(self.folder / "bin"), *rest])


PARTITIONS = """\
PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL Default=YES MaxNodes=UNLIMITED MaxTime=2-00:00:00 State=UP
PartitionName=short AllowGroups=ALL AllowAccounts=ALL Default=NO MaxNodes=2 MaxTime=01:00:00 State=UP
PartitionName=cpu AllowGroups=ALL AllowAccounts=biology,physics Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP
PartitionName=big AllowGroups=ALL AllowAccounts=ALL DenyAccounts=biology Default=NO MaxTime=5-00:00:00 State=UP
"""
NODES = """\
gpu|4|64|256000|gpu:a100:4(S:0-1)
gpu|2|128|512000|gpu:h100:8(S:0-1),nvme:1
short|4|64|256000|gpu:a100:4(S:0-1)
cpu|10|64|128000|(null)
big|16|128|1024000|gpu:h100:8|2
"""


def cluster(folder: Path) -> FakeSlurm:
    """A cluster with four partitions, which takes every job under the number 12."""
    fake = FakeSlurm(folder)
    fake.answer("scontrol show partition", PARTITIONS)
    fake.answer("sinfo", NODES)
    fake.answer("sacctmgr", "physics|\nbiology|\n")
    fake.answer("sbatch", "12\n")
    fake.answer("squeue", "")
    return fake
