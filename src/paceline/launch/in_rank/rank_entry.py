"""The entry of a rank: bind it to CPUs on request, run the user's script, and record how it ends.

The script becomes ``__main__`` exactly as with ``python -u script.py``. The entry records an
uncaught exception with traceback, rank, host and time in nanoseconds, enables faulthandler,
installs the probe, and checks that the store belongs to this run. ``--numa-binding`` is done here.

Only this module and ``paceline.env`` touch ``os.environ``: a rank's environment is set here.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import functools
import io
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn, TextIO

from paceline import counters, env, version
from paceline.errors import EXIT_UNFINISHED, PacelineError
from paceline.launch.in_rank import default_group, rank_files, store_token_check
from paceline.launch.in_rank.import_hook import when_imported
from paceline.launch.in_rank.meeting import Meeting
from paceline.launch.in_rank.rank_files import MEETING, VARIABLE
from paceline.launch.plan.early_variables import Lateness
from paceline.launch.plan.task import FUNCTION, MODULE, PATH, PROGRAM, RankTask
from paceline.launch.probe import (
    awaited_worker,
    ddp_settings,
    loader_trials,
    probe,
    stack_responder,
)
from paceline.machine import own_process, system
from paceline.machine.user_code import is_users
from paceline.rundir.files import write_whole
from paceline.text.wording import ends_of, shorten_middle

# Exceptions in threads that are recorded: the threads of a pool may all fail in the same way.
_MOST_THREADS = 3
# Of a recursion, a chain of exceptions, or a message with data in it: what is recorded. The
# launcher reads it several times, and sends it to other nodes; the log has all of it.
_MOST_FRAMES, _MOST_TEXT, _MOST_MESSAGE = 200, 1 << 17, 1 << 14
_MOST_PARTS, _MOST_NOTE = 8, 300
# They end a process that has no handler for them: where it was is then recorded, as in a crash.
_DEADLY = (signal.SIGXCPU, signal.SIGXFSZ, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
# By which ``paceline why`` knows a forked rank, which has the launcher's environment in ``/proc``.
_OF_THE_RANK = (env.RANK, env.WORLD_SIZE, env.LOCAL_WORLD_SIZE, env.MASTER_ADDR, env.MASTER_PORT)
_TORCHS_HANDLER = "torch.distributed.elastic.multiprocessing.errors"
# Modules of hooks that only print: Python's, and torch's, which names the rank.
_PRINTING_HOOKS = ("sys", "torch.distributed.distributed_c10d")
# Streams, files and the launcher's __main__, which must live as long as the process.
_referenced: list[Any] = []


def run(
    task: RankTask,
    function: Callable[[], None] | None = None,  # what a ``function`` task runs
) -> None:
    """Run a rank's work, to the script's end or the SystemExit that ends the process."""
    os.environ.update(task.env)
    crash, stacks, report = map(system.moved_up, (task.crash, task.stacks, task.report))
    task = replace(task, crash=crash, stacks=stacks, report=report)
    if task.method == "exec" and task.numa_binding:
        _bind(task)  # inherited by the program
    if task.method != "fork":
        _become(task)
    _open_streams()
    slot = _prepare(task)
    rank = os.getpid()
    try:
        _execute(task, function)
    except SystemExit as stop:
        if os.getpid() != rank:
            raise  # a child that the script has forked: its end is not the rank's
        if stop.code in (None, 0):
            probe.look_at_parameters()
            slot[counters.PHASE] = _phase(counters.RETURNED)
        elif stop.code == EXIT_UNFINISHED:  # no failure: nothing to record
            slot[counters.PHASE] = _phase(counters.LEFT)
        else:
            record(task, stop)
        raise
    except BaseException as error:
        if os.getpid() != rank or not record(task, error):
            _show(error)
        raise SystemExit(1) from None
    if os.getpid() == rank:
        probe.look_at_parameters()
        slot[counters.PHASE] = _phase(counters.RETURNED)


def _become(task: RankTask) -> NoReturn:
    try:
        execute(task)
    except OSError as error:
        record(task, error)
        print(
            f"paceline: cannot execute {task.target}: {error.strerror}", file=sys.stderr, flush=True
        )
        os._exit(127)


def execute(task: RankTask) -> NoReturn:
    """Replace this process with a fresh interpreter, for start methods other than ``fork``.

    ``spawn`` runs paceline's worker entry in a new interpreter, ``exec`` what torchrun would run.

    Raises OSError if the program cannot be executed.
    """
    if task.method == "spawn":
        env.put(env.TASK, task.to_json())
        for handle in (task.pulse, task.crash, task.stacks, task.report):
            if handle >= 0:
                os.set_inheritable(handle, True)
        command = own_process.command(module=__name__, python=task.python)
        command.insert(1, "-u")
    elif task.kind == PROGRAM:
        command = [task.target, *task.args]
    else:
        command = [
            task.python,
            "-u",
            *(["-m"] if task.kind == "module" else []),
            task.target,
            *task.args,
        ]
    os.execvp(command[0], command)


def _open_streams() -> None:
    """Give stdout and stderr the text layers of ``python -u``, on this rank's descriptors."""
    for name, handle in (("stdout", 1), ("stderr", 2)):
        inherited: TextIO | None = getattr(sys, name)
        raw = io.FileIO(handle, "w", closefd=False)
        raw.name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw,  # python -u does the same: no buffer in between
            encoding=getattr(inherited, "encoding", None),
            errors=getattr(inherited, "errors", None),
            newline="\n",
            line_buffering=raw.isatty(),
            write_through=True,
        )
        stream.mode = "w"  # type: ignore[misc]
        _referenced.append(inherited)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _prepare(task: RankTask) -> memoryview[int]:
    """Install the probe and the stack responder; return the rank's counters."""
    if task.crash >= 0:
        faulthandler.enable(file=task.crash)
        for signum in _DEADLY:
            if signal.getsignal(signum) == signal.SIG_DFL:
                faulthandler.register(signum, file=task.crash, chain=True)
    if task.stacks >= 0:
        address = stack_responder.install(task.stacks)
        environ = {
            name: task.env[name] for name in (*_OF_THE_RANK, env.RUN_DIR) if name in task.env
        }
        # with --virtual-local-rank each rank has 0 in its environment
        environ[env.LOCAL_RANK] = str(task.local_rank)
        entry = {"pid": os.getpid(), "address": address, "environ": environ}
        rank_files.append(task.report, rank_files.RESPONDER, entry)
    _record_threads(task)
    if task.pulse >= 0:
        counters.board = counters.SharedCounters(task.pulse, task.num_local_ranks)
        slot = counters.board.slot(task.local_rank)
        slot[counters.PHASE] = counters.RUNNING
        counters.mine = slot
    else:
        slot = memoryview(bytearray(counters.SLOT_BYTES)).cast("q")
    # Registered first, so it runs after every handler that the script registers.
    atexit.register(_mark_finished, slot, os.getpid())
    if "torch" in sys.modules:
        _renew()
        lateness = Lateness(lambda entry: rank_files.append(task.report, VARIABLE, entry), is_users)
        env.listen(lateness.check)
    meeting = Meeting(
        task.env, functools.partial(rank_files.append, task.report, MEETING), is_users
    )
    env.listen(meeting.note)
    when_imported("torch", lambda: _reach_into_torch(task, slot, meeting))
    return slot


