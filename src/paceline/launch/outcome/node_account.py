"""The account of one node: how its part of a run ended, as nodes exchange it at the end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor import timed_steps
from paceline.launch.monitor.timed_steps import Durations
from paceline.launch.outcome.rank_exit import RankExit
from paceline.launch.outcome.report import Run, Stop
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand
from paceline.text.plain_data import read_as


@dataclass(frozen=True)
class NodeAccount:
    """What one node knows about a run that has ended."""

    resume_command: ResumeCommand  # the resume command of the run
    ends: Sequence[RankExit] = ()  # the exits of the node's ranks
    counters: Sequence[Mapping[str, Any]] = ()  # the counters of each of its ranks, as plain data
    stop: Stop | None = None  # what ended the run from outside, if this node received it; else None
    # the newest checkpoint that the node sees; None if there is none
    last: Checkpoint | None = None
    hang: Finding | None = None  # why the ranks hung, if they were stopped for a hang; else None
    # the cause that a notice named for a wait that lasted until the end
    noticed_hang: Finding | None = None
    noticed: Sequence[Finding] = ()  # warnings of the node
    # the checkpoint that was being written when the run was stopped; empty if none was
    saving: str = ""
    # durations of the stages of some steps, by step and rank; see ``timed_steps``
    timed_steps: Mapping[int, Mapping[int, Durations]] = field(default_factory=dict)

    def shifted(self, offset_ns: int) -> NodeAccount:
        """Return the account with its times on the head's clock, which is ``offset_ns`` behind."""
        stop = self.stop and replace(self.stop, time_ns=self.stop.time_ns - offset_ns)
        return replace(self, ends=[end.shifted(offset_ns) for end in self.ends], stop=stop)

    def to_json(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {**asdict(self), "timed_steps": timed_steps.to_json(self.timed_steps)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NodeAccount:
        """Return the account from the data that ``to_json`` returned."""
        account = read_as(cls, {**values, "timed_steps": {}})
        return replace(account, timed_steps=timed_steps.from_json(values["timed_steps"]))


def join(
    accounts: Sequence[NodeAccount],  # the accounts of all nodes that sent one, by node rank
    run: Run,  # the rest of the run's account: its folder, its lost nodes, its duration
) -> Run:
    """Return the account of the whole run."""
    checkpoints = [account.last for account in accounts if account.last]
    warnings = [finding for account in accounts for finding in account.noticed]
    return replace(
        run,
        ends=[end for account in accounts for end in account.ends],
        stops=[account.stop for account in accounts if account.stop],
        counters=[entry for account in accounts for entry in account.counters],
        # node 0's line, so that all nodes print the same
        resume_command=accounts[0].resume_command,
        last=max(checkpoints, key=lambda checkpoint: checkpoint.number, default=None),
        hang=_first(account.hang for account in accounts),
        noticed_hang=_first(account.noticed_hang for account in accounts),
        noticed=list(dict.fromkeys(warnings)),
        saving=next((account.saving for account in accounts if account.saving), ""),
        timed_steps=timed_steps.join([account.timed_steps for account in accounts]),
    )


def _first(findings: Iterable[Finding | None]) -> Finding | None:
    return next(filter(None, findings), None)
