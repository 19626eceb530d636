"""Start commands as forks of a Python that has imported torch, which is most of a start's cost.

``PreloadedPython`` is the tests' side. This file is also its program, ``python preloaded.py HANDLE
MODULES...``. Each fork runs a Python script as ``__main__``, with its own arguments, environment,
folder and streams, to the interpreter's end. paceline itself is not preloaded: a fork imports it as
a new process does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

# What `paceline run` imports of torch, and torchrun.
MODULES = (
    *("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "numpy"),
    *("torch.distributed.elastic.agent.server.local_elastic_agent", "torch.distributed.run"),
)
# What an optimizer imports: half as much again, and each fork ends the more slowly.
TRAINING = ("torch._dynamo",)
# By this variable tests find the processes of a command. /proc shows the memory of the program's
# start, so a fork writes its own value over the program's.
MARK = "PACELINE_TEST_MARK"
NO_MARK = "0" * 32
_MOST_BYTES = 1 << 20


class ForkedProcess:
    """A command that was forked, with those members of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, status: int, stdout, stderr):
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = stdout, stderr
        self._status = status

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        deadline = time.monotonic() + timeout
        parts = {stream: [] for stream in (self.stdout, self.stderr) if stream is not None}
        unfinished = list(parts)
        while unfinished:
            ready = select.select(unfinished, [], [], max(0, deadline - time.monotonic()))[0]
            if not ready:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                parts[stream].append(data)
                if not data:
                    unfinished.remove(stream)
        self.wait(max(0, deadline - time.monotonic()))
        out, err = (
            b"".join(parts.get(stream, [])).decode().replace("\r\n", "\n")
            for stream in (self.stdout, self.stderr)
        )
        return out, err

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PreloadedPython:
    """A Python that has imported torch, and further modules, and forks commands."""

    def __init__(self, environ: Mapping[str, str], modules: Sequence[str] = ()):
        self._environ = dict(environ)
        self._modules = (*MODULES, *modules)
        self._link: socket.socket | None = None
        self._program: subprocess.Popen | None = None

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Return whether a new process in this environment would import torch in the same way."""
        return _read_at_import(environ) == _read_at_import(self._environ)

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        stdin,
        stdout,
    ) -> ForkedProcess:
        """Fork a Python script with its arguments; ``stdin`` and ``stdout`` are those of
        ``subprocess.Popen``.
        """
        self._begin()
        assert self._link is not None
        handles = [_open_input(stdin)]
        out = None
        if stdout == subprocess.PIPE:
            out = _pipe_into(handles)
        else:
            handles.append(os.dup(stdout.fileno()))
        err = _pipe_into(handles)
        status, status_end = os.pipe()
        handles.append(status_end)
        request = {"words": list(words), "cwd": str(cwd), "environ": dict(environ)}
        socket.send_fds(self._link, [json.dumps(request).encode()], handles)
        for handle in handles:
            os.close(handle)
        pid = int(self._link.recv(_MOST_BYTES))
        return ForkedProcess(pid, status, out, err)

    def _begin(self) -> None:
        if self._program is not None:
            return
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._program = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**self._environ, MARK: NO_MARK},
            )

    def close(self) -> None:
        """End the program."""
        if self._program is not None:
            self._link.close()
            self._program.wait(10)


def _read_at_import(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python, the dynamic linker or torch reads as it starts.

    A fork sets the number of threads itself, so ``OMP_NUM_THREADS`` is none of them.
    """
    from paceline.launch.plan.early_variables import is_early

    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("PYTHON", "LD_")) or (is_early(name) and name != "OMP_NUM_THREADS")
    }


def _open_input(stdin) -> int:
    """Return a new handle of a file, or of the null device."""
    if stdin == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDONLY)
    return os.dup(stdin.fileno())


def _pipe_into(handles: list[int]):
    """Return the reading end of a new pipe; its other end goes to ``handles``."""
    reading, writing = os.pipe()
    handles.append(writing)
    return os.fdopen(reading, encoding="utf-8")


# The program


def serve(link: socket.socket) -> str:
    """Fork a command for each request, and report its end; in a fork, return the script to run."""
    mark = ctypes.c_void_p(_libc().getenv(MARK.encode()))
    living: dict[int, tuple[int, int]] = {}  # pidfd -> process id, where its exit status goes
    while True:
        for handle in select.select([link, *living], [], [])[0]:
            if handle in living:
                _report_end(handle, *living.pop(handle))
                continue
            request, handles, _, _ = socket.recv_fds(link, _MOST_BYTES, 4)
            if not request:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                for pidfd, (_, status) in living.items():
                    os.close(pidfd)
                    os.close(status)
                link.close()
                return _become(json.loads(request), handles, mark)
            for other in handles[:3]:
                os.close(other)
            living[os.pidfd_open(pid)] = (pid, handles[3])
            link.send(str(pid).encode())


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    return libc


def _report_end(handle: int, pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(status, str(code).encode())
    os.close(status)
    os.close(handle)


def _become(request: dict, handles: list[int], mark: ctypes.c_void_p) -> str:
    """Turn this fork into the process that was requested; return its script."""
    for place, handle in enumerate(handles[:3]):
        os.dup2(handle, place)
    for handle in handles:
        os.close(handle)
    words = request["words"]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    ctypes.memmove(mark, request["environ"][MARK].encode(), len(NO_MARK))
    set_process_name = 15  # PR_SET_NAME
    name = "paceline" if os.path.basename(words[0]) == "paceline" else "python"
    _libc().prctl(set_process_name, name.encode(), 0, 0, 0)
    sys.argv = words
    sys.orig_argv = [sys.executable, *words]
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    sys.modules["numpy"].random.seed()
    if request["environ"].get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(request["environ"]["OMP_NUM_THREADS"]))
    sys.modules["multiprocessing.process"].ORIGINAL_DIR = request["cwd"]
    return words[0]


def run(script: str) -> None:
    """Run a script as ``__main__``."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(script)
    main.__builtins__ = __builtins__
    code = compile(Path(script).read_bytes(), main.__file__, "exec", dont_inherit=True)
    exec(code, main.__dict__)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    gc.freeze()  # otherwise a fork visits every object of torch as it ends, and copies its memory
    if "triton" in sys.modules:  # torch 2.15's prints objects that were not collected
        atexit.register(gc.unfreeze)
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
