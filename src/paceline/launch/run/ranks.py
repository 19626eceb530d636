"""The ranks of this node: start and reap them by the fork server, and record how each one ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from string import Template
from typing import Any

from torch.distributed.elastic.multiprocessing.api import LogsSpecs, PContext, RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from paceline import counters, env
from paceline.launch.in_rank import rank_files
from paceline.launch.in_rank.rank_files import RankFiles
from paceline.launch.monitor import position, stacks
from paceline.launch.monitor.attempt import Attempt, Ended
from paceline.launch.monitor.position import Position
from paceline.launch.monitor.stacks import Look
from paceline.launch.outcome import evidence, weight
from paceline.launch.outcome.rank_exit import Failure, RankExit
from paceline.launch.plan.task import RankTask
from paceline.launch.run import notices
from paceline.launch.run.console import DEFAULT_PREFIX, fill_prefix, plan_streams
from paceline.launch.run.context import LaunchContext
from paceline.machine import processes, system
from paceline.rundir import owned
from paceline.rundir.files import RunDir, display_path
from paceline.text.wording import shorten

# After the first failure: how long to wait for a likelier cause than a victim, how long ranks have
# between SIGTERM and SIGKILL, and how long the kernel has to remove them. Together they stay below
# the 2 s within which all nodes have stopped.
_SETTLE_S = 0.6
_TERM_S = 0.7
_REAP_S = 5.0
# Ctrl-C: a rank whose stack has not changed for this time cannot handle it, because it is in a
# native wait.
_INTERRUPT_S = 1.5
_CONTINUE_S = 0.2  # how long a stopped process may take until its main thread runs again
# State D is normal for moments, as while a page is read. A rank in it for this long is named.
_IN_KERNEL_S = 0.6
_NAMED = float("inf")
_SOURCE_FILE = re.compile(r"\[/\S+\] ")  # with which gloo's errors begin
_PREFETCHED_STEPS = 20
_MOST_SAID = 80  # characters of an exception that follows from another


class RankGroup(PContext):
    """torch's view of a group of processes, run by the fork server."""

    def __init__(
        self,
        context: LaunchContext,
        attempt: Attempt,
        envs: dict[int, dict[str, str]],
        *,
        run_dir: RunDir,
        rank_env: Mapping[str, str],
        logs: LogsSpecs,
    ) -> None:
        super().__init__(
            name=context.options.role,
            entrypoint="",
            args=dict.fromkeys(envs, ()),
            envs=envs,
            logs_specs=logs,
        )
        self._tail_logs = []  # the console copies the logs
        self._left_at: float | None = None  # when the first rank left to be resumed
        self._context = context
        self._run_dir = run_dir
        self._rank_env = rank_env
        self.attempt = attempt
        self._shown: set[int] = set()  # ranks whose stderr the console shows
        self._closed = False
        self._in_kernel: dict[int, float] = {}  # start of state D, of ranks that must end
        # A launcher that abandons its node's thread reads the ends while that thread keeps them.
        self._lock = threading.Lock()
        self._kept: list[RankExit] | None = None

    def start(self) -> None:
        """Start the ranks. Signals are handled in the launcher's main thread, not here."""
        self._start()

    def _start(self) -> None:
        context = self._context
        attempt = self.attempt
        if context.counters is not None:
            context.counters.clear()
        attempt.oom_before = evidence.count_oom_kills()
        attempt.error_paths = {local: str(path) for local, path in self.error_files.items()}
        for local, rank in attempt.ranks.items():
            streams = self._streams(local, rank)
            attempt.log_paths[local] = streams[1].path  # if the two differ, tracebacks go to stderr
            if streams[1].shown:
                self._shown.add(rank)
            out, err = context.console.open(streams)
            files = attempt.files[local] = RankFiles.create()
            try:
                context.fork_server.start(
                    self._task(local, rank), stdout=out, stderr=err, files=files.handles
                )
            finally:
                for handle in {out, err}:
                    with contextlib.suppress(OSError):
                        os.close(handle)
        deadline = time.monotonic() + 60
        while len(attempt.pids) < len(attempt.ranks) and time.monotonic() < deadline:
            self._listen(0.5)

    def _streams(self, local: int, rank: int) -> Any:
        context = self._context
        number = self.attempt.number
        default = str(self._run_dir.log(rank, number))
        template = context.options.log_line_prefix_template or self._rank_env.get(
            env.LOG_PREFIX, ""
        )
        folder = Path(self.stdouts[local] or default).parent
        # torch's layout has a folder per attempt
        number_in_name = 0 if context.options.log_dir else number
        return plan_streams(
            context.options,
            rank=rank,
            local_rank=local,
            paths=(self.stdouts[local] or default, self.stderrs[local] or default),
            prefix=fill_prefix(
                template or DEFAULT_PREFIX, role=context.options.role, rank=rank, local_rank=local
            ),
            filtered=(
                str(folder / self._run_dir.filtered("stdout", number_in_name).name),
                str(folder / self._run_dir.filtered("stderr", number_in_name).name),
            ),
        )

    def _task(self, local: int, rank: int) -> RankTask:
        context = self._context
        values = {
            **context.task.__dict__,
            "local_rank": local,
            # torchrun fills in ${local_rank} in the script's arguments
            "args": tuple(
                Template(word).safe_substitute(local_rank=local) for word in context.task.args
            ),
            "env": {**self._rank_env, **self.envs[local]},
            "error_file": self.attempt.error_paths[local],
            "pulse": context.counters_handle,
            "num_local_ranks": len(self.attempt.ranks),
            "check_finite": context.options.check_finite,
            "check_replicas": context.options.check_replicas,
            "parameters_file": str(self._run_dir.parameters(rank, self.attempt.number)),
        }
        if context.options.nccl_debug:
            values["env"][env.NCCL_DEBUG_FILE] = str(self._run_dir.nccl(rank, self.attempt.number))
        return RankTask(**values)

    def _listen(self, timeout_s: float) -> None:
        try:
            messages = self._context.fork_server.messages(timeout_s)
        except EOFError:
            # The fork server was killed, and the ranks with it. What they started has no parent
            # now, but every rank leads a session.
            system.kill_sessions(set(self.attempt.pids.values()))
            raise
        for message in messages:
            local = message["rank"]
            if message["event"] == "started":
                self.attempt.pids[local] = message["pid"]
            elif self.attempt.pids.get(local) == message["pid"]:
                self.attempt.ended[local] = Ended(
                    local, message["pid"], message["code"], message["time_ns"]
                )

    def pids(self) -> dict[int, int]:
        return dict(self.attempt.pids)

    def listen(self, timeout_s: float) -> None:
        """Wait ``timeout_s`` for a rank to end; if all have ended, wait in full for other nodes."""
        if self.attempt.living:
            self._listen(timeout_s)
        else:
            time.sleep(timeout_s)

    def _poll(self) -> RunProcsResult | None:
        self._listen(0)
        # Only ended ranks: the evidence of the others costs reads of files ten times a second.
        ends = [self._end(local) for local in self.attempt.ended]
        if any(end.failed for end in ends):
            self._context.peers.fail()
            self.stop("another rank failed", settle=True)
            return self._result()
        if self._left_at is None and any(end.unfinished for end in ends):
            self._left_at = time.monotonic()
        return None if self.attempt.living else self._result()

    @property
    def left_s(self) -> float:
        """Seconds since the first rank of this node left to be resumed; 0 if none has."""
        return 0.0 if self._left_at is None else time.monotonic() - self._left_at

    def _result(self) -> RunProcsResult:
        ends = {local: self._end(local) for local in self.attempt.ended}
        failures = {
            local: ProcessFailure(
                local_rank=local,
                pid=end.pid,
                exitcode=self.attempt.ended[local].code,
                # torch raises on a truncated file. The record of our entry is never truncated,
                # but that of a script may be.
                error_file=self.attempt.error_paths[local] if end.failure else "",
            )
            for local, end in ends.items()
            if end.failed
        }
        return RunProcsResult(
            return_values=dict.fromkeys(self.attempt.ranks),
            failures=failures,
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def ends(self) -> list[RankExit]:
        """Return the exits of this node's ranks so far, with times of this node's clock."""
        with self._lock:
            return self._kept or [self._end(local) for local in self.attempt.ranks]

    def conclude(self) -> None:
        """Keep how the ranks ended, and release the files of this attempt: another one follows."""
        ends = self.ends()
        with self._lock:
            self._copy_files()
            self._kept = ends
            for files in self.attempt.files.values():
                files.close()
            self.attempt.files.clear()
        self._context.console.forget_closed()

    def counted(self, local: int) -> counters.Counters:
        """Return the counters of a rank; zeros without the probe."""
        return self._context.counters.read(local) if self._context.counters else counters.NOTHING

    def look(self, *, quiet: bool = False) -> dict[int, Look]:
        """Ask the living ranks where they are; if ``quiet``, without signals to silent ones."""
        port = next(iter(self.envs.values()), {}).get(env.MASTER_PORT, "")
        ports = [int(port)] if port.isdigit() else []
        looks = stacks.look(*self._askable(), quiet=quiet, leave_out=ports)
        return {local: self._with_log(local, look) for local, look in looks.items()}

    def _askable(self) -> tuple[dict[int, int], dict[int, str], dict[int, Path]]:
        """Return the living ranks: their processes, addresses, and the files for their stacks."""
        pids, addresses, files = {}, {}, {}
        for local in self.attempt.living & set(self.attempt.pids):
            pid = pids[local] = self.attempt.pids[local]
            for entry in self._reported(local, rank_files.RESPONDER):
                if entry["pid"] == pid:  # its entry has run, and has installed our handler
                    addresses[local] = entry["address"]
                    files[local] = rank_files.path_of(self.attempt.files[local].stacks)
        return pids, addresses, files

    def _with_log(self, local: int, look: Look) -> Look:
        """Add what may be why a rank makes no progress: the last exception in its log since then,
        or that it has destroyed its process group.
        """
        beat, path = self.counted(local), self.attempt.log_paths.get(local, "")
        since_ns = beat.beat_ns
        if position.classify(look.frames)[0] == position.DATA:
            # a worker prints why it ends while the rank still takes earlier batches
            since_ns -= int(max(1.0, _PREFETCHED_STEPS * beat.step_s) * 1e9)
        console = self._context.console
        traceback_ns = console.traceback_ns(path)
        shown = evidence.last_raised(console.tail(path)) if traceback_ns > since_ns else ""
        if not shown and look.answer.get("left"):
            text = "the default process group was destroyed (dist.destroy_process_group)"
            return replace(look, printed=text, printed_ns=time.monotonic_ns())
        if not shown:
            return look
        text = f"its log shows {shown}, perhaps handled (less {display_path(Path(path))})"
        return replace(look, printed=text, printed_ns=traceback_ns)

    def position(self, local: int, look: Look | None) -> Position:
        """Return where a rank is, as far as the look at it shows."""
        look = look or Look()
        beat, ended = self.counted(local), self.attempt.ended.get(local)
        return Position(
            rank=self.attempt.ranks[local],
            host=socket.gethostname(),
            ended=ended is not None and not ended.code,
            frames=look.frames,
            content=stacks.content_of(look.frames),
            worker=look.worker,
            guard=look.guard,
            steps=beat.steps,
            batches=beat.batches,
            pid=self.attempt.pids.get(local, 0),
            state=look.state,
            peer=stacks.peer_of(look),
            members=stacks.members_of(look),
            kept=look.kept or stacks.kept_by_hook(look, returned=beat.phase == counters.RETURNED),
            threads=self._dead_threads(local),
            printed=look.printed,
            called=stacks.last_call_of(look),
            **look.recorded,
        )

    def _last_position(self, local: int, failure: Failure | None, crashed: bool) -> Position:
        """Return where a rank was at its end, or when another had failed."""
        was_stopped = local in self.attempt.stopped  # its signal came from the launcher
        if failure is not None:
            before = self.attempt.looks.get(local, Look())
            at_end = self.position(local, stacks.at(failure.frames))
            return replace(at_end, called=stacks.last_call_of(before))
        if crashed and not was_stopped:
            crash = rank_files.path_of(self.attempt.files[local].crash)
            return self.position(local, stacks.at(stacks.read_crash(crash)))
        return self.position(local, self.attempt.looks.get(local))

    def _end(self, local: int) -> RankExit:
        attempt = self.attempt
        ended = attempt.ended.get(local)
        beat = self.counted(local)
        failure = self._failure(local)
        log = Path(attempt.log_paths.get(local, ""))
        rank = attempt.ranks[local]
        bad = ended is not None and ended.code != 0
        crashed = ended is not None and ended.code < 0
        at_crash = attempt.files[local].crash if crashed else -1
        stack = evidence.read_stack(rank_files.path_of(at_crash)) if crashed else ()
        text = self._context.console.tail(str(log)) if bad else ""
        tail = evidence.last_lines(text)
        crash = self._run_dir.crash(rank, attempt.number) if stack else None
        return RankExit(
            rank=rank,
            host=socket.gethostname(),
            pid=attempt.pids.get(local, 0),
            code=ended.code if ended else None,
            time_ns=ended.time_ns if ended else time.time_ns(),
            finished=beat.phase in (counters.RETURNED, counters.FINISHED),
            left=beat.phase == counters.LEFT,
            stopped=attempt.stopped.get(local, ("", 0))[0],
            stopped_ns=attempt.stopped.get(local, ("", 0))[1],
            steps=beat.steps,
            failure=failure,
            position=self._last_position(local, failure, crashed),
            log=evidence.output_of(failure, log if tail or not bad else crash, log=log),
            log_tail=tail,
            log_shows=evidence.last_raised(text, but=failure.traceback)
            if failure is not None
            else "",
            stack=stack,
            oom_kills=evidence.count_oom_kills() - attempt.oom_before if bad else 0,
            shm=evidence.shm_pressure() if bad else "",
            threads=self._dead_threads(local),
            changes=evidence.changes_of(self._reported(local, rank_files.MEETING)),
            standing=attempt.standing.get(local),
        )

    def _dead_threads(self, local: int) -> tuple[str, ...]:
        """Return the exceptions that ended threads of a rank, in words."""
        return tuple(map(evidence.describe_thread, self._reported(local, rank_files.THREAD)))

    def _failure(self, local: int) -> Failure | None:
        """Return a rank's exception, from its report; without our entry, from its error file."""
        reported = self._reported(local, rank_files.FAILURE)
        if reported:
            return evidence.failure_from(reported[-1])
        return evidence.read_failure(Path(self.attempt.error_paths[local]))

    def _reported(self, local: int, kind: str) -> list[dict[str, Any]]:
        files = self.attempt.files.get(local)
        return files.entries(kind) if files is not None else []

    def reported(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield what the ranks of this node have recorded of a kind so far."""
        for local in self.attempt.files:
            yield from self._reported(local, kind)

    def keep_files(self) -> None:
        """Copy the files that ranks keep in memory into the run folder, if it is writable."""
        with self._lock:
            self._copy_files()

    def _copy_files(self) -> None:
        for local, files in self.attempt.files.items():
            rank, number, folder = self.attempt.ranks[local], self.attempt.number, self._run_dir
            files.keep(crash=folder.crash(rank, number), stacks=folder.stacks(rank, number))
            failures = self._reported(local, rank_files.FAILURE)
            texts = [failure["traceback"] for failure in failures if failure["unprinted"]]
            path = Path(self.attempt.log_paths[local])
            with contextlib.suppress(OSError), owned.append(path) as log:
                log.write("".join(texts).encode("utf-8", "backslashreplace"))

    def unprinted(
        self,
        blamed: str,  # what they follow from: a line is enough. If it is empty, all of it is needed
        *,
        causes: Collection[int],  # ranks of which all is needed
    ) -> Iterator[str]:
        """Yield for the console what ranks that it shows have left to the launcher to print."""
        ends = [end for end in self.ends() if end.rank in self._shown]
        for rank, failure, log in ((end.rank, end.failure, end.log) for end in ends):
            if failure is None or not failure.unprinted:
                continue
            if blamed and rank not in causes:
                said = shorten(_SOURCE_FILE.sub("", failure.headline), _MOST_SAID)
                yield f"rank {rank}: {said} (follows from {blamed}; less {log})"
            else:
                yield from (f"[rank{rank}]: {line}" for line in failure.traceback.splitlines())

    def figures(self) -> list[dict[str, Any]]:
        """Return the counters of each rank of this node; zeros without the probe."""
        return [
            {"rank": rank, "host": socket.gethostname(), **asdict(self.counted(local))}
            for local, rank in self.attempt.ranks.items()
        ]

    def stop(self, why: str, *, settle: bool = False) -> None:
        """End the remaining ranks because one has failed: SIGTERM, and SIGKILL soon after.

        With ``settle``, victims alone are given a moment first: the cause may follow.
        """
        if not self.attempt.looks and not self._cause_is_known():
            self.attempt.looks = self.look()  # their places explain a broken collective
        deadline = time.monotonic() + _SETTLE_S
        while settle and self.attempt.living and time.monotonic() < deadline:
            if self._cause_is_known():
                break
            self._listen(0.05)
        self._end_living(signal.SIGTERM, why, wait_s=_TERM_S)

    def _cause_is_known(self) -> bool:
        ends = map(self._end, self.attempt.ended)
        return any(weight.weigh(end) == weight.CAUSE for end in ends if end.failed and end.code)

    def _end_living(self, signum: int, why: str, *, wait_s: float) -> None:
        """Signal the living ranks, wait, then kill all that remain."""
        self._signal_living(signum, why)
        self._wait_for_end(wait_s)
        self._kill()

    def _interrupt(self, why: str, *, wait_s: float) -> None:
        """Pass on SIGINT; end ranks at once that are all in native waits, deaf to it."""
        before = self.attempt.looks = self.look()
        self._signal_living(signal.SIGINT, why)
        self._wait_for_end(_INTERRUPT_S)
        after = self.look()
        if not all(self._is_deaf(local, before, after) for local in self.attempt.living):
            self._wait_for_end(max(0.0, wait_s - _INTERRUPT_S))
        self._kill()

    def _is_deaf(self, local: int, before: Mapping[int, Look], after: Mapping[int, Look]) -> bool:
        """Return whether a rank is where it was before SIGINT, without a handler that waits."""
        old, new = before.get(local), after.get(local)
        if old is None or new is None or not old.frames or self.counted(local).armed:
            return False
        if (old.recorded, old.frames) != (new.recorded, new.frames):
            return False
        in_collective = position.classify(new.frames)[0] in position.WAITING
        return in_collective or (bool(new.recorded.get("flying")) and stacks.waits_for_work(new))

    def _signal_living(self, signum: int, why: str) -> None:
        request = self._context.stop.request
        # A second signal would interrupt the save that the first one has started.
        is_needed = request is None or not request.has_reached(self.attempt, signum)
        is_program = self._context.task.method == "exec"
        living = self.attempt.living
        halted = {local for local, pid in self.pids().items() if processes.is_stopped(pid)} & living
        for local in halted:
            self._context.fork_server.signal(local, signal.SIGCONT, group=is_program)
        # Of threads that all begin to run, any may take the signal; later the main thread does.
        time.sleep(_CONTINUE_S if halted else 0)
        for local in living:
            self.attempt.stopped.setdefault(local, (why, time.time_ns()))
            if is_needed:
                self._context.fork_server.signal(local, signum, group=is_program)

    def _kill(self) -> None:
        """Kill the remaining ranks and all that they started, and wait for their end."""
        self._context.fork_server.kill()
        deadline = time.monotonic() + _REAP_S
        while self.attempt.living and time.monotonic() < deadline:
            self._listen(0.1)
            self._name_unkillable()

    def _wait_for_end(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while self.attempt.living and (remaining_s := deadline - time.monotonic()) > 0:
            if self._context.peers.remote.hurry:  # a repeated signal asks to end all ranks at once
                return
            self._listen(min(remaining_s, 0.1))
            self._name_unkillable()

    def _name_unkillable(self) -> None:
        """Print a notice for a rank that must end but waits in the kernel, deaf to signals."""
        for local in self.attempt.living & set(self.attempt.pids):
            pid, rank = self.attempt.pids[local], self.attempt.ranks[local]
            since_s = self._in_kernel.get(local, 0.0)
            place = system.kernel_wait(pid)
            if not place:
                self._in_kernel.pop(local, None)
            elif not since_s:
                self._in_kernel[local] = time.monotonic()
            elif since_s != _NAMED and time.monotonic() - since_s > _IN_KERNEL_S:
                self._in_kernel[local] = _NAMED
                self._context.console.say(notices.unkillable(rank, pid, place).render())

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        wait_s = self._context.plan.grace_s  # agents of older versions of torch pass no timeout
        if not self._closed and self.attempt.living:
            why = f"{death_sig.name} to the launcher"
            if death_sig == signal.SIGINT:
                self._interrupt(why, wait_s=wait_s)
            else:
                self._end_living(death_sig, why, wait_s=wait_s)
        self._closed = True
