"""The input of all checks of a job script: its directives, its commands and launches, its lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paceline.diagnose.lint.job.allocation import AllocatedJob
from paceline.diagnose.lint.job.launches import PYTHON, Launch, Shape, processes, shape
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.diagnose.lint.job.shell.trace import CommandCall, Trace, TracedValue
from paceline.diagnose.lint.job.shell.tree import ShellScript
from paceline.diagnose.lint.job.shell.values import BATCH, Symbols
from paceline.diagnose.lint.program import Place, Program
from paceline.diagnose.lint.site import Site
from paceline.errors import Finding

_HOSTFILE = re.compile(r"(host|machine|node)s?_?(file|list_file)", re.I)
_LIGHTNING = re.compile(r"lightning|litgpt|\bpl\b|\bTrainer\([^)\n]*\b(devices|num_nodes)=", re.I)
_HIDES_SLURM = re.compile(
    r"(\bunset\b.*|-u\s*)\bSLURM_NTASKS\b|\bSLURM_JOB_NAME=[\"']?(bash|interactive)\b"
)
# Programs that are not a training run when a script runs them on its nodes.
_SMALL = names(
    "hostname echo nvidia-smi rocm-smi scontrol mkdir rm cp mv cat ls date sleep bash sh env"
    " printenv ip nslookup getent free df lscpu numactl test true tar rsync squeue dcgmi module"
    " which chmod touch"
)


@dataclass(frozen=True)
class Case:
    """A job script."""

    name: str  # the file's name in findings
    lines: list[str]  # its lines
    job: AllocatedJob  # the allocation that it requests
    script: ShellScript  # its syntax tree
    trace: Trace  # the commands that it runs and the variables that it sets
    launches: list[Launch]  # the training programs that it starts
    dos_line: int = 0  # first line that ends with a carriage return, 0 if none does
    # the configuration of the cluster, as far as it is known
    site: Site = field(default_factory=Site)
    # the expectations of the training scripts that could be read, by their paths in the launches
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
        """Return a finding at a line, with lines of the job and the program as evidence."""
        lines = sorted({*more, line})
        evidence = tuple(f"{at}: {self.text(at)}" for at in lines if self.text(at))
        if beside is not None:
            program, place = beside
            evidence += (f"{program.name}:{place.line}: {place.text}",)
        return Finding(
            name,
            what,
            where=self.place(line),
            evidence=evidence,
            why=why,
            fix=fix,
            severity=severity,
        )

    def line_of(self, launch: Launch, *texts: str) -> int:
        """Return the line that contains one of these texts of a launch: an option, a program.

        The lines of the command are searched first, then the whole script, for options that come
        from a variable.
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
        """Return the line of the last of these directives, or of the last directive at all."""
        directive = self.job.directives.last(*names)
        if directive:
            return directive.line
        active = self.job.directives.active
        return active[-1].line if active else 1

    def shape(self, launch: Launch) -> Shape:
        """Return how the step of a launch spreads over the nodes."""
        return shape(self.job, launch.call.step)

    def processes(self, launch: Launch) -> int | None:
        """Return the number of processes that one start of the launcher creates on a node."""
        return processes(launch, self.shape(launch), self.symbols)

    def has_cpus_of_all_tasks(self, launch: Launch) -> bool:
        """Return whether a launch runs in the batch shell, which has the CPUs of several tasks."""
        return launch.call.step is None and (self.job.ntasks or 1) > (self.job.nodes or 1)

    def program(self, launch: Launch) -> Program | None:
        """Return what the launch's training script expects, if the script could be read."""
        return self.programs.get(launch.program)

    def severity(self, launch: Launch) -> str:
        """Decide between ``error`` and ``warning``: for a launch that a condition may leave out."""
        return "warning" if launch.call.maybe and launch.call.place == BATCH else "error"

    def show(self, text: str) -> str:
        """Return a value as findings show it: symbols as they are written."""
        return self.symbols.show(text)

    @cached_property
    def training(self) -> list[Launch]:
        """The launches that are likely the training: by launchers, else in steps, else all."""
        # Preparation runs in plain Python beside a training with a launcher or in a step.
        # A Hydra driver with this argument submits the training as further jobs.
        here = [
            launch
            for launch in self.launches
            if not any(arg.text.startswith("hydra/launcher=submitit") for arg in launch.arguments)
        ]
        spawning = [launch for launch in here if launch.spawns]
        if spawning:
            return spawning
        return [launch for launch in here if launch.call.step is not None] or here

    @cached_property
    def spreads(self) -> bool:
        """Whether the script starts anything but small tools in a step."""
        return any(call.step is not None and not _small(call) for call in self.trace.calls)

    @cached_property
    def code(self) -> str:
        """The script without the lines that are comments."""
        return "\n".join(line for line in self.lines if not line.lstrip().startswith("#"))

    def code_before(self, line: int) -> list[str]:
        """Return the lines before a line, without comments."""
        return [text for text in self.lines[: line - 1] if not text.lstrip().startswith("#")]

    @cached_property
    def outer_lines(self) -> list[str]:
        """The lines of the script itself, without texts that it writes or submits."""
        return [line for at, line in enumerate(self.lines, 1) if at not in self.script.data_lines]

    @cached_property
    def names_hosts(self) -> bool:
        """Whether the script names a host file, by which a program starts itself on the nodes."""
        return bool(_HOSTFILE.search(self.code))

    @cached_property
    def names_lightning(self) -> bool:
        """Whether the script mentions Lightning, also in comments."""
        return bool(_LIGHTNING.search("\n".join(self.lines)))

    @cached_property
    def hides_slurm(self) -> bool:
        """Whether Lightning is kept from detecting Slurm, and so from taking tasks for ranks."""
        name = self.job.directives.last("job-name")
        return bool(_HIDES_SLURM.search(self.code)) or (
            # Lightning takes a job of this name for an interactive one, without ranks from Slurm.
            name is not None and name.value in ("bash", "interactive")
        )

    @cached_property
    def shares_gpus(self) -> bool:
        """Whether processes may share a GPU on purpose."""
        return self.job.shared_gpus or any(
            "nvidia-cuda-mps" in call.name for call in self.trace.calls
        )

    def exported(self, name: str) -> TracedValue | None:
        """Return the last setting of an exported variable."""
        settings = [s for s in self.trace.settings if s.name == name and s.exported]
        return settings[-1] if settings else None

    def assigned(self, name: str) -> TracedValue | None:
        """Return the last setting of a variable."""
        settings = [setting for setting in self.trace.settings if setting.name == name]
        return settings[-1] if settings else None


def _small(call: CommandCall) -> bool:
    if call.name in _SMALL:
        return True
    return (
        call.name.startswith(PYTHON)
        and len(call.args) > 1
        and call.args[1].text in ("-c", "-V", "--version")
    )
