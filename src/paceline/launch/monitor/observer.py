"""Collect what the counters of a node's ranks show, so that the head can report problems.

``observations`` decides; this module collects and sends. A node sends its facts when they change.
The head receives those of all nodes and announces the findings, which every node prints. No node
waits for another.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from paceline.counters import EVALUATION_DRAWS, Check, Counters, Order, SharedCounters, Split
from paceline.errors import Finding
from paceline.launch.channel.control_channel import ControlChannel
from paceline.launch.monitor import observations
from paceline.launch.monitor.attempt import WatchedRanks
from paceline.launch.monitor.observations import Pace
from paceline.machine import agreement
from paceline.machine.fingerprints import TOTAL_LIMIT, Value
from paceline.rundir.files import MOST_BYTES, RunDir, read_json

WINDOW_S = 10.0  # in which the paces of nodes are compared
_LEAST_STEPS = 20  # in a window
_EVERY_S = 0.5
_MOST_SPLITS = 8  # different ones of a node
# How long the head waits at the end of a run for the lists of parameters that it requested.
_LISTS_S = 3.0
# Looks of the head after the first rank has seen an order twice: the other ranks see it a moment
# later.
_SETTLE_LOOKS = 4


class Observer:
    """Observe the ranks of one attempt."""

    def __init__(
        self,
        group: WatchedRanks,  # the ranks of this node
        counters: SharedCounters,  # their counters
        channel: ControlChannel | None,  # channel to the other nodes, None if there are none
        *,
        run_dir: RunDir,  # the run folder
        notice: Callable[[Finding], None],  # prints a warning
    ) -> None:
        self._group, self._counters, self._channel = group, counters, channel
        self._run_dir, self._notice = run_dir, notice
        self._head = Head(group.attempt.world_size)
        self._pace = _Pace(0 if channel is None else channel.node)
        self._last_facts: dict[str, Any] = {}
        self._num_words = 0  # announced by the head so far
        self._list_step = 0  # the step for which the head requests lists of parameters, 0 for none
        self._listed = False
        self._all: Mapping[int, Mapping[str, Any]] = {}  # at the head: facts by node rank
        self._every_s = _EVERY_S if channel is None else max(_EVERY_S, channel.num_nodes / 400)
        self._next_s = self._closing_s = 0.0

    def tick(self) -> None:
        """Observe the ranks if an interval has passed; otherwise almost free."""
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self._every_s
            self._look()

    def close(self) -> bool:
        """Observe once more at the end; return False while the head waits for a node's lists."""
        now = time.monotonic()
        if not self._closing_s:
            self._closing_s, self._next_s = now, 0.0
        self.tick()
        waits = self._head.list_step and not self._head.has_lists
        return not waits or now - self._closing_s > _LISTS_S

    def _look(self) -> None:
        facts = self._facts()
        if self._channel is None:
            self._all = {0: facts}
        elif facts != self._last_facts:
            self._last_facts = facts
            self._channel.tell("facts", facts)
        self.listen()
        if self._channel is not None and not self._channel.node:
            self._all = self._channel.hear("facts") or self._all
        if self._all:
            self._judge()

    def _judge(self) -> None:
        """At the head: announce new findings, and request lists of parameters if needed."""
        for finding in self._head.judge(self._all, last=bool(self._closing_s)):
            self._notice(finding)
            self._announce({"finding": finding.to_json()})
        if self._head.list_step and not self._list_step:
            self._list_step = self._head.list_step
            self._announce({"lists": self._list_step})
            self._look()  # sends this node's own lists

    def _announce(self, word: Mapping[str, Any]) -> None:
        if self._channel is not None:
            self._channel.announce("word", self._num_words, word)
            self._num_words += 1

    def listen(self) -> None:
        """Process what the head has announced since the last call; the head has nothing to do."""
        if self._channel is None or not self._channel.node:
            return
        while (word := self._channel.announced("word", self._num_words)) is not None:
            self._num_words += 1
            if "finding" in word:
                self._notice(Finding.from_json(word["finding"]))
            else:
                self._list_step = int(word["lists"])

    def _facts(self) -> dict[str, Any]:
        """Return the facts about this node's ranks, as plain data."""
        ranks = self._group.attempt.ranks
        checks = [self._counters.read_checks(local) for local in ranks]
        names = {rank: self._counters.read_nan(local) for local, rank in ranks.items()}
        facts: dict[str, Any] = {
            "ranks": len(ranks),
            **_describe_orders(
                {rank: self._counters.read_order(local) for local, rank in ranks.items()}
            ),
            "splits": sorted({self._counters.read_split(local) for local in ranks})[:_MOST_SPLITS],
            "draws": any(self._counters.slot(local)[EVALUATION_DRAWS] for local in ranks),
            "padded": max((self._counters.read_padded(local) for local in ranks), default=(0, 0)),
            "not_a_number": {str(rank): name for rank, name in names.items() if name},
            "pace": self._pace.look(
                [self._counters.read(local) for local in ranks], time.monotonic()
            ),
            "checks": {
                str(step): _range_of([check[step] for check in checks]) for step in _common(checks)
            },
        }
        if self._list_step:
            facts["lists"] = self._lists()
        return facts

    def _lists(self) -> list[dict[str, Any]]:
        """Return the fingerprints of this node's ranks, one entry for all ranks that agree."""
        groups: dict[tuple[Value, ...], list[int]] = {}
        for rank in self._group.attempt.ranks.values():
            values = read_parameters(
                self._run_dir, rank, self._group.attempt.number, step=self._list_step
            )
            groups.setdefault(values, []).append(rank)
        return [{"ranks": ranks, "values": values} for values, ranks in groups.items()]


