"""The processes of the ranks: the server that forks them, their channels and their files."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline import env
from paceline.errors import Finding, SetupError
from paceline.machine import torch_requirements
from paceline.testing import server
from paceline.testing.job import RankChannel

# How long the server may take to import torch and what is preloaded: minutes on a loaded machine.
_START_S = 300.0
_FORK_S = 60.0
_END_S = 10.0
# A fork costs little, so the sizes of most tests are there at once.
_LEAST_RANKS = 4


@dataclass(frozen=True)
class Style:
    """How pytest shows failures, from its command line."""

    root: str = "."  # its root folder
    verbosity: int = 0  # how much failed assertions explain
    is_captured: bool = True  # whether it captures output
    shows_locals: bool = False  # whether tracebacks show local variables
    is_short: bool = False  # whether tracebacks show single lines
    # the registered marks, as lines of ``markers``: a rank that imports a test module must not warn
    # of them
    markers: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: pytest.Config) -> Style:
        """Return what a test session is configured to show."""
        option = config.option
        return cls(
            root=str(config.rootpath),
            verbosity=config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS),
            is_captured=getattr(option, "capture", "fd") != "no",
            shows_locals=bool(getattr(option, "showlocals", False)),
            is_short=getattr(option, "tbstyle", "auto") in ("short", "line", "native"),
            markers=tuple(config.getini("markers")),
        )


class RankProcesses:
    """The server and the ranks that it has forked."""

    def __init__(
        self,
        style: Style,  # how pytest shows failures
        preload: Sequence[str],  # modules that are imported before ranks are forked
    ) -> None:
        self._style, self._preload = style, tuple(preload)
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-ranks-")
        self._process: subprocess.Popen[bytes] | None = None
        self._control: RankChannel | None = None
        self._is_ready = False
        self.channels: dict[int, RankChannel] = {}  # of each rank
        self.pids: dict[int, int] = {}  # of each rank

    @property
    def folder(self) -> Path:
        """The folder of the ranks' files."""
        return Path(self._folder.name)

    @property
    def control(self) -> RankChannel:
        """The control channel of the server."""
        assert self._control is not None
        return self._control

    def start(self) -> None:
        """Start the server, and return before it has imported torch.

        Raises SetupError if this system cannot fork, or torch is not installed.
        """
        if self._process is not None:
            return
        if not hasattr(os, "fork"):
            raise SetupError(_no_fork())
        torch_requirements.require_installed()
        ours, theirs = socket.socketpair()
        self._control = RankChannel(ours)
        settings = server.ServerSettings(
            control=theirs.fileno(),
            folder=str(self.folder),
            preload=self._preload,
            root=self._style.root,
            verbosity=self._style.verbosity,
            is_captured=self._style.is_captured,
            markers=self._style.markers,
        )
        self._process = subprocess.Popen(
            server.command(settings),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends the ranks
            env=_environ(),
        )
        theirs.close()

    def require(self, world_size: int, *, fresh: bool) -> None:
        """Have at least so many ranks, which wait for a job; new processes if ``fresh``.

        Raises SetupError if they cannot be started.
        """
        self.start()
        if not self._is_ready:
            self._next(server.READY, _START_S)
            self._is_ready = True
        if fresh:
            self._fork(world_size)
        elif len(self.channels) < world_size:
            self._fork(max(world_size, _LEAST_RANKS))

    def stop_ranks(self) -> None:
        """Kill all ranks; the next call of ``require`` has new ones."""
        for pid in self.pids.values():
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        for channel in self.channels.values():
            channel.close()
        self.channels, self.pids = {}, {}

    def stop_server(self) -> None:
        """Kill all ranks, and end the server."""
        self.stop_ranks()
        if self._process is None:
            return
        self.control.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process, self._is_ready = None, False

    def close(self) -> None:
        """End everything, and remove the files."""
        self.stop_server()
        self._folder.cleanup()

    def _fork(self, world_size: int) -> None:
        self.stop_ranks()
        pairs = [socket.socketpair() for _ in range(world_size)]
        handles = [theirs.fileno() for _, theirs in pairs]
        try:
            with contextlib.suppress(OSError):  # a server that has ended gives no answer either
                self.control.send((server.FORK, world_size))
                socket.send_fds(self.control.socket, [b"."], handles)
            (pids,) = self._next(server.FORKED, _FORK_S)
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            self.stop_server()  # interrupted: its answer would be taken for that to the next call
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        self.channels = {rank: RankChannel(ours) for rank, (ours, _) in enumerate(pairs)}
        self.pids = dict(enumerate(pids))

    def _next(self, kind: str, limit_s: float) -> tuple[Any, ...]:
        """Return the server's next message of a kind; others are about ranks that are gone."""
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(EOFError):
            while select.select([self.control], [], [], max(0, deadline - time.monotonic()))[0]:
                name, *values = self.control.receive()
                if name == kind:
                    return tuple(values)
        self.stop_server()
        raise SetupError(_not_started(self._preload))


class RankOutput:
    """What ranks print from now on; ``folder`` is that of their files."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._files = {
            f"{stream} of rank {rank}": folder / f"rank-{rank}.{stream[3:]}"
            for rank in ranks
            for stream in ("stdout", "stderr")
        }
        self._starts = {name: _size(path) for name, path in self._files.items()}

    def read(self) -> dict[str, str]:
        """Return what was printed, by the name of the stream, without empty ones."""
        texts = {name: _text(path, self._starts[name]) for name, path in self._files.items()}
        return {name: text for name, text in texts.items() if text}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _text(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start if _size(path) >= start else 0)  # new ranks have begun new files
        return file.read().decode(errors="replace")


def _environ() -> dict[str, str]:
    """Return the environment of the server: its pytest loads no plugin and takes no options."""
    outside = env.snapshot()
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        outside.pop(name, None)
    path = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {env.OMP_THREADS: "1", **outside, **own}


def _no_fork() -> Finding:
    return Finding(
        "platform-unsupported",
        "ranks are forked, which this system cannot do",
        where=sys.platform,
        fix="run these tests on Linux",
    )


def _not_started(preload: Sequence[str]) -> Finding:
    listed = ", ".join(("torch", *preload))
    return Finding(
        "launcher-fault",
        "the process that forks the ranks of tests has ended, or does not answer",
        why=f"it imports {listed}; what it has printed is above",
        fix=f'python -c "import {listed}"   (shows the error, if it is an import)',
    )
