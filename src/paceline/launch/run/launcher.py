"""The launcher of a node: handle signals, the clock and the node's thread, and report the end."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from paceline import env
from paceline.counters import SharedCounters
from paceline.diagnose.explain import printed_loss
from paceline.errors import EXIT_OK, PacelineError
from paceline.launch.channel.silence import NodeLost
from paceline.launch.monitor.attempt import Attempt
from paceline.launch.outcome import evidence, nccl, node_account, report
from paceline.launch.outcome.node_account import NodeAccount
from paceline.launch.outcome.report import Report, Stop
from paceline.launch.plan import slurm_times
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import SCRIPT, RankTask
from paceline.launch.run import fork_server, peers, signals
from paceline.launch.run.console import Console
from paceline.launch.run.context import LaunchContext
from paceline.launch.run.folder import RunFolder, resume_command
from paceline.launch.run.link import Link, NodeEnd
from paceline.launch.run.node import Node
from paceline.launch.run.notices import Notices
from paceline.launch.run.peers import Peers
from paceline.launch.run.signals import NOTICES, Caught, Signals
from paceline.launch.run.stop_request import StopRequest, StopSlot
from paceline.machine import processes
from paceline.rundir import owned, proofs
from paceline.rundir.files import display_path
from paceline.text.json_text import print_json

if TYPE_CHECKING:
    from paceline.launch.run.supervision import Supervision

# How long nodes wait for each other's account after a failure. All stop their ranks within 2 s.
_ACCOUNTS_S = 5.0
# How long the node's thread may take to notice that it must end, before it is abandoned.
_NOTICE_S = 2.0
# How long the node's thread may take, beyond the ranks' grace period, once a node is lost.
_STUCK_S = 15.0
# A file's time comes from a coarser clock, or from a file server's clock.
_FILE_CLOCK_NS = 1_000_000_000
# srun --kill-on-bad-exit ends all tasks as soon as one has failed. So the launcher that explains
# the failure must end first.
_HEAD_SPEAKS_S = 1.0
# How long to wait for the last output of ended ranks, with and without processes that may stay.
_BACKGROUND_S = 0.1
_DRAIN_S = 1.0
_SIGNALS_OF_OURS = ("SIGWINCH", *NOTICES)
_NEVER_S = float("inf")


class Launcher:
    """The launcher of one node, from the fork server to the last line.

    It owns the channel to the other nodes, the results of its ranks, and the report. The node works
    in a separate thread. The main thread handles signals and watches the node, so that no wait
    inside torch can block signals.
    """

    def __init__(
        self,
        options: Options,  # the options of the run
        plan: Plan,  # the plan of the run
        task: RankTask,  # the task of every rank
        server: fork_server.ForkServer,  # the fork server
        handle: int,  # descriptor of the counters' memory; -1 without the probe
    ) -> None:
        self._options = options
        self._plan = plan
        self._task = task
        self._fork_server = server
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process lives
        self._console = Console(err=os.dup(2))
        self._peers = Peers()
        reports = options.starter_defaults.head_reports
        self._notices = Notices(
            self._console, is_quiet=lambda: reports(self._peers.node or options.node_rank)
        )
        self._link = Link()
        self._stop_slot = StopSlot()
        has_probe = handle >= 0
        self._node = Node(
            LaunchContext(
                options=options,
                plan=plan,
                task=task,
                fork_server=server,
                counters=SharedCounters(handle, int(plan.nproc.value)) if has_probe else None,
                counters_handle=handle,
                console=self._console,
                notices=self._notices,
                peers=self._peers,
                stop=self._stop_slot,
            ),
            self._link,
        )
        self._taken: Signals
        self._repeat_policy = signals.RepeatPolicy()
        self._stop: Stop | None = None
        self._stop_deadline_s = _NEVER_S  # when the node's thread must have noticed the stop
        self._head_reports = False
        self._stop_watch = fork_server.StopWatch(server.pid)
        self._lost_since_s = time.monotonic()
        self._started_s = time.monotonic()
        self._slurm_times = slurm_times.Watcher({} if options.no_slurm else env.snapshot())

    def run(self) -> Report:
        """Run the launch; return how the run ended."""
        # torch's C++ prints stack traces into the launcher's stderr when a store is lost. They are
        # kept in the run folder; the console is for messages to people.
        os.dup2(self._noise.fileno(), 2)
        names = (*self._options.signals_to_handle, *_SIGNALS_OF_OURS)
        handled = [getattr(signal, name) for name in names]
        self._taken = Signals(list(dict.fromkeys(handled)))
        try:
            threading.Thread(target=self._node.run, name="paceline-agent", daemon=True).start()
            final_report = self._report(self._attend())
            self._finish(final_report)
        except BaseException:
            self._fork_server.kill()  # no rank may outlive its launcher
            raise
        finally:
            self._release()
            os.dup2(self._console.err, 2)
            self._noise.close()
        return final_report

    # While the node runs

    def _attend(self) -> NodeEnd:
        """Handle signals, the clock and the node until the node has ended."""
        while True:
            self._take_signal(self._taken.next(0.05))
            self._look_at_clock()
            stopped = self._stop_watch.look()
            if stopped is not None:
                self._notices.inform(stopped)
            if self._is_stuck():
                return self._abandon_node()
            end = self._link.progress.end
            if end is not None:
                return end
            if self._has_missed_stop():
                return self._abandon_node()

    def _abandon_node(self) -> NodeEnd:
        """Continue without the node's thread, which waits inside torch for nodes or the store."""
        self._fork_server.kill()
        return NodeEnd()

    def _is_stuck(self) -> bool:
        """Return whether a node is lost and ranks still run: the thread waits for torch's store."""
        if not self._peers.remote.any_lost:
            self._lost_since_s = time.monotonic()
        return time.monotonic() - self._lost_since_s > _STUCK_S + self._plan.grace_s

    def _has_missed_stop(self) -> bool:
        """Return whether the node's thread has not noticed in time that it must stop."""
        is_late = time.monotonic() > self._stop_deadline_s
        return is_late and not self._link.progress.is_stopping

    def _take_signal(self, caught: Caught | None) -> None:
        if caught is None:
            return
        if caught.number == signal.SIGWINCH:
            self._console.resize()
            return
        ends_at_once = self._repeat_policy.record(caught.number.name, time.monotonic())
        if self._stop is None:
            self._obey(caught)
        elif ends_at_once:
            self._end_at_once()

    def _look_at_clock(self) -> None:
        limit_s = self._options.max_time
        if self._stop is not None or not limit_s or time.monotonic() <= self._started_s + limit_s:
            return
        self._repeat_policy.record("", time.monotonic())
        typed = dict(self._options.typed)["max_time"]
        self._end_ranks(signal.SIGTERM, f"--max-time {typed}", "", for_ranks=signal.SIGTERM)

    def _obey(self, caught: Caught) -> None:
        sender = "an unknown sender" if caught.sender is None else "the terminal"
        if caught.sender:
            sender = processes.describe(caught.sender)
        if "slurmstepd" in sender:
            sender = self._slurm()
        for_ranks = signals.for_ranks(caught.number, self._options.signals_to_handle)
        self._end_ranks(caught.number, caught.number.name, sender, for_ranks=for_ranks)

    def _slurm(self) -> str:
        """Return Slurm as a sender, with its reason once that is in the output of the job."""
        folder = self._link.progress.folder
        # few lines: those of an earlier start are above the first lines of this one
        output = evidence.read_tail(folder.run_dir.job_output, lines=6) if folder else ()
        return f"Slurm ({slurm_times.parse_reason(' '.join(output))})"

    def _end_ranks(
        self,
        number: signal.Signals,
        name: str,
        sender: str,
        *,
        for_ranks: signal.Signals,
    ) -> None:
        """Begin the orderly end on all nodes."""
        self._stop = Stop(number, name, sender, socket.gethostname(), time.time_ns())
        supervision = self._link.progress.supervision
        # the head got the signal too
        is_quiet = self._options.starter_defaults.head_reports(self._peers.node)
        if supervision is not None and not is_quiet:
            self._console.say(self._describe_stop(name, sender))
        by_slurm = "Slurm" in sender and self._slurm_times.limits.signals_all
        reached = None
        if supervision is not None and by_slurm and for_ranks == number:
            reached = supervision.ranks.attempt
        self._stop_slot.request = StopRequest(for_ranks, reached)
        self._peers.stop(for_ranks)
        self._stop_deadline_s = time.monotonic() + _NOTICE_S

    def _describe_stop(self, name: str, sender: str) -> str:
        """Return the line to print when the orderly end begins."""
        by = f"{name} from {sender}" if sender else name
        repetition = "SIGINT" if not sender or name in NOTICES else "once more"
        time_left = f"{self._plan.grace_s} s"
        if name == "SIGTERM" and "Slurm" in sender:
            limits, now_s = self._slurm_times.limits, time.monotonic()
            seconds, whose = slurm_times.shortest(self._plan.grace_s, limits, now_s=now_s)
            time_left = f"at least {seconds} s ({whose})" if whose else time_left
        return f"{by}: ranks have {time_left} to end; {repetition} ends them now"

    def _end_at_once(self) -> None:
        """Kill the remaining ranks after a repeated signal, here and on all other nodes."""
        self._fork_server.kill()
        self._peers.hurry()

    def _take_repeated_signal(self) -> bool:
        """Handle signals while accounts are awaited; always False, as no signal ends that wait."""
        caught = self._taken.next(0.0)
        if caught is None or self._stop is None:
            return False
        if self._repeat_policy.record(caught.number.name, time.monotonic()):
            self._end_at_once()
        return False

    # After the node has ended

    def _report(self, end: NodeEnd) -> Report:
        if self._stop is not None and self._stop.sender.startswith("Slurm"):
            self._stop = replace(self._stop, sender=self._slurm())
        if isinstance(end.error, PacelineError):
            if self._stop is None:
                return report.refused(end.error)
        elif end.error is not None:
            self._fork_server.kill()
            if self._is_broken(end.error):
                self._peers.fail()
                return report.broken(end.error, host=socket.gethostname(), run=self._run_alone())
            if not isinstance(end.error, NodeLost):
                self._peers.lose_store()  # the lost store caused the error
        progress = self._link.progress
        if progress.supervision is None:
            return report.conclude(self._run_alone())
        run = self._hear_all(progress.supervision, succeeded=end.succeeded)
        number = progress.supervision.ranks.attempt.number
        self._event("end", attempt=number, ends=[asdict(rank_end) for rank_end in run.ends])
        return report.conclude(run)

    def _is_broken(self, error: BaseException) -> bool:
        """Return whether an error is not the loss of the store, which this process may host."""
        hosts_store = self._hosts_store and not isinstance(error, NodeLost)
        return self._peers.channel is None or hosts_store or report.is_from_stranger(error)

    @property
    def _hosts_store(self) -> bool:
        meeting = self._link.progress.meeting
        return meeting is not None and meeting.hosts_store

    def _hear_all(self, supervision: Supervision, *, succeeded: bool) -> report.Run:
        """Exchange accounts with the other nodes; return the account of the whole run."""
        seconds = time.monotonic() - self._started_s
        alone = self._run_alone()
        if succeeded:
            self._warn_of_loss(supervision.ranks.attempt)
        own = self._own_account(supervision, alone).shifted(self._peers.clock_offset_ns).to_json()
        others = self._exchange(own, succeeded=succeeded)
        entries = {self._peers.node: own} | others
        is_left_to_head = self._options.starter_defaults.head_reports(self._peers.node)
        self._head_reports = is_left_to_head and 0 in entries
        losses = self._peers.losses_at_end(heard=entries)
        run = replace(
            alone,
            lost=list(losses),
            losses=peers.known(losses),
            attempts=self._link.progress.num_attempts,
            seconds=seconds,
        )
        accounts = [NodeAccount.from_json(entries[node]) for node in sorted(entries)]
        return node_account.join(accounts, run)

    def _warn_of_loss(self, attempt: Attempt) -> None:
        """Warn if the last losses that rank 0 printed are not finite, and nothing else says so."""
        if any(finding.name == "parameters-not-finite" for finding in self._notices.warnings):
            return
        logs = [attempt.log_paths[local] for local, rank in attempt.ranks.items() if rank == 0]
        for finding in filter(None, map(printed_loss, map(self._console.tail, logs))):
            self._notices.warn(finding)

    def _own_account(self, supervision: Supervision, alone: report.Run) -> NodeAccount:
        """Return the account that this node sends to the others."""
        return NodeAccount(
            resume_command=alone.resume_command,
            ends=supervision.ranks.ends(),
            counters=supervision.ranks.figures(),
            stop=self._stop,
            last=alone.last,
            hang=supervision.hang,
            noticed_hang=supervision.noticed_hang,
            noticed=self._notices.warnings,
            saving=self._half_saved(supervision.ranks.attempt.stopped.values()),
            timed_steps=supervision.last_timed_steps(),
        )

    def _exchange(self, own: dict[str, Any], *, succeeded: bool) -> dict[int, dict[str, Any]]:
        """Return the accounts of all nodes that send one, by node rank."""
        if not succeeded and self._stop is None:
            self._peers.fail()
        # A node that a signal stops gives its ranks their grace period before it has an account.
        has_stopped = self._stop is not None or self._peers.remote.stop
        patience_s = _ACCOUNTS_S + (self._plan.grace_s if has_stopped else 0)
        give_up = self._take_repeated_signal
        linger = self._hosts_store
        return self._peers.exchange(own, until_s=patience_s, linger=linger, give_up=give_up)

    def _run_alone(self) -> report.Run:
        """Return what this node knows about the run, without its ranks."""
        stops = [self._stop] if self._stop else []
        folder, meeting = self._link.progress.folder, self._link.progress.meeting
        if folder is None or meeting is None:
            return report.Run(stops=stops)
        return report.Run(
            folder=display_path(folder.run_dir.root),
            stops=stops,
            ignored=sorted(meeting.signing.ignored),
            resume_command=resume_command(folder.run_dir, self._options, self._plan, self._task),
            last=evidence.last_checkpoint(folder.run_dir.checkpoints),
            grace_s=self._plan.grace_s,
            script=self._script(),
            loss=proofs.part_of_last_line(self._options.script, self._options.script_args),
        )

    def _script(self) -> str:
        """Return the script with its arguments, to paste; empty for a module or a function."""
        if self._task.kind != SCRIPT:
            return ""
        return shlex.join((self._options.script, *self._options.script_args))

    def _half_saved(self, stopped: Iterable[tuple[str, int]]) -> str:
        """Return the checkpoint that ranks were writing after the signal to stop; empty if none."""
        folder = self._link.progress.folder
        since_ns = min((when for _, when in stopped if when), default=None)
        if folder is None or since_ns is None:
            return ""
        return evidence.half_saved(folder.run_dir.checkpoints, since_ns=since_ns - _FILE_CLOCK_NS)

    def _finish(self, final_report: Report) -> None:
        """End the fork server, print the last lines, and record the outcome in the run folder."""
        progress = self._link.progress
        self._let_ranks_go(succeeded=final_report.exit_status == EXIT_OK)
        if progress.meeting is not None and progress.meeting.connection is not None:
            # so that the store's host sees that this node ends in order
            progress.meeting.connection.leave()
        if progress.supervision is not None:
            progress.supervision.ranks.keep_files()
            ranks, blamed = progress.supervision.ranks, final_report.blamed
            for line in ranks.unprinted(blamed, causes=final_report.causes):
                self._console.write([line])
        if progress.folder is not None:
            self._keep_records(progress.folder, final_report)
        self._print(final_report)

    def _let_ranks_go(self, *, succeeded: bool) -> None:
        """Show the last output of the ranks, and end the fork server."""
        if not succeeded:
            self._fork_server.close()
        # All output of the ranks is in their pipes. A process that still holds a pipe runs in the
        # background.
        self._console.drain(_BACKGROUND_S if succeeded else _DRAIN_S)
        if succeeded:
            self._fork_server.close(leave=True, streams=self._console.release())

    def _keep_records(self, folder: RunFolder, final_report: Report) -> None:
        """Record torch's output and the outcome in the run folder."""
        if self._options.nccl_debug:
            texts = evidence.read_nccl_logs(folder.run_dir, since=folder.first_attempt)
            final_report.lines[:0] = nccl.summarise(texts)
        self._noise.seek(0)
        text = self._noise.read()
        if text:
            log = folder.run_dir.launcher_log(self._peers.node, folder.first_attempt)
            with contextlib.suppress(OSError):
                owned.write_whole(log, text)
        self._event("outcome", **final_report.for_others().to_json())

    def _print(self, final_report: Report) -> None:
        is_of_interest = final_report.exit_status != EXIT_OK or not self._options.check_only
        if not self._head_reports and is_of_interest:
            self._console.write(final_report.framed())
        elif final_report.exit_status != EXIT_OK:
            time.sleep(_HEAD_SPEAKS_S)
        if self._options.json:
            print_json(final_report.to_json(), indent=None)

    def _event(self, kind: str, **fields: Any) -> None:
        folder = self._link.progress.folder
        if folder is not None:
            folder.event(kind, node=self._peers.node, **fields)

    def _release(self) -> None:
        """Give the run folder back, and forget the run's secret: the run has ended."""
        progress = self._link.progress
        if progress.meeting is not None and progress.meeting.shared_secret is not None:
            progress.meeting.shared_secret.remove()
        if progress.folder is not None:
            progress.folder.release()
