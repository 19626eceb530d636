"""The objects that a node's launcher uses from the start to the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.counters import SharedCounters
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import RankTask
from paceline.launch.run.console import Console
from paceline.launch.run.fork_server import ForkServer
from paceline.launch.run.link import Link
from paceline.launch.run.notices import Notices
from paceline.launch.run.peers import Peers


@dataclass(frozen=True)
class LaunchContext:
    """What the node, its agent and its ranks work with.

    Attributes:
        options: The options of the run.
        plan: The plan of the run.
        task: The task of every rank, without its rank, environment and files.
        fork_server: The fork server.
        counters: The counters of the ranks; None without the probe.
        counters_handle: Descriptor of the counters' memory; -1 without the probe.
        console: Copies the output of ranks.
        notices: Prints warnings and notices.
        peers: The other nodes.
        link: The link to the launcher's main thread.
    """

    options: Options
    plan: Plan
    task: RankTask
    fork_server: ForkServer
    counters: SharedCounters | None
    counters_handle: int
    console: Console
    notices: Notices
    peers: Peers
    link: Link
