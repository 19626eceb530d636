"""Check a job script: parse, interpret, find launches, run the checks. Pure: text in, Findings
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from paceline.diagnose.lint.job.allocation import describe, slurm_variables
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.checks import CHECKS
from paceline.diagnose.lint.job.checks.submit import inner_script
from paceline.diagnose.lint.job.directives import parse as parse_directives
from paceline.diagnose.lint.job.launches import find
from paceline.diagnose.lint.job.shell.interpret import interpret
from paceline.diagnose.lint.job.shell.parser import parse
from paceline.diagnose.lint.job.shell.values import Symbols, clean
from paceline.diagnose.lint.program import Program
from paceline.diagnose.lint.site import Site
from paceline.errors import SEVERITIES, Finding

# A file with more findings of one kind is not a handwritten script.
MOST_OF_ONE_KIND = 50


def read(source: str, name: str) -> Case:
    """Parse and interpret a job script, the input of all checks."""
    # sbatch refuses such a script, but what else is wrong in it is worth telling at once.
    dos = source.partition("\r\n")
    dos_line = dos[0].count("\n") + 1 if dos[1] else 0
    source = clean(source).replace("\r\n", "\n")
    script = parse(source)
    job = describe(parse_directives(source, script.data_lines))
    trace = interpret(script, slurm_variables(job), Symbols())
    return Case(name, source.split("\n"), job, script, trace, find(trace), dos_line)


def judge(source: str, name: str) -> list[Finding]:
    """Return the findings of a job script by line, each name once per line."""
    return judge_case(read(source, name), {})


def judge_case(
    case: Case,
    programs: Mapping[str, Program],  # their expectations, by their paths in the launches
    site: Site | None = None,  # of the cluster, as far as it is known
) -> list[Finding]:
    """Return the findings of a parsed job script, with the training scripts that it starts."""
    case = replace(case, programs=programs, site=site or Site())
    findings: dict[tuple[str, str], Finding] = {}
    for check in CHECKS:
        # One name on one line says enough: two checks may see the same mistake from both sides.
        for finding in islice(check(case), MOST_OF_ONE_KIND):
            findings.setdefault((finding.name, finding.where), finding)
    for submitted in case.trace.submitted:
        inner = inner_script(case, submitted)
        for finding in judge(inner, case.name) if inner else ():
            findings.setdefault((finding.name, finding.where), finding)
    return sorted(findings.values(), key=_order)


def _order(finding: Finding) -> tuple[int, int, str]:
    line = finding.where.rpartition(":")[2]
    return int(line) if line.isdigit() else 0, SEVERITIES.index(finding.severity), finding.name