class Head:
    """Turns the facts of all nodes into findings, at the head; returns each finding once."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._reported: set[str] = set()
        self._windows: list[list[Pace]] = []
        self._window = 0  # number of the last window
        self._looks = 0  # since the first rank saw an order twice
        self.list_step = 0  # for which lists of parameters are requested, 0 for none
        self.has_lists = False  # of all nodes

    def judge(self, facts_by_node: Mapping[int, Mapping[str, Any]], *, last: bool) -> list[Finding]:
        """Return the findings that were not returned before; with ``last`` no facts will follow."""
        findings = [
            self._data(facts_by_node),
            self._order(facts_by_node, last=last),
            self._straggler(facts_by_node),
            self._replicas(facts_by_node),
            self._padded(facts_by_node),
            self._split(facts_by_node),
            observations.EVALUATION_DRAWS
            if last and any(facts["draws"] for facts in facts_by_node.values())
            else None,
            self._not_a_number(facts_by_node, last=last),
        ]
        new = {_key(finding): finding for finding in findings if finding is not None}
        unreported = [finding for key, finding in new.items() if key not in self._reported]
        self._reported |= set(new)
        return unreported

    def _data(self, facts_by_node: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        hashes, works = _hashes(facts_by_node, "data"), _hashes(facts_by_node, "works")
        indices = max(facts["indices"] for facts in facts_by_node.values())
        if sum(facts["ranks"] for facts in facts_by_node.values()) != self._world_size:
            return None
        return observations.same_data(hashes, works, world_size=self._world_size, indices=indices)

    def _split(self, facts_by_node: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        """Decide once all ranks train one model: only there they have checks."""
        nodes = [facts for facts in facts_by_node.values() if facts["checks"]]
        if sum(facts["ranks"] for facts in nodes) != self._world_size:
            return None
        splits = [Split(*split) for facts in nodes for split in facts["splits"]]
        return observations.split_apart(splits, world_size=self._world_size)

    def _order(
        self, facts_by_node: Mapping[int, Mapping[str, Any]], *, last: bool
    ) -> Finding | None:
        """Decide once all ranks have seen an order twice, or the others have had the time to."""
        orders = {
            int(rank): (at[0], at[1])
            for facts in facts_by_node.values()
            for rank, at in facts["orders"].items()
        }
        self._looks += bool(orders)
        settled = last or len(orders) == self._world_size or self._looks > _SETTLE_LOOKS
        return observations.same_order(orders) if settled else None

    def _padded(self, facts_by_node: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        dataset_length, padded_length = max(
            tuple(facts["padded"]) for facts in facts_by_node.values()
        )
        return observations.padded(dataset_length, padded_length, world_size=self._world_size)

    def _not_a_number(
        self, facts_by_node: Mapping[int, Mapping[str, Any]], *, last: bool
    ) -> Finding | None:
        """Decide once all ranks have ended with a NaN, or no more facts will come."""
        names = {
            int(rank): name
            for facts in facts_by_node.values()
            for rank, name in facts["not_a_number"].items()
        }
        return observations.not_a_number(names) if last or len(names) == self._world_size else None

    def _straggler(self, facts_by_node: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        paces = [facts["pace"] for facts in facts_by_node.values()]
        if len(paces) < 2 or any(pace is None for pace in paces):
            return None
        number = min(pace["window"] for pace in paces)
        if number > self._window:
            self._window = number
            self._windows = [*self._windows, [Pace(**pace["mean"]) for pace in paces]][
                -observations.WINDOWS :
            ]
        return observations.straggler(self._windows)

    def _replicas(self, facts_by_node: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        if self.list_step and not self.has_lists:
            self.has_lists = all("lists" in facts for facts in facts_by_node.values())
            return self._compare_lists(facts_by_node) if self.has_lists else None
        checks = [
            {int(step): check for step, check in facts["checks"].items()}
            for facts in facts_by_node.values()
        ]
        for step in sorted(_common(checks)):
            if not self.list_step and _are_apart([check[step] for check in checks]):
                self.list_step = step
        return None

    def _compare_lists(self, facts_by_node: Mapping[int, Mapping[str, Any]]) -> Finding | None:
        values = {
            rank: [Value(*value) for value in entry["values"]]
            for facts in facts_by_node.values()
            for entry in facts["lists"]
            for rank in entry["ranks"]
        }
        return agreement.compare(dict(sorted(values.items())), step=self.list_step)


class _Pace:
    """Measures the pace of this node's ranks in consecutive windows of time."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._window: dict[str, Any] | None = None
        self._since_s = 0.0
        self._before: list[Counters] = []

    def look(self, counters: list[Counters], now_s: float) -> dict[str, Any] | None:
        """Return the last complete window's number, from 1, and means; None before the first."""
        new_steps = [
            new.steps - old.steps for new, old in zip(counters, self._before, strict=False)
        ]
        all_have_steps = all(old.steps for old in self._before)
        if not new_steps or not all_have_steps:  # the first steps are not typical
            self._before, self._since_s = counters, now_s
        elif now_s - self._since_s >= WINDOW_S and min(new_steps) >= _LEAST_STEPS:
            number = self._window["window"] + 1 if self._window else 1
            pairs = list(zip(self._before, counters, strict=True))
            mean = Pace(
                host=socket.gethostname(),
                node=self._node,
                own_s=_mean_per_step(pairs, "own_s"),
                data_s=_mean_per_step(pairs, "data_s"),
                step_s=_mean_per_step(pairs, "seconds"),
            )
            self._window = {"window": number, "mean": asdict(mean)}
            self._before, self._since_s = counters, now_s
        return self._window


