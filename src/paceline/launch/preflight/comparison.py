"""Compare the nodes before the ranks start: each posts its facts, the head decides, all print it.

Gathers the facts and exchanges them through the store. ``consistency``, ``interfaces`` and
``bandwidth`` decide what the facts mean.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistStoreError

from paceline.errors import Finding, RunError
from paceline.launch.channel import reachability
from paceline.launch.channel.reachability import ProbeAnswer
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.preflight import bandwidth, consistency, facts, interfaces
from paceline.launch.preflight.facts import NodeFacts
from paceline.machine.interfaces import Interface
from paceline.machine.signed_store import SignedStore
from paceline.rundir import owned
from paceline.rundir.files import display_path
from paceline.text.plain_data import read_as

# How long to wait for what the head publishes at once: whether it compares, or the link's speed.
_HEAD_S = 15.0
# How long the head waits for the posts of the nodes. They need a second or two.
_POSTS_S = 20.0
_VERDICT_S = 40.0
_READ_S = 3.0  # how long the store outlives a finding that ends the run, until all have read it
# On a file server, other nodes see a new file a little later.
_FOLDER_S = 2.0
_PAIRS = 4  # up to this number of nodes, each tries all others


@dataclass(frozen=True)
class PreflightResult:
    """The result of the comparison for this node."""

    env: Mapping[str, str] = field(default_factory=dict)  # environment variables for its ranks
    master: str = ""  # address of node 0 that the others reach; empty if there was nothing to try
    line: str = ""  # the line to print; empty if there is none
    warnings: tuple[Finding, ...] = ()  # findings that do not stop the run, the same on all nodes


class Comparison:
    """One node's part in the comparison of the nodes."""

    def __init__(
        self, store: Any, *, node: int, num_nodes: int, token: str, script: str, folder: Path
    ) -> None:
        self._store = SignedStore.of(store)
        self._node = node
        self._num_nodes = num_nodes
        self._token = token
        self._script = script
        self._folder = folder
        self._mark = folder / f".seen-{reachability.public_form(token)}"
        self._start_s = time.monotonic()

    def is_due(self, first: bool) -> bool:
        """Return whether the nodes compare themselves; node 0 decides, on its first attempt."""
        if self._node == 0:
            if first:
                with contextlib.suppress(OSError):
                    owned.append(self._mark).close()
            self._store.set(_key("held"), "1" if first else "0")
            return first
        return self._wait("held", _HEAD_S) and self._store.get(_key("held")) == b"1"

    def run(self, gather: Callable[[int], NodeFacts]) -> PreflightResult:
        """Compare this node with the others; ``gather`` takes the port of this node's server.

        Raises RunError if the nodes cannot work together; all get the same finding.
        """
        echo = reachability.Echo(self._token, node=self._node)
        try:
            mine = gather(echo.port)
            self.post("facts", asdict(mine))
            # Other nodes may still try this node until the verdict is published.
            verdict = self.exchange(self._try_others(mine, self._facts_of_peers()))
        finally:
            echo.close()
        if verdict is None:
            return PreflightResult(
                line="roll call: the head did not answer, nodes were not compared"
            )
        if verdict["error"]:
            self._leave(Finding.from_json(verdict["error"]))
        return self._result(verdict)

    def exchange(self, tried: Mapping[str, Any]) -> dict[str, Any] | None:
        """Publish what this node has tried and return the head's verdict; None after a timeout.

        The node's facts must be posted before.
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
        nodes = range(self._num_nodes)
        keys = [_key(kind, node) for node in nodes]
        while not self._store.check(keys) and time.monotonic() < deadline:
            time.sleep(max(0.005, self._num_nodes / 20_000))
        while len(posts := self._store.find_by_node(_key(kind), nodes)) < len(nodes):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return {node: json.loads(content) for node, content in posts.items()}

    def _wait(self, kind: str, seconds: float) -> bool:
        try:
            self._store.wait([_key(kind)], timedelta(seconds=seconds))
        except DistStoreError:  # a timeout; a lost store is another error
            return False
        return True

    def _facts_of_peers(self) -> dict[int, NodeFacts]:
        """Return the facts of the few nodes that this node tries; those that come in time."""
        others = {}
        for peer in self._peers():
            key = _key("facts", peer)
            with contextlib.suppress(DistStoreError):
                self._store.wait([key], timedelta(seconds=_POSTS_S))
                others[peer] = read_as(NodeFacts, json.loads(self._store.get(key)))
        return others

    def _try_others(self, mine: NodeFacts, others: Mapping[int, NodeFacts]) -> dict[str, Any]:
        """Try the addresses of other nodes, and look for the head's file in the run folder."""
        apart = {peer: other for peer, other in others.items() if other.machine != mine.machine}
        tries = {
            peer: (other.port, _addresses(interfaces.candidates(other)))
            for peer, other in apart.items()
        }
        own = _addresses(mine.interfaces)
        answers = reachability.try_all(tries, token=self._token, own=own)
        from_head = list(answers.get(0, {}).values())
        if 0 in others and 0 not in apart:
            from_head = [reachability.ask("127.0.0.1", others[0].port, self._token, 0)]
        return {
            "reached": {
                peer: {address: answer.ok for address, answer in by_address.items()}
                for peer, by_address in answers.items()
            },
            "ahead_s": _fastest_ahead_s(from_head),
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
        nodes = [read_as(NodeFacts, values) for _, values in sorted(self.collect("facts").items())]
        tried = self.collect("tried")
        with contextlib.suppress(OSError):
            owned.delete(self._mark)
        reached = gather_reached(tried)
        errors, warnings = judge(
            nodes, tried, reached, script=self._script, folder=str(self._folder)
        )
        choices = {node.node: interfaces.choose(node, reached) for node in nodes}
        self._publish_choices(nodes, choices, reached)
        verdict = {
            "error": _with_others(errors).to_json() if errors else None,
            "warnings": [finding.to_json() for finding in warnings],
            "master": choices[0].address if 0 in choices else "",
            # no measurement on one machine, or if an interface is unknown
            "link": (
                not errors
                and len(nodes) == self._num_nodes
                and all(choice.name for choice in choices.values())
            ),
        }
        self._nodes = nodes
        self._rates = {node: choice.mbit for node, choice in choices.items()}
        self._store.set(_key("verdict"), json.dumps(verdict))

    def _publish_choices(
        self,
        nodes: Sequence[NodeFacts],
        choices: Mapping[int, interfaces.InterfaceChoice],
        reached: interfaces.Reached,
    ) -> None:
        """Publish for each node the interface that it uses, and variables for its ranks."""
        values = []
        for node in nodes:
            choice = choices[node.node]
            variables = interfaces.variables(node, choice, reached)
            values.append(json.dumps({"interface": asdict(choice), "env": variables}))
        self._store.multi_set([_key("choice", node.node) for node in nodes], values)

    def _judge_link(self, speed: bandwidth.Speed | None) -> dict[str, Any]:
        """Publish the slowest group's figures, and the finding about them."""
        groups = {bandwidth.group_of(node, self._num_nodes)[0] for node in range(self._num_nodes)}
        speeds = [speed] if speed else []
        for group in sorted(groups - {0}):
            if self._wait(f"speed/{group}", 1.0):
                figures = json.loads(self._store.get(_key(f"speed/{group}")))
                speeds += [bandwidth.Speed(**figures)] if figures else []
        slowest = min(speeds, key=lambda speed: speed.bits_s, default=None)
        finding = bandwidth.judge(slowest, self._nodes, self._rates) if slowest else None
        link = {"speed": slowest and asdict(slowest), "finding": finding and finding.to_json()}
        self._store.set(_key("link"), json.dumps(link))
        return link

    # On every node

    def _leave(self, finding: Finding) -> None:
        """Raise the finding; the head leaves last because it hosts the store."""
        num_readers = int(self._store.add(_key("heard"), 1))
        deadline = time.monotonic() + (_READ_S if self._node == 0 else 0)
        while num_readers < self._num_nodes and time.monotonic() < deadline:
            time.sleep(0.02)
            num_readers = int(self._store.add(_key("heard"), 0))
        raise RunError(finding)

    def _result(self, verdict: dict[str, Any]) -> PreflightResult:
        """Return the result for this node, after the measurement of the link if there is one."""
        posted = json.loads(self._store.get(_key("choice", self._node)))
        choice = interfaces.InterfaceChoice(**posted["interface"])
        warnings = [Finding.from_json(values) for values in verdict["warnings"]]
        parts = [f"{self._num_nodes} nodes" + ("" if warnings else " alike")]
        if verdict["link"]:
            link = self._measure(choice.name)
            parts += [bandwidth.Speed(**link["speed"]).words] if link["speed"] else []
            warnings += [Finding.from_json(link["finding"])] if link["finding"] else []
        if choice.has_alternative:
            parts.append(f"over {choice.name} ({choice.reason})")
        parts.append(f"{time.monotonic() - self._start_s:.1f} s")
        line = "roll call: " + ", ".join(parts)
        return PreflightResult(posted["env"], verdict["master"], line, tuple(warnings))

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
            self._store.set(_key(f"speed/{group}"), json.dumps(speed and asdict(speed)))
        if not self._wait("link", _HEAD_S):
            return {"speed": None, "finding": None}
        link: dict[str, Any] = json.loads(self._store.get(_key("link")))
        return link


def compare(
    store: Any,  # of the attempt
    options: Options,
    plan: Plan,
    folder: Path,
    *,
    node: int,
    num_nodes: int,
    token: str,
    address: str,  # of this node in the run
    first: bool,  # this node has not met other nodes before
) -> PreflightResult:
    """Compare the nodes of a run; on one node, check only that node, and only with ``--check``.

    Raises RunError if the nodes cannot work together.
    """

    def gather(port: int) -> NodeFacts:
        return facts.gather(options, plan, node=node, address=address, port=port)

    if num_nodes == 1:
        if options.check and first:
            return PreflightResult(line=check_alone(gather(0), folder=display_path(folder)))
        return PreflightResult()
    comparison = Comparison(
        store, node=node, num_nodes=num_nodes, token=token, script=options.script, folder=folder
    )
    return comparison.run(gather) if comparison.is_due(first) else PreflightResult()


def check_alone(mine: NodeFacts, *, folder: str) -> str:
    """Check a node that runs alone, and return the line about it.

    The run folder is already proven to be writable. Raises RunError if an interface that the user
    has named does not exist.
    """
    findings = interfaces.judge([mine], {})
    if findings:
        raise RunError(replace(findings[0], severity="error"))
    settings = [f", {name}={value} is here" for name, value in mine.settings.items() if value]
    return f"roll call: 1 node, {folder} can be written{''.join(settings)}"


def _key(kind: str, node: int | str | None = None) -> str:
    return f"paceline/compare/{kind}" + ("" if node is None else f"/{node}")


def _addresses(some: Iterable[Interface]) -> list[str]:
    return [address for interface in some for address in interface.addresses]


def _fastest_ahead_s(answers: Iterable[ProbeAnswer]) -> float:
    """Return how far this node's clock is ahead, by the fastest answer; 0 without an answer."""
    trips = [answer for answer in answers if answer.ok]
    return min(trips, key=lambda answer: answer.trip_s).ahead_s if trips else 0.0


def _with_others(errors: Sequence[Finding]) -> Finding:
    """Return the first error, with a few further ones as evidence."""
    first = errors[0]
    others = tuple(f"also: {finding.what}" for finding in errors[1:4])
    return replace(first, evidence=first.evidence + others)


def gather_reached(tried: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, list[bool]]]:
    """Return for each node and address whether each node that tried it got an answer."""
    reached: dict[int, dict[str, list[bool]]] = {}
    for entry in tried.values():
        for peer, answers in entry["reached"].items():
            for address, ok in answers.items():
                reached.setdefault(int(peer), {}).setdefault(address, []).append(ok)
    return reached


def judge(
    nodes: list[NodeFacts],
    tried: Mapping[int, Mapping[str, Any]],  # by each node
    reached: interfaces.Reached,  # the same tries, by the node that was tried
    *,
    script: str,
    folder: str,
) -> tuple[list[Finding], list[Finding]]:
    """Return the errors and the warnings about the nodes of a run."""
    sees_folder = {node: entry["folder"] for node, entry in tried.items()}
    offsets_s = {node: entry["ahead_s"] for node, entry in tried.items()}
    results = [
        *interfaces.judge(nodes, reached),
        *consistency.judge(nodes, script=script),
        consistency.judge_folder(nodes, sees_folder, folder=folder),
        consistency.judge_clocks(nodes, offsets_s),
    ]
    findings = [finding for finding in results if finding is not None]
    errors = [finding for finding in findings if finding.severity == "error"]
    return errors, [finding for finding in findings if finding.severity != "error"]
