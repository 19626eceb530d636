"""Check sbatch job scripts for any launcher, without running them."""

from __future__ import annotations

from paceline.errors import Finding


def judge(source: str, name: str) -> list[Finding]:
    """Return the findings of a job script."""
    # imported here, since callers that only need sbatch's options should not load the checks
    from paceline.diagnose.lint.job.judging import judge as judge_text

    return judge_text(source, name)