def _mean_per_step(
    # the counters of each rank at the start and at the end of a window
    pairs: Sequence[tuple[Counters, Counters]],
    name: str,  # name of the counter, in seconds
) -> float:
    """Return the mean increase of a counter per step, over the ranks."""
    return fmean(
        (getattr(new, name) - getattr(old, name)) / (new.steps - old.steps) for old, new in pairs
    )


def read_parameters(run_dir: RunDir, rank: int, attempt: int, *, step: int) -> tuple[Value, ...]:
    """Return a rank's fingerprints after a step; empty if they are no longer kept."""
    try:
        content = read_json(run_dir.parameters(rank, attempt), most_bytes=MOST_BYTES)
        return tuple(Value(*value) for value in content[str(step)])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _describe_orders(orders: Mapping[int, Order]) -> dict[str, Any]:
    """Return the facts about the order of the samples of a node's ranks, by rank."""
    repeated = {rank: order for rank, order in orders.items() if order.same_order}
    return {
        "data": sorted({order.data_hash for order in orders.values()}),
        "works": sorted({order.work_hash for order in orders.values()}),
        "indices": max((order.data_indices for order in orders.values()), default=0),
        "orders": {
            str(rank): [order.same_order, order.order_indices] for rank, order in repeated.items()
        },
    }


def _key(finding: Finding) -> str:
    """Return the key under which a finding is reported once; a straggler's includes its host."""
    return finding.name + (finding.where if finding.name == "straggler" else "")


def _hashes(facts_by_node: Mapping[int, Mapping[str, Any]], name: str) -> list[int]:
    """Return the hashes of all nodes; a node lists a hash that several of its ranks share once."""
    return [value for facts in facts_by_node.values() for value in facts[name]]


def _common(checks: Sequence[Mapping[int, Any]]) -> set[int]:
    """Return the steps for which all ranks have fingerprints."""
    return set.intersection(*map(set, checks)) if checks else set()


def _range_of(checks: Sequence[Check]) -> list[list[float]]:
    """Return the least and the greatest of each number of some ranks' fingerprints."""
    columns = [*zip(*checks, strict=True)]
    return [[min(column) for column in columns], [max(column) for column in columns]]


def _are_apart(ranges: Sequence[Sequence[Sequence[float]]]) -> bool:
    """Return whether totals of ranks differ that were taken at the same place.

    Ranks that had begun other numbers of collectives were not: with uneven inputs, for example, or
    where one rank trains another model beside.
    """
    least = [min(column) for column in zip(*(low for low, _ in ranges), strict=True)]
    most = [max(column) for column in zip(*(high for _, high in ranges), strict=True)]
    places, *totals = (high - low for low, high in zip(least, most, strict=True))
    return bool(places == 0 and max(totals) > TOTAL_LIMIT)
