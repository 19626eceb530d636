"""The agent of a node: torch elastic's, with ranks from the warm process and an ear for the other nodes.

torch's agent keeps its loop, its rendezvous and its restarts. What differs: ranks are started and reaped by
``Starter``; how each ended is kept with its exception and its pulse; a failure on any node stops the ranks of
all; a node that goes silent is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server import api as torch_agent
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import (
    DefaultLogsSpecs,
    LogsDest,
    LogsSpecs,
    PContext,
    RunProcsResult,
    SignalException,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from paceline import env, pulse
from paceline.errors import Finding, RunError
from paceline.launcher import evidence, guard, outcome
from paceline.launcher.board import LOST_AFTER_S, Board
from paceline.launcher.console import Console, fill_prefix, plan_streams
from paceline.launcher.options import Options
from paceline.launcher.outcome import RankEnd
from paceline.launcher.plan import Plan, rank_environment
from paceline.launcher.rendezvous import Meeting
from paceline.launcher.starter import Ended, Starter
from paceline.launcher.task import RankTask
from paceline.rundir import RunDir

# After the first failure: how long to wait for a likelier cause than a victim, how long ranks have between
# SIGTERM and SIGKILL, and how long the kernel has to take them away. Together below the 2 s within which
# all nodes have stopped.
_SETTLE_S = 0.6
_TERM_S = 0.7
_REAP_S = 5.0

# torch asks DNS for the host's full name with every event that it records, which can take seconds each
# time where names do not resolve. The short name is what the machine knows of itself.
torch_agent._get_fq_hostname = socket.gethostname


class RunFolderLogs(LogsSpecs):
    """Names of log files in the run folder: one file a rank for both streams."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__(log_dir=str(run_dir.root))
        self._run_dir = run_dir

    @property
    def root_log_dir(self) -> str:
        return str(self._run_dir.root)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        attempt = int(envs[0][env.RESTART_COUNT])
        ranks = {local: int(values[env.RANK]) for local, values in envs.items()}
        logs = {local: str(self._run_dir.log(rank, attempt)) for local, rank in ranks.items()}
        errors = {local: str(self._run_dir.error(rank, attempt)) for local, rank in ranks.items()}
        for local, path in errors.items():
            envs[local][env.ERROR_FILE] = path
            Path(path).unlink(missing_ok=True)
        folder = self._run_dir.root / "logs"
        return LogsDest(
            stdouts=logs,
            stderrs=dict(logs),
            error_files=errors,
            filtered_stdout=str(folder / "filtered_stdout.log"),
            filtered_stderr=str(folder / "filtered_stderr.log"),
        )


@dataclass
class Machinery:
    """What an agent works with; made by whoever conducts the run.

    Attributes:
        options: What was asked for.
        plan: What was decided.
        starter: The warm process.
        console: Copies what ranks print.
        pulses: Memory that the ranks count in, None without the probe.
        pulse_handle: Its descriptor, -1 without the probe.
        run_dir: The run folder.
        task: What every rank runs; rank, environment and files are filled in.
        base_env: Variables for every rank beside torchrun's.
        on_start: Called with the attempt's restart count and the agent, once ranks run.
        logs: Names log files; torch's own where its options were given.
    """

    options: Options
    plan: Plan
    starter: Starter
    console: Console
    pulses: pulse.PulseBoard | None
    pulse_handle: int
    run_dir: RunDir
    task: RankTask
    base_env: Mapping[str, str]
    on_start: Callable[[int, Agent], None]
    logs: LogsSpecs


@dataclass
class Attempt:
    """One start of this node's ranks.

    Attributes:
        number: Restarts before it.
        ranks: Global rank by local rank.
        world_size: Ranks on all nodes.
        pids: Process by local rank.
        ended: How processes ended, by local rank.
        stopped: Local ranks that the launcher ended, with the reason.
        oom_before: Count of the kernel's kills before it.
        log_paths: Log file by local rank.
        error_paths: Error file by local rank.
    """

    number: int
    ranks: dict[int, int]
    world_size: int
    pids: dict[int, int] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    oom_before: int = 0
    log_paths: dict[int, str] = field(default_factory=dict)
    error_paths: dict[int, str] = field(default_factory=dict)

    @property
    def living(self) -> set[int]:
        """Local ranks whose process has not ended."""
        return set(self.ranks) - set(self.ended)


