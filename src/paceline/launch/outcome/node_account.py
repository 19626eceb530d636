"""How one node's part of a run ended: the records that nodes exchange at the end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.errors import Finding
from paceline.launch.outcome.rank_exit import RankExit
from paceline.launch.outcome.report import Run, Stop
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand


@dataclass(frozen=True)
class NodeAccount:
    """What one node knows of a run that has ended.

    Attributes:
        again: How the run is started again.
        ends: How the ranks of the node ended.
        pulses: What each of them has counted.
        stop: What ended the run from outside, as far as this node got it.
        last: The newest checkpoint that the node sees.
        hang: What the ranks hung in, if they were stopped for it.
        noticed_hang: What a notice had named as the cause of a wait that lasted until the end.
        noticed: Warnings of the node.
        saving: A checkpoint that was being written when the run was stopped; empty if none was.
    """

    again: ResumeCommand
    ends: Sequence[RankExit] = ()
    pulses: Sequence[Mapping[str, Any]] = ()
    stop: Stop | None = None
    last: Checkpoint | None = None
    hang: Finding | None = None
    noticed_hang: Finding | None = None
    noticed: Sequence[Finding] = ()
    saving: str = ""

    def shifted(self, offset_ns: int) -> NodeAccount:
        """Return the account with its times on the head's clock, which is ``offset_ns`` behind."""
        stop = self.stop and replace(self.stop, time_ns=self.stop.time_ns - offset_ns)
        return replace(self, ends=[end.shifted(offset_ns) for end in self.ends], stop=stop)

    def to_json(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {
            "again": asdict(self.again),
            "ends": [end.to_json() for end in self.ends],
            "pulses": list(self.pulses),
            "stop": self.stop and asdict(self.stop),
            "last": self.last and asdict(self.last),
            "hang": self.hang and self.hang.to_json(),
            "noticed_hang": self.noticed_hang and self.noticed_hang.to_json(),
            "noticed": [finding.to_json() for finding in self.noticed],
            "saving": self.saving,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NodeAccount:
        """Return the account that ``to_json`` described."""
        return cls(
            again=ResumeCommand(**values["again"]),
            ends=[RankExit.from_json(end) for end in values["ends"]],
            pulses=values["pulses"],
            stop=values["stop"] and Stop(**values["stop"]),
            last=values["last"] and Checkpoint(**values["last"]),
            hang=values["hang"] and Finding.from_json(values["hang"]),
            noticed_hang=values["noticed_hang"] and Finding.from_json(values["noticed_hang"]),
            noticed=[Finding.from_json(finding) for finding in values["noticed"]],
            saving=values["saving"],
        )


def join(accounts: Sequence[NodeAccount], run: Run) -> Run:
    """Return the account of the whole run.

    Args:
        accounts: Those of all nodes that were heard, by node rank.
        run: What holds for the run besides: its folder, its lost nodes, how long it took.
    """
    checkpoints = [account.last for account in accounts if account.last]
    warnings = [finding for account in accounts for finding in account.noticed]
    return replace(
        run,
        ends=[end for account in accounts for end in account.ends],
        stops=[account.stop for account in accounts if account.stop],
        pulses=[pulse for account in accounts for pulse in account.pulses],
        again=accounts[0].again,  # the first node's line, so that all print the same
        last=max(checkpoints, key=lambda checkpoint: checkpoint.number, default=None),
        hang=_first(account.hang for account in accounts),
        noticed_hang=_first(account.noticed_hang for account in accounts),
        noticed=list(dict.fromkeys(warnings)),
        saving=next((account.saving for account in accounts if account.saving), ""),
    )


def _first(findings: Iterable[Finding | None]) -> Finding | None:
    return next(filter(None, findings), None)
