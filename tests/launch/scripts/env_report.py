"""Writes what this rank sees of its surroundings, as one JSON line, into <argv[1]>/<RANK>.json.

With "stdin" as the second argument it also reads the first line of its standard input.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading

NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"),
)


def variables():
    """The variables of NAMES, null where unset, and every one that torch elastic adds."""
    elastic = {
        name: value for name, value in os.environ.items() if name.startswith("TORCHELASTIC_")
    }
    return {name: os.environ.get(name) for name in NAMES} | elastic


def handler(number):
    """The name of a signal's handler: SIG_DFL, SIG_IGN, default_int_handler, or a function's own."""
    found = signal.getsignal(number)
    return getattr(found, "name", None) or getattr(found, "__name__", repr(found))


report = {
    "argv": sys.argv,
    "path0": sys.path[0],
    "file": __file__,
    "name": __name__,
    "spec": type(__spec__).__name__,
    # pickle and spawned children look a script's classes up here
    "is_main_module": sys.modules["__main__"].__dict__ is globals(),
    "cwd": os.getcwd(),
    "env": variables(),
    "has_no_parent_process": multiprocessing.parent_process() is None,
    "stdin_isatty": sys.stdin is not None and sys.stdin.isatty(),
    "stdin_line": sys.stdin.readline() if sys.argv[2:3] == ["stdin"] else None,
    "in_main_thread": threading.current_thread() is threading.main_thread(),
    "own_process_group": os.getpgid(0) == os.getpid(),
    "stdout_line_buffering": sys.stdout.line_buffering,
    "stdout_write_through": sys.stdout.write_through,
    "sigint": handler(signal.SIGINT),
    "sigterm": handler(signal.SIGTERM),
}

with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".json"), "w") as file:
    file.write(json.dumps(report) + "\n")
