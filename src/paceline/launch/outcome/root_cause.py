"""Decide the likely root cause from the rank exits: who failed first, who is a victim, and why.

Pure: records in, a verdict out. An inferred cause is called likely and is shown with its evidence.
A victim never outranks a cause, even with an earlier timestamp.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from paceline.errors import EXIT_UNFINISHED, TRACEBACK, Finding
from paceline.launch.channel import silence
from paceline.launch.channel.silence import Loss
from paceline.launch.monitor import locate, observations
from paceline.launch.monitor.position import Frame
from paceline.launch.outcome.rank_exit import Failure, RankExit
from paceline.text.wording import named, shorten

# Messages of a rank whose peer is gone: texts of gloo, NCCL and torch's store in torch 2.11-2.13.
# They count only in a line that names the library, because a user's own connections break too.
_VICTIM = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|Socket closed|No route to host|Connection"
    r" refused"
    r"|ncclRemoteError|remote process exit|NCCL communicator was aborted|ncclCommAbort"
    r"|Connection was likely closed|failed to recv, got 0 bytes|Failed to recv|Read error|Write"
    r" error"
)
_COLLECTIVE = re.compile(
    r"gloo|nccl|c10d|TCPStore|ProcessGroup|Dist\w*Error|RendezvousConnectionError", re.I
)
_NO_STORE = re.compile(r"client socket has timed out .*trying to connect", re.I)
_NOT_JOINED = re.compile(r"waiting for clients\. \d+/\d+ clients joined")
_TIMEOUT = re.compile(
    r"Timed out waiting \d+ms|collective operation timeout|Socket Timeout|wait timeout after"
    r"|failed to pass monitoredBarrier",
    re.I,
)
_MISMATCH = re.compile(
    r"distributed collective mismatch|Detected mismatch between collectives|Received data size"
    r" doesn't match"
    r"|Invalid mt19937 state"  # Accelerate read another collective's data as a random state
)
_WORKER_ERROR = re.compile(r"Caught (\w+) in DataLoader worker process")
_WORKER_KILLED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? .*(?:killed by signal: Killed|exited unexpectedly)"
)
# The loader raises this in a signal handler, so it appears on whichever line was running.
_WORKER_GONE = re.compile(
    r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal|exited unexpectedly)"
)
# Faults that an exception's text names. ``signatures`` has their texts.
_NAMED = (
    "cuda-oom",
    "port-in-use",
    "too-many-open-files",
    "dataloader-shm-too-small",
    "ddp-model-mismatch",
)
# What scripts raise on a signal to stop: by Python, torch elastic, and handlers of frameworks.
_TOLD_TO_STOP = ("KeyboardInterrupt", "SystemExit", "SignalException", "SIGTERMException")

# How the name of a node ends that is lost with the store.
STORE = "the host of the run's store"
_WHAT_IS_LOST = {
    silence.CLOSED: "the launcher on {} has gone: it was killed, or it crashed",
    silence.REFUSED: "the launcher on {} has gone: it was killed, or it crashed",
    silence.DOWN: "{} is down",
    silence.SILENT: (
        "the launcher on {} has gone silent: stopped or killed, or its host or the network is down"
    ),
}
_EVIDENCE_OF_LOSS = {
    silence.CLOSED: "its host has closed its connection, and no heartbeat has come since",
    silence.REFUSED: (
        "its host answers, and nothing listens on the port of the run's store any more"
    ),
    silence.DOWN: "Slurm says that the node is DOWN, and no heartbeat comes from it",
}

# How far an exit is from being a cause; smaller is nearer.
CAUSE, UNCLEAR, DESERTER, SUSPECT, VICTIM = range(5)


@dataclass(frozen=True)
class Verdict:
    """The decision about a run that failed.

    Attributes:
        finding: The likely cause.
        causes: Ranks that failed in the same way as the first.
        victims: Ranks whose failure follows from the cause.
        end: The first rank exit of the causes; None if a node was lost or nothing is known.
        lost: Lost nodes, in words.
        hung: Whether the cause is where ranks were, and not how one of them ended.
        others: A line for each rank that failed independently in another way.
        threads: A line for each exception that ended a thread of a rank.
    """

    finding: Finding
    causes: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    end: RankExit | None = None
    lost: tuple[str, ...] = ()
    hung: bool = False
    others: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()


def weigh(end: RankExit) -> int:
    """Return how far an exit is from being a cause, from ``CAUSE`` to ``VICTIM``."""
    if end.unfinished:
        return DESERTER  # innocent only if all ranks have ended like this
    if end.failure is not None:
        if end.stopped and (
            end.failure.type in _TOLD_TO_STOP or end.failure.time_ns > end.stopped_ns > 0
        ):
            return VICTIM  # raised because of the signal to stop
        return _weigh_words([end.failure.root]) or CAUSE
    if end.stopped or end.code is None:
        return VICTIM
    # Without an exception, the last lines of its log may explain it: gloo and NCCL abort a process
    # whose peer is gone, and a program without our entry leaves its traceback only in the log.
    aborted = end.code == -signal.SIGABRT
    words = _weigh_words(end.log_tail) if aborted or end.code > 0 else None
    return words or (UNCLEAR if aborted else CAUSE)


def _weigh_words(lines: Iterable[str]) -> int | None:
    """Weigh messages of a rank; None if they do not refer to another rank."""
    lines = [line for line in lines if _named(line) != "port-in-use"]
    if any(_about_others(line) for line in lines):
        return SUSPECT
    if any(_VICTIM.search(line) and _COLLECTIVE.search(line) for line in lines):
        return VICTIM
    return None


def _named(line: str) -> str:
    """Return the fault that a library's text names, if the rank itself caused it; else empty."""
    from paceline.signatures.naming import name_of  # a run without a failure needs no signatures

    return name_of(line, _NAMED)


