"""Collect observations of ranks on this host, on the nodes of a Slurm job, on other hosts, or from
files.
"""

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

from paceline.errors import SetupError, UsageError, option_invalid
from paceline.machine import own_process
from paceline.machine import slurm_commands as commands
from paceline.text.plain_data import read_as
from paceline.why import look, processes, signalled
from paceline.why.processes import RankProcess
from paceline.why.rank_state import Account

FORMAT = 1
_MOST_BYTES = 1 << 28
_REMOTE_S = 60.0  # for ssh, srun, and starting Python on a shared file system
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


@dataclass(frozen=True)
class Collection:
    """The collected accounts."""

    accounts: list[Account]  # accounts of all ranks
    missed: tuple[str, ...] = ()  # lines with the hosts that could not be observed, and why


@dataclass(frozen=True)
class WatchOptions:
    """How ranks are observed."""

    seconds: float  # duration
    signal: str = ""  # name of the signal at which a rank prints its stack; empty to send none
    # called on this host with the fraction of the time that has passed
    progress: Callable[[float], None] = lambda share: None


def gather(
    # process ids, Slurm job ids, hosts, or files written by ``--collect``; without any, all ranks
    # of this user on this host
    words: Sequence[str],
    options: WatchOptions,  # how ranks are observed
) -> Collection:
    """Collect accounts of ranks.

    Raises UsageError if a word is not one of these, or a file cannot be read. Raises SetupError if
    processes are not visible on this platform.
    """
    tasks = [_task(word, options) for word in words or ("",)]
    with ThreadPoolExecutor(max(1, min(32, len(tasks)))) as pool:  # all hosts at the same time
        parts = list(pool.map(lambda task: task(), tasks))
    # Words may overlap (a host and its file): a rank has one account, that of the last word.
    latest = {(account.run, account.rank): account for part in parts for account in part.accounts}
    return Collection(list(latest.values()), tuple(line for part in parts for line in part.missed))


def _task(word: str, options: WatchOptions) -> Callable[[], Collection]:
    """Return the function that collects the ranks of one word."""
    if os.path.isfile(word):
        return lambda: Collection(read(Path(word)))
    if not word or word in (socket.gethostname(), "localhost"):
        return lambda: Collection(_watch(_visible(), options))
    if word.isdigit():
        ranks = processes.belonging(_visible(), int(word)) if processes.is_possible() else []
        if ranks:
            return lambda: Collection(_watch(ranks, options))
        return lambda: _of_job(word, options)
    if any(Path(word).glob("events*.jsonl")):  # a run folder
        return lambda: Collection(_watch(processes.of_folder(_visible(), word), options))
    if not _HOST.fullmatch(word):
        what = f"{word!r} is no process, number of a Slurm job, host, run folder or file"
        raise option_invalid(what, fix="paceline why --help")
    return lambda: _by_ssh(word, options)


def _watch(ranks: Sequence[RankProcess], options: WatchOptions) -> list[Account]:
    if not ranks:
        return []
    signum = signalled.number_of(options.signal) if options.signal else 0
    return look.watch_ranks(
        ranks, seconds=options.seconds, signum=signum, progress=options.progress
    )


def _visible() -> list[RankProcess]:
    if not processes.is_possible():
        what = "processes of a run can only be looked at on Linux, where /proc shows them"
        raise SetupError.of(
            "platform-unsupported", what, where=sys.platform, fix="paceline why NODE"
        )
    return processes.find()


# Other hosts


def _of_job(job: str, options: WatchOptions) -> Collection:
    """Observe the nodes of a Slurm job, with a step that shares the job's resources."""
    node_count = commands.query("squeue", "-h", "-j", job, "-o", "%D")
    nodes = node_count.out.split()[:1]
    if node_count.status != 0 or not nodes or not nodes[0].isdigit():
        reason = _last_line(node_count.err, "it is not running")
        what = f"{job} is not a process with ranks on this host, nor a Slurm job that runs"
        return Collection([], (f"{what}: {reason}",))
    # A step waits for the resources that the run's own step holds, unless it may overlap with it.
    step = ("srun", "--overlap", f"--jobid={job}", f"--nodes={nodes[0]}", f"--ntasks={nodes[0]}")
    answer = commands.run(
        *step,
        "--ntasks-per-node=1",
        *_collector(options),
        timeout_s=options.seconds + _REMOTE_S,
        environ=commands.outside(),  # inside a job srun would take that job's SLURM_* for its own
    )
    collection = _parse_lines(answer.out)
    # The collector sees all ranks of this user on a node, which jobs may share.
    accounts = [account for account in collection.accounts if account.job == job]
    missed = (
        () if answer.status == 0 else (f"srun --overlap --jobid={job}: {_last_line(answer.err)}",)
    )
    return Collection(accounts, (*collection.missed, *missed))


def _by_ssh(host: str, options: WatchOptions) -> Collection:
    """Observe another host over ssh; paceline must be installed there at the same path."""
    # BatchMode: a prompt for a password would wait unseen behind the other hosts.
    ssh_options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
    line = shlex.join(_collector(options))
    answer = commands.run("ssh", *ssh_options, host, line, timeout_s=options.seconds + _REMOTE_S)
    collection = _parse_lines(answer.out)
    missed = () if answer.status == 0 else (f"{host}: {_last_line(answer.err)}",)
    return Collection(collection.accounts, (*collection.missed, *missed))


def _collector(options: WatchOptions) -> list[str]:
    signal = ("--signal", options.signal) if options.signal else ()
    return own_process.command("why", "--collect", "--seconds", f"{options.seconds:g}", *signal)


def _last_line(err: str, otherwise: str = "no answer") -> str:
    return (err.strip().splitlines() or [otherwise])[-1]


# What was collected as data


def write(collection: Collection) -> str:
    """Return the accounts of this host as one line of JSON."""
    accounts = [account.to_json() for account in collection.accounts]
    return json.dumps({"paceline-why": FORMAT, "host": socket.gethostname(), "accounts": accounts})


def read(path: Path) -> list[Account]:
    """Return the accounts in a file written by ``--collect``, of one host or of several.

    Raises UsageError if the file cannot be read, or has another format.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        values = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
        return [account for value in values for account in _accounts(value)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{path} is not what `paceline why --collect` writes: {_reason(error)}"
        raise UsageError.of(
            "input-unreadable",
            what,
            where=str(path),
            fix="paceline why --collect > HOST.json, on that host",
        ) from None


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _accounts(value: Any) -> Iterable[Account]:
    if value["paceline-why"] != FORMAT:
        raise ValueError("another version of paceline has written it")
    return [read_as(Account, values) for values in value["accounts"]]


def _parse_lines(out: str) -> Collection:
    """Return the accounts in the output of hosts; other lines come from login scripts."""
    accounts: list[Account] = []
    missed: list[str] = []
    for line in out.splitlines():
        if line.startswith('{"paceline-why"'):
            try:
                accounts += _accounts(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                missed.append(f"an answer cannot be read: {_reason(error)}")
    return Collection(accounts, tuple(missed))
