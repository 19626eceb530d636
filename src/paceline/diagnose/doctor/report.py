"""The result of ``paceline doctor``: findings and facts, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.diagnose.doctor.checks.judge import judge
from paceline.diagnose.doctor.checks.links import judge_links
from paceline.diagnose.doctor.collectors.gather import gather
from paceline.diagnose.doctor.collectors.host import gather_settings
from paceline.diagnose.doctor.collectors.topology import read_topology
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.render import render
from paceline.errors import Finding, status_of


@dataclass(frozen=True)
class DoctorReport:
    """The result of an examination."""

    findings: list[Finding]  # faults and possible improvements, errors first
    facts: Facts  # the machine
    of_links: bool = False  # whether only the links between GPUs are known

    @property
    def exit_status(self) -> int:
        """1 if a finding is an error, else 0."""
        return status_of(self.findings)

    def render(self) -> str:
        """Return the report as text: the machine, the findings, and the unread parts."""
        return render(self.facts, self.findings, of_links=self.of_links)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "facts": self.facts.to_json(),
        }


def examine() -> DoctorReport:
    """Examine this machine for distributed runs without changing anything."""
    facts = gather()
    return DoctorReport(judge(facts), facts)


def examine_topology(text: str, *, is_log: bool = False) -> DoctorReport:
    """Judge a machine of which only the output of ``nvidia-smi topo -m`` is known.

    NCCL's settings are those of this process, or of the log in which the output stands.
    """
    facts = read_topology(text, {} if is_log else gather_settings()[0])
    return DoctorReport(list(judge_links(facts)), facts, of_links=True)
