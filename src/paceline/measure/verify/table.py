"""Print what ``paceline verify`` has compared: a table, the reasons, and the findings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import Finding, gravest_first
from paceline.measure.verify.judging import Property
from paceline.measure.verify.verdict import NOT_JUDGED
from paceline.text import table


@dataclass(frozen=True)
class Result:
    """What was compared."""

    script: str  # the script
    worlds: tuple[int, ...]  # numbers of ranks that have run
    steps: dict[int, int]  # optimizer steps that each has made, by number of ranks
    properties: Sequence[Property]  # the properties
    findings: Sequence[Finding]  # what is wrong with them
    failures: Sequence[Finding]  # why numbers of ranks could not be run
    folder: str  # the folder with the records

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "script": self.script,
            "worlds": list(self.worlds),
            "steps": {str(size): steps for size, steps in self.steps.items()},
            "properties": [
                {
                    "name": one_property.name,
                    "worlds": {
                        str(size): verdict.to_json()
                        for size, verdict in one_property.verdicts.items()
                    },
                }
                for one_property in self.properties
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "failures": [finding.to_json() for finding in self.failures],
            "folder": self.folder,
        }


def render(result: Result) -> str:
    """Return the result as text."""
    steps = ", ".join(f"{result.steps[size]:,} on {_ranks(size)}" for size in result.worlds)
    blocks = [f"{result.script}: optimizer steps compared: {steps}"]
    blocks.append("\n".join(_table(result)))
    reasons = _reasons(result)
    if reasons:
        blocks.append("\n".join(reasons))
    blocks += [finding.render() for finding in gravest_first(result.findings)]
    blocks += [finding.render() for finding in result.failures]
    blocks.append(_sum(result))
    return "\n\n".join(blocks)


def _ranks(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"


def _table(result: Result) -> list[str]:
    columns = ["property", *map(_ranks, result.worlds)]
    rows = [
        [
            one_property.title,
            *(
                one_property.verdicts[size].state if size in one_property.verdicts else "-"
                for size in result.worlds
            ),
        ]
        for one_property in result.properties
    ]
    return table.aligned(columns, rows)


def _reasons(result: Result) -> list[str]:
    """Return why properties could not be judged, each reason once."""
    lines = []
    for one_property in result.properties:
        reasons: dict[str, list[int]] = {}
        for size, verdict in one_property.verdicts.items():
            if verdict.state == NOT_JUDGED:
                reasons.setdefault(verdict.reason, []).append(size)
        for reason, sizes in reasons.items():
            where = "" if len(sizes) == len(one_property.verdicts) else f", {_list(sizes)}"
            lines.append(f"not judged: {one_property.title}{where}: {reason}")
    return lines


def _list(sizes: Sequence[int]) -> str:
    return " and ".join(map(_ranks, sizes))


def _sum(result: Result) -> str:
    states = [
        verdict.state
        for one_property in result.properties
        for verdict in one_property.verdicts.values()
    ]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    words = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return f"{words or 'nothing was compared'} · records: {result.folder}"
