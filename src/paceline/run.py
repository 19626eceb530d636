"""Conducts a run: plan, warm process, agent, signals, outcome. The rooms of the launcher meet here."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import env, pulse
from paceline.errors import (
    EXIT_OK,
    Finding,
    PacelineError,
    SetupError,
)
from paceline.launcher import account, evidence, host, nccl, outcome, resume, script, signals, starter, worker
from paceline.launcher import plan as planning
from paceline.launcher.account import Report, Stop
from paceline.launcher.console import Console
from paceline.launcher.endings import RankEnd
from paceline.launcher.options import Options
from paceline.launcher.plan import Plan
from paceline.launcher.resume import Again, Checkpoint
from paceline.launcher.signals import NOTICES, Caught, Signals
from paceline.launcher.task import FUNCTION, MODULE, PATH, PROGRAM, SCRIPT, RankTask
from paceline.rundir import RunDir, append_event, new_run_id, write_whole

if TYPE_CHECKING:
    from paceline.launcher.agent import Agent
    from paceline.launcher.rendezvous import Meeting

# How long nodes wait for each other's account of a failure; all stop their ranks within 2 s.
_ACCOUNTS_S = 5.0
# How long the agent's thread may take to notice that it is to end, before the launcher goes without it.
_NOTICE_S = 2.0
# A file's time is that of a coarser clock, or of a file server's.
_FILE_CLOCK_NS = 1_000_000_000
_SIGNALS_OF_OURS = ("SIGWINCH", *NOTICES)


def run(options: Options) -> int:
    """Run ``paceline run`` to its end.

    In a rank, which is a fork of this process, this does not return to the launcher's caller in any other
    way than the script ends: it returns 0 or raises SystemExit.

    Returns:
        The exit status of the command.

    Raises:
        PacelineError: The run could not be started.
    """
    source = script.read(options)
    facts = host.gather(env.read(env.CUDA_DEVICES))
    if options.nproc_per_node in ("xpu", "auto") and not facts.num_gpus:
        count = host.count_devices_by_torch(options.nproc_per_node)
        if count:
            options = replace(options, nproc_per_node=str(count))
    plan = planning.make(options, facts, environ=env.snapshot(), source=source)
    task = RankTask(
        local_rank=0,
        kind=_kind(options),
        target=options.script,
        args=options.script_args,
        method=str(plan.start_method.value),
        python=env.read(env.PYTHON_EXEC) or sys.executable,
        numa_binding=options.numa_binding or "",
    )
    return conduct(options, plan, task).exit_status


def _kind(options: Options) -> str:
    if options.no_python:
        return PROGRAM
    return MODULE if options.module else PATH if options.run_path else SCRIPT


# ---------------------------------------------------------------------------------------------- conducting


def conduct(options: Options, plan: Plan, task: RankTask, function: Callable[[], None] | None = None) -> Report:
    """Start the warm process, then everything else; in a rank, run its task.

    Args:
        options: What was asked for.
        plan: What was decided.
        task: What every rank runs.
        function: What a ``function`` task runs.
    """
    if plan.threads.value is not None:
        env.put(env.OMP_THREADS, str(plan.threads.value))
    handle = -1 if options.no_probe or task.method == "exec" else pulse.create(int(plan.nproc.value))
    if task.method == "fork":
        _warm_up(plan.warm_imports)
    warm, mine = starter.fork_starter()
    if mine is not None:
        worker.run(mine, function)
        return Report(EXIT_OK, [])
    assert warm is not None
    return Conductor(options, plan, task, warm, handle).run()


def _warm_up(modules: Sequence[str]) -> None:
    """Import what every rank needs, once; then let the collector leave it alone, so its pages stay shared."""
    import gc
    from importlib import import_module

    try:
        import torch.distributed
        import torch.nn.parallel
        import torch.utils.data  # noqa: F401
    except ImportError as error:
        raise _no_torch(error) from None
    for name in modules:
        import_module(name)
    gc.freeze()


def _no_torch(error: ImportError) -> SetupError:
    return SetupError(
        Finding(
            "torch-missing",
            f"torch cannot be imported by {sys.executable}: {error}",
            where=sys.executable,
            fix="pip install torch, in the environment that paceline is installed in",
        )
    )


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
        self._handle = handle
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process lives
        self._console = Console(err=os.dup(2))
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._stop: Stop | None = None
        self._insistence = signals.Insistence()
        self._first_attempt = 0
        self._agent: Agent | None = None
        self._meeting: Meeting | None = None
        self._run_dir: RunDir | None = None
        self._started_s = time.monotonic()

    def run(self) -> Report:
        """Conduct; returns how the run ended."""
        # torch's C++ prints stack traces into the launcher's stderr when a store goes away; they are kept
        # in the run folder, the console is for what is meant for people.
        os.dup2(self._noise.fileno(), 2)
        handled = [getattr(signal, name) for name in (*self._options.signals_to_handle, *_SIGNALS_OF_OURS)]
        taken = Signals(list(dict.fromkeys(handled)))
        try:
            threading.Thread(target=self._work, name="paceline-agent", daemon=True).start()
            report = self._attend(taken)
            self._finish(report)
        finally:
            os.dup2(self._console.err, 2)
        return report

    # The agent's thread

    def _work(self) -> None:
        try:
            self._news.put(("ended", self._run_agent()))
        except PacelineError as error:
            self._news.put(("refused", error))
        except BaseException as error:
            self._news.put(("broke", error))

    def _run_agent(self) -> bool:
        """Meet the other nodes and let the agent work; True if the ranks succeeded."""
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from paceline.launcher import agent as agents
        from paceline.launcher import logs, ranks, rendezvous

        asked_dir = self._options.run_dir
        # kept: the store of the run lives as long as it does
        self._meeting = meeting = rendezvous.meet(
            self._options,
            self._plan,
            script=self._options.script,
            run_name=self._new_run_name(),
            first_attempt=RunDir(Path(asked_dir)).next_attempt() if asked_dir is not None else 0,
            say=self._console.say,
        )
        self._first_attempt = int(meeting.identity["first_attempt"])
        self._run_dir = run_dir = self._make_run_dir(str(meeting.identity["run_name"]))
        self._write_plan(meeting.endpoint)
        machinery = ranks.Machinery(
            options=self._options,
            plan=self._plan,
            starter=self._warm,
            console=self._console,
            pulses=pulse.PulseBoard(self._handle, int(self._plan.nproc.value)) if self._handle >= 0 else None,
            pulse_handle=self._handle,
            run_dir=run_dir,
            task=self._task,
            base_env=self._base_env(meeting.identity, address=meeting.address),
            first_attempt=self._first_attempt,
            on_start=self._record_start,
            logs=logs.make_logs(self._options, run_dir, first_attempt=self._first_attempt),
        )
        spec = agents.make_spec(self._options, self._plan, meeting)
        self._agent = agents.Agent(spec, machinery, meeting)
        try:
            result = self._agent.run()
        except SignalException:
            return False
        if result is None:  # the rendezvous was closed while this node waited: nothing of its own failed
            return True
        return not result.is_failed() and result.state.name == "SUCCEEDED"

    def _new_run_name(self) -> str:
        return new_run_id(self._options.script or "function", now_s=time.time(), salt=secrets.token_hex(2))

    def _make_run_dir(self, name: str) -> RunDir:
        if self._options.run_dir is not None:
            asked = RunDir(Path(self._options.run_dir))
            try:
                asked.create()
            except OSError as error:
                raise SetupError(_not_writable(asked.root, error)) from None
            return asked
        usual = RunDir(Path("runs") / name)
        try:
            usual.create()
        except OSError as error:
            spare = RunDir(Path(tempfile.mkdtemp(prefix="paceline-")) / name)
            spare.create()
            self._console.say(f"run folder {spare.root}, because runs/ cannot be written here: {error.strerror}")
            return spare
        return usual

    def _write_plan(self, endpoint: str) -> None:
        assert self._run_dir is not None
        if self._options.node_rank == 0 or self._plan.rendezvous != "static":
            write_whole(self._run_dir.plan(self._first_attempt), json.dumps(self._plan.to_json(), indent=2) + "\n")
        self._console.say(
            planning.describe(self._plan, self._options, address=endpoint, run_dir=str(self._run_dir.root))
        )
        if (env.read(env.DEBUG_LEVEL) or "").upper() == "DETAIL" and self._plan.backend == "gloo":
            self._console.say(_detail_warning().render())

    def _base_env(self, identity: Mapping[str, Any], *, address: str) -> dict[str, str]:
        values = {env.RUN_TOKEN: str(identity["token"])}
        assert self._run_dir is not None
        values[env.RUN_DIR] = str(self._run_dir.root.absolute())
        for name in (env.CUDA_DEVICES, env.LOG_PREFIX):
            if env.read(name) is not None:
                values[name] = str(env.read(name))
        values[env.ASYNC_ERROR_HANDLING] = env.read(env.ASYNC_ERROR_HANDLING) or "1"
        # A head that was not given its own address does not know through which interface the others come.
        known = self._options.one_node or self._options.head_named
        if known and env.read(env.GLOO_INTERFACE) is None:
            interface = next((name for name, found in host.addresses() if found == address), None)
            if interface is not None:
                values[env.GLOO_INTERFACE] = interface
        if self._options.nccl_debug:
            values |= {env.NCCL_DEBUG: "INFO", env.NCCL_DEBUG_SUBSYS: "INIT,NET,GRAPH,ENV,TUNING"}
            values |= {env.CPP_LOG_LEVEL: "INFO", env.DEBUG_LEVEL: "INFO"}
        return values

    def _record_start(self, restarts: int) -> None:
        agent = self._agent
        assert agent is not None and agent.group is not None
        group = agent.group.attempt
        if restarts:
            ends, lost = agent.earlier[-1]
            verdict = outcome.judge(ends, lost=_names(lost, {}, agent.store_host))
            told = verdict.causes or verdict.lost
            what = verdict.finding.what if told else "a rank on another node failed"
            self._console.say(f"{what}; ranks were started again ({restarts} of {self._options.max_restarts})")
            self._event("restart", attempt=group.number, why=verdict.finding.to_json())
        self._event(
            "start",
            attempt=group.number,
            ranks=sorted(group.ranks.values()),
            pids=[group.pids[local] for local in sorted(group.pids)],
            world_size=group.world_size,
        )

    def _event(self, kind: str, **fields: Any) -> None:
        assert self._run_dir is not None
        node = self._agent.node_rank if self._agent else 0
        with contextlib.suppress(OSError):  # a full disk must not end a run
            append_event(self._run_dir.events(node), node=node, kind=kind, **fields)

    # The main thread

    def _attend(self, taken: Signals) -> Report:
        """Listen to signals, to the clock and to the agent until the run has ended one way or the other."""
        deadline = float("inf")
        limit = self._started_s + (self._options.max_time or float("inf"))
        while True:
            got = taken.next(0.05)
            if got is not None and got.number == signal.SIGWINCH:
                self._console.resize()
            elif got is not None:
                at_once = self._insistence.hears(got.number.name, time.monotonic())
                if self._stop is None:
                    deadline = self._obey_signal(got)
                elif at_once:
                    self._warm.kill()
            elif time.monotonic() > limit and self._stop is None:
                self._insistence.hears("", time.monotonic())
                deadline = self._obey_clock()
            if not self._news.empty():
                return self._account(*self._news.get())
            if time.monotonic() > deadline:
                if self._agent is None or not self._agent.stopping.is_set():
                    # It sits in a wait inside torch, for nodes or for the store: go without it.
                    self._warm.kill()
                    return self._account("ended", False)
                deadline = float("inf")

    def _obey_signal(self, got: Caught) -> float:
        sender = "an unknown sender" if got.sender is None else "the terminal"
        if got.sender:
            sender = host.describe_process(got.sender)
        hands_on = signals.for_ranks(got.number, self._options.signals_to_handle)
        return self._end_ranks(got.number, got.number.name, sender, hands_on=hands_on)

    def _obey_clock(self) -> float:
        given = dict(self._options.typed)["max_time"]
        return self._end_ranks(signal.SIGTERM, f"--max-time {given}", "", hands_on=signal.SIGTERM)

    def _end_ranks(self, number: signal.Signals, name: str, sender: str, *, hands_on: signal.Signals) -> float:
        """Begin the orderly end on all nodes; returns until when the agent must have noticed."""
        self._stop = Stop(number, name, sender, socket.gethostname(), time.time_ns())
        if self._agent is not None and self._agent.group is not None:
            by = f"{name} from {sender}" if sender else name
            again = "SIGINT" if not sender or name in NOTICES else "once more"
            self._console.say(f"{by}: ranks have {self._plan.grace_s} s to end by themselves; {again} ends them now")
        if self._agent is not None:
            self._agent.ask_to_stop(hands_on)
        return time.monotonic() + _NOTICE_S

    def _account(self, kind: str, content: Any) -> Report:
        if kind == "refused" and self._stop is None:
            return account.refused(content)
        if kind == "broke":
            self._warm.kill()
            if self._agent is None or self._agent.board is None:
                return account.broken(content, host=socket.gethostname(), run=self._run_alone())
            self._agent.board.remote.lost.add(-1)  # what broke it is that the store is gone
        run = self._hear_all(succeeded=bool(content) and kind == "ended")
        if self._agent is not None and self._agent.group is not None:
            number = self._agent.group.attempt.number
            self._event("end", attempt=number, ends=[end.to_json() for end in run.ends])
        return account.tell(run)

    def _hear_all(self, *, succeeded: bool) -> account.Run:
        """Exchange with the other nodes how everybody's ranks ended."""
        seconds = time.monotonic() - self._started_s
        agent = self._agent
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
            "saving": self._half_saved(agent.group.attempt.stopped.values()),
        }
        found, lost = {agent.node_rank: mine}, set[int]()
        if board is not None:
            if not succeeded and not self._stop:
                board.fail()
            # a node that was told to stop gives its ranks their time before it has an account
            patience_s = _ACCOUNTS_S + (self._plan.grace_s if self._stop or board.remote.stop else 0)
            found |= board.exchange(mine, until_s=patience_s, linger=agent.hosts_store)
            lost = board.remote.lost
        told = [found[node] for node in sorted(found)]
        kept = [Checkpoint(**entry["last"]) for entry in told if entry["last"]]
        return replace(
            alone,
            ends=[RankEnd.from_json(end) for entry in told for end in entry["ends"]],
            lost=_names(lost, found, agent.store_host),
            stops=[Stop(**entry["stop"]) for entry in told if entry["stop"]],
            attempts=agent.attempts,
            pulses=[pulses for entry in told for pulses in entry["pulses"]],
            seconds=seconds,
            again=Again(**told[0]["again"]),  # the first node's line, so that all print the same
            last=max(kept, key=lambda checkpoint: checkpoint.number, default=None),
            saving=next((entry["saving"] for entry in told if entry["saving"]), ""),
        )

    def _run_alone(self) -> account.Run:
        """Return what this node knows of the run without its ranks."""
        stops = [self._stop] if self._stop else []
        if self._run_dir is None:
            return account.Run(stops=stops)
        folder = str(self._run_dir.root)
        again = resume.plan(
            self._options,
            run_dir=folder,
            function=self._task.kind == FUNCTION,
            numbered=self._plan.rendezvous == "static",
            environ=env.snapshot(),
        )
        last = evidence.last_checkpoint(self._run_dir.checkpoints)
        return account.Run(folder=folder, stops=stops, again=again, last=last, grace_s=self._plan.grace_s)

    def _half_saved(self, stopped: Iterable[tuple[str, int]]) -> str:
        """Return the checkpoint that ranks were writing after they had been told to stop."""
        assert self._run_dir is not None
        since_ns = min((when for _, when in stopped if when), default=None)
        if since_ns is None:
            return ""
        return evidence.half_saved(self._run_dir.checkpoints, since_ns=since_ns - _FILE_CLOCK_NS)

    def _finish(self, report: Report) -> None:
        """Let the warm process go, print the last lines, leave the outcome in the run folder."""
        self._warm.close(leave=report.exit_status == EXIT_OK)
        self._console.drain()
        if self._run_dir is not None:
            if self._options.nccl_debug:
                report.lines[:0] = nccl.summarise(evidence.read_nccl_logs(self._run_dir, since=self._first_attempt))
            self._keep_noise(self._run_dir)
            self._event("outcome", **report.to_json())
        self._console.write(report.framed())
        if self._options.json:
            print(json.dumps(report.to_json()), flush=True)

    def _keep_noise(self, run_dir: RunDir) -> None:
        self._noise.seek(0)
        text = self._noise.read()
        if text:
            node = self._agent.node_rank if self._agent else 0
            with contextlib.suppress(OSError):
                run_dir.launcher_log(node, self._first_attempt).write_bytes(text)


def _not_writable(folder: Path, error: OSError) -> Finding:
    return Finding(
        "folder-not-writable",
        f"the run folder {folder} cannot be written: {error.strerror}",
        where=str(folder),
        fix="give another folder with --run-dir",
    )


def _detail_warning() -> Finding:
    return Finding(
        "debug-detail-crashes-ddp",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL ends DistributedDataParallel on gloo with SIGSEGV in torch 2.13",
        where=f"environment variable {env.DEBUG_LEVEL}",
        fix="export TORCH_DISTRIBUTED_DEBUG=INFO",
        severity="warning",
    )


def _names(lost: set[int], found: Mapping[int, Any], store_host: str) -> list[str]:
    """Name the nodes that are lost and have not sent their account all the same."""
    store = f"{store_host} (the host of the run's store)"
    return [store if node < 0 else f"node {node}" for node in sorted(lost - set(found))]