def _about_others(line: str) -> bool:
    """Return whether a rank waited in vain or in another collective: another may be the cause."""
    return any(pattern.search(line) for pattern in (_TIMEOUT, _MISMATCH, _NO_STORE, _NOT_JOINED))


def judge(
    ends: Sequence[RankExit],
    *,
    lost: Iterable[str] = (),
    losses: Mapping[str, Loss] = MappingProxyType({}),
    hang: Finding | None = None,
    noticed: Finding | None = None,
    pulses: Sequence[Mapping[str, Any]] = (),
) -> Verdict:
    """Return the likely root cause.

    Args:
        ends: The exits of all ranks, of all nodes that sent an account.
        lost: Lost hosts, or lost node ranks in words.
        losses: Why they are lost, by the same words.
        hang: Why the ranks hung, if they were stopped for a hang.
        noticed: The cause that a notice named for a wait that lasted until the end.
        pulses: The counters of every rank, as plain data.
    """
    lost = tuple(lost)
    if hang is not None:
        return Verdict(hang, hung=True)
    failed = [end for end in ends if end.failed]
    left = [end for end in ends if end.unfinished]
    ranked = sorted(failed + left, key=lambda end: (weigh(end), end.first_ns, end.rank))
    first = ranked[0] if ranked else None
    if lost and (first is None or weigh(first) != CAUSE):
        return Verdict(
            _lost_node(lost, losses), victims=tuple(sorted(end.rank for end in failed)), lost=lost
        )
    if first is None:
        return Verdict(Finding("launcher-fault", "the run failed, but no rank did"))
    waited = _waited_for(first, noticed)
    if waited is not None:
        return Verdict(waited, end=first, hung=True)
    out_of_step = _out_of_step(ends, first, pulses)
    if out_of_step is not None:
        return Verdict(out_of_step, end=first, hung=True)
    if weigh(first) == VICTIM:
        return Verdict(
            _only_victims(first), victims=tuple(sorted(end.rank for end in failed)), end=first
        )
    alike = [end for end in failed + left if _same_way(end, first)]
    causes = tuple(sorted(end.rank for end in alike))
    apart = [end for end in ranked if weigh(end) == CAUSE and end.rank not in causes]
    dragged = {end.rank for end in failed} - set(causes) - {end.rank for end in apart}
    victims = tuple(sorted(dragged))
    finding = _explain(first, causes=causes, num_ranks=len(ends))
    others = tuple(_failed_too(end) for end in apart)
    if left and not first.unfinished:
        others = (
            (
                f"{named(end.rank for end in left)} had stopped to be resumed (status"
                f" {EXIT_UNFINISHED})"
            ),
            *others,
        )
    return Verdict(finding, causes=causes, victims=victims, end=first, lost=lost, others=others)


