"""The fork server: fork ranks, reap them, and ensure that none outlives the launcher.

    launcher ──fork──> fork server ──fork──> rank 0, rank 1, ...

``fork`` is called early, before the launcher has a thread, a store or a CUDA context. So
the ranks inherit a process that has imported torch and done nothing else. The fork server has one
thread. It is the parent of the ranks, and adopts the orphans that they leave. When its socket
closes, because the launcher is done or was killed, it ends them all.

Messages are JSON lines. To the fork server: ``start`` (with the descriptors of stdout and stderr),
``signal``, ``kill``, ``leave``. From it: ``started``, ``ended``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from paceline.errors import Notice
from paceline.launch.plan.task import RankTask
from paceline.launch.run import pump
from paceline.launch.run.pump import Copy
from paceline.machine import processes, system

# How long ranks have after SIGTERM when the launcher was killed; all must end within 10 s.
_ORPHAN_GRACE_S = 5.0
# How often to check whether the fork server is stopped, and how many checks in a row prove it.
_LOOK_S, _LOOKS = 2.0, 2
# Signals that a scheduler or a terminal sends to every process of a job. The launcher handles them.
_SENT_TO_ALL = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class ForkServer:
    """The launcher's end of the fork server."""

    def __init__(self, link: socket.socket, pid: int) -> None:
        self.pid = pid
        self._link = link
        self._lock = threading.Lock()
        self._received = b""

    def start(self, task: RankTask, *, stdout: int, stderr: int, files: Sequence[int] = ()) -> None:
        """Start a rank; ``files`` are for its ``crash``, ``stacks`` and ``report``, or empty."""
        self._hand_over(
            {"do": "start", "task": task.to_json(), "files": len(files)}, [stdout, stderr, *files]
        )

    def _hand_over(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            sent = socket.send_fds(self._link, [line], list(descriptors))
            self._link.sendall(line[sent:])

    def signal(self, local_rank: int, signum: int, *, group: bool = False) -> None:
        """Send a signal to a rank, or to its whole process group."""
        self._send({"do": "signal", "rank": local_rank, "signum": signum, "group": group})

    def kill(self) -> None:
        """Kill all ranks and all their descendants now."""
        self._wake_up()
        self._send({"do": "kill"})

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the messages of the fork server; wait up to ``timeout_s`` for the first one.

        Raises EOFError if the fork server is gone.
        """
        if not select.select([self._link], [], [], max(0.0, timeout_s))[0]:
            return []
        try:
            data = self._link.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the process that starts ranks is gone")
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self, *, leave: bool = False, streams: Sequence[Copy] = ()) -> None:
        """End the fork server and all below it, and wait for it.

        With ``leave`` background processes of successful ranks stay, as under torchrun, and what
        they write to ``streams`` is copied, since a pipe without a reader would end them.
        """
        self._wake_up()
        if leave and streams:
            self._leave_behind(streams)
            return
        if leave:
            self._send({"do": "leave", "streams": []})
        self._link.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _wake_up(self) -> None:
        """Continue the fork server if it was stopped, so that it can end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def _leave_behind(self, streams: Sequence[Copy]) -> None:
        descriptors = []
        for copy in streams:
            console = copy.console if copy.console >= 0 else copy.source  # always two per stream
            descriptors += [copy.source, console]
        with contextlib.suppress(OSError):
            self._hand_over(
                {"do": "leave", "streams": [pump.describe(copy) for copy in streams]}, descriptors
            )
        self._link.close()

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), self._lock:  # the fork server and its ranks are gone
            self._link.sendall(json.dumps(message).encode() + b"\n")


class StopWatch:
    """Checks whether the fork server is stopped: then no rank starts, and no end is noticed."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next_s = 0.0
        self._num_stopped = 0  # looks in a row that found it stopped

    def look(self) -> Notice | None:
        """Return the notice that it is stopped, once per stop; cheap between checks."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _LOOK_S
        self._num_stopped = self._num_stopped + 1 if processes.is_stopped(self._pid) else 0
        if self._num_stopped != _LOOKS:
            return None
        return Notice(
            "the fork server, which starts the ranks and sees how they end, is stopped (pid"
            f" {self._pid}, state T)",
            (
                (
                    "ranks that run continue; until it continues, no rank is started and no rank's"
                    " end is noticed"
                ),
            ),
            f"fix: kill -CONT {self._pid}",
        )


def fork() -> tuple[ForkServer | None, RankTask | None]:
    """Fork the fork server off this process.

    Like ``os.fork``, this returns more than once: in the launcher ``(ForkServer, None)``, and
    later, in every rank, ``(None, RankTask)``. The caller must let a rank's return reach the
    interpreter's end without running a ``finally`` block of the launcher.
    """
    near, far = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    # Ctrl-C reaches both processes. The new one must ignore it before it can receive it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    pid = os.fork()
    if pid:
        far.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # torch's 170,000 objects live to the end. Looking through them, the garbage collector
        # stopped all threads of the launcher for 0.1 s.
        gc.freeze()
        return ForkServer(near, pid), None
    near.close()
    return None, _Server(far).serve()


