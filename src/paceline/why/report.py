"""Render the report of ``paceline why``: a verdict for each run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import Finding, status_of
from paceline.text.quoting import printable
from paceline.text.wording import few, named, shorten
from paceline.why.rank_state import Account
from paceline.why.verdict import MOVING, PROVEN, HangVerdict, judge

_MOST_EVIDENCE = 8


@dataclass(frozen=True)
class RunReport:
    """The report on one run."""

    accounts: tuple[Account, ...]  # accounts of its ranks, in order
    verdict: HangVerdict  # the verdict on the run

    def lines(self) -> list[str]:
        """Return the lines to print."""
        first, notice, finding = self.accounts[0], self.verdict.notice, self.verdict.finding
        hosts = sorted({account.position.host for account in self.accounts})
        rank_names = named(account.rank for account in self.accounts)
        name = first.script or "a run"
        lines = [
            (
                f"{name}: {rank_names} of {first.world_size} on {few(hosts, 4)}, started by"
                f" {first.started_by}"
            ),
            notice.what,
            *(f"  {line}" for line in notice.details),
        ]
        if finding is not None:
            lines += self._finding_lines(finding)
        if self.verdict.kind != MOVING:
            lines += [f"  {line}" for account in self.accounts for line in account.nccl]
        if notice.advice:
            lines.append(f"  {notice.advice}")
        return [printable(shorten(line)) for line in lines]

    def _finding_lines(self, finding: Finding) -> list[str]:
        label = "proven" if self.verdict.kind == PROVEN else "likely, if it stays so"
        lines = [f"{label}: {finding.what}   [{finding.code} {finding.name}]"]
        if finding.where:
            lines.append(f"  where: {finding.where}")
        lines += [f"  {line}" for line in finding.evidence[:_MOST_EVIDENCE]]
        if finding.why:
            lines.append(f"  why: {finding.why}")
        if finding.advice:
            lines.append(f"  {finding.advice}")
        return [*lines, f"  {finding.more}"]

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain data."""
        return {
            "run": self.accounts[0].run,
            "verdict": self.verdict.kind,
            "notice": self.verdict.notice.to_json(),
            "finding": self.verdict.finding and self.verdict.finding.to_json(),
            "ranks": [account.to_json() for account in self.accounts],
        }


@dataclass(frozen=True)
class HangReport:
    """The report of ``paceline why``."""

    runs: tuple[RunReport, ...]  # reports on the runs
    missed: tuple[str, ...] = ()  # lines with the hosts that could not be observed, and why

    @property
    def exit_status(self) -> int:
        """1 if a hang is proven, else 0."""
        return status_of(
            finding for run in self.runs if (finding := run.verdict.finding) is not None
        )

    def render(self) -> str:
        """Return the report as text."""
        parts = ["\n".join(run.lines()) for run in self.runs]
        missed = [printable(f"not looked at: {shorten(line)}") for line in self.missed]
        return "\n\n".join([*parts, *missed])

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        findings = [
            run.verdict.finding.to_json() for run in self.runs if run.verdict.finding is not None
        ]
        return {
            "findings": findings,
            "runs": [run.to_json() for run in self.runs],
            "missed": list(self.missed),
        }


def make(
    accounts: Sequence[Account],  # accounts of all ranks that were observed
    missed: Sequence[str] = (),  # lines with the hosts that could not be observed, and why
) -> HangReport:
    """Return the report about ranks of one run or several."""
    runs: dict[str, list[Account]] = {}
    for account in sorted(accounts, key=lambda account: (account.run, account.rank)):
        runs.setdefault(account.run, []).append(account)
    return HangReport(
        tuple(RunReport(tuple(ranks), judge(ranks)) for ranks in runs.values()), tuple(missed)
    )
