"""Job scripts: sbatch with bash, whatever the launcher, judged without running them."""

from paceline.lint.job.judging import judge

__all__ = ["judge"]
