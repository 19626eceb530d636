"""What all attempts of a run have in common on this node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import RankTask
from paceline.launch.run.console import Console
from paceline.launch.run.folder import RunFolder
from paceline.launch.run.link import Link
from paceline.launch.run.notices import Notices
from paceline.launch.run.peers import Peers
from paceline.launch.run.starter import Starter
from paceline.pulse import PulseBoard

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.api import LogsSpecs


@dataclass(frozen=True)
class LaunchContext:
    """What an agent and its ranks work with.

    Attributes:
        options: The options of the run.
        plan: What was decided.
        task: What every rank runs; rank, environment and files are filled in.
        starter: The warm process.
        pulses: Memory that the ranks count in, None without the probe.
        pulse_handle: Its descriptor, -1 without the probe.
        logs: Names log files; torch's own where its options were given.
        folder: The run folder.
        console: Copies what ranks print.
        notices: Prints warnings and notices.
        peers: The other nodes.
        link: To the launcher's main thread.
    """

    options: Options
    plan: Plan
    task: RankTask
    starter: Starter
    pulses: PulseBoard | None
    pulse_handle: int
    logs: LogsSpecs
    folder: RunFolder
    console: Console
    notices: Notices
    peers: Peers
    link: Link
