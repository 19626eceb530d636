"""Decide what ``submit --from`` takes from a job script: requests and set-up lines. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.directives import Directive
from paceline.diagnose.lint.job.judging import read
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.diagnose.lint.job.shell.tree import Node, Simple
from paceline.errors import UsageError
from paceline.slurm import option_rules
from paceline.slurm.profile import Profile

_SAME = names("nodes gpus_per_node cpus_per_gpu mem time account partition job_name")
_COUNTED = ("ntasks", "ntasks-per-node", "cpus-per-task", "gpus", "gpus-per-task")
_SET_UP = ("module", "ml", "source", ".", "conda", "mamba", "spack", "eval", "ulimit", "export", "")
# What paceline chooses for the ranks; a task of theirs has other CPUs than their job's.
_OF_RANKS = re.compile(
    r"\b(MASTER_(ADDR|PORT)|\w*RANK|WORLD_SIZE|OMP_NUM_THREADS|SLURM_(CPU|N|PROC|JOB_NODE)\w*"
    r"|scontrol|srun|hostname)\b"
)


def taken(text: str, name: str, site: Profile) -> tuple[Profile, list[str]]:
    """Return a site's profile with what a job script has, and the lines of it that are left out."""
    case = read(text, name)
    values, sbatch, left_out = _counted(case), dict(site.sbatch), []
    for directive in case.job.directives.active:
        option, value = _renamed(directive)
        try:
            if option in _SAME:
                option_rules.check({option: value})
                values[option] = value
            elif directive.name not in _COUNTED:
                typed = f"--{directive.name}={value}" if value else f"--{directive.name}"
                sbatch |= option_rules.sbatch_options([typed])
        except UsageError:
            left_out.append(case.text(directive.line))
    lines: list[str] = []
    end = min((launch.call.line for launch in case.training), default=len(case.lines) + 1)
    for at in sorted({node.line for node in case.script.nodes if node.line < end}):
        nodes = [node for node in case.script.nodes if node.line == at]
        typed_lines = case.lines[at - 1 : max(getattr(node, "end_line", at) for node in nodes)]
        if all(map(_sets_up, nodes)) and not _OF_RANKS.search(" ".join(typed_lines)):
            lines += typed_lines
        else:
            left_out.append(case.text(at))
    slurm, all_lines = {**site.slurm, **values}, (*site.lines, *lines)
    merged = replace(site, slurm=slurm, sbatch=tuple(sbatch.items()), lines=all_lines)
    return merged, list(dict.fromkeys(left_out))


def _counted(case: Case) -> dict[str, str]:
    """Return the numbers of a node, which follow from several directives."""
    job = case.job
    cpus, gpus = (job.cpus_per_task or 0) * (job.tasks_per_node or 1), job.gpus_per_node or 0
    numbers = {"nodes": job.nodes, "gpus_per_node": gpus, "cpus_per_node": cpus}
    if gpus and cpus % gpus == 0:
        numbers |= {"cpus_per_node": 0, "cpus_per_gpu": cpus // gpus}
    return {name: str(number) for name, number in numbers.items() if number}


def _renamed(directive: Directive) -> tuple[str, str]:
    """Return a directive as an option of submit; its name may be one of sbatch's alone."""
    gpus = re.fullmatch(r"gpu:((?:[\w.+-]+:)?\d+)(?:\(.*\))?", directive.value)
    if directive.name == "gres" and gpus is not None:
        return "gpus_per_node", gpus[1]
    return directive.name.replace("-", "_"), directive.value


def _sets_up(node: Node) -> bool:
    return isinstance(node, Simple) and (node.words[0].bare if node.words else "") in _SET_UP
