"""The observer of a node: looks at its ranks' pulses now and then, and lets the head judge those of all nodes.

A hand around ``observations``. Each node tells what its ranks show when that changes; the head, which hears all,
says what it amounts to, and every node repeats it. Nobody waits for anybody.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from paceline.errors import Finding
from paceline.launch.channel.board import Board
from paceline.launch.monitor import observations
from paceline.launch.monitor.attempt import WatchedRanks
from paceline.launch.monitor.observations import Pace, Parameters
from paceline.pulse import Pulse, PulseBoard
from paceline.rundir.files import RunDir

WINDOW_S = 10.0  # in which the paces of nodes are compared
_LEAST_STEPS = 20  # in a window
_EVERY_S = 0.5
# How long, at the end of a run, the head waits for lists of parameters that it has asked for.
_LISTS_S = 3.0
# How often the head looks again when some ranks have seen an order twice: the others come to it a moment later.
_SETTLE_LOOKS = 4


class Observer:
    """Observes the ranks of one attempt.

    Args:
        group: The ranks of this node.
        pulses: Their pulses.
        board: The other nodes, None if there are none.
        run_dir: The run folder.
        notice: Says a warning, once.
    """

    def __init__(
        self,
        group: WatchedRanks,
        pulses: PulseBoard,
        board: Board | None,
        *,
        run_dir: RunDir,
        notice: Callable[[Finding], None],
    ) -> None:
        self._group, self._pulses, self._board = group, pulses, board
        self._run_dir, self._notice = run_dir, notice
        self._head = Head(group.attempt.world_size)
        self._pace = _Pace(0 if board is None else board.node)
        self._told: dict[str, Any] = {}
        self._heard = 0  # words of the head so far
        self._asked_step = 0  # the step of which it wants lists of parameters
        self._listed = False
        self._all: Mapping[int, Mapping[str, Any]] = {}  # what all nodes have told, at the head
        self._every_s = _EVERY_S if board is None else max(_EVERY_S, board.num_nodes / 400)
        self._next_s = self._closing_s = 0.0

    def tick(self) -> None:
        """Look, if it is time to; costs next to nothing if not."""
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self._every_s
            self._look()

    def close(self) -> bool:
        """Look once more after the ranks have succeeded; False as long as the head waits for a node's answer."""
        now = time.monotonic()
        if not self._closing_s:
            self._closing_s, self._next_s = now, 0.0
        self.tick()
        waits = self._head.asked_step and not self._head.has_lists
        return not waits or now - self._closing_s > _LISTS_S

    def _look(self) -> None:
        facts = self._facts()
        if self._board is None:
            self._all = {0: facts}
        elif facts != self._told:
            self._told = facts
            self._board.tell("facts", facts)
        self.listen()
        if self._board is not None and not self._board.node:
            self._all = self._board.hear("facts") or self._all
        if self._all:
            self._judge()

    def _judge(self) -> None:
        """The head judges what all nodes have told, and tells them."""
        for finding in self._head.judge(self._all, last=bool(self._closing_s)):
            self._notice(finding)
            self._say({"finding": finding.to_json()})
        if self._head.asked_step and not self._asked_step:
            self._asked_step = self._head.asked_step
            self._say({"lists": self._asked_step})
            self._look()  # with this node's own lists

    def _say(self, word: Mapping[str, Any]) -> None:
        if self._board is not None:
            self._board.announce("word", self._heard, word)
            self._heard += 1

    def listen(self) -> None:
        """Hear what the head has said since; the head itself, and a node alone, hear nobody."""
        if self._board is None or not self._board.node:
            return
        while (word := self._board.announced("word", self._heard)) is not None:
            self._heard += 1
            if "finding" in word:
                self._notice(Finding.from_json(word["finding"]))
            else:
                self._asked_step = int(word["lists"])

    def _facts(self) -> dict[str, Any]:
        """Return what this node's ranks show, as plain data."""
        ranks = self._group.attempt.ranks
        orders = {rank: self._pulses.read_order(local) for local, rank in ranks.items()}
        checks = [self._pulses.read_checks(local) for local in ranks]
        names = {rank: self._pulses.read_nan(local) for local, rank in ranks.items()}
        facts: dict[str, Any] = {
            "ranks": len(ranks),
            "data": sorted({order.data_hash for order in orders.values()}),
            "works": sorted({order.work_hash for order in orders.values()}),
            "indices": max((order.data_indices for order in orders.values()), default=0),
            "orders": {
                str(rank): [order.same_order, order.order_indices] for rank, order in orders.items() if order.same_order
            },
            "padded": max((self._pulses.read_padded(local) for local in ranks), default=(0, 0)),
            "not_a_number": {str(rank): name for rank, name in names.items() if name},
            "pace": self._pace.look([self._pulses.read(local) for local in ranks], time.monotonic()),
            "checks": {str(step): _agreed(check[step] for check in checks) for step in _common(checks)},
        }
        if self._asked_step:
            facts["lists"] = self._lists()
        return facts

    def _lists(self) -> list[dict[str, Any]]:
        """Return the parameters of this node's ranks, those together that agree."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for rank in self._group.attempt.ranks.values():
            names, sums = read_parameters(self._run_dir, rank, self._group.attempt.number, step=self._asked_step)
            groups.setdefault((names, sums), []).append(rank)
        return [{"ranks": ranks, "names": names, "sums": sums} for (names, sums), ranks in groups.items()]


class Head:
    """What the head makes of all nodes' facts; each finding once.

    Args:
        world_size: Ranks on all nodes.

    Attributes:
        asked_step: The step of which it wants to see lists of parameters, 0 for none.
        has_lists: It has got them.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._said: set[str] = set()
        self._windows: list[list[Pace]] = []
        self._window = 0  # number of the last one
        self._looks = 0  # since some rank saw an order twice
        self.asked_step = 0
        self.has_lists = False

    def judge(self, heard: Mapping[int, Mapping[str, Any]], *, last: bool) -> list[Finding]:
        """Return what is new.

        Args:
            heard: Each node's facts, by node rank.
            last: Nothing more will be heard.
        """
        found = [
            self._data(heard),
            self._order(heard, last=last),
            self._straggler(heard),
            self._replicas(heard),
            self._padded(heard),
            self._not_a_number(heard, last=last),
        ]
        new = {_said_as(finding): finding for finding in found if finding is not None}
        unsaid = [finding for said_as, finding in new.items() if said_as not in self._said]
        self._said |= set(new)
        return unsaid

    def _data(self, heard: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        hashes, works = _shown(heard, "data"), _shown(heard, "works")
        indices = max(facts["indices"] for facts in heard.values())
        if sum(facts["ranks"] for facts in heard.values()) != self._world_size:
            return None
        return observations.same_data(hashes, works, world_size=self._world_size, indices=indices)

    def _order(self, heard: Mapping[int, Mapping[str, Any]], *, last: bool) -> Finding | None:
        """Judge when all ranks have seen an order twice, or those that have not had the time to."""
        orders = {int(rank): (at[0], at[1]) for facts in heard.values() for rank, at in facts["orders"].items()}
        self._looks += bool(orders)
        settled = last or len(orders) == self._world_size or self._looks > _SETTLE_LOOKS
        return observations.same_order(orders) if settled else None

    def _padded(self, heard: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        dataset_length, padded_length = max(tuple(facts["padded"]) for facts in heard.values())
        return observations.padded(dataset_length, padded_length, world_size=self._world_size)

    def _not_a_number(self, heard: Mapping[int, Mapping[str, Any]], *, last: bool) -> Finding | None:
        """Judge when all ranks have ended so, or when nothing more will be heard."""
        names = {int(rank): name for facts in heard.values() for rank, name in facts["not_a_number"].items()}
        return observations.not_a_number(names) if last or len(names) == self._world_size else None

    def _straggler(self, heard: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        paces = [facts["pace"] for facts in heard.values()]
        if len(paces) < 2 or any(pace is None for pace in paces):
            return None
        number = min(pace["window"] for pace in paces)
        if number > self._window:
            self._window = number
            self._windows = [*self._windows, [Pace(**pace["mean"]) for pace in paces]][-observations.WINDOWS :]
        return observations.straggler(self._windows)

    def _replicas(self, heard: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        if self.asked_step and not self.has_lists:
            self.has_lists = all("lists" in facts for facts in heard.values())
            return self._compare_lists(heard) if self.has_lists else None
        checks = [{int(step): check for step, check in facts["checks"].items()} for facts in heard.values()]
        for step in sorted(_common(checks)):
            if not self.asked_step and _agreed(check[step] for check in checks) is None:
                self.asked_step = step
        return None

    def _compare_lists(self, heard: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        groups: dict[tuple[Any, ...], list[int]] = {}
        for facts in heard.values():
            for entry in facts["lists"]:
                groups.setdefault((tuple(entry["names"]), tuple(entry["sums"])), []).extend(entry["ranks"])
        listed = [Parameters(tuple(sorted(ranks)), names, sums) for (names, sums), ranks in groups.items()]
        return observations.replicas(listed, step=self.asked_step)


class _Pace:
    """The pace of this node's ranks, a window of time after the other.

    Args:
        node: Rank of the node.
    """

    def __init__(self, node: int) -> None:
        self._node = node
        self._window: dict[str, Any] | None = None
        self._since_s = 0.0
        self._before: list[Pulse] = []

    def look(self, pulses: list[Pulse], now_s: float) -> dict[str, Any] | None:
        """Return the last whole window: its number, from 1, and the means over the ranks; None before the first."""
        made = [new.steps - old.steps for new, old in zip(pulses, self._before, strict=False)]
        if not made or not all(old.steps for old in self._before):  # the first steps tell nothing
            self._before, self._since_s = pulses, now_s
        elif now_s - self._since_s >= WINDOW_S and min(made) >= _LEAST_STEPS:
            number = self._window["window"] + 1 if self._window else 1
            pairs = list(zip(self._before, pulses, strict=True))
            mean = Pace(
                host=socket.gethostname(),
                node=self._node,
                own_s=fmean((new.own_s - old.own_s) / (new.steps - old.steps) for old, new in pairs),
                data_s=fmean((new.data_s - old.data_s) / (new.steps - old.steps) for old, new in pairs),
                step_s=fmean((new.seconds - old.seconds) / (new.steps - old.steps) for old, new in pairs),
            )
            self._window = {"window": number, "mean": asdict(mean)}
            self._before, self._since_s = pulses, now_s
        return self._window


def read_parameters(run_dir: RunDir, rank: int, attempt: int, *, step: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return names and checksums of a rank's parameters after a step; empty if they are not known any more."""
    try:
        found = json.loads(run_dir.parameters(rank, attempt).read_text(encoding="utf-8"))
        return tuple(found["names"]), tuple(found["steps"][str(step)])
    except (OSError, ValueError, KeyError):
        return (), ()


def _said_as(finding: Finding) -> str:
    """Return what makes two findings the same: their name, and of stragglers the host."""
    return finding.name + (finding.where if finding.name == "straggler" else "")


def _shown(heard: Mapping[int, Mapping[str, Any]], name: str) -> list[int]:
    """Return the hashes that all nodes have told, some of them once for several ranks."""
    return [shown for facts in heard.values() for shown in facts[name]]


def _common(checks: Sequence[Mapping[int, Any]]) -> set[int]:
    """Return the steps that all have."""
    return set.intersection(*map(set, checks)) if checks else set()


def _agreed(sums: Iterable[int | None]) -> int | None:
    """Return the sum that all have, None if they differ."""
    found = set(sums)
    return found.pop() if len(found) == 1 else None