def _waited_for(first: RankExit, noticed: Finding | None) -> Finding | None:
    """Return the cause that a notice named, if torch's timeout ended that wait; else None."""
    if noticed is None or weigh(first) not in (SUSPECT, VICTIM):
        return None
    words = [first.failure.root] if first.failure else list(first.log_tail)
    timeouts = [line.strip() for line in words if _TIMEOUT.search(line)]
    if not timeouts:
        return None
    ended = f"torch ended the wait of rank {first.rank}: {shorten(timeouts[0], 160)}"
    fix = (
        "look at what that line waits for; if it may take so long: init_process_group(timeout=...),"
        " session.once(...)"
    )
    stuck = noticed.name in ("rank-stuck-in-code", "rank-stuck-in-data")
    return replace(
        noticed, evidence=(*noticed.evidence[:4], ended), fix=fix if stuck else noticed.fix
    )


def _out_of_step(
    ends: Sequence[RankExit], first: RankExit, pulses: Sequence[Mapping[str, Any]]
) -> Finding | None:
    """Return why ranks lost each other in a collective, from where each rank was.

    None if their positions do not explain it.
    """
    if weigh(first) not in (SUSPECT, VICTIM):
        return None
    said = [first.failure.root] if first.failure else list(first.log_tail)
    timed_out = any(_TIMEOUT.search(line) for line in said)
    positions = [end.position for end in ends if end.position is not None]
    return locate.judge(positions, uneven=observations.uneven(pulses), broken=not timed_out)


def broken_in_stop(ends: Iterable[RankExit]) -> list[str]:
    """Return a line for each of the first ranks that raised an unrelated exception while stopping.

    Such an exception is not the cause of the end, but may explain why nothing was saved.
    """
    own = [
        (end.first_ns, f"while it stopped, rank {end.rank} raised {_said(end.failure)}")
        for end in ends
        if end.stopped and end.failure and end.failure.type not in _TOLD_TO_STOP
        if _weigh_words([end.failure.root]) is None
    ]
    return [shorten(line) for _, line in sorted(own)[:2]]


def in_threads(ends: Iterable[RankExit]) -> tuple[str, ...]:
    """Return a line for each exception that ended a thread of a rank; alone it is not a cause."""
    return tuple(f"in rank {end.rank}, {text}" for end in ends for text in end.threads)


def _failed_too(end: RankExit) -> str:
    if end.failure is None:
        return f"rank {end.rank} failed too, with exit code {end.code}"
    return f"rank {end.rank} failed too: {_said(end.failure)}"


def _said(failure: Failure) -> str:
    first_line = next(iter(failure.message.splitlines()), "")
    return f"{failure.type}: {first_line}".rstrip(": ")


def _same_way(one: RankExit, other: RankExit) -> bool:
    """Return whether two ranks failed in the same way.

    They raised the same exception at the same place of the user's code, or have the same exit code
    without an exception.
    """
    if weigh(one) != weigh(other):
        return False
    if one.failure is None or other.failure is None:
        return one.failure is other.failure and one.code == other.code
    return one.failure.type == other.failure.type and one.failure.place == other.failure.place


def _explain(end: RankExit, *, causes: tuple[int, ...], num_ranks: int) -> Finding:
    who = named(causes)
    if end.unfinished:
        return Finding(
            "rank-ended-early",
            f"{who} ended with status {EXIT_UNFINISHED} (to be resumed), and the others did not",
            where=_where(end),
            fix=(
                f"stop all ranks together: session.stop(), or sys.exit({EXIT_UNFINISHED}) on all of"
                " them"
            ),
        )
    if end.failure is not None:
        return _explain_exception(
            end, end.failure, who=who, alone=len(causes) == 1 and num_ranks > 1
        )
    assert end.code is not None
    if end.code < 0:
        return _explain_signal(end, who)
    return Finding(
        "rank-ended-early",
        f"{who} ended with exit code {end.code} and left no exception",
        where=_where(end),
        evidence=end.log_tail[-3:],
        why="os._exit, a native library's exit, or a program that is not Python ends so",
        fix=f"look at its last lines: less {shlex.quote(str(end.log))}",
    )


