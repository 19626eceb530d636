"""Judges a machine: what a specialist would say of its facts, errors first. Pure."""

from __future__ import annotations

from paceline.doctor.facts import Facts
from paceline.doctor.judges.gpus import judge_gpus
from paceline.doctor.judges.interfaces import judge_interfaces
from paceline.doctor.judges.limits import judge_limits
from paceline.doctor.judges.links import judge_links
from paceline.doctor.judges.rdma import judge_rdma
from paceline.doctor.judges.settings import judge_settings
from paceline.doctor.judges.software import judge_software
from paceline.doctor.judges.visibility import judge_visibility
from paceline.errors import Finding, gravest_first

_JUDGES = (
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
    """Return what is wrong with a machine or could be better, errors first."""
    findings = [finding for each in _JUDGES for finding in each(facts)]
    return gravest_first(findings)
