"""Find the ranks on this host: processes in ``/proc`` whose environment has a rank. This module
only collects.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline import env
from paceline.launch.in_rank import rank_files
from paceline.why.identity import RANK, RankIdentity
from paceline.why.identity import read as read_identity

_PROC = Path("/proc")
_MAX_SCRIPT_CHARS = 80
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "/compile_worker/")


@dataclass(frozen=True)
class RankProcess:
    """A process that is a rank."""

    pid: int  # process id
    identity: RankIdentity  # the rank and its run
    launcher: int  # process id of the process that started the rank
    started_by: str  # description of that process: ``torchrun (process 4242)``
    script: str  # command that the rank runs: ``train.py --lr 0.1``
    address: str = ""  # where its stack responder listens; empty if it has none


def is_possible() -> bool:
    """Return whether ``/proc`` shows processes as on Linux."""
    return (_PROC / "self" / "environ").exists()


def find() -> list[RankProcess]:
    """Return the ranks on this host that this user may observe, in the order of run and rank."""
    parents = _parents()
    identities = {
        pid: identity
        for pid in parents
        if is_own(pid) and _may_train(pid) and (identity := _identity(pid)) is not None
    }
    pids = [
        pid for pid in choose(identities, parents) if identities[pid].family == RANK or _trains(pid)
    ]
    ranks = (_rank(pid, identities[pid], parents[pid]) for pid in pids)
    return sorted(ranks, key=lambda rank: (rank.identity.run, rank.identity.rank, rank.pid))


def choose(identities: Mapping[int, RankIdentity], parents: Mapping[int, int]) -> list[int]:
    """Return which Python processes are ranks: children of a rank inherit its variables. Pure.

    A launcher inside a Slurm step has the step's variables: it is not a rank if its descendants
    have ``RANK``.
    """
    launchers = set()
    descendants_of_ranks = set()
    for pid, identity in identities.items():
        for ancestor in filter(identities.__contains__, ancestors(pid, parents)):
            if identities[ancestor].family == identity.family:
                descendants_of_ranks.add(pid)
            elif identity.family == RANK:
                launchers.add(ancestor)
    return [pid for pid in identities if pid not in launchers | descendants_of_ranks]


def ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield the processes above a process, its parent first."""
    visited = {pid}
    while (pid := parents.get(pid, 0)) > 0 and pid not in visited:
        visited.add(pid)
        yield pid


def belonging(ranks: Sequence[RankProcess], pid: int) -> list[RankProcess]:
    """Return the ranks of the runs to which a process belongs: launcher, rank or child of one."""
    parents = _parents()
    above = {pid, *ancestors(pid, parents)}
    matches = [rank for rank in ranks if rank.pid in above or pid in ancestors(rank.pid, parents)]
    runs = {rank.identity.run for rank in matches}
    return [rank for rank in ranks if rank.identity.run in runs]


def of_folder(ranks: Sequence[RankProcess], folder: str) -> list[RankProcess]:
    """Return the ranks of the run of ``paceline run`` that has a run folder."""
    name, path = env.RUN_DIR, os.path.realpath(folder)
    return [it for it in ranks if os.path.realpath(it.identity.settings.get(name, "/")) == path]


def owner(pid: int) -> int | None:
    """Return the user id of a process, None if the process does not exist."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def command(pid: int) -> list[str]:
    """Return the words of a process's command line; one empty word if it cannot be read."""
    return _read(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (stat := _read(int(entry), "stat")):
            # the name of a program, in parentheses, may hold blanks and parentheses itself
            parents[int(entry)] = int(stat.rpartition(b")")[2].split()[1])
    return parents


def is_own(pid: int) -> bool:
    """Return whether this user may observe a process; root may observe those of all users."""
    return os.geteuid() in (0, owner(pid))


def _identity(pid: int) -> RankIdentity | None:
    pairs = (
        pair.partition("=") for pair in _read(pid, "environ").decode(errors="replace").split("\0")
    )
    environ = {name: value for name, _, value in pairs}
    # a rank of paceline's has its launcher's environment there: it was forked
    return read_identity(environ | rank_files.responder_of(pid).get("environ", {}))


def _may_train(pid: int) -> bool:
    """Return whether a process runs Python, and not to serve another process.

    A shell between launcher and script, and multiprocessing's helpers have a rank's variables.
    """
    if is_helper(" ".join(command(pid))):
        return False
    try:
        name = os.path.basename(os.readlink(_PROC / str(pid) / "exe"))
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


def _trains(pid: int) -> bool:
    """Return whether a task of a Slurm step is a rank, and not another program or a launcher of
    paceline.
    """
    return has_loaded(pid, "libtorch") and not is_paceline(command(pid))


def is_helper(command_line: str) -> bool:
    """Return whether a command line is of a process that serves another one. Pure."""
    return any(module in command_line for module in _HELPERS)


def is_paceline(words: Sequence[str]) -> bool:
    """Return whether a command line is one of paceline's own. Pure."""
    return any(os.path.basename(word) == "paceline" for word in words[:3])


def has_loaded(
    pid: int,
    library: str,  # prefix of the library's name, such as ``libnccl``
) -> bool:
    """Return whether a process has mapped a library."""
    return f"/{library}".encode() in _read(pid, "maps")


def _rank(pid: int, identity: RankIdentity, launcher: int) -> RankProcess:
    if _read(launcher, "comm").strip() == b"paceline-warm":
        launcher = _parents().get(launcher, launcher)
    address = rank_files.responder_of(pid).get("address", "")
    script = script_of(command(pid))
    return RankProcess(pid, identity, launcher, _started_by(launcher), script, address)


def _started_by(launcher: int) -> str:
    words = command(launcher)
    names = {os.path.basename(word) for word in words[:3]}
    if names & {"torchrun", "torch.distributed.run", "torch.distributed.launch"}:
        what = "torchrun"
    elif is_paceline(words):
        what = "paceline run"
    else:
        what = next(
            (
                name
                for name in ("accelerate", "deepspeed", "deepspeed.launcher.launch")
                if name in names
            ),
            "",
        )
        what = what or (_read(launcher, "comm").decode(errors="replace").strip() or "unknown")
    return f"{what.partition('.')[0]} (process {launcher})"


def script_of(words: Sequence[str]) -> str:
    """Return what a Python command line runs, without the interpreter and its flags: ``train.py
    --lr 0.1``. Pure.
    """
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    return shlex.join(rest)[:_MAX_SCRIPT_CHARS]


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""