class RankGroup(PContext):
    """torch's view of a group of processes, kept by the warm process."""

    def __init__(
        self,
        machinery: Machinery,
        attempt: Attempt,
        envs: dict[int, dict[str, str]],
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(
            name=machinery.options.role,
            entrypoint="",
            args=dict.fromkeys(envs, ()),
            envs=envs,
            logs_specs=machinery.logs,
        )
        self._tail_logs = []  # the console copies by itself
        self._machinery = machinery
        self.attempt = attempt
        self._on_failure = on_failure
        self._closed = False

    def start(self) -> None:
        """Start the ranks; signals are the business of the launcher's main thread, not of this one."""
        self._start()

    def _start(self) -> None:
        made = self._machinery
        attempt = self.attempt
        if made.pulses is not None:
            made.pulses.clear()
        attempt.oom_before = evidence.count_oom_kills()
        attempt.error_paths = {local: str(path) for local, path in self.error_files.items()}
        for local, rank in attempt.ranks.items():
            streams = self._streams(local, rank)
            attempt.log_paths[local] = streams[0].path
            out, err = made.console.open(streams)
            try:
                made.starter.start(self._task(local, rank), stdout=out, stderr=err)
            finally:
                for handle in {out, err}:
                    _close_quietly(handle)
        deadline = time.monotonic() + 60
        while len(attempt.pids) < len(attempt.ranks) and time.monotonic() < deadline:
            self._listen(0.5)

    def _streams(self, local: int, rank: int) -> Any:
        made = self._machinery
        default = str(made.run_dir.log(rank, self.attempt.number))
        template = made.base_env.get(env.LOG_PREFIX) or "[${role_name}${local_rank}]:"
        folder = Path(self.stdouts[local] or default).parent
        return plan_streams(
            made.options,
            rank=rank,
            local_rank=local,
            paths=(self.stdouts[local] or default, self.stderrs[local] or default),
            prefix=fill_prefix(template, role=made.options.role, rank=rank, local_rank=local),
            filtered=(str(folder / "filtered_stdout.log"), str(folder / "filtered_stderr.log")),
        )

    def _task(self, local: int, rank: int) -> RankTask:
        made = self._machinery
        values = {
            **made.task.__dict__,
            "local_rank": local,
            "env": {**made.base_env, **self.envs[local]},
            "error_file": self.attempt.error_paths[local],
            "crash_file": str(made.run_dir.crash(rank, self.attempt.number)),
            "pulse": made.pulse_handle,
            "num_local_ranks": len(self.attempt.ranks),
        }
        if made.options.nccl_debug:
            values["env"][env.NCCL_DEBUG_FILE] = str(made.run_dir.nccl(rank, self.attempt.number))
        return RankTask(**values)

    def _listen(self, timeout_s: float) -> None:
        for message in self._machinery.starter.messages(timeout_s):
            local = message["rank"]
            if message["said"] == "started":
                self.attempt.pids[local] = message["pid"]
            elif self.attempt.pids.get(local) == message["pid"]:
                self.attempt.ended[local] = Ended(
                    local, message["pid"], message["code"], message["time_ns"], message["rss"]
                )

    def pids(self) -> dict[int, int]:
        return dict(self.attempt.pids)

    def listen(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for a rank to end."""
        if self.attempt.living:
            self._listen(timeout_s)

    def _poll(self) -> RunProcsResult | None:
        self._listen(0)
        failed = [end for end in self.ends() if end.code is not None and not end.succeeded]
        if failed:
            self._on_failure()
            self.stop("another rank failed", settle=True)
            return self._result()
        return None if self.attempt.living else self._result()

    def _result(self) -> RunProcsResult:
        failures = {
            local: ProcessFailure(
                local_rank=local,
                pid=ended.pid,
                exitcode=ended.code,
                error_file=self.attempt.error_paths[local],
            )
            for local, ended in self.attempt.ended.items()
            if not self._end(local).succeeded
        }
        return RunProcsResult(
            return_values=dict.fromkeys(self.attempt.ranks),
            failures=failures,
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def ends(self) -> list[RankEnd]:
        """Return how each rank of this node has ended so far, times by this node's clock."""
        return [self._end(local) for local in self.attempt.ranks]

    def _end(self, local: int) -> RankEnd:
        attempt = self.attempt
        ended = attempt.ended.get(local)
        beat = self._machinery.pulses.read(local) if self._machinery.pulses else None
        log = Path(attempt.log_paths.get(local, ""))
        rank = attempt.ranks[local]
        bad = ended is not None and ended.code != 0
        crashed = ended is not None and ended.code < 0
        return RankEnd(
            rank=rank,
            host=socket.gethostname(),
            pid=attempt.pids.get(local, 0),
            code=ended.code if ended else None,
            time_ns=ended.time_ns if ended else time.time_ns(),
            finished=beat is not None and beat.phase >= pulse.RETURNED,
            stopped=attempt.stopped.get(local, ""),
            steps=beat.steps if beat else 0,
            failure=evidence.read_failure(Path(attempt.error_paths[local])),
            log=str(log),
            log_tail=evidence.read_tail(log) if bad else (),
            stack=evidence.read_stack(self._machinery.run_dir.crash(rank, attempt.number)) if crashed else (),
            oom_kills=evidence.count_oom_kills() - attempt.oom_before if crashed else 0,
            shm=evidence.shm_pressure() if crashed else "",
        )

    def pulse_of(self, rank: int) -> pulse.Pulse:
        """Return what a rank of this node has counted; zeros without the probe."""
        local = next(local for local, found in self.attempt.ranks.items() if found == rank)
        return self._machinery.pulses.read(local) if self._machinery.pulses else pulse.Pulse(0, 0, 0, 0.0, 0.0, 0.0)

    def stop(self, why: str, *, settle: bool = False) -> None:
        """End the ranks that are left, because one has failed: SIGTERM, and soon SIGKILL.

        Args:
            why: The reason, for the records.
            settle: First give ranks that are failing by themselves a moment, if all that have failed so far
                look like victims: the cause may be a step behind.
        """
        deadline = time.monotonic() + _SETTLE_S
        while settle and self.attempt.living and time.monotonic() < deadline:
            if any(outcome.weigh(end) == outcome.CAUSE for end in self.ends() if not end.succeeded and end.code):
                break
            self._listen(0.05)
        self._end_living(signal.SIGTERM, why, wait_s=_TERM_S)

    def _end_living(self, signum: int, why: str, *, wait_s: float) -> None:
        """Signal the living ranks, wait, then kill whatever is left of all."""
        starter = self._machinery.starter
        for local in self.attempt.living:
            self.attempt.stopped.setdefault(local, why)
            starter.signal(local, signum, group=self._machinery.task.method == "exec")
        self._wait_for_end(wait_s)
        starter.kill()
        self._wait_for_end(_REAP_S)

    def _wait_for_end(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while self.attempt.living and (left := deadline - time.monotonic()) > 0:
            self._listen(min(left, 0.1))

    def kill(self) -> None:
        """End all ranks at once; from any thread."""
        self._machinery.starter.kill()

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        if not self._closed and self.attempt.living:
            self._end_living(death_sig, f"{death_sig.name} to the launcher", wait_s=timeout)
        self._closed = True


class Agent(LocalElasticAgent):
    """The agent of this node."""

    def __init__(self, spec: WorkerSpec, machinery: Machinery, meeting: Meeting) -> None:
        super().__init__(spec=spec, logs_specs=machinery.logs, shutdown_timeout=machinery.plan.grace_s)
        self._machinery = machinery
        self._identity = json.dumps(meeting.identity)
        self.hosts_store = meeting.hosts_store
        self.store_host = str(meeting.identity["host"])
        self._talks = meeting.store is not None  # etcd's store has no clients of its own to give
        self._asked_to_stop: signal.Signals | None = None
        self._wait_s = machinery.options.monitor_interval
        self.board: Board | None = None
        self.group: RankGroup | None = None
        self.earlier: list[list[RankEnd]] = []  # ends of attempts that were followed by another
        self.node_rank = 0
        self._master = ("", 0)
        self.num_nodes = 1
        self.stopping = threading.Event()

    def ask_to_stop(self, signum: signal.Signals) -> None:
        """Let the loop hand a signal on to the ranks and end; from any thread."""
        self._asked_to_stop = signum

    @property
    def attempts(self) -> int:
        """How often ranks have been started."""
        return len(self.earlier) + 1

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self.board is not None:
            self.board.close()
            self.board = None  # what it heard was about the attempt before
        super()._rendezvous(worker_group)
        self.node_rank = int(worker_group.group_rank or 0)
        self.num_nodes = int(worker_group.group_world_size or 1)
        self._master = (str(worker_group.master_addr), int(worker_group.master_port or 0))
        if self._talks and self.node_rank == 0:
            self._name_the_run()
        if self.num_nodes > 1 and self._talks:
            self.board = Board(
                worker_group.store, node=self.node_rank, num_nodes=self.num_nodes, host=socket.gethostname()
            )

    def _name_the_run(self) -> None:
        """Write the run's identity where the ranks meet: c10d rendezvous opens a store of its own for them."""
        store = TCPStore(*self._master, is_master=False, wait_for_workers=False)
        store.set(guard.IDENTITY_KEY, self._identity)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        number = spec.max_restarts - self._remaining_restarts
        workers = worker_group.workers
        envs = {
            worker.local_rank: rank_environment(
                options=self._machinery.options,
                ranks={
                    "rank": worker.global_rank,
                    "local_rank": worker.local_rank,
                    "world_size": worker.world_size,
                    "local_world_size": spec.local_world_size,
                    "node_rank": self.node_rank,
                    "num_nodes": self.num_nodes,
                    "role_rank": worker.role_rank,
                    "role_world_size": worker.role_world_size,
                },
                master=self._master,
                restart_count=number,
                run_id=spec.rdzv_handler.get_run_id(),
                agent_store=spec.rdzv_handler.use_agent_store,
                visible_devices=self._machinery.base_env.get(env.CUDA_DEVICES),
            )
            for worker in workers
        }
        attempt = Attempt(
            number=number,
            ranks={worker.local_rank: worker.global_rank for worker in workers},
            world_size=workers[0].world_size,
        )
        self.group = RankGroup(self._machinery, attempt, envs, self._tell_others)
        self._pcontext = self.group
        self.group.start()
        self._machinery.on_start(number, self)
        return self.group.pids()

    def _tell_others(self) -> None:
        if self.board is not None:
            self.board.fail()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self.group is not None
        self.group.listen(self._wait_s)
        if self._asked_to_stop is not None:
            self.stopping.set()
            raise SignalException(f"the launcher got {self._asked_to_stop.name}", sigval=self._asked_to_stop)
        result: RunResult = super()._monitor_workers(worker_group)
        if self.board is None or result.state == WorkerState.FAILED:
            return result
        if self.others_failed():
            self.group.stop("a rank on another node failed")
            return RunResult(state=WorkerState.FAILED)
        if result.state == WorkerState.SUCCEEDED:
            self.board.post("done", True)
            if not self._all_done():
                return RunResult(state=WorkerState.HEALTHY)
        return result

    def others_failed(self) -> bool:
        """Return whether another node has failed or gone."""
        if self.board is None:
            return False
        if self.board.silent_s > LOST_AFTER_S:
            self.board.remote.lost.add(-1)
        return self.board.remote.failed or bool(self.board.remote.lost)

    def _all_done(self) -> bool:
        assert self.board is not None
        return all(self.board.has("done", node) for node in range(self.num_nodes))

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        assert self.group is not None
        self._stop_workers(worker_group)
        self.earlier.append(self.group.ends())
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Nodes wait for each other in the loop, where a failure elsewhere is still heard."""


def make_spec(options: Options, plan: Plan, meeting: Meeting) -> WorkerSpec:
    """Return torch's description of this node's ranks."""
    return WorkerSpec(
        role=options.role,
        local_world_size=int(plan.nproc.value),
        rdzv_handler=meeting.handler,
        entrypoint="paceline",
        max_restarts=options.max_restarts,
        # the agent waits for news by itself, without the delay of a fixed sleep
        monitor_interval=0.001,
        event_log_handler=options.event_log_handler,
        virtual_local_rank=options.virtual_local_rank,
    )


def make_logs(options: Options, run_dir: RunDir) -> LogsSpecs:
    """Return who names the log files: torch's classes where their options were given, else the run folder.

    Raises:
        RunError: ``--logs-specs`` names no entry point.
    """
    if options.logs_specs is not None:
        return _plugin_logs(options)
    if options.log_dir is not None:
        from torch.distributed.elastic.multiprocessing import Std

        both = Std.ALL
        return DefaultLogsSpecs(log_dir=options.log_dir, redirects=both)
    return RunFolderLogs(run_dir)


def _plugin_logs(options: Options) -> LogsSpecs:
    from importlib.metadata import entry_points

    from torch.distributed.elastic.multiprocessing import Std

    found = entry_points(group="torchrun.logs_specs", name=str(options.logs_specs))
    if not found:
        raise RunError(
            Finding(
                "option-invalid",
                f"--logs-specs {options.logs_specs}: no entry point of that name in torchrun.logs_specs",
                where="command line",
                fix="install the package that brings it, or leave the option out",
            )
        )
    made: LogsSpecs = next(iter(found)).load()(
        log_dir=options.log_dir,
        redirects=Std.from_str(options.redirects),
        tee=Std.from_str(options.tee),
        local_ranks_filter=set(options.local_ranks_filter) or None,
    )
    return made


def _close_quietly(handle: int) -> None:
    with contextlib.suppress(OSError):
        os.close(handle)
