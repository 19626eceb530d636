"""Find mistakes in job scripts and training scripts without running them (``paceline lint``).

files     read the files to check, and decide whether each is Python, a job script or neither
ignore    suppress findings by comments in the checked file: ``# paceline: ignore NAME[,
          NAME]``
job       check sbatch job scripts for any launcher, without running them
program   the expectations of a training script about its job
programs  locate the training scripts that a job starts, among the files on the command line or
          near the job script
python    check training scripts by their syntax tree; nothing of the script is imported or run
report    the report of ``paceline lint``: the findings of all files, as text or JSON
sarif     convert a report of ``paceline lint`` to SARIF 2.1.0, the format of code scanning
site      read from ``slurm.conf`` which resources a job must request on this machine's cluster
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.diagnose.lint.files import SourceFile, is_job, is_python, not_judged, read
from paceline.diagnose.lint.ignore import ignored, unsuppressed
from paceline.diagnose.lint.program import Program
from paceline.diagnose.lint.report import CheckedFile, LintReport
from paceline.errors import Finding

if TYPE_CHECKING:
    from paceline.diagnose.lint.job.case import Case

_EXPECTS = re.compile(r"Trainer|Fabric|spawn|_rank|RANK|SLURM|MASTER|WORLD|multiprocessing")

__all__ = ["check_submitted", "lint", "read", "sbatch_option", "sbatch_options"]


def lint(files: Sequence[str]) -> LintReport:
    """Check job scripts and training scripts (``-`` for standard input), and each job together with
    the training script that it starts.

    The name or the text decides the kind of a file. Training scripts that a job starts are checked
    too if they are found. There is one finding for each file that cannot be read.
    """
    once: dict[str, str] = {}
    for name in files:
        once.setdefault(os.path.normpath(name), name)
    linter = _Linter(list(once.values()))
    return LintReport(tuple(linter.check(name) for name in linter.names))


def check_submitted(text: str, script: str, *, alone: bool) -> list[Finding]:
    """Return the errors of a job script that is about to be written, with its training script.

    With ``alone`` those of the training script alone are among them, which take longer to find.
    """
    from paceline.diagnose.lint.job.judging import judge_case
    from paceline.diagnose.lint.job.judging import read as read_job

    source = read(script) if os.path.isfile(script) else SourceFile("")
    programs = {}
    # what else a script expects of its job is no error where it differs
    if _EXPECTS.search(source.text) and (program := _program_of(source)) is not None:
        programs[script] = program
    findings = judge_case(read_job(text, "job script"), programs)
    if alone and source.text and is_python(source):
        findings += _Linter([script]).check_source(source).findings
    silenced, _ = ignored(source.text)
    return [each for each in findings if each.severity == "error" and each.name not in silenced]


def _program_of(source: SourceFile) -> Program | None:
    from paceline.diagnose.lint.python.expectations import expectations
    from paceline.diagnose.lint.python.judging import read as read_script

    index = read_script(source.text, source.name) if is_python(source) else None
    return None if index is None or isinstance(index, Finding) else expectations(index)


class _Linter:
    """Checks files in turn; scripts that jobs among them start are appended to ``names``."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self._requested = tuple(names)
        self._programs: dict[str, CheckedFile] = {}

    def check(self, name: str) -> CheckedFile:
        """Return the findings of a file."""
        return self._programs.get(os.path.normpath(name)) or self.check_source(read(name))

    def check_source(self, source: SourceFile) -> CheckedFile:
        """Return the findings of a file that was read."""
        if source.finding is not None:
            return CheckedFile(source.name, (source.finding,), unreadable=True)
        script = None
        if is_python(source):
            from paceline.diagnose.lint.python import examine

            findings, script = examine(source.text, source.name)
        else:
            findings = self._check_job(source) if is_job(source) else []
        if (hint := not_judged(source)) is not None:
            findings.append(hint)
        return CheckedFile(source.name, tuple(unsuppressed(findings, source.text)), script=script)

    def _check_job(self, source: SourceFile) -> list[Finding]:
        from paceline.diagnose.lint.job.judging import judge_case
        from paceline.diagnose.lint.job.judging import read as read_job
        from paceline.diagnose.lint.programs import started
        from paceline.diagnose.lint.site import here

        case = read_job(source.text, source.name)
        programs = {}
        for called, path in started(
            case, [name for name in self._requested if name != source.name]
        ).items():
            program = self._program(path)
            if program is not None:
                programs[called] = program
        return [*judge_case(case, programs, here()), *_in_here_documents(case)]

    def _program(self, path: str) -> Program | None:
        """Return the expectations of a script that jobs start; it is checked once."""
        key = os.path.normpath(path)
        if key not in self._programs:
            source = read(path)
            if source.finding is not None or not is_python(source):
                return None
            self._programs[key] = self.check_source(source)
            if key not in map(os.path.normpath, self.names):
                self.names.append(path)
        return self._programs[key].program


def _in_here_documents(case: Case) -> Iterator[Finding]:
    """Yield the findings of the Python that a job passes to its interpreter, on their lines."""
    from paceline.diagnose.lint.python import examine

    for program in case.trace.python:
        findings, script = examine("\n" * (program.line - 1) + program.text, case.name)
        yield from findings if script is not None else ()


def sbatch_option(typed: str) -> tuple[str, str]:
    """Return the full name and the kind of an option of sbatch, typed without dashes.

    The name is empty if Slurm has none; the kind is ``"value"``, ``"flag"`` or ``"maybe"`` (a value
    only with ``=``). Options that plugins of many sites add are of kind ``"maybe"``.
    """
    from paceline.diagnose.lint.job.sbatch_options import PLUGIN_OPTIONS, SBATCH, canonical

    if name := canonical(typed):
        return name, SBATCH[name][1]
    return (typed, "maybe") if typed in PLUGIN_OPTIONS else ("", "maybe")


def sbatch_options() -> tuple[str, ...]:
    """Return the long names of sbatch's options."""
    from paceline.diagnose.lint.job.sbatch_options import SBATCH

    return tuple(SBATCH)