def _explain_exception(end: RankExit, failure: Failure, *, who: str, alone: bool) -> Finding:
    place = failure.place
    evidence = [f"{place.file}:{place.line} in {place.function}: {place.code}"] if place else []
    if _WORKER_GONE.search(failure.message):
        evidence = _about_worker(place, end)
    if failure.finding is not None:
        return replace(
            failure.finding, where=_where(end), evidence=(*evidence, *failure.finding.evidence)
        )
    name = _name_of(failure, alone=alone)
    first_line, *more = failure.message.strip().splitlines() or [""]
    worker = _WORKER_ERROR.search(failure.message)
    if worker:
        first_line, place_line = _inside_worker(failure.message, worker[1])
        evidence = [place_line] if place_line else evidence
        more = []
    what = (
        f"{who} raised {failure.type}: {first_line}"
        if first_line
        else f"{who} raised {failure.type}"
    )
    if failure.type == "SystemExit":
        what = f"{who} ended itself with sys.exit({first_line})"
    if worker:
        what = f"{who}: a DataLoader worker raised {worker[1]}: {first_line}"
    evidence += [line.strip() for line in more[:2] if line.strip()]
    if failure.chained:
        evidence.append(f"first: {failure.root}")
    if end.oom_kills and _WORKER_KILLED.search(failure.message):
        name = "rank-died-oom-killer"
        evidence.append(
            f"the kernel counted {end.oom_kills} kill(s) for lack of memory during this run"
        )
    fix = (
        f"what it printed before: less {shlex.quote(str(end.log))}"
        if failure.type == "SystemExit"
        else (f"{TRACEBACK}less {shlex.quote(str(end.log))}")
    )
    if lacking := _NO_METHOD.search(first_line):
        fix = _instead_of(*lacking.groups())
    return Finding(name, what, where=_where(end), evidence=tuple(evidence), fix=fix)


def _about_worker(place: Frame | None, end: RankExit) -> list[str]:
    """Return what is known about a DataLoader worker that ended without an exception."""
    where = f" at {place.file}:{place.line}, whose line did not cause it" if place else ""
    memory = (
        "no kill for lack of memory" if not end.oom_kills else "kills for lack of memory, see below"
    )
    return [
        f"the worker ended without an exception of its own; the rank noticed{where}",
        (
            f"the kernel counts {memory} during this run; other causes: a crash in native code,"
            " os._exit, kill"
        ),
    ]


def _name_of(failure: Failure, *, alone: bool) -> str:
    text = failure.root
    if failure.type in ("ModuleNotFoundError", "ImportError") or "No module named" in text:
        return "module-not-found"
    if failure.type == "OutOfMemoryError":
        return "cuda-oom"
    if "port-held-by-other" in text:
        return "port-held-by-other"
    if _NO_METHOD.search(text):
        return "method-does-not-exist"
    if name := _named(text):
        return name
    for pattern, name in _WAITS:
        if pattern.search(text):
            return name
    return "script-error-on-one-rank" if alone else "user-exception"


# Methods of Hugging Face's models that save memory; tutorials call them on any model.
_NO_METHOD = re.compile(
    r"'(\w+)' object has no attribute '(gradient_checkpointing_(?:en|dis)able)'"
)


def _instead_of(owner: str, method: str) -> str:
    """Return what to call on an object without such a method."""
    if owner in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
        return f"model.module.{method}(), on the model inside"
    return (
        "session.recompute(model); without a Session: torch.utils.checkpoint.checkpoint(block, x)"
        " in its forward"
    )


# Messages of a rank that waited in vain for others, or met them in another collective.
_WAITS = (
    (_NO_STORE, "master-unreachable"),
    (_NOT_JOINED, "rendezvous-timeout"),
    (_TIMEOUT, "collective-timeout"),
    (_MISMATCH, "collective-mismatch"),
)


