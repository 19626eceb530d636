"""Start the ranks of one attempt on this node, and watch them while they run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline import deadlines, env
from paceline.errors import Finding
from paceline.launch.in_rank import rank_files
from paceline.launch.in_rank.meeting import Meetings
from paceline.launch.monitor import ras, timed_steps, waiting
from paceline.launch.monitor.fork_watch import ForkWatch
from paceline.launch.monitor.observer import Observer
from paceline.launch.monitor.speed_log import SpeedLog
from paceline.launch.monitor.timed_steps import Durations, TimedSteps
from paceline.launch.monitor.watch import Watch
from paceline.launch.outcome.grace_check import SaveWatch
from paceline.launch.plan.early_variables import LateVariables
from paceline.launch.probe import trial_end
from paceline.launch.run.context import LaunchContext
from paceline.launch.run.ranks import RankGroup
from paceline.rundir import owned
from paceline.rundir.files import RunDir

# How long ranks may continue at least after another one has ended to be resumed.
_LEFT_ALONE_S = 5.0


class Supervision:
    """The ranks of one attempt, and all that watches them while they run."""

    def __init__(
        self,
        context: LaunchContext,  # what all attempts share
        ranks: RankGroup,  # the ranks of this node
        *,
        run_dir: RunDir,  # the run folder
        saves: SaveWatch | None,  # watches the checkpoints; None if another node does
        is_first: bool,  # whether to print what all nodes and attempts would print alike
    ) -> None:
        self._context = context
        self._is_first = is_first
        self._run_dir = run_dir
        self._saves = saves
        self._is_trial = trial_end.num_steps() != trial_end.NO_END
        self._watch: Watch | None = None
        self._forks: ForkWatch | None = None
        self._observer: Observer | None = None
        self._timed: TimedSteps | None = None
        self._speed_log: SpeedLog | None = None
        self._late_variables: LateVariables | None = None
        self._meetings: Meetings | None = None
        self.ranks = ranks  # the ranks of this node
        # why they hung, if they were stopped for a hang; else None
        self.hang: Finding | None = None

    @property
    def noticed_hang(self) -> Finding | None:
        """The cause that a notice named for a wait that still lasts; None if there is none."""
        return self._watch.cause if self._watch is not None else None

    def last_timed_steps(self) -> dict[int, dict[int, Durations]]:
        """Read the counters a last time, after the ranks have ended.

        Return the durations of the stages of some steps of this node's ranks, by step and rank.
        """
        if self._timed is None:
            return {}
        self._timed.look()
        if self._speed_log is not None:
            self._speed_log.close()
        if self._is_trial:
            self._write_timed_steps(self._timed.latest(timed_steps.MOST))
        return self._timed.to_send(self.ranks.attempt.world_size)

    def release(self) -> None:
        """Release what this attempt holds, because another one follows; its ends are kept."""
        if self._speed_log is not None:
            self._speed_log.end()
        self.ranks.conclude()

    def _write_timed_steps(self, steps: Mapping[int, Mapping[int, Durations]]) -> None:
        """Write all timed steps of this node into the run folder."""
        text = json.dumps(timed_steps.to_json(steps))
        with contextlib.suppress(OSError):
            owned.write_whole(self._run_dir.timed_steps, text)

    def begin(self) -> None:
        """Start the ranks and everything that watches them."""
        context, ranks = self._context, self.ranks
        ranks.start()
        inform = context.notices.inform
        self._meetings = Meetings(lambda: ranks.reported(rank_files.MEETING), inform)
        if self._is_first:
            self._late_variables = LateVariables(self._reported_variables, inform)
        if context.counters is None:
            return
        if context.options.on_hang != "off":
            self._watch = Watch(
                ranks,
                context.peers.channel,
                requested_s=context.options.hang_timeout,
                give_up=self._is_over,
                inform=inform,
                ask_nccl=self._ask_nccl if context.plan.backend == "nccl" else None,
                unreached=waiting.unreached_at_start(context.notices.warnings),
            )
            inform_of_forks = inform if self._is_first else None
            self._forks = ForkWatch(ranks, context.counters, inform=inform_of_forks)
        every_s = timed_steps.TRIAL_EVERY_S if self._is_trial else timed_steps.EVERY_S
        self._timed = TimedSteps(context.counters, ranks.attempt.ranks, every_s=every_s)
        self._speed_log = SpeedLog(
            ranks,
            context.counters,
            self._timed,
            context.peers.channel,
            run_dir=self._run_dir,
            with_gpus=context.plan.backend == "nccl",
            notice=context.notices.warn,
        )
        self._observer = Observer(
            ranks,
            context.counters,
            context.peers.channel,
            run_dir=self._run_dir,
            notice=context.notices.warn,
        )

    def _reported_variables(self) -> Iterator[dict[str, str]]:
        return self.ranks.reported(rank_files.VARIABLE)

    def note_places(self) -> None:
        """Note where the ranks are, if none has made progress for some seconds."""
        if self._watch is not None and not self.ranks.attempt.standing:
            self.ranks.attempt.standing = self._watch.standing()

    def report_late_variables(self, *, at_once: bool) -> None:
        """Print which variables ranks have set too late, if that is due or ``at_once`` is True."""
        if self._late_variables is not None:
            self._late_variables.tick(at_once=at_once)

    def must_end(self) -> bool:
        """Check the ranks, none of which has failed; return True if they had to be stopped."""
        if self._meetings is not None:
            self._meetings.tick()
        if self._observer is not None:
            self._observer.tick()
        if self._timed is not None:
            self._timed.tick()
        if self._speed_log is not None:
            self._speed_log.tick()
        if self._saves is not None:
            self._saves.tick()
        self.hang = self._find_hang()
        if self.hang is not None:
            self._stop("the run hung")
            return True
        if self.ranks.left_s > self._patience_s():
            self._stop("another rank had left to be resumed")
            return True
        return False

    def all_done(self) -> bool:
        """Publish that this node's ranks have succeeded; return True once those of all nodes have.

        The head publishes last, when it has judged the data of all ranks. Until then the others
        answer it, and wait only for its message.
        """
        channel, observer = self._context.peers.channel, self._observer
        if (
            channel is not None
            and channel.node == 0
            and not channel.all_have("done", but_head=True)
        ):
            return False
        if observer is not None and not observer.close():
            return False
        if channel is None:
            return True
        channel.post("done", True)
        if channel.node and channel.announced("done", 0) is None:
            return False
        if observer is not None:
            observer.listen()
        return True

    def _find_hang(self) -> Finding | None:
        """Return the finding to stop the run for, because it hangs; None if it continues."""
        finding = self._forks.tick() if self._forks is not None else None
        if finding is None and self._watch is not None:
            finding = self._watch.tick()
        if finding is not None and self._context.options.on_hang == "report":
            self._context.notices.warn(replace(finding, severity="warning"))
            return None
        return finding

    def _stop(self, why: str) -> None:
        self._context.peers.fail()
        self.ranks.stop(why)

    def _is_over(self) -> bool:
        """Return whether an event is more urgent than a look at where ranks are."""
        return self._context.stop.request is not None or self._context.peers.remote.failed

    def _ask_nccl(self) -> list[str]:
        """Return the gist of NCCL's own report, which the run folder keeps in full."""
        report = ras.ask(env.read(env.NCCL_RAS_ADDR) or ras.DEFAULT)
        if report:
            with contextlib.suppress(OSError):
                owned.write_whole(self._run_dir.nccl_ras, report)
        return ras.notable(report)

    def _patience_s(self) -> float:
        """Return how long ranks may continue after the first has left to be resumed, in seconds.

        They leave together. With several nodes, a lost node must be noticed first: it is the better
        explanation.
        """
        patience_s = max(_LEFT_ALONE_S, self._context.plan.grace_s)
        notice_s = deadlines.scaled(deadlines.SILENT_NODE_NOTICE)
        return patience_s + (notice_s if self._context.peers.channel is not None else 0)
