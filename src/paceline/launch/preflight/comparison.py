"""Compare the nodes before the ranks start: each posts its facts, the head decides, all print it.

A collector: it gathers facts and exchanges them. ``consistency``, ``interfaces`` and ``bandwidth``
decide what they mean.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistStoreError

from paceline.errors import Finding, RunError
from paceline.launch.channel import reachability
from paceline.launch.channel.signed_store import SignedStore
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.preflight import bandwidth, consistency, facts, interfaces
from paceline.launch.preflight.facts import Facts
from paceline.rundir.files import display_path

# A head that does not hold the comparison publishes that at once.
_HELD_S = 15.0
# How long the head waits for the posts of the nodes. They need a second or two.
_POSTS_S = 20.0
_VERDICT_S = 40.0
_LINGER_S = 3.0
# On a file server, other nodes see a new file a little later.
_FOLDER_S = 2.0
_PAIRS = 4  # up to this number of nodes, each tries all others


@dataclass(frozen=True)
class Result:
    """The result of the comparison for this node.

    Attributes:
        env: Environment variables for its ranks.
        master: Address of node 0 that the others reach; empty if there was nothing to try.
        line: The line to print; empty if there is none.
        warnings: Findings that do not stop the run, the same on all nodes.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    master: str = ""
    line: str = ""
    warnings: tuple[Finding, ...] = ()