def _inside_worker(message: str, kind: str) -> tuple[str, str]:
    """Return the last line and the innermost frame of a DataLoader worker's traceback."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    pattern = re.compile(rf"(?:[\w.]+\.)?{kind}(?:: ?(.*)|$)")
    said = next(
        (match[1] or "" for line in reversed(lines) if (match := pattern.match(line))), lines[-1]
    )
    frames = [
        (match[1], match[2], match[3], lines[place + 1].strip() if place + 1 < len(lines) else "")
        for place, line in enumerate(lines)
        if (match := re.match(r'\s*File "(.+)", line (\d+), in (.+)', line))
    ]
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame[0] and "/torch/utils/data/" not in frame[0]
    ]
    shown = f"{own[-1][0]}:{own[-1][1]} in {own[-1][2]}: {own[-1][3]}" if own else ""
    return said, shown


def _explain_signal(end: RankExit, who: str) -> Finding:
    assert end.code is not None
    number = -end.code
    where = _where(end)
    tail = end.stack[:4] or end.log_tail[-3:]
    if number == signal.SIGKILL and end.oom_kills:
        return Finding(
            "rank-died-oom-killer",
            f"{who} was killed (SIGKILL) because memory ran out on {end.host}",
            where=where,
            evidence=(
                f"the kernel counted {end.oom_kills} kill(s) for lack of memory during this run",
            ),
            fix="fewer or leaner DataLoader workers, a smaller batch, or more memory for the job",
        )
    if number == signal.SIGKILL:
        return Finding(
            "rank-died-signal",
            f"{who} was killed by SIGKILL; who sent it is not visible",
            where=where,
            evidence=(
                "the kernel and the cgroup count no kill for lack of memory during this run",
            ),
            fix=(
                "ask whoever may: a user, a job scheduler's memory limit (sacct -o MaxRSS,State),"
                " dmesg"
            ),
        )
    if number == signal.SIGBUS:
        full = f"/dev/shm is {end.shm}" if end.shm else "/dev/shm is not full now"
        return Finding(
            "dataloader-shm-too-small" if end.shm else "rank-died-signal",
            f"{who} was ended by SIGBUS: memory that it had mapped could not be given",
            where=where,
            evidence=(full, *tail[:3]),
            fix=(
                "a larger /dev/shm (docker: --shm-size=8g), fewer workers, or "
                "torch.multiprocessing.set_sharing_strategy('file_system')"
            ),
        )
    if number == signal.SIGSEGV:
        return Finding(
            "rank-segfault",
            f"{who} crashed in native code (SIGSEGV)",
            where=where,
            evidence=tuple(tail),
            fix=(
                "the Python stack at the crash and the last lines: less"
                f" {shlex.quote(str(end.log))}"
            ),
        )
    if number == signal.SIGABRT and any(_TIMEOUT.search(line) for line in end.log_tail):
        return Finding(
            "collective-timeout",
            f"{who} waited for the others in a collective until its time-out, and aborted",
            where=where,
            evidence=tuple(line for line in end.log_tail if _TIMEOUT.search(line))[:1]
            + tuple(end.stack[:3]),
            fix="look for the rank that did not come: stuck, busy, or in another collective",
        )
    if number == signal.SIGABRT and weigh(end) == SUSPECT:
        return Finding(
            "collective-mismatch",
            f"{who} aborted in a collective whose sizes differ between ranks",
            where=where,
            evidence=tuple(line for line in end.log_tail if _MISMATCH.search(line))[:1]
            + tuple(end.stack[:3]),
            fix=(
                "make every rank call the same collective with the same shapes; look for code for"
                " one rank only"
            ),
        )
    return Finding(
        "rank-died-signal",
        f"{who} was ended by {_signal_name(number)}"
        + (
            ""
            if number == signal.SIGABRT
            else ", which this launcher did not send; who did is not visible"
        ),
        where=where,
        evidence=tuple(tail),
        fix=f"its last lines: less {shlex.quote(str(end.log))}",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal


def _only_victims(first: RankExit) -> Finding:
    said = (
        f": {first.failure.type}: {first.failure.message.strip().splitlines()[0]}"
        if (first.failure and first.failure.message.strip())
        else ""
    )
    return Finding(
        "peer-rank-died",
        f"only ranks that lost another one are visible; rank {first.rank} was the first to"
        f" notice{said}",
        where=_where(first),
        fix="look for the rank without a report: another node, or one that was ended from outside",
    )


def _lost_node(lost: tuple[str, ...], losses: Mapping[str, Loss]) -> Finding:
    """Return the finding about lost nodes, with the evidence."""
    names = ", ".join(lost)
    first = losses.get(lost[0], Loss())
    what = _WHAT_IS_LOST[first.reason].format(names)
    if first.reason != silence.SILENT:
        fix = "look at that host, and start the run again"
        return Finding(
            "agent-died", what, where=names, evidence=(_EVIDENCE_OF_LOSS[first.reason],), fix=fix
        )
    waited = f"for {first.silent_s:.0f} s" if first.silent_s else "any more"
    return Finding(
        "agent-died",
        what,
        where=names,
        evidence=(
            f"no heartbeat of it came, and no training step was made, {waited}",
            "if its launcher says the same of this host, the link between the two is what is gone",
        ),
        fix="look at that host and at the network between the two, and start the run again",
    )


def _where(end: RankExit) -> str:
    step = (
        f", after {end.steps} step{'s' if end.steps != 1 else ''}"
        if end.steps
        else ", before the first step"
    )
    return f"rank {end.rank} on {end.host or 'this host'} (pid {end.pid}){step}"
