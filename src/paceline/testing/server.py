"""The program that forks ranks: ``python -m paceline.testing.server SETTINGS``.

It is a session of pytest that collects nothing, so that assertions are rewritten and explained in
the ranks by pytest itself. It imports torch once and has one thread. On its control channel it
receives ``("fork", number)`` and a socket for each rank; it ends the ranks of before, forks new
ones and answers ``("forked", process ids)``. ``("ended", process id, status)`` says that a rank has
ended. When the channel closes, it kills every rank and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paceline.machine import own_process
from paceline.testing import rank
from paceline.testing.job import RankChannel
from paceline.text.plain_data import read_as

READY, FORK, FORKED, ENDED = "ready", "fork", "forked", "ended"


@dataclass(frozen=True)
class ServerSettings:
    """What the server is started with."""

    control: int  # descriptor of its end of the control channel
    folder: str  # folder of the files that ranks write to
    preload: tuple[str, ...]  # modules to import before ranks are forked
    root: str  # pytest's root folder
    verbosity: int  # how much failed assertions explain, as pytest's ``verbosity_assertions``
    is_captured: bool  # whether the output of ranks goes to files
    markers: tuple[str, ...]  # the marks to register


def main(text: str) -> None:
    """Serve until the control channel closes."""
    settings = read_as(ServerSettings, json.loads(text))
    plain = ("cacheprovider", "warnings", "faulthandler", "threadexception", "unraisableexception")
    arguments = [
        "-c",
        os.devnull,
        "--rootdir",
        settings.root,
        "--noconftest",
        "-s",
        "-qq",
        "--no-header",
        "--no-summary",
        "--color=no",
        "-o",
        f"verbosity_assertions={settings.verbosity}",
        *(word for name in plain for word in ("-p", f"no:{name}")),
    ]
    pytest.main(arguments, plugins=[RankServer(settings)])


class RankServer:
    """The server, as a plugin of pytest; ``settings`` is what it was started with."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._control = RankChannel(socket.socket(fileno=settings.control))
        self._pids: list[int] = []
        self._wakeup = os.pipe()

    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the marks of the test session."""
        for line in self._settings.markers:
            config.addinivalue_line("markers", line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork ranks when they are asked for; never return, in the server and in ranks."""
        status = 1
        try:
            self._explain_assertions(session.config)
            _import_before_fork(self._settings.preload)
            self._control.send((READY,))
            self._serve()
            status = 0
        except (EOFError, OSError):
            status = 0  # the test process has closed its end, or is gone
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            self._end_ranks()
            os._exit(status)

    def _explain_assertions(self, config: pytest.Config) -> None:
        """Install pytest's explanation of failed comparisons, as for a running test."""
        plugin: Any = config.pluginmanager.get_plugin("assertion")
        self._protocol = plugin.pytest_runtest_protocol(_ItemOfNobody(config))
        next(self._protocol)  # as long as it is kept, pytest believes that a test runs

    def _serve(self) -> None:
        for end in self._wakeup:
            os.set_blocking(end, False)
        # Python repeats a select that a signal interrupts (PEP 475), so the end of a rank has to
        # make a descriptor readable; and Python writes to it only of signals that have a handler.
        signal.set_wakeup_fd(self._wakeup[1])
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        while True:
            control, wakeup = self._control.fileno(), self._wakeup[0]
            ready, _, _ = select.select([control, wakeup], [], [])
            if wakeup in ready:
                self._reap()
            if control in ready:
                _, number = self._control.receive()
                self._replace_ranks(self._receive_sockets(number))

    def _receive_sockets(self, number: int) -> list[int]:
        content, handles, _, _ = socket.recv_fds(self._control.socket, 1, number)
        if not content:
            raise EOFError("the test process has ended")
        return handles

    def _replace_ranks(self, handles: Sequence[int]) -> None:
        self._end_ranks()
        for number in range(len(handles)):
            pid = os.fork()
            if pid == 0:
                self._be_rank(number, handles)
            with contextlib.suppress(OSError):  # it has done so itself
                os.setpgid(pid, pid)
            self._pids.append(pid)
        for handle in handles:
            os.close(handle)
        self._control.send((FORKED, list(self._pids)))

    def _be_rank(self, number: int, handles: Sequence[int]) -> None:
        """Serve jobs in a fork; never return into the frames of the server."""
        status = 1
        try:
            os.setpgid(0, 0)  # its own children end with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for place, handle in enumerate(handles):
                if place != number:
                    os.close(handle)
            for end in (self._control.fileno(), *self._wakeup):
                os.close(end)
            folder = Path(self._settings.folder)
            files = rank.Files.of(folder, number, is_captured=self._settings.is_captured)
            rank.serve(RankChannel(socket.socket(fileno=handles[number])), number, files)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup[0], 4096)
        for pid in list(self._pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._pids.remove(pid)
                _kill_group(pid)
                self._control.send((ENDED, pid, status))

    def _end_ranks(self) -> None:
        for pid in self._pids:
            _kill_group(pid)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
        self._pids.clear()


class _ItemOfNobody:
    """What pytest's explanation of assertions wants from an item."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ihook = config.hook


def _kill_group(pid: int) -> None:
    """Kill a rank and the processes that it has started."""
    for kill in (os.killpg, os.kill):  # the group may not be there yet, or nobody in it
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _import_before_fork(preload: Sequence[str]) -> None:
    """Import once what every rank would import."""
    import torch
    import torch.distributed

    # A fork has none of the threads of its parent, and would wait for them.
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports half of torch
    for name in preload:
        import_module(name)


def command(settings: ServerSettings) -> list[Any]:
    """Return the command that starts the server."""
    return own_process.command(json.dumps(asdict(settings)), module="paceline.testing.server")


if __name__ == "__main__":
    main(sys.argv[1])
