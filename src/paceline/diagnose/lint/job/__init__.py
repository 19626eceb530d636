"""Check sbatch job scripts for any launcher, without running them.

allocation        derive the allocation of a job from its directives: nodes, tasks, GPUs, CPUs
case              the input of all checks of a job script: its directives, its commands and
                  launches, its lines
checks            the checks of a job script: each takes a case and yields findings
directives        the ``#SBATCH`` lines of a script, parsed as sbatch does: up to the first
                  line that is not a comment
judging           check a job script: parse, interpret, find launches, run the checks
launcher_options  tables of the options of launchers: flags, options with values, and the names
                  that launchers share
launches          recognise the launches of a job: launcher, options, program, and how many
                  processes start where
ranks             compute the ranks of a launch, and the numbers of its training script for
                  this launch
sbatch_options    tables of the options of sbatch and srun, Slurm 22.05 to 25.05: long names,
                  short forms, kinds
shell             parse and interpret the shell code of a job script, without running it
"""

from __future__ import annotations

from paceline.errors import Finding


def judge(source: str, name: str) -> list[Finding]:
    """Return the findings of a job script."""
    # imported here, since callers that only need sbatch's options should not load the checks
    from paceline.diagnose.lint.job.judging import judge as judge_text

    return judge_text(source, name)
