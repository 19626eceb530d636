"""Run all checks on the facts about a machine, and sort the findings. Pure."""

from __future__ import annotations

from paceline.diagnose.doctor.checks.gpus import judge_gpus
from paceline.diagnose.doctor.checks.interfaces import judge_interfaces
from paceline.diagnose.doctor.checks.limits import judge_limits
from paceline.diagnose.doctor.checks.links import judge_links
from paceline.diagnose.doctor.checks.rdma import judge_rdma
from paceline.diagnose.doctor.checks.software import judge_settings, judge_software
from paceline.diagnose.doctor.checks.visibility import judge_visibility
from paceline.diagnose.doctor.facts import Facts
from paceline.errors import Finding, gravest_first

_CHECKS = (
    judge_software,
    judge_gpus,
    judge_visibility,
    judge_links,
    judge_rdma,
    judge_settings,
    judge_interfaces,
    judge_limits,
)


def judge(facts: Facts) -> list[Finding]:
    """Return the findings about a machine, errors first."""
    findings = [finding for check in _CHECKS for finding in check(facts)]
    return gravest_first(findings)
