"""Job scripts: sbatch with bash, whatever the launcher, judged without running them."""

from __future__ import annotations

from paceline.errors import Finding


def judge(source: str, name: str) -> list[Finding]:
    """Return what is wrong with a job script.

    Args:
        source: Its text.
        name: What it is called in findings.
    """
    from paceline.diagnose.lint.job.judging import (
        judge as judge_text,  # not needed by who asks for sbatch's options only
    )

    return judge_text(source, name)
