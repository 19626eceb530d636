"""The launcher's main thread: listens to signals, to the clock and to its node, and tells how the run ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from paceline import env
from paceline.errors import EXIT_OK, Finding, PacelineError
from paceline.launch.channel.silence import STORE, NodeLost
from paceline.launch.outcome import account, evidence, nccl
from paceline.launch.outcome.account import Report, Stop
from paceline.launch.outcome.endings import RankEnd
from paceline.launch.outcome.resume import Again, Checkpoint
from paceline.launch.plan import slurm_times
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import RankTask
from paceline.launch.run import signals, starter
from paceline.launch.run.console import Console
from paceline.launch.run.node import Node, losses_of, names_of
from paceline.launch.run.signals import NOTICES, Caught, Signals
from paceline.machine import processes
from paceline.rundir.files import RunDir, shown

# How long nodes wait for each other's account of a failure; all stop their ranks within 2 s.
_ACCOUNTS_S = 5.0
# How long the agent's thread may take to notice that it is to end, before the launcher goes without it.
_NOTICE_S = 2.0
# How long the agent may take, beside the ranks' time to end, once a node is lost.
_STUCK_S = 15.0
# A file's time is that of a coarser clock, or of a file server's.
_FILE_CLOCK_NS = 1_000_000_000
# srun --kill-on-bad-exit ends all tasks as soon as one has failed: the one that tells why is to come first.
_HEAD_SPEAKS_S = 1.0
# How long to wait for the last output of ranks that have ended, with and without processes that may stay.
_BACKGROUND_S = 0.1
_DRAIN_S = 1.0
_SIGNALS_OF_OURS = ("SIGWINCH", *NOTICES)


class Conductor:
    """The launcher of one node, from the warm process to the last line.

    The agent works in a thread of its own; the main thread listens to signals and to how the agent does,
    so that no wait inside torch can make the launcher deaf.
    """

    def __init__(self, options: Options, plan: Plan, task: RankTask, warm: starter.Starter, handle: int) -> None:
        self._options = options
        self._plan = plan
        self._task = task
        self._warm = warm
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process lives
        self._console = Console(err=os.dup(2))
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._stop: Stop | None = None
        self._taken: Signals
        self._insistence = signals.Insistence()
        self._told_by_head = False
        self._node = Node(options, plan, task, warm=warm, handle=handle, console=self._console)
        self._fork_server = starter.StopWatch(warm.pid)
        self._lost_since_s = time.monotonic()
        self._started_s = time.monotonic()
        self._slurm_times = slurm_times.Watcher({} if options.no_slurm else env.snapshot())

    def run(self) -> Report:
        """Conduct; returns how the run ended."""
        # torch's C++ prints stack traces into the launcher's stderr when a store goes away; they are kept
        # in the run folder, the console is for what is meant for people.
        os.dup2(self._noise.fileno(), 2)
        handled = [getattr(signal, name) for name in (*self._options.signals_to_handle, *_SIGNALS_OF_OURS)]
        self._taken = Signals(list(dict.fromkeys(handled)))
        try:
            threading.Thread(target=self._work, name="paceline-agent", daemon=True).start()
            report = self._attend()
            self._finish(report)
        except BaseException:
            self._warm.kill()  # whatever it is, no rank outlives its launcher
            raise
        finally:
            self._node.release()
            os.dup2(self._console.err, 2)
            self._noise.close()
        return report

    # The agent's thread

    def _work(self) -> None:
        try:
            self._news.put(("ended", self._node.run()))
        except PacelineError as error:
            self._news.put(("refused", error))
        except BaseException as error:
            self._news.put(("broke", error))

    # The main thread

    def _attend(self) -> Report:
        """Listen to signals, to the clock and to the agent until the run has ended one way or the other."""
        deadline = float("inf")
        limit = self._started_s + (self._options.max_time or float("inf"))
        while True:
            got = self._taken.next(0.05)
            if got is not None and got.number == signal.SIGWINCH:
                self._console.resize()
            elif got is not None:
                at_once = self._insistence.hears(got.number.name, time.monotonic())
                if self._stop is None:
                    deadline = self._obey_signal(got)
                elif at_once:
                    self._end_at_once()
            elif time.monotonic() > limit and self._stop is None:
                self._insistence.hears("", time.monotonic())
                deadline = self._obey_clock()
            stopped = self._fork_server.look()
            if stopped is not None:
                self._node.inform(stopped)
            if self._is_agent_stuck():
                self._warm.kill()
                return self._account("ended", False)
            if not self._news.empty():
                return self._account(*self._news.get())
            if time.monotonic() > deadline:
                if self._node.agent is None or not self._node.agent.stopping.is_set():
                    # It sits in a wait inside torch, for nodes or for the store: go without it.
                    self._warm.kill()
                    return self._account("ended", False)
                deadline = float("inf")

    def _is_agent_stuck(self) -> bool:
        """Return whether a node is lost and the agent has not ended its ranks: it sits in a wait for torch's store."""
        board = self._node.agent.board if self._node.agent is not None else None
        if board is None or not board.remote.lost:
            self._lost_since_s = time.monotonic()
        return time.monotonic() - self._lost_since_s > _STUCK_S + self._plan.grace_s

    def _end_at_once(self) -> None:
        """Somebody insists: what is left of the ranks is killed, here and on all other nodes."""
        self._warm.kill()
        board = self._node.agent.board if self._node.agent is not None else None
        if board is not None:
            board.hurry()

    def _hears_insistence(self) -> bool:
        """Listen to signals while the other nodes' accounts are awaited; never a reason not to wait for them."""
        got = self._taken.next(0.0)
        if got is not None and self._stop is not None and self._insistence.hears(got.number.name, time.monotonic()):
            self._end_at_once()
        return False

    def _obey_signal(self, got: Caught) -> float:
        sender = "an unknown sender" if got.sender is None else "the terminal"
        if got.sender:
            sender = processes.describe(got.sender)
        if "slurmstepd" in sender:
            sender = "Slurm (before a time limit, for a preemption, or by scancel)"
        hands_on = signals.for_ranks(got.number, self._options.signals_to_handle)
        return self._end_ranks(got.number, got.number.name, sender, hands_on=hands_on)

    def _obey_clock(self) -> float:
        given = dict(self._options.typed)["max_time"]
        return self._end_ranks(signal.SIGTERM, f"--max-time {given}", "", hands_on=signal.SIGTERM)

    def _end_ranks(self, number: signal.Signals, name: str, sender: str, *, hands_on: signal.Signals) -> float:
        """Begin the orderly end on all nodes; returns until when the agent must have noticed."""
        self._stop = Stop(number, name, sender, socket.gethostname(), time.time_ns())
        agent = self._node.agent
        quiet = agent is not None and self._options.placed.left_to_head(agent.node_rank)  # the head got it too
        if agent is not None and agent.group is not None and not quiet:
            by = f"{name} from {sender}" if sender else name
            again = "SIGINT" if not sender or name in NOTICES else "once more"
            time_left = f"{self._plan.grace_s} s"
            if name == "SIGTERM" and "Slurm" in sender:
                seconds, whose = slurm_times.shortest(
                    self._plan.grace_s, self._slurm_times.limits, now_s=time.monotonic()
                )
                time_left = f"at least {seconds} s ({whose})" if whose else time_left
            self._console.say(f"{by}: ranks have {time_left} to end by themselves; {again} ends them now")
        by_slurm = "Slurm" in sender and self._slurm_times.limits.signals_all
        self._node.ask_to_stop(hands_on, reached_ranks=by_slurm and hands_on == number)
        return time.monotonic() + _NOTICE_S

    def _account(self, kind: str, content: Any) -> Report:
        if kind == "refused" and self._stop is None:
            return account.refused(content)
        if kind == "broke":
            self._warm.kill()
            if self._node.agent is None or self._node.agent.board is None:
                return account.broken(content, host=socket.gethostname(), run=self._run_alone())
            if not isinstance(content, NodeLost):
                self._node.agent.board.remote.lose(STORE)  # what broke it is that the store is gone
        run = self._hear_all(succeeded=bool(content) and kind == "ended")
        if self._node.agent is not None and self._node.agent.group is not None:
            number = self._node.agent.group.attempt.number
            self._node.event("end", attempt=number, ends=[end.to_json() for end in run.ends])
        return account.tell(run)

    def _hear_all(self, *, succeeded: bool) -> account.Run:
        """Exchange with the other nodes how everybody's ranks ended."""
        seconds = time.monotonic() - self._started_s
        agent = self._node.agent
        alone = self._run_alone()
        if agent is None or agent.group is None:
            return alone
        board = agent.board
        offset_ns = board.clock_offset_ns if board else 0
        mine: dict[str, Any] = {
            "ends": [end.shifted(offset_ns).to_json() for end in agent.group.ends()],
            "pulses": agent.group.figures(),
            "stop": self._stop and {**self._stop.__dict__, "time_ns": self._stop.time_ns - offset_ns},
            "last": alone.last and asdict(alone.last),
            "again": asdict(alone.again),
            "hang": agent.hang and agent.hang.to_json(),
            "noticed_hang": agent.noticed_hang and agent.noticed_hang.to_json(),
            "noticed": [finding.to_json() for finding in self._node.noticed],
            "saving": self._half_saved(agent.group.attempt.stopped.values()),
        }
        found, lost = {agent.node_rank: mine}, set[int]()
        if board is not None:
            if not succeeded and not self._stop:
                board.fail()
            # a node that was told to stop gives its ranks their time before it has an account
            patience_s = _ACCOUNTS_S + (self._plan.grace_s if self._stop or board.remote.stop else 0)
            found |= board.exchange(mine, until_s=patience_s, linger=agent.hosts_store, give_up=self._hears_insistence)
            lost = board.remote.lost | set(board.remote.silent)
            self._told_by_head = self._options.placed.left_to_head(agent.node_rank) and 0 in found
            agent.note_losses()
        names = names_of(lost, found, agent)
        told = [found[node] for node in sorted(found)]
        kept = [Checkpoint(**entry["last"]) for entry in told if entry["last"]]
        return replace(
            alone,
            ends=[RankEnd.from_json(end) for entry in told for end in entry["ends"]],
            lost=list(names.values()),
            losses=losses_of(names, agent),
            stops=[Stop(**entry["stop"]) for entry in told if entry["stop"]],
            attempts=agent.attempts,
            pulses=[pulses for entry in told for pulses in entry["pulses"]],
            seconds=seconds,
            again=Again(**told[0]["again"]),  # the first node's line, so that all print the same
            last=max(kept, key=lambda checkpoint: checkpoint.number, default=None),
            hang=_first_finding(told, "hang"),
            noticed_hang=_first_finding(told, "noticed_hang"),
            noticed=list(dict.fromkeys(Finding.from_json(each) for entry in told for each in entry["noticed"])),
            saving=next((entry["saving"] for entry in told if entry["saving"]), ""),
        )

    def _run_alone(self) -> account.Run:
        """Return what this node knows of the run without its ranks."""
        stops = [self._stop] if self._stop else []
        if self._node.run_dir is None:
            return account.Run(stops=stops)
        folder = shown(self._node.run_dir.root)
        again = self._node.again(self._node.run_dir)
        last = evidence.last_checkpoint(self._node.run_dir.checkpoints)
        return account.Run(folder=folder, stops=stops, again=again, last=last, grace_s=self._plan.grace_s)

    def _half_saved(self, stopped: Iterable[tuple[str, int]]) -> str:
        """Return the checkpoint that ranks were writing after they had been told to stop."""
        assert self._node.run_dir is not None
        since_ns = min((when for _, when in stopped if when), default=None)
        if since_ns is None:
            return ""
        return evidence.half_saved(self._node.run_dir.checkpoints, since_ns=since_ns - _FILE_CLOCK_NS)

    def _finish(self, report: Report) -> None:
        """Let the warm process go, print the last lines, leave the outcome in the run folder."""
        succeeded = report.exit_status == EXIT_OK
        if not succeeded:
            self._warm.close()
        # Whatever the ranks have printed is in their pipes; who still holds one was left in the background.
        self._console.drain(_BACKGROUND_S if succeeded else _DRAIN_S)
        if succeeded:
            self._warm.close(leave=True, streams=self._console.release())
        self._node.leave()
        if self._node.agent is not None and self._node.agent.group is not None:
            self._node.agent.group.keep_files()
        if self._node.run_dir is not None:
            if self._options.nccl_debug:
                report.lines[:0] = nccl.summarise(
                    evidence.read_nccl_logs(self._node.run_dir, since=self._node.first_attempt)
                )
            self._keep_noise(self._node.run_dir)
            self._node.event("outcome", **report.to_json())
        of_interest = report.exit_status != EXIT_OK or not self._options.check_only
        if not self._told_by_head and of_interest:
            self._console.write(report.framed())
        elif report.exit_status != EXIT_OK:
            time.sleep(_HEAD_SPEAKS_S)
        if self._options.json:
            print(json.dumps(report.to_json()), flush=True)

    def _keep_noise(self, run_dir: RunDir) -> None:
        self._noise.seek(0)
        text = self._noise.read()
        if text:
            node = self._node.agent.node_rank if self._node.agent else 0
            with contextlib.suppress(OSError):
                run_dir.launcher_log(node, self._node.first_attempt).write_bytes(text)


def _first_finding(accounts: Iterable[dict[str, Any]], name: str) -> Finding | None:
    """Return the first finding of a name in the accounts of nodes, None if none has one."""
    return next((Finding.from_json(entry[name]) for entry in accounts if entry[name]), None)