class RollCall:
    """One node's part in the comparison.

    Args:
        store: The store of the attempt.
        node: Rank of this node.
        num_nodes: Number of nodes.
        token: The run's token.
        script: Name of the script.
        folder: The run folder.
    """

    def __init__(
        self, store: Any, *, node: int, num_nodes: int, token: str, script: str, folder: Path
    ) -> None:
        self._store = SignedStore.of(store)
        self._node = node
        self._num_nodes = num_nodes
        self._token = token
        self._script = script
        self._folder = folder
        self._mark = folder / f".seen-{reachability.shown(token)}"
        self._started = time.monotonic()

    def is_held(self, first: bool) -> bool:
        """Return whether the nodes compare themselves; node 0 decides, only on its first attempt.

        Args:
            first: Whether this node has not met other nodes before.
        """
        if self._node == 0:
            if first:
                with contextlib.suppress(OSError):
                    self._mark.touch()
            self._store.set(_key("held"), "1" if first else "0")
            return first
        return self._wait("held", _HELD_S) and self._store.get(_key("held")) == b"1"

    def hold(self, gather: Callable[[int], Facts]) -> Result:
        """Compare this node with the others.

        Args:
            gather: Takes the port of this node's server and returns its facts.

        Raises:
            RunError: The nodes cannot work together; all get the same finding.
        """
        echo = reachability.Echo(self._token, node=self._node)
        try:
            mine = gather(echo.port)
            self.post("facts", mine.to_json())
            # other nodes may still try this node until the verdict is published
            verdict = self.exchange(self._try_others(mine))
        finally:
            echo.close()
        if verdict is None:
            return Result(line="roll call: the head did not answer, nodes were not compared")
        if verdict["error"]:
            self._leave(Finding.from_json(verdict["error"]))
        return self._go_on(verdict)

    def exchange(self, tried: Mapping[str, Any]) -> dict[str, Any] | None:
        """Publish what this node has tried and return the head's verdict; None after a timeout.

        Args:
            tried: The result of the tries. The node's facts must be posted before.
        """
        self.post("tried", tried)
        if self._node == 0:
            self._judge()
        if not self._wait("verdict", _VERDICT_S):
            return None
        verdict: dict[str, Any] = json.loads(self._store.get(_key("verdict")))
        return verdict

    def post(self, kind: str, content: Any) -> None:
        """Publish a value of this node."""
        self._store.set(_key(kind, self._node), json.dumps(content))

    def collect(self, kind: str) -> dict[int, Any]:
        """Return what nodes have posted, by node rank; wait for all, ``_POSTS_S`` at most."""
        deadline = time.monotonic() + _POSTS_S
        keys = [_key(kind, node) for node in range(self._num_nodes)]
        while not self._store.check(keys) and time.monotonic() < deadline:
            time.sleep(max(0.005, self._num_nodes / 20_000))
        while len(found := self._store.find_all(keys)) < len(keys) and time.monotonic() < deadline:
            time.sleep(0.05)
        return {node: json.loads(found[key]) for node, key in enumerate(keys) if key in found}

    def _wait(self, kind: str, seconds: float) -> bool:
        try:
            self._store.wait([_key(kind)], timedelta(seconds=seconds))
        except DistStoreError:  # a timeout; a lost store is another error
            return False
        return True

    def _try_others(self, mine: Facts) -> dict[str, Any]:
        """Try the addresses of a few nodes, and look for the head's file in the run folder."""
        others = {}
        for peer in self._peers():
            key = _key("facts", peer)
            with contextlib.suppress(DistStoreError):
                self._store.wait([key], timedelta(seconds=_POSTS_S))
                others[peer] = Facts.from_json(json.loads(self._store.get(key)))
        apart = {peer: other for peer, other in others.items() if other.machine != mine.machine}
        tries = {
            peer: (
                other.port,
                [address for each in interfaces.candidates(other) for address in each.addresses],
            )
            for peer, other in apart.items()
        }
        own = [address for each in mine.interfaces for address in each.addresses]
        answers = reachability.try_all(tries, token=self._token, own=own)
        to_head = [answer for answer in answers.get(0, {}).values() if answer.ok]
        if 0 in others and 0 not in apart:
            to_head = [reachability.ask("127.0.0.1", others[0].port, self._token, 0)]
        nearest = min(
            (answer for answer in to_head if answer.ok),
            key=lambda answer: answer.trip_s,
            default=None,
        )
        return {
            "reached": {
                peer: {address: a.ok for address, a in found.items()}
                for peer, found in answers.items()
            },
            "ahead_s": nearest.ahead_s if nearest else 0.0,
            "folder": self._sees_mark(),
        }

    def _peers(self) -> list[int]:
        if self._num_nodes <= _PAIRS:
            return [node for node in range(self._num_nodes) if node != self._node]
        return sorted({(self._node + 1) % self._num_nodes, 0} - {self._node})

    def _sees_mark(self) -> bool:
        deadline = time.monotonic() + _FOLDER_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                # Listing asks the file server again. A lookup of one name may be cached as absent.
                if self._mark.name in (entry.name for entry in self._folder.iterdir()):
                    return True
            time.sleep(0.05)
        return False

    # On the head

    def _judge(self) -> None:
        nodes = [Facts.from_json(values) for _, values in sorted(self.collect("facts").items())]
        tried = self.collect("tried")
        self._mark.unlink(missing_ok=True)
        reached = gather_reached(tried)
        errors, warnings = judge(
            nodes, tried, reached, script=self._script, folder=str(self._folder)
        )
        ways = {node.node: interfaces.choose(node, reached) for node in nodes}
        keys = [_key("choice", node.node) for node in nodes]
        choices = [
            json.dumps(
                {"way": asdict(ways[n.node]), "env": interfaces.variables(n, ways[n.node], reached)}
            )
            for n in nodes
        ]
        self._store.multi_set(keys, choices)
        also = tuple(f"also: {finding.what}" for finding in errors[1:4])
        verdict = {
            "error": (
                replace(errors[0], evidence=errors[0].evidence + also).to_json() if errors else None
            ),
            "warnings": [finding.to_json() for finding in warnings],
            "master": ways[0].address if 0 in ways else "",
            # no measurement on one machine, or if an interface is unknown
            "link": (
                not errors
                and len(nodes) == self._num_nodes
                and all(way.name for way in ways.values())
            ),
        }
        self._nodes, self._rates = nodes, {node: way.mbit for node, way in ways.items()}
        self._store.set(_key("verdict"), json.dumps(verdict))

    def _judge_link(self, speed: bandwidth.Speed | None) -> dict[str, Any]:
        """Publish the slowest group's figures, and the finding about them."""
        groups = {bandwidth.group_of(node, self._num_nodes)[0] for node in range(self._num_nodes)}
        found = [speed.to_json() if speed else None]
        for group in sorted(groups - {0}):
            if self._wait(f"speed/{group}", 1.0):
                found.append(json.loads(self._store.get(_key(f"speed/{group}"))))
        speeds = [bandwidth.Speed(**each) for each in found if each]
        slowest = min(speeds, key=lambda each: each.bits_s, default=None)
        finding = bandwidth.judge(slowest, self._nodes, self._rates) if slowest else None
        told = {"speed": slowest and slowest.to_json(), "finding": finding and finding.to_json()}
        self._store.set(_key("link"), json.dumps(told))
        return told

    # On every node

    def _leave(self, finding: Finding) -> None:
        """Raise the finding; the head leaves last because it hosts the store."""
        self._store.add(_key("heard"), 1)
        deadline = time.monotonic() + (_LINGER_S if self._node == 0 else 0)
        while (
            int(self._store.add(_key("heard"), 0)) < self._num_nodes and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        raise RunError(finding)

    def _go_on(self, verdict: dict[str, Any]) -> Result:
        choice = json.loads(self._store.get(_key("choice", self._node)))
        way = interfaces.Way(**choice["way"])
        warnings = [Finding.from_json(each) for each in verdict["warnings"]]
        parts = [f"{self._num_nodes} nodes" + ("" if warnings else " alike")]
        if verdict["link"]:
            told = self._measure(way.name)
            parts += [bandwidth.Speed(**told["speed"]).words] if told["speed"] else []
            warnings += [Finding.from_json(told["finding"])] if told["finding"] else []
        if way.choice:
            parts.append(f"over {way.name} ({way.reason})")
        parts.append(f"{time.monotonic() - self._started:.1f} s")
        return Result(
            choice["env"], verdict["master"], "roll call: " + ", ".join(parts), tuple(warnings)
        )

    def _measure(self, interface: str) -> dict[str, Any]:
        # gloo has its own client of the store, which does not sign
        raw = self._store.underlying_store
        speed = bandwidth.measure(
            raw, node=self._node, num_nodes=self._num_nodes, interface=interface
        )
        if self._node == 0:
            return self._judge_link(speed)
        group, rank, _ = bandwidth.group_of(self._node, self._num_nodes)
        if rank == 0 and group:
            self._store.set(_key(f"speed/{group}"), json.dumps(speed and speed.to_json()))
        if not self._wait("link", _HELD_S):
            return {"speed": None, "finding": None}
        told: dict[str, Any] = json.loads(self._store.get(_key("link")))
        return told


def compare(
    store: Any,
    options: Options,
    plan: Plan,
    folder: Path,
    *,
    node: int,
    num_nodes: int,
    token: str,
    address: str,
    first: bool,
) -> Result:
    """Compare the nodes of a run; on one node, check only that node, and only with ``--check``.

    Args:
        store: The store of the attempt.
        options: The options of the run.
        plan: The plan of this node.
        folder: The run folder.
        node: Rank of this node.
        num_nodes: Number of nodes.
        token: The run's token.
        address: Address of this node in the run.
        first: Whether this node has not met other nodes before.

    Raises:
        RunError: The nodes cannot work together.
    """

    def gather(port: int) -> Facts:
        return facts.gather(options, plan, node=node, address=address, port=port)

    if num_nodes == 1:
        asked = options.check and first
        return Result(line=check_alone(gather(0), folder=display_path(folder)) if asked else "")
    roll = RollCall(
        store, node=node, num_nodes=num_nodes, token=token, script=options.script, folder=folder
    )
    return roll.hold(gather) if roll.is_held(first) else Result()


def check_alone(mine: Facts, *, folder: str) -> str:
    """Check a node that runs alone, and return the line about it.

    Args:
        mine: The facts of this node.
        folder: The run folder, already proven to be writable.

    Raises:
        RunError: An interface that the user has named does not exist.
    """
    findings = interfaces.judge([mine], {})
    if findings:
        raise RunError(replace(findings[0], severity="error"))
    named = "".join(f", {name}={value} is here" for name, value in mine.settings.items() if value)
    return f"roll call: 1 node, {folder} can be written{named}"


def _key(kind: str, node: int | str | None = None) -> str:
    return f"paceline/compare/{kind}" + ("" if node is None else f"/{node}")


def gather_reached(tried: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, list[bool]]]:
    """Return for each node and address whether each node that tried it got an answer."""
    reached: dict[int, dict[str, list[bool]]] = {}
    for entry in tried.values():
        for peer, answers in entry["reached"].items():
            for address, ok in answers.items():
                reached.setdefault(int(peer), {}).setdefault(address, []).append(ok)
    return reached


def judge(
    nodes: list[Facts],
    tried: Mapping[int, Mapping[str, Any]],
    reached: interfaces.Reached,
    *,
    script: str,
    folder: str,
) -> tuple[list[Finding], list[Finding]]:
    """Return the errors and the warnings about the nodes of a run.

    Args:
        nodes: The facts of all nodes, in the order of their ranks.
        tried: What each node has tried.
        reached: The same tries, by the node that was tried.
        script: Name of the script.
        folder: The run folder.
    """
    found = [
        *interfaces.judge(nodes, reached),
        *consistency.judge(nodes, script=script),
        consistency.judge_folder(
            nodes, {node: entry["folder"] for node, entry in tried.items()}, folder=folder
        ),
        consistency.judge_clocks(nodes, {node: entry["ahead_s"] for node, entry in tried.items()}),
    ]
    findings = [finding for finding in found if finding is not None]
    errors = [finding for finding in findings if finding.severity == "error"]
    return errors, [finding for finding in findings if finding.severity != "error"]