def _renew() -> None:
    """Update the state that a rank has inherited from the fork server."""
    import torch

    # Python's `random` is seeded again automatically after a fork.
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    threads = os.environ.get(env.OMP_THREADS, "")
    if threads.isdigit() and int(threads) != torch.get_num_threads():
        torch.set_num_threads(max(1, int(threads)))


def _reach_into_torch(task: RankTask, slot: memoryview[int], meeting: Meeting) -> None:
    folder_of_copies = os.environ.get(env.KEPT_FILES)
    if folder_of_copies:
        from paceline.launch.in_rank import kept_files

        kept_files.install(Path(folder_of_copies))
    if task.pulse >= 0:
        if os.environ.get(env.VERIFY):
            from paceline.launch.probe import recorder

            recorder.install(is_users)
        probe.install(slot, every=task.check_replicas, parameters_file=Path(task.parameters_file))
        ddp_settings.install()
        awaited_worker.install(slot)
        commands = os.environ.get(env.TUNE)
        if commands:
            loader_trials.install(slot, Path(commands), task.local_rank, is_users)
        proof = os.environ.get(env.PROOF)
        if proof:
            from paceline.launch.probe import proof_hooks

            proof_hooks.install(Path(proof), slot, is_users)
    if task.check_finite:
        from paceline.launch.probe import checks

        checks.install(slot, rank=int(task.env[env.RANK]))
    if os.environ.get(env.RUN_TOKEN):
        store_token_check.install(meeting.begin)
    default_group.install(meeting.end)
    probe.tie_workers()
    if task.numa_binding:
        _bind(task)


def _bind(task: RankTask) -> None:
    """Let torch choose the CPUs of a rank, near its GPU."""
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(task.numa_binding))
    binding._maybe_apply_numa_binding_to_current_process(
        gpu_index=task.local_rank, numa_options=options
    )


def _phase(ended: int) -> int:
    """Return ``ended``, or RUNNING while other threads of the script still run."""
    others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    return counters.RUNNING if others else ended