@dataclass
class _Server:
    """The fork server itself; ``serve`` returns only in ranks."""

    link: socket.socket
    pids: dict[int, int] = field(default_factory=dict)  # process -> local rank, of living ranks
    descriptors: list[int] = field(default_factory=list)
    received: bytes = b""
    name: str = "python"

    def serve(self) -> RankTask:
        os.setsid()  # only the launcher handles Ctrl-C at the terminal
        if sys.platform == "linux":
            with open("/proc/self/comm") as file:
                self.name = file.read().strip()
        system.set_name("paceline-warm")
        system.adopt_orphans()
        for signum in (signal.SIGINT, *_SENT_TO_ALL):
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        wake_in, wake_out = socket.socketpair()
        wake_in.setblocking(False)
        wake_out.setblocking(False)
        signal.set_wakeup_fd(wake_out.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready = select.select([self.link, wake_in], [], [])[0]
            if wake_in in ready:
                wake_in.recv(4096)
                self._reap()
            if self.link in ready:
                task = self._obey()
                if task is not None:
                    self._become_rank(wake_in, wake_out)
                    return task

    def _obey(self) -> RankTask | None:
        """Carry out the messages that have come; in a new rank, return its task."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.link, 1 << 16, 64)
        except ConnectionResetError:
            data, descriptors = b"", []
        if not data:
            self._end_all()
        self.descriptors += descriptors
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["do"] == "start":
                stdio, files = self._take(2), self._take(message["files"])
                task = RankTask.from_json(message["task"])
                if files:
                    task = replace(task, crash=files[0], stacks=files[1], report=files[2])
                if self._start(task, *stdio):
                    return task
            elif message["do"] == "signal":
                self._signal(message["rank"], message["signum"], message["group"])
            elif message["do"] == "kill":
                self._kill_descendants()
            else:
                self._leave(message["streams"])
        return None

    def _start(self, task: RankTask, stdout: int, stderr: int) -> bool:
        """Fork a rank; return True in the rank."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _settle_in(stdout, stderr, parent=parent, name=self.name)
            return True
        for handle in (stdout, stderr, task.crash, task.stacks, task.report):
            if handle >= 0:
                os.close(handle)
        self.pids[pid] = task.local_rank
        self._report(
            {"event": "started", "rank": task.local_rank, "pid": pid, "time_ns": time.time_ns()}
        )
        return False

    def _take(self, count: int) -> list[int]:
        """Return the next descriptors that came."""
        first, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        return first

    def _leave(self, streams: list[dict[str, object]]) -> NoReturn:
        """End after a successful run.

        First copy the output of background processes as long as they live.
        """
        self.link.close()
        if streams:
            system.set_name("paceline-output")
            for signum in (signal.SIGINT, *_SENT_TO_ALL):
                signal.signal(signum, signal.SIG_DFL)
            copies = [pump.restore(values, *self._take(2)) for values in streams]
            pump.Pump("paceline-output").serve_until_end(copies)
        os._exit(0)

    def _become_rank(self, *wakers: socket.socket) -> None:
        """Restore the state of a fresh process."""
        signal.set_wakeup_fd(-1)
        for signum in (*_SENT_TO_ALL, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for end in (*wakers, self.link):
            end.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            now = time.time_ns()
            rank = self.pids.pop(pid, None)
            if rank is not None:  # other processes are adopted orphans
                code = os.waitstatus_to_exitcode(status)
                self._report(
                    {"event": "ended", "rank": rank, "pid": pid, "code": code, "time_ns": now}
                )

    def _signal(self, rank: int, signum: int, group: bool) -> None:
        for pid, local_rank in self.pids.items():
            if local_rank == rank:
                _send_signal(pid, signum, group=group)

    def _kill_descendants(self) -> None:
        """Kill every process below this one; orphans are below it too, because it adopts them."""
        import psutil

        for _ in range(20):  # a process may fork while the list is read
            for pid in self.pids:
                _send_signal(pid, signal.SIGKILL, group=True)
            below = psutil.Process().children(recursive=True)
            for process in below:
                _send_signal(process.pid, signal.SIGKILL, group=False)
            self._reap()
            if not below:
                return
            time.sleep(0.02)

    def _end_all(self) -> NoReturn:
        """End all processes after the launcher has gone: SIGTERM first, then SIGKILL."""
        for pid in list(self.pids):
            _send_signal(pid, signal.SIGTERM, group=False)
        deadline = time.monotonic() + _ORPHAN_GRACE_S
        while self.pids and time.monotonic() < deadline:
            time.sleep(0.05)
            self._reap()
        self._kill_descendants()
        os._exit(0)

    def _report(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone; the next read shows it
            self.link.sendall(json.dumps(message).encode() + b"\n")


def _send_signal(pid: int, signum: int, *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has already ended
        (os.killpg if group else os.kill)(pid, signum)


def _settle_in(stdout: int, stderr: int, *, parent: int, name: str) -> None:
    """Set up a new rank first: a new session, death with its parent, and its streams."""
    os.setsid()
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the kernel knew
    system.set_name(name)
    for descriptor, place in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, place)
    for descriptor in {stdout, stderr} - {1, 2}:
        os.close(descriptor)
