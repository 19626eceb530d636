"""``paceline why``: explain a hang of a run that another launcher started: which rank waits for
which, in which line.

``identity`` and ``processes`` find the ranks, ``look`` and ``recorder`` observe them from outside,
``rank_state`` and ``verdict`` decide, ``gather`` reaches other hosts. The run is not changed: no
debugger is attached, and no signal is sent unless the user names one at which ranks print their
stacks. Nothing here imports torch.

    gather      collect observations of ranks on this host, on the nodes of a Slurm job, on other
                hosts, or from files
    identity    identify the rank and the run of a process from its environment variables
    look        observe the ranks of this host several times from outside, without attaching to,
                stopping or signalling them
    loops       find out whether one rank has left a loop that another is still in, from the loops
                around their lines
    processes   find the ranks on this host: processes in ``/proc`` whose environment has a rank
    rank_state  the observations of one rank over some seconds, and whether it has moved meanwhile
    recorder    query torch's Flight Recorder and NCCL about ranks that paceline did not start
    report      render the report of ``paceline why``: a verdict for each run
    signalled   send a rank the signal at which it prints its stack, and read the stack from its
                stderr
    verdict     decide which ranks wait for which, and whether a hang is likely or proven, from
                accounts of ranks
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence

from paceline.errors import Finding, SetupError, option_invalid
from paceline.why import gather, processes, signalled
from paceline.why.gather import WatchOptions
from paceline.why.report import HangReport, make

__all__ = ["collect", "why"]


def why(words: Sequence[str], *, seconds: float, signal: str = "") -> HangReport:
    """Explain what the ranks of runs wait for.

    ``words`` are process ids, Slurm job ids, hosts or files of ``--collect``; without any, all
    ranks of this user here. At ``signal`` ranks whose stack is not visible print it to stderr.
    """
    collection = gather.gather(words, _watch_options(seconds, signal, _progress()))
    if not collection.accounts:
        raise SetupError(_no_ranks(words, collection.missed))
    return make(collection.accounts, collection.missed)


def collect(words: Sequence[str], *, seconds: float, signal: str = "") -> str:
    """Return observations of ranks on this host as one line of JSON, for ``why`` elsewhere."""
    return gather.write(gather.gather(words, _watch_options(seconds, signal, lambda share: None)))


def _watch_options(seconds: float, signal: str, progress: Callable[[float], None]) -> WatchOptions:
    if signal and not signalled.number_of(signal):
        what = (
            f"--signal {signal}: only USR1, USR2 and real-time signals are sent, since others may"
            " end a rank"
        )
        raise option_invalid(what, fix="--signal USR1")
    return WatchOptions(seconds, signal, progress)


def _progress() -> Callable[[float], None]:
    if not sys.stderr.isatty():
        return lambda share: None

    def show(share: float) -> None:
        end = "\n" if share >= 1 else ""
        print(f"\rlooking at the ranks: {share:4.0%}", end=end, file=sys.stderr, flush=True)

    return show


def _no_ranks(words: Sequence[str], missed: Sequence[str]) -> Finding:
    """Return the finding that there are no ranks, with what is known about the words."""
    evidence = [
        *missed,
        *(line for word in words if word.isdigit() and (line := _describe_process(int(word)))),
    ]
    return Finding(
        "no-ranks-found",
        "no process of a distributed run was found"
        + (f" for {' '.join(words)}" if words else " on this host"),
        evidence=tuple(evidence[:6]),
        why=(
            "a rank is known by what its launcher sets: RANK and WORLD_SIZE, or SLURM_PROCID, or"
            " mpirun's variables"
        ),
        fix=(
            "paceline why, on a host of the run and as its user; paceline why JOBID for a Slurm job"
        ),
    )


def _describe_process(pid: int) -> str:
    """Return why a process cannot be observed; empty if it does not exist."""
    owner = processes.owner(pid)
    if owner is None:
        return ""
    if not processes.is_own(pid):
        return (
            f"process {pid} belongs to another user (id {owner}): sudo env PATH=$PATH paceline why"
            f" {pid}"
        )
    words = processes.command(pid)
    if processes.is_paceline(words):
        return f"process {pid} is paceline's own, and none of its ranks runs a script yet"
    return f"process {pid} has no rank's variables: {shlex.join(words)[:80]}"