def _mark_finished(slot: memoryview[int], rank: int) -> None:
    if os.getpid() == rank and slot[counters.PHASE] == counters.RETURNED:
        slot[counters.PHASE] = counters.FINISHED


def _execute(task: RankTask, function: Callable[[], None] | None) -> None:
    if task.kind == FUNCTION:
        assert function is not None
        function()
        return
    sys.argv = [task.target, *task.args]
    sys.orig_argv = [sys.executable, "-u", *(["-m"] if task.kind == MODULE else []), *sys.argv]
    _referenced.append(sys.modules["__main__"])
    if task.kind == PATH:
        import runpy

        runpy.run_path(task.target, run_name="__main__")
        return
    main = _fresh_main()
    if task.kind == MODULE:
        import runpy

        _replace_path_entry(os.getcwd())
        sys.argv[0] = "-m"
        runpy._run_module_as_main(task.target)  # type: ignore[attr-defined]  # what python -m calls
    else:
        _run_script(main, task.target)


def _fresh_main() -> types.ModuleType:
    """Return a new ``__main__`` module, with the attributes that this version of Python sets."""
    has_annotations = "__annotations__" in vars(sys.modules["__main__"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if has_annotations:
        vars(main)["__annotations__"] = {}
    return main


def _run_script(main: types.ModuleType, script: str) -> None:
    path = os.path.abspath(script)
    if os.path.isdir(path) or (not path.endswith((".py", ".pyw")) and _is_archive(path)):
        import runpy

        runpy.run_path(script, run_name="__main__")  # a folder or a zip file with a __main__ module
        return
    _replace_path_entry(os.path.dirname(os.path.realpath(path)))
    main.__file__ = path
    main.__dict__["__cached__"] = None
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__spec__ = None
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _is_archive(path: str) -> bool:
    import zipfile

    return zipfile.is_zipfile(path) or path.endswith(".pyc")


def _replace_path_entry(folder: str) -> None:
    """Replace the launcher's folder, first in ``sys.path``, with the script's."""
    if getattr(sys.flags, "safe_path", False):
        return
    sys.path[0:1] = [folder]


def _show(error: BaseException) -> None:
    """Print the traceback as Python would, without the frames around the script."""
    sys.last_type, sys.last_value = type(error), error
    sys.last_traceback = _users_part(error.__traceback__)
    sys.excepthook(type(error), error.with_traceback(sys.last_traceback), sys.last_traceback)


def _follows(error: BaseException) -> bool:
    """Return whether an exception says that another rank has gone, did not come, or differs.

    The launcher prints it once it knows why, because it would bury the cause on the console. A hook
    of the script's own is never left out.
    """
    hook_prints = getattr(sys.excepthook, "__module__", "") in _PRINTING_HOOKS
    is_chained = bool(error.__cause__ or error.__context__)
    if not hook_prints or is_chained or not isinstance(error, Exception):
        return False
    from paceline.signatures import rank_errors

    verdict = rank_errors.read(": ".join(_name_and_message(error)).replace("\n", " "))
    return (verdict.has_lost_peer or bool(verdict.wait)) and not verdict.own_fault


def _users_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    skipped = trace
    while skipped is not None and (
        skipped.tb_frame.f_code.co_filename.startswith(version.FOLDER)
        or skipped.tb_frame.f_code.co_filename.startswith("<frozen ")
    ):
        skipped = skipped.tb_next
    return skipped


def record(task: RankTask, error: BaseException) -> bool:
    """Write an exception to the rank's report, and to its file in torch's ``@record`` format.

    Return whether the launcher prints it.
    """
    error = _behind_torchs_handler(error)
    ours = _describe(error)
    unprinted = task.report >= 0 and not ours["output"] and _follows(error)
    ours["unprinted"] = unprinted
    rank_files.append(task.report, rank_files.FAILURE, ours)
    if task.error_file in ("", os.devnull):
        return unprinted
    content = {
        "message": {
            "message": f"{ours['type']}: {ours['message']}",
            "extraInfo": {
                "py_callstack": ours["traceback"],
                "timestamp": str(ours["time_ns"] // 10**9),
            },
        },
        "paceline": ours,
    }
    # the disk may be full, or the folder deleted; the report is in memory
    with contextlib.suppress(OSError):
        # all or nothing, since a signal may stop this rank in the middle of it
        write_whole(Path(task.error_file), json.dumps(content))
    return unprinted


def _behind_torchs_handler(error: BaseException) -> BaseException:
    """Return the script's exception if torch's ``@record`` has raised another one.

    ``@record`` raises an OSError if it cannot write its file.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    in_handler = place is not None and place.tb_frame.f_globals.get("__name__", "").startswith(
        _TORCHS_HANDLER
    )
    if in_handler and isinstance(error, OSError) and error.__context__ is not None:
        return error.__context__
    return error


def _describe(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain data for the launcher."""
    trace = _users_part(error.__traceback__)
    name, message = _name_and_message(error)
    stack = "".join(traceback.format_tb(trace))
    printed = _safely(
        lambda: "".join(traceback.format_exception(type(error), error, trace)),
        instead=f"Traceback (most recent call last):\n{stack}{name}: {message}\n",
    )
    return {
        "type": name,
        "message": shorten_middle(message, _MOST_MESSAGE),
        "notes": _safely(lambda: _notes(error), instead=[]),
        "parts": _safely(lambda: list(map(_in_one_line, _parts(error)[:_MOST_PARTS])), instead=[]),
        "time_ns": time.time_ns(),
        "rank": int(os.environ.get(env.RANK, "-1")),
        "host": socket.gethostname(),
        "traceback": shorten_middle(printed, _MOST_TEXT),
        "frames": (
            [
                {
                    "file": f.filename,
                    "line": f.lineno,
                    "function": f.name,
                    "code": f.line or "",
                    "user": is_users(f.filename),
                }
                for f in ends_of(traceback.extract_tb(trace), _MOST_FRAMES)
            ]
            + _syntax_place(error)
        ),
        "finding": error.finding.to_json() if isinstance(error, PacelineError) else None,
        "output": system.redirected_stderr(),
    }


def _safely(call: Callable[[], Any], *, instead: Any) -> Any:
    """Return the result of methods of the script's own classes, which may raise anything."""
    try:
        return call()
    except BaseException:
        return instead


def _name_and_message(error: BaseException) -> tuple[str, str]:
    name = type.__dict__["__name__"].__get__(type(error))  # a metaclass may define another one
    return name, _safely(lambda: str(error), instead="<its str() raises an exception>")


def _parts(error: BaseException) -> list[BaseException]:
    """Return the exceptions that a group consists of, also those of groups in it."""
    parts = getattr(error, "exceptions", None)
    if not isinstance(parts, tuple) or not all(isinstance(it, BaseException) for it in parts):
        return []
    return [leaf for part in parts for leaf in _parts(part) or [part]]


def _notes(error: BaseException) -> list[str]:
    return [str(note)[:_MOST_NOTE] for note in getattr(error, "__notes__", ())]


def _in_one_line(error: BaseException) -> str:
    """Return the type, message and place of an exception."""
    text = ": ".join(_name_and_message(error)).partition("\n")[0][:_MOST_NOTE]
    own = [it for it in traceback.extract_tb(error.__traceback__) if is_users(it.filename)]
    return f"{text} ({own[-1].filename}:{own[-1].lineno})" if own else text


def _record_threads(task: RankTask) -> None:
    """Record exceptions that end a thread of this rank; Python only prints them."""
    print_exception, rank, remaining = threading.excepthook, os.getpid(), _MOST_THREADS

    def record_and_print(args: threading.ExceptHookArgs) -> None:
        nonlocal remaining
        error = args.exc_value
        is_recorded = remaining > 0 and not isinstance(error, SystemExit) and os.getpid() == rank
        if error is not None and is_recorded:
            remaining -= 1
            name = args.thread.name if args.thread is not None else "unnamed"
            with contextlib.suppress(Exception):
                entry = {**_describe(error), "thread": name}
                rank_files.append(task.report, rank_files.THREAD, entry)
        print_exception(args)

    threading.excepthook = record_and_print


def _syntax_place(error: BaseException) -> list[dict[str, Any]]:
    """Return the place of a syntax error as a frame: it is in the error, not in the traceback."""
    if not isinstance(error, SyntaxError) or not error.filename:
        return []
    return [
        {
            "file": error.filename,
            "line": error.lineno or 0,
            "function": "<module>",
            "code": (error.text or "").strip(),
            "user": is_users(error.filename),
        }
    ]


def leave(code: int) -> NoReturn:
    """End a rank that is a fork of the user's program, as ``multiprocessing`` does."""
    from multiprocessing import util

    threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads
    util._exit_function()  # type: ignore[attr-defined]  # ends DataLoader workers
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    system.flush_c_streams()
    os._exit(code)


def main() -> None:
    """Entry of a rank that starts in a fresh interpreter (``--start-method spawn``)."""
    text = os.environ.pop(env.TASK)
    task = RankTask.from_json(text)
    values = {**task.__dict__, "method": "fork"}  # this interpreter is already fresh
    run(RankTask(**values))


if __name__ == "__main__":
    main()
