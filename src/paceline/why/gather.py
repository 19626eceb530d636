"""Accounts of ranks from where they are: this host, the nodes of a Slurm job, other hosts, or files. Only collects."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import Finding, SetupError, UsageError
from paceline.machine import slurm_commands as commands
from paceline.why import look, processes, signalled
from paceline.why.account import Account
from paceline.why.processes import RankProcess

FORMAT = 1
_MOST_BYTES = 1 << 28
_REMOTE_S = 60.0  # for what is not the looking itself: ssh, srun, starting Python on a shared file system
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


@dataclass(frozen=True)
class Gathered:
    """What was collected.

    Attributes:
        accounts: Of all ranks.
        missed: Hosts that could not be looked at, and why; lines.
    """

    accounts: list[Account]
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """How ranks are looked at.

    Attributes:
        seconds: How long.
        signal: Name of the signal that makes a rank write its stack; empty to send none.
        progress: Called with the share of the time that has passed, on this host.
    """

    seconds: float
    signal: str = ""
    progress: Callable[[float], None] = lambda share: None


def gather(words: Sequence[str], way: Way) -> Gathered:
    """Return accounts of the ranks that words name; of all of this user's on this host without words.

    Args:
        words: Process ids, numbers of Slurm jobs, hosts, or files that ``--collect`` has written.
        way: How ranks are looked at.

    Raises:
        UsageError: A word is none of these, or a file cannot be read.
        SetupError: Processes are not visible here.
    """
    tasks = [_task(word, way) for word in words or ("",)]
    with ThreadPoolExecutor(max(1, min(32, len(tasks)))) as pool:  # all hosts are looked at at the same time
        parts = list(pool.map(lambda task: task(), tasks))
    latest = {(each.run, each.rank): each for part in parts for each in part.accounts}
    return Gathered(list(latest.values()), tuple(line for part in parts for line in part.missed))


def _task(word: str, way: Way) -> Callable[[], Gathered]:
    """Return what collects the ranks that one word names."""
    if os.path.isfile(word):
        return lambda: Gathered(read(Path(word)))
    if not word or word in (socket.gethostname(), "localhost"):
        return lambda: Gathered(_watch(_visible(), way))
    if word.isdigit():
        ranks = _of_process(int(word))
        if ranks:
            return lambda: Gathered(_watch(ranks, way))
        return lambda: _of_job(word, way)
    if not _HOST.fullmatch(word):
        what = f"{word!r} is not a process, the number of a Slurm job, a host or a file"
        raise UsageError(Finding("option-invalid", what, where="command line", fix="paceline why --help"))
    return lambda: _by_ssh(word, way)


def _watch(ranks: Sequence[RankProcess], way: Way) -> list[Account]:
    if not ranks:
        return []
    signum = signalled.number_of(way.signal) if way.signal else 0
    return look.watch_ranks(ranks, seconds=way.seconds, signum=signum, progress=way.progress)


def _visible() -> list[RankProcess]:
    if not processes.is_possible():
        what = "processes of a run can only be looked at on Linux, where /proc shows them"
        raise SetupError(Finding("platform-unsupported", what, where=sys.platform, fix="paceline why NODE"))
    return processes.find()


def _of_process(pid: int) -> list[RankProcess]:
    return processes.belonging(_visible(), pid) if processes.is_possible() else []


# Other hosts


def _of_job(job: str, way: Way) -> Gathered:
    """Look at the nodes of a Slurm job, by a step that shares what the job has."""
    listed = commands.query("squeue", "-h", "-j", job, "-o", "%D")
    nodes = listed.out.split()[:1]
    if listed.status != 0 or not nodes or not nodes[0].isdigit():
        reason = _last_line(listed.err, "it is not running")
        return Gathered([], (f"{job} is not a process with ranks on this host, nor a Slurm job that runs: {reason}",))
    step = ("srun", "--overlap", f"--jobid={job}", f"--nodes={nodes[0]}", f"--ntasks={nodes[0]}", "--ntasks-per-node=1")
    answer = commands.tell(*step, *_collector(way), timeout_s=way.seconds + _REMOTE_S, environ=commands.outside())
    gathered = _parse_lines(answer.out)
    accounts = [account for account in gathered.accounts if account.job == job]
    missed = () if answer.status == 0 else (f"srun --overlap --jobid={job}: {_last_line(answer.err)}",)
    return Gathered(accounts, (*gathered.missed, *missed))


def _by_ssh(host: str, way: Way) -> Gathered:
    """Look at another host, where paceline has to be installed at the same place."""
    options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
    line = shlex.join(_collector(way))
    answer = commands.tell("ssh", *options, host, line, timeout_s=way.seconds + _REMOTE_S)
    gathered = _parse_lines(answer.out)
    missed = () if answer.status == 0 else (f"{host}: {_last_line(answer.err)}",)
    return Gathered(gathered.accounts, (*gathered.missed, *missed))


def _collector(way: Way) -> tuple[str, ...]:
    signal = ("--signal", way.signal) if way.signal else ()
    return (sys.executable, "-m", "paceline", "why", "--collect", "--seconds", f"{way.seconds:g}", *signal)


def _last_line(err: str, otherwise: str = "no answer") -> str:
    return (err.strip().splitlines() or [otherwise])[-1]


# What was collected as data


def write(gathered: Gathered) -> str:
    """Return what was collected on this host as one line.

    Args:
        gathered: What was collected.
    """
    accounts = [account.to_json() for account in gathered.accounts]
    return json.dumps({"paceline-why": FORMAT, "host": socket.gethostname(), "accounts": accounts})


def read(path: Path) -> list[Account]:
    """Return what a file holds that ``--collect`` has written, of one host or of several.

    Args:
        path: The file.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        values = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [account for value in values for account in _accounts(value)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{path} is not what `paceline why --collect` writes: {_reason(error)}"
        raise UsageError(
            Finding("input-unreadable", what, where=str(path), fix="paceline why --collect > HOST.json, on that host")
        ) from None


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _accounts(value: Any) -> Iterable[Account]:
    if value["paceline-why"] != FORMAT:
        raise ValueError("another version of paceline has written it")
    return [Account.from_json(each) for each in value["accounts"]]


def _parse_lines(out: str) -> Gathered:
    """Return the accounts in what hosts have printed; other lines are of login scripts."""
    accounts: list[Account] = []
    missed: list[str] = []
    for line in out.splitlines():
        if line.startswith('{"paceline-why"'):
            try:
                accounts += _accounts(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                missed.append(f"an answer cannot be read: {_reason(error)}")
    return Gathered(accounts, tuple(missed))
