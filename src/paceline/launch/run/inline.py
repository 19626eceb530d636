"""Implement ``paceline.launch``: run a function on ranks, from a program or a notebook.

    this process ──fork──> launcher ──fork──> fork server ──fork──> rank 0, rank 1, ...

Everything is inherited by fork. So the function may be in a notebook's cell, and nothing is pickled
except what rank 0 returns.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from paceline import env
from paceline.errors import EXIT_FAILED, EXIT_OK, Finding, PacelineError, RunError, SetupError
from paceline.launch.in_rank import rank_entry
from paceline.launch.plan import parsing, plan, preferences
from paceline.launch.plan.options import Options
from paceline.launch.plan.task import FUNCTION, RankTask
from paceline.machine import accelerator, host, system, torch_requirements

T = TypeVar("T")
_INTERRUPTED = 130
_STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def launch(
    fn: Callable[..., T],
    *args: Any,
    nproc_per_node: int | str | None = None,
    max_restarts: int = 0,
    run_dir: str | os.PathLike[str] | None = None,
) -> T:
    """Run ``fn(*args)`` on several ranks of this machine, as ``paceline run`` runs a script.

    Args:
        fn: The function; also a lambda, or one from a notebook's cell.
        *args: Its arguments, the same on all ranks; inherited, never pickled.
        nproc_per_node: Number of ranks, or ``"gpu"``, ``"cpu"`` or ``"auto"``; by default one per
            GPU, or one without GPUs.
        max_restarts: How many times the ranks may be started again after a failure.
        run_dir: Folder of this run, by default ``paceline-runs/<time>-<name>``.

    Returns:
        What ``fn`` returned on rank 0; it must be picklable.

    Raises:
        RunError: A rank failed, or the ranks stopped to be resumed (``exit_status`` 75). The error
            carries the Finding that was printed.
        SystemExit: SIGTERM, SIGUSR1 or SIGUSR2 came, and this process has no handler for it. The
            ranks have stopped as under ``paceline run``, and the status is that of the run.
        SetupError: torch is not installed, CUDA is already initialised in this process, or the
            system is not Linux.
        UsageError: An argument is invalid.
        KeyboardInterrupt: Ctrl-C was pressed; the ranks have ended.
    """
    _refuse_unsafe_fork()
    torch_requirements.require_installed()
    options = parsing.parse(
        getattr(fn, "__name__", "function"),
        (),
        typed={
            "max_restarts": str(max_restarts),
            **({"nproc_per_node": str(nproc_per_node)} if nproc_per_node is not None else {}),
            **({"run_dir": os.fspath(run_dir)} if run_dir is not None else {}),
        },
        inherited={},
        preferred={
            key: value
            for key, value in preferences.read(env.snapshot()).items()
            if key != "start_method"
        },
    )
    facts = host.gather(env.visible_devices())
    run_plan = plan.make(options, facts, environ=env.snapshot(), source="")
    run_plan = _without_openmp(run_plan)
    source, sink = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        _be_launcher(options, run_plan, lambda: fn(*args), sink)
    os.close(sink)
    value: T = _await(pid, source)
    return value


def _refuse_unsafe_fork() -> None:
    if sys.platform != "linux":
        raise SetupError.of(
            "platform-unsupported",
            "paceline.launch forks this process, which is safe on Linux only",
            fix="put the function into a script and start it with: paceline run script.py",
        )
    if accelerator.module_in_use() is not None:
        raise SetupError.of(
            "cuda-in-parent",
            f"{accelerator.kind().upper()} is initialised in this process, and a forked rank cannot"
            " use it again",
            where="paceline.launch",
            fix="restart the notebook's kernel, and touch the GPU inside the function only",
        )


def _without_openmp(run_plan: plan.Plan) -> plan.Plan:
    """Limit each rank to one thread if this process has used OpenMP.

    OpenMP's pool of threads does not survive a fork.
    """
    native = len(os.listdir("/proc/self/task")) - threading.active_count()
    if native <= 0 or "torch" not in sys.modules:
        return run_plan
    from dataclasses import replace

    reason = f"this process has {native} native threads, whose OpenMP pool a fork does not inherit"
    return replace(run_plan, threads=plan.Choice(1, reason))


def _be_launcher(
    options: Options, run_plan: plan.Plan, function: Callable[[], Any], sink: int
) -> NoReturn:
    """Run the launcher in the fork, and the function in the ranks.

    This never returns into the caller's frames.
    """
    launcher = os.getpid()
    status = EXIT_FAILED
    try:
        # The caller forwards the terminal's Ctrl-C; a second one would mean "at once".
        os.setpgid(0, 0)
        system.die_with_parent(signal.SIGTERM)
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))  # until Launcher.run
        atexit._clear()  # only the caller may run its handlers
        from paceline.launch.run import start

        task = RankTask(local_rank=0, kind=FUNCTION, target=options.script, method="fork")
        report = start.conduct(options, run_plan, task, lambda: _call(function, sink))
        status = report.exit_status
        if os.getpid() == launcher:
            _send(sink, ("report", (status, report.findings)))
    except PacelineError as error:
        status = error.exit_status
        _send(sink, ("report", (status, [error.finding])))
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else EXIT_FAILED
    except BaseException:
        traceback.print_exc()
    if os.getpid() != launcher:
        rank_entry.leave(status)
    os._exit(status)


def _call(function: Callable[[], Any], sink: int) -> None:
    value = function()
    if env.read(env.RANK) == "0":
        _send(sink, ("value", value))


def _send(sink: int, message: tuple[str, Any]) -> None:
    data = pickle.dumps(message)
    with os.fdopen(os.dup(sink), "wb") as pipe:
        pipe.write(data)


def _await(pid: int, source: int) -> Any:
    """Read rank 0's result and how the run ended; forward Ctrl-C and other stop signals."""
    messages: dict[str, Any] = {}
    interrupted = False
    with os.fdopen(source, "rb") as pipe, _forwarding(pid) as forwarded:
        while True:
            try:
                messages.update(_receive(pipe))
                os.waitpid(pid, 0)
                break
            except KeyboardInterrupt:
                interrupted = True
                os.kill(pid, signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    if forwarded:
        raise SystemExit(messages.get("report", (128 + forwarded[0], []))[0])
    status, findings = messages.get("report", (EXIT_FAILED, []))
    if status != EXIT_OK:
        error = RunError(findings[0] if findings else _gone())
        error.exit_status = status
        raise error
    return messages["value"]


@contextlib.contextmanager
def _forwarding(pid: int) -> Iterator[list[int]]:
    """Forward signals that would end this process to the launcher; yield those received."""
    received: list[int] = []

    def forward(number: int, _: Any) -> None:
        received.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    ours = [number for number in _STOPS if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []  # Python lets only the main thread set handlers
    for number in ours:
        signal.signal(number, forward)
    try:
        yield received
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _receive(pipe: BinaryIO) -> dict[str, Any]:
    """Return the messages up to the end of the pipe; the last one of a kind counts."""
    messages: dict[str, Any] = {}
    while True:
        try:
            kind, content = pickle.load(pipe)
        except EOFError:
            return messages
        messages[kind] = content


def _gone() -> Finding:
    return Finding(
        "agent-died",
        "the launcher ended without a report: it was killed",
        where=str(Path.cwd()),
        fix="look for who ended it: a user, or the memory limit of the job",
    )
