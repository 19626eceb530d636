"""What the launcher of a node works with, from the start to the end of the run."""

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
        plan: What was decided.
        task: What every rank runs; rank, environment and files are filled in.
        starter: The warm process.
        pulses: Memory that the ranks count in, None without the probe.
        pulse_handle: Its descriptor, -1 without the probe.
        console: Copies what ranks print.
        notices: Prints warnings and notices.
        peers: The other nodes.
        link: To the launcher's main thread.
    """

    options: Options
    plan: Plan
    task: RankTask
    starter: ForkServer
    pulses: SharedCounters | None
    pulse_handle: int
    console: Console
    notices: Notices
    peers: Peers
    link: Link
