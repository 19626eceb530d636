"""Conducts a run: plan, warm process, agent, signals, outcome. The rooms of the launcher meet here."""

from __future__ import annotations

import contextlib
import dataclasses
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import env, pulse
from paceline.errors import (
    EXIT_FAILED,
    EXIT_OK,
    Finding,
    PacelineError,
    SetupError,
)
from paceline.launcher import host, outcome, script, starter, worker
from paceline.launcher import plan as planning
from paceline.launcher import summary as summaries
from paceline.launcher.console import Console
from paceline.launcher.options import Options
from paceline.launcher.outcome import RankEnd
from paceline.launcher.plan import Plan
from paceline.launcher.task import MODULE, PATH, PROGRAM, SCRIPT, RankTask
from paceline.rundir import RunDir, append_event, new_run_id, write_whole

if TYPE_CHECKING:
    from paceline.launcher.agent import Agent
    from paceline.launcher.rendezvous import Meeting

# How long nodes wait for each other's account of a failure; all stop their ranks within 2 s.
_ACCOUNTS_S = 5.0
# How long the agent's thread may take to notice that it is to end, before the launcher goes without it.
_NOTICE_S = 2.0
_SIGNALS_OF_OURS = ("SIGWINCH",)


@dataclass
class Report:
    """How a run ended, as one node's launcher knows it.

    Attributes:
        exit_status: Of the command.
        lines: The last thing that is printed.
        findings: What was found.
        summary: Figures of a run that succeeded.
    """

    exit_status: int
    lines: list[str]
    findings: list[Finding] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


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
            options = dataclasses.replace(options, nproc_per_node=str(count))
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
        self._signal: tuple[signal.Signals, str] | None = None
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
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        threading.Thread(target=self._work, name="paceline-agent", daemon=True).start()
        report = self._attend(handled)
        self._finish(report)
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
        from paceline.launcher import rendezvous

        # kept: the store of the run lives as long as it does
        self._meeting = meeting = rendezvous.meet(
            self._options,
            self._plan,
            script=self._options.script,
            run_name=self._new_run_name(),
            say=self._console.say,
        )
        self._run_dir = run_dir = self._make_run_dir(str(meeting.identity["run_name"]))
        self._write_plan(meeting.endpoint)
        machinery = agents.Machinery(
            options=self._options,
            plan=self._plan,
            starter=self._warm,
            console=self._console,
            pulses=pulse.PulseBoard(self._handle, int(self._plan.nproc.value)) if self._handle >= 0 else None,
            pulse_handle=self._handle,
            run_dir=run_dir,
            task=self._task,
            base_env=self._base_env(meeting.identity, address=meeting.address),
            on_start=self._record_start,
            logs=agents.make_logs(self._options, run_dir),
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
            write_whole(self._run_dir.plan, json.dumps(self._plan.to_json(), indent=2) + "\n")
        self._console.say(
            planning.describe(self._plan, self._options, address=endpoint, run_dir=str(self._run_dir.root))
        )
        if (env.read(env.DEBUG_LEVEL) or "").upper() == "DETAIL":
            self._console.say(_detail_warning().render())

    def _base_env(self, identity: Mapping[str, Any], *, address: str) -> dict[str, str]:
        values = {env.RUN_TOKEN: str(identity["token"])}
        assert self._run_dir is not None
        values[env.RUN_DIR] = str(self._run_dir.root.absolute())
        for name in (env.CUDA_DEVICES, env.LOG_PREFIX):
            if env.read(name) is not None:
                values[name] = str(env.read(name))
        values[env.ASYNC_ERROR_HANDLING] = env.read(env.ASYNC_ERROR_HANDLING) or "1"
        if env.read(env.GLOO_INTERFACE) is None:
            interface = next((name for name, found in host.addresses() if found == address), None)
            if interface is not None:
                values[env.GLOO_INTERFACE] = interface
        if self._options.nccl_debug:
            values |= {env.NCCL_DEBUG: "INFO", env.NCCL_DEBUG_SUBSYS: "INIT,NET,GRAPH,ENV"}
            values |= {env.CPP_LOG_LEVEL: "INFO", env.DEBUG_LEVEL: "INFO"}
        return values

    def _record_start(self, attempt: int, agent: Agent) -> None:
        assert agent.group is not None and self._run_dir is not None
        if attempt:
            verdict = outcome.judge(agent.earlier[-1])
            what = verdict.finding.what if verdict.causes else "a rank on another node failed"
            self._console.say(f"{what}; ranks were started again ({attempt} of {self._options.max_restarts})")
            self._event("restart", attempt=attempt, why=verdict.finding.to_json())
        group = agent.group.attempt
        self._event(
            "start",
            attempt=attempt,
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

    def _attend(self, handled: Sequence[int]) -> Report:
        """Listen to signals and to the agent until the run has ended one way or the other."""
        give_up_s: float | None = None
        while True:
            got = signal.sigtimedwait(handled, 0.05)
            if got is not None and got.si_signo == signal.SIGWINCH:
                self._console.resize()
            elif got is not None:
                if self._signal is not None:
                    self._warm.kill()
                give_up_s = self._obey_signal(got) if self._signal is None else time.monotonic() + _NOTICE_S
            while not self._news.empty():
                kind, content = self._news.get()
                return self._account(kind, content)
            if give_up_s is not None and time.monotonic() > give_up_s:
                if self._agent is None or not self._agent.stopping.is_set():
                    self._warm.kill()
                    return self._account("ended", False)
                give_up_s = None

    def _obey_signal(self, got: Any) -> float:
        number = signal.Signals(got.si_signo)
        sender = "the terminal" if got.si_pid == 0 else host.describe_process(got.si_pid)
        self._signal = (number, sender)
        if self._agent is not None and self._agent.group is not None:
            self._console.say(
                f"{number.name} from {sender}: ranks have {self._plan.grace_s} s to end by themselves; "
                "once more ends them now"
            )
        if self._agent is not None:
            self._agent.ask_to_stop(number)
        return time.monotonic() + _NOTICE_S

    def _account(self, kind: str, content: Any) -> Report:
        if kind == "refused":
            error: PacelineError = content
            return Report(error.exit_status, error.finding.render().splitlines(), [error.finding])
        if kind == "broke":
            return self._broken(content)
        ends, lost, offsets = self._gather(succeeded=bool(content))
        self._record_ends(ends)
        if self._signal is not None:
            return self._stopped(ends)
        if content and not lost and all(end.succeeded for end in ends):
            return self._succeeded(ends, offsets)
        verdict = outcome.judge(ends, lost=lost)
        assert self._run_dir is not None
        lines = outcome.block(
            verdict,
            exit_status=EXIT_FAILED,
            run_dir=str(self._run_dir.root),
            attempts=self._agent.attempts if self._agent else 1,
        )
        return Report(EXIT_FAILED, lines, [verdict.finding])

    def _broken(self, error: BaseException) -> Report:
        """The agent itself failed: the store is gone, or torch raised something of its own."""
        self._warm.kill()
        agent = self._agent
        if agent is not None and agent.board is not None:
            agent.board.remote.lost.add(-1)
            return self._account("ended", False)
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        timeout = "RendezvousTimeout" in type(error).__name__
        finding = Finding(
            "rendezvous-timeout" if timeout else "launcher-fault",
            "not enough nodes joined in time" if timeout else f"the launcher could not go on: {text}",
            where=socket.gethostname(),
            evidence=(text,),
            fix="start the missing nodes, or give them longer: --rdzv-conf join_timeout=1200"
            if timeout
            else "if this repeats, it is a fault of paceline; please report it with this text",
        )
        return Report(EXIT_FAILED, finding.render().splitlines(), [finding])

    def _gather(self, *, succeeded: bool) -> tuple[list[RankEnd], list[str], dict[int, Any]]:
        """Return how all ranks of all nodes ended, and which nodes are lost."""
        agent = self._agent
        if agent is None or agent.group is None:
            return [], [], {}
        board = agent.board
        mine = agent.group.ends()
        figures = {"pulses": [_figures(end, agent) for end in mine]}
        if board is None:
            return mine, [], {0: figures}
        shifted = [dataclasses.replace(end, node=board.node).shifted(board.clock_offset_ns) for end in mine]
        if not succeeded:
            board.fail()
        board.post("ends", {"ends": [end.to_json() for end in shifted], **figures})
        found = board.collect("ends", until_s=_ACCOUNTS_S)
        found.setdefault(board.node, {"ends": [end.to_json() for end in shifted], **figures})
        board.post("bye", True)
        if agent.hosts_store:  # it must outlive the others' reading of it
            board.collect("bye", until_s=_ACCOUNTS_S)
        board.close()
        ends = [RankEnd.from_json(end) for node in sorted(found) for end in found[node]["ends"]]
        return (
            ends,
            _names(board.remote.lost, found, agent.store_host),
            {node: found[node] for node in sorted(found)},
        )

    def _record_ends(self, ends: Sequence[RankEnd]) -> None:
        if self._run_dir is not None and self._agent is not None:
            number = self._agent.group.attempt.number if self._agent.group else 0
            self._event("end", attempt=number, ends=[end.to_json() for end in ends])

    def _stopped(self, ends: Sequence[RankEnd]) -> Report:
        assert self._signal is not None
        number, sender = self._signal
        status = 128 + number
        living = [end for end in ends if end.steps]
        steps = max((end.steps for end in living), default=0)
        finding = Finding(
            "stopped-by-signal",
            f"the run was ended by {number.name} from {sender}" + (f", after {steps} steps" if steps else ""),
            where=socket.gethostname(),
            severity="warning",
        )
        folder = f" · run folder {self._run_dir.root}" if self._run_dir else ""
        return Report(
            status,
            [f"{finding.what}   [{finding.code} {finding.name}]", f"exit status {status}{folder}"],
            [finding],
        )

    def _succeeded(self, ends: Sequence[RankEnd], figures: Mapping[int, Any]) -> Report:
        assert self._run_dir is not None
        pulses = [entry for node in figures.values() for entry in node["pulses"]]
        figures_of = summaries.summarise(pulses, seconds=time.monotonic() - self._started_s)
        lines = summaries.render(figures_of, run_dir=str(self._run_dir.root))
        late = [end.rank for end in ends if end.code]
        if late:
            lines.insert(
                0,
                f"note: ranks {outcome.fold(late)} crashed in the interpreter's teardown, after "
                "the script's end; the run succeeded",
            )
        return Report(EXIT_OK, lines, summary=figures_of)

    def _keep_noise(self) -> None:
        assert self._run_dir is not None
        self._noise.seek(0)
        text = self._noise.read()
        if text:
            node = self._agent.node_rank if self._agent else 0
            with contextlib.suppress(OSError):
                self._run_dir.launcher_log(node).write_bytes(text)

    def _finish(self, report: Report) -> None:
        """Let the warm process go, print the last lines, leave the outcome in the run folder."""
        self._warm.close(leave=report.exit_status == EXIT_OK)
        self._console.drain()
        if self._options.nccl_debug and self._run_dir is not None:
            report.lines[:0] = _nccl_lines(self._run_dir)
        if self._run_dir is not None:
            self._keep_noise()
            found = [finding.to_json() for finding in report.findings]
            self._event("outcome", exit_status=report.exit_status, findings=found, summary=report.summary)
        self._console.write(_framed(report))
        if self._options.json:
            content = {
                "exit_status": report.exit_status,
                "findings": [finding.to_json() for finding in report.findings],
                "summary": report.summary,
            }
            print(json.dumps(content), flush=True)


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


def _figures(end: RankEnd, agent: Agent) -> dict[str, Any]:
    assert agent.group is not None
    beat = agent.group.pulse_of(end.rank)
    return {"rank": end.rank, "host": end.host, **dataclasses.asdict(beat)}


def _nccl_lines(run_dir: RunDir) -> list[str]:
    from paceline.launcher import nccl

    return nccl.summarise(
        [path.read_text(errors="replace") for path in sorted((run_dir.root / "logs").glob("*.nccl*"))]
    )


def _framed(report: Report) -> list[str]:
    """Return the last lines as printed; a failure stands out by a rule above it."""
    if report.exit_status == EXIT_OK:
        return [f"paceline: {line}" for line in report.lines]
    return ["── paceline " + "─" * 60, *report.lines]
