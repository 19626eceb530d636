"""The objects that a node's launcher uses from the start to the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.counters import SharedCounters
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import RankTask
from paceline.launch.run.console import Console
from paceline.launch.run.fork_server import ForkServer
from paceline.launch.run.notices import Notices
from paceline.launch.run.peers import Peers
from paceline.launch.run.stop_request import StopSlot


@dataclass(frozen=True)
class LaunchContext:
    """What the node, its agent and its ranks work with."""

    options: Options  # the options of the run
    plan: Plan  # the plan of the run
    task: RankTask  # the task of every rank, without its rank, environment and files
    fork_server: ForkServer  # the fork server
    counters: SharedCounters | None  # the counters of the ranks; None without the probe
    counters_handle: int  # descriptor of the counters' memory; -1 without the probe
    console: Console  # copies the output of ranks
    notices: Notices  # prints warnings and notices
    peers: Peers  # the other nodes
    stop: StopSlot  # the request to end the ranks, from the launcher's main thread
