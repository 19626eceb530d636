"""What a machine is like, and what follows from it for a distributed run.

Hands gather facts and judges make findings of them, so that a machine can also be judged that is only recorded.
"""

from __future__ import annotations

from paceline.diagnose.doctor.checks.judge import judge
from paceline.diagnose.doctor.collectors.gather import gather
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.report import Report, examine

__all__ = ["Facts", "Report", "examine", "gather", "judge"]
