"""One job script as all checks see it: what it asks for, what it starts, where everything stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paceline.diagnose.lint.job.allocation import Job
from paceline.diagnose.lint.job.launches import PYTHON, Launch, Shape, processes, shape
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.diagnose.lint.job.story import Call, Setting, Trace
from paceline.diagnose.lint.job.tree import Script
from paceline.diagnose.lint.job.values import BATCH, Symbols
from paceline.diagnose.lint.program import Place, Program
from paceline.diagnose.lint.site import Site
from paceline.errors import Finding

_HOSTFILE = re.compile(r"(host|machine|node)s?_?(file|list_file)", re.I)
_LIGHTNING = re.compile(r"lightning|litgpt|\bpl\b|\bTrainer\([^)\n]*\b(devices|num_nodes)=", re.I)
_HIDES_SLURM = re.compile(r"(\bunset\b.*|-u\s*)\bSLURM_NTASKS\b|\bSLURM_JOB_NAME=[\"']?(bash|interactive)\b")
# Programs that a script runs on its nodes without training there.
_SMALL = names(
    "hostname echo nvidia-smi rocm-smi scontrol mkdir rm cp mv cat ls date sleep bash sh env printenv ip nslookup"
    " getent free df lscpu numactl test true tar rsync squeue dcgmi module which chmod touch"
)


@dataclass(frozen=True)
class Case:
    """A job script.

    Attributes:
        name: The file's name as it is shown.
        lines: Its lines.
        job: What it asks for.
        script: Its tree.
        trace: What it does.
        launches: What it starts.
        dos_line: First line that ends as on Windows, 0 if none does.
        site: What is known of the cluster.
        programs: The training scripts that it starts and that could be read, by what its launches call them.
    """

    name: str
    lines: list[str]
    job: Job
    script: Script
    trace: Trace
    launches: list[Launch]
    dos_line: int = 0
    site: Site = field(default_factory=Site)
    programs: Mapping[str, Program] = field(default_factory=dict)

    @property
    def symbols(self) -> Symbols:
        """The symbols of all values."""
        return self.trace.symbols

    def place(self, line: int) -> str:
        """Return ``file:line``."""
        return f"{self.name}:{max(line, 1)}"

    def text(self, line: int) -> str:
        """Return a line of the script, without blanks around it."""
        return self.lines[line - 1].strip()[:200] if 0 < line <= len(self.lines) else ""

    def finding(
        self,
        name: str,
        what: str,
        *,
        line: int,
        why: str = "",
        fix: str = "",
        severity: str = "error",
        more: Iterable[int] = (),
        beside: tuple[Program, Place] | None = None,
    ) -> Finding:
        """Return a finding at a line, with that line, others and a line of the program as evidence."""
        lines = sorted({*more, line})
        evidence = tuple(f"{at}: {self.text(at)}" for at in lines if self.text(at))
        if beside is not None:
            program, place = beside
            evidence += (f"{program.name}:{place.line}: {place.text}",)
        return Finding(name, what, where=self.place(line), evidence=evidence, why=why, fix=fix, severity=severity)

    def line_of(self, launch: Launch, *texts: str) -> int:
        """Return the line on which one of these texts stands for a launch: an option, a program.

        The lines of the command come first; an option that comes from a variable is looked for in the whole script.
        """
        call = launch.call
        spans = [range(call.line, call.end_line + 1), range(1, len(self.lines) + 1)]
        for span in spans:
            for text in texts:
                for at in span:
                    line = self.text(at)
                    if text in line and not line.startswith("#"):
                        return at
        return call.line

    def directive_line(self, *names: str) -> int:
        """Return the line of a directive, of the last directive if none of these is there, or 1."""
        directive = self.job.directives.last(*names)
        if directive:
            return directive.line
        active = self.job.directives.active
        return active[-1].line if active else 1

    def shape(self, launch: Launch) -> Shape:
        """Return how the launch's step spreads."""
        return shape(self.job, launch.call.step)

    def processes(self, launch: Launch) -> int | None:
        """Return the processes that one start of the launcher makes on a node."""
        return processes(launch, self.shape(launch), self.symbols)

    def program(self, launch: Launch) -> Program | None:
        """Return what the launch's training script expects, if the script could be read."""
        return self.programs.get(launch.program)

    def severity(self, launch: Launch) -> str:
        """Return ``error``, or ``warning`` for what the batch script starts only under some condition."""
        return "warning" if launch.call.maybe and launch.call.place == BATCH else "error"

    def show(self, text: str) -> str:
        """Return a value for people."""
        return self.symbols.show(text)

    @cached_property
    def training(self) -> list[Launch]:
        """The launches that are likely the training: those of launchers, or else all programs."""
        here = [launch for launch in self.launches if not _submits(launch)]
        spawning = [launch for launch in here if launch.spawns]
        if spawning:
            return spawning
        return [launch for launch in here if launch.call.step is not None] or here

    @cached_property
    def spreads(self) -> bool:
        """Whether the script starts anything worth mentioning on all its nodes."""
        return any(call.step is not None and not _small(call) for call in self.trace.calls)

    @cached_property
    def code(self) -> str:
        """The script without the lines that are comments."""
        return "\n".join(line for line in self.lines if not line.lstrip().startswith("#"))

    @cached_property
    def outer_lines(self) -> list[str]:
        """The lines of the script itself, without the texts that it writes or submits."""
        return [line for at, line in enumerate(self.lines, 1) if at not in self.script.data_lines]

    @cached_property
    def names_hosts(self) -> bool:
        """Whether the script names a file of hosts: a program that reads one goes to the nodes by itself."""
        return bool(_HOSTFILE.search(self.code))

    @cached_property
    def names_lightning(self) -> bool:
        """Whether the script, its comments included, speaks of Lightning."""
        return bool(_LIGHTNING.search("\n".join(self.lines)))

    @cached_property
    def hides_slurm(self) -> bool:
        """Whether Lightning is kept from taking the job's tasks for its ranks."""
        name = self.job.directives.last("job-name")
        return bool(_HIDES_SLURM.search(self.code)) or (name is not None and name.value in ("bash", "interactive"))

    @cached_property
    def shares_gpus(self) -> bool:
        """Whether processes may share a GPU on purpose."""
        return self.job.shared_gpus or any("nvidia-cuda-mps" in call.name for call in self.trace.calls)

    def exported(self, name: str) -> Setting | None:
        """Return the last setting of a variable that programs see."""
        settings = [s for s in self.trace.settings if s.name == name and s.exported]
        return settings[-1] if settings else None

    def assigned(self, name: str) -> Setting | None:
        """Return the last setting of a variable."""
        settings = [setting for setting in self.trace.settings if setting.name == name]
        return settings[-1] if settings else None


def _submits(launch: Launch) -> bool:
    """Whether the program is a driver of Hydra's that submits the training as jobs of its own."""
    return any(arg.text.startswith("hydra/launcher=submitit") for arg in launch.arguments)


def _small(call: Call) -> bool:
    if call.name in _SMALL:
        return True
    return call.name.startswith(PYTHON) and len(call.args) > 1 and call.args[1].text in ("-c", "-V", "--version")
