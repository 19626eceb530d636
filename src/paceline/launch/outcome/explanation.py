"""Explain the exit that was judged to be the cause: a finding with evidence and fix. Pure."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from paceline.diagnose.explain import known_fault
from paceline.errors import EXIT_UNFINISHED, TRACEBACK, Finding
from paceline.launch.channel import silence
from paceline.launch.channel.silence import Loss
from paceline.launch.monitor.child_processes import signal_name
from paceline.launch.monitor.hang import SAME_SIZE
from paceline.launch.outcome import weight
from paceline.launch.outcome.rank_exit import Failure, RankExit
from paceline.machine.user_code import is_users
from paceline.signatures import rank_errors, texts
from paceline.text.wording import named, shorten

_WORKER_ERROR = re.compile(r"Caught (\w+) in DataLoader worker process")
# The loader raises this in a signal handler, so it appears on whichever line was running.
_WORKER_GONE = re.compile(rf"{texts.WORKER_SIGNAL}|{texts.WORKER_EXITED}")
# How ``mp.spawn``, a DataLoader and a pool say that a process of theirs has ended.
_CHILD_GONE = re.compile(
    rf"{texts.WORKER_EXITED}|process \d+ terminated with exit code|BrokenProcessPool"
)
# What the kernel's kill for lack of memory looks like from the rank.
_WORKER_KILLED = re.compile(rf"{texts.WORKER_KILLED}|{texts.WORKER_EXITED}")
# Methods of Hugging Face's models that save memory; tutorials call them on any model.
_NO_METHOD = re.compile(
    r"'(\w+)' object has no attribute '(gradient_checkpointing_(?:en|dis)able)'"
)
_LAUNCHER_GONE = "the launcher on {} has gone: it was killed, or it crashed"
_MOST_RAISED = 160  # characters of an exception below the fault that it names
_WHAT_IS_LOST = {
    silence.CLOSED: _LAUNCHER_GONE,
    silence.REFUSED: _LAUNCHER_GONE,
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


def explain(end: RankExit, *, causes: tuple[int, ...], num_ranks: int) -> Finding:
    """Return the finding about a rank that failed."""
    ranks = named(causes)
    if end.unfinished:
        return _explain_early_exit(end, ranks)
    if end.failure is not None:
        is_alone = len(causes) == 1 and num_ranks > 1
        return _explain_exception(end, end.failure, ranks=ranks, is_alone=is_alone)
    assert end.code is not None
    if end.code < 0:
        explain_signal = _BY_SIGNAL.get(-end.code, _explain_other_signal)
        return explain_signal(end, ranks)
    return _known_in_log(end, ranks) or Finding(
        "rank-ended-early",
        f"{ranks} ended with exit code {end.code} and left no exception",
        where=_where(end),
        evidence=end.log_tail[-3:],
        why="os._exit, a native library's exit, or a program that is not Python ends so",
        fix=_less(end, "look at its last lines: "),
    )


def explain_victims(first: RankExit) -> Finding:
    """Return the finding if only victims are visible; ``first`` was the first to notice."""
    error = f": {first.failure.headline}" if first.failure else ""
    return Finding(
        "peer-rank-died",
        f"only ranks that lost another one are visible; rank {first.rank} was the first to"
        f" notice{error}",
        where=_where(first),
        fix="look for the rank without a report: another node, or one that was ended from outside",
    )


def explain_loss(
    lost: tuple[str, ...],  # the lost nodes, in words
    losses: Mapping[str, Loss],  # why they are lost, by the same words
) -> Finding:
    """Return the finding about lost nodes."""
    names = ", ".join(lost)
    first = losses.get(lost[0], Loss())
    what = _WHAT_IS_LOST[first.reason].format(names)
    if first.reason != silence.SILENT:
        return Finding(
            "agent-died",
            what,
            where=names,
            evidence=(_EVIDENCE_OF_LOSS[first.reason],),
            fix="look at that host, and start the run again",
        )
    duration = f"for {first.silent_s:.0f} s" if first.silent_s else "any more"
    return Finding(
        "agent-died",
        what,
        where=names,
        evidence=(
            f"no heartbeat of it came, and no training step was made, {duration}",
            "if its launcher says the same of this host, the link between the two is what is gone",
        ),
        fix="look at that host and at the network between the two, and start the run again",
    )


def _explain_early_exit(end: RankExit, ranks: str) -> Finding:
    return Finding(
        "rank-ended-early",
        f"{ranks} ended with status {EXIT_UNFINISHED} (to be resumed), and the others did not",
        where=_where(end),
        fix=(
            f"stop all ranks together: session.stop(), or sys.exit({EXIT_UNFINISHED}) on all of"
            " them"
        ),
    )


# Exceptions


def _explain_exception(end: RankExit, failure: Failure, *, ranks: str, is_alone: bool) -> Finding:
    if failure.finding is not None:
        own = _place_lines(end, failure) + list(failure.finding.evidence)
        what, where = failure.finding.what, _where(end)
        if texts.FINITE_ITSELF in own and ranks != named([end.rank]):
            what, where = what.replace(f"rank {end.rank} is", f"{ranks} are"), ranks
        return replace(failure.finding, what=what, where=where, evidence=tuple(own))
    name = _name_of(failure, is_alone=is_alone)
    known = _by_signature([failure.root, failure.message, *failure.parts, *_of_child(end, failure)])
    text, evidence = _message(end, failure)
    if known is not None and not _NO_METHOD.search(text):
        raised = shorten(_describe(failure, text, ranks=ranks), _MOST_RAISED)
        return replace(
            known,
            name=name if known.name == "user-exception" else known.name,
            what=f"{ranks}: {known.what}",
            where=_where(end),
            evidence=(raised, *evidence[:1]),
        )
    if failure.chained:
        evidence.append(f"first: {failure.root}")
    if end.oom_kills and _WORKER_KILLED.search(failure.message):
        name = "rank-died-oom-killer"
        evidence.append(_oom_line(end))
    return Finding(
        name,
        _describe(failure, text, ranks=ranks),
        where=_where(end),
        evidence=tuple(evidence),
        fix=_fix_of(end, failure, text),
    )


def _by_signature(words: Sequence[str]) -> Finding | None:
    """Return the fault that a signature names in what a rank said of itself; None without one.

    What a rank says of its connections is read by ``rank_errors``.
    """
    if any(rank_errors.read(text).wait for text in words):
        return None
    known = known_fault(words)
    is_own = known is not None and (known.code[:3] != "NET" or known.name == "port-in-use")
    return known if is_own else None


def _known_in_log(end: RankExit, ranks: str) -> Finding | None:
    """Return the fault that a signature names in the last lines of a rank without an exception."""
    known = _by_signature(end.log_tail)
    if known is None:
        return None
    what = f"{ranks} ended with exit code {end.code}: {known.what}"
    if end.code is not None and end.code < 0:
        what = f"{ranks} was ended by {signal_name(-end.code)}: {known.what}"
    return replace(known, what=what, where=_where(end))


def _name_of(failure: Failure, *, is_alone: bool) -> str:
    """Return the name of the fault that an exception shows."""
    text = failure.root
    if failure.type in ("ModuleNotFoundError", "ImportError") or "No module named" in text:
        return "module-not-found"
    if failure.type == "OutOfMemoryError":
        return "cuda-oom"
    if "port-held-by-other" in text:
        return "port-held-by-other"
    if _NO_METHOD.search(text):
        return "method-does-not-exist"
    error = rank_errors.read(text)
    of_script = "script-error-on-one-rank" if is_alone else "user-exception"
    return error.own_fault or error.wait or of_script


def _message(end: RankExit, failure: Failure) -> tuple[str, list[str]]:
    """Return the first line of an exception's message, and evidence: its place, further lines."""
    place = _place_lines(end, failure)
    caught = _WORKER_ERROR.search(failure.message)
    if caught:
        text, place_in_worker = _inside_worker(failure.message, caught[1])
        return text, [place_in_worker] if place_in_worker else place
    more = failure.message.strip().splitlines()[1:3]
    further = [*more, *failure.notes[:2], *failure.parts]
    lines = [line.strip() for line in further if line.strip() not in ("", "Last error:")]
    return failure.first_line, [*place, *lines]


def _describe(failure: Failure, text: str, *, ranks: str) -> str:
    caught = _WORKER_ERROR.search(failure.message)
    if caught:
        return f"{ranks}: a DataLoader worker raised {caught[1]}: {text}"
    if failure.type == "SystemExit":
        return f"{ranks} ended itself with sys.exit({text})"
    return f"{ranks} raised {failure.type}: {text}" if text else f"{ranks} raised {failure.type}"


def _fix_of(end: RankExit, failure: Failure, text: str) -> str:
    lacking = _NO_METHOD.search(text)
    if lacking:
        return _method_instead(*lacking.groups())
    if failure.type == "SystemExit":
        return _less(end, "what it printed before: ")
    return _less(end, TRACEBACK)


def _method_instead(owner: str, method: str) -> str:
    """Return what to call on an object without such a method."""
    if owner in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
        return f"model.module.{method}(), on the model inside"
    return (
        "session.recompute(model); without a Session: torch.utils.checkpoint.checkpoint(block, x)"
        " in its forward"
    )


def _place_lines(end: RankExit, failure: Failure) -> list[str]:
    """Return the evidence about where an exception came from."""
    if of_child := _of_child(end, failure):
        return [f"its log shows {text}" for text in of_child]
    if _WORKER_GONE.search(failure.message):
        return _about_lost_worker(end, failure)
    place = failure.place
    return [f"{place.file}:{place.line} in {place.function}: {place.code}"] if place else []


def _of_child(end: RankExit, failure: Failure) -> list[str]:
    """Return the exception that a log shows, if a rank failed because a process of it has ended."""
    return [end.log_shows] if end.log_shows and _CHILD_GONE.search(failure.root) else []


def _about_lost_worker(end: RankExit, failure: Failure) -> list[str]:
    """Return the evidence about a DataLoader worker that ended without an exception."""
    place = failure.place
    where = f" at {place.file}:{place.line}, whose line did not cause it" if place else ""
    memory = (
        "no kill for lack of memory" if not end.oom_kills else "kills for lack of memory, see below"
    )
    return [
        f"the worker raised no exception; the rank noticed{where}",
        (
            f"the kernel counts {memory} during this run; other causes: a crash in native code,"
            " os._exit, kill"
        ),
    ]


def _inside_worker(message: str, kind: str) -> tuple[str, str]:
    """Return the message and the innermost frame of an exception in a DataLoader worker."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    pattern = re.compile(rf"(?:[\w.]+\.)?{kind}(?:: ?(.*)|$)")
    matches = (pattern.match(line) for line in reversed(lines))
    text = next((match[1] or "" for match in matches if match), lines[-1])
    place = ""
    for line, code in zip(lines, [*lines[1:], ""], strict=True):
        frame = re.match(r'\s*File "(.+)", line (\d+), in (.+)', line)
        if frame and is_users(frame[1]) and "/torch/utils/data/" not in frame[1]:
            place = f"{frame[1]}:{frame[2]} in {frame[3]}: {code.strip()}"
    return text, place


# Signals


def _explain_kill(end: RankExit, ranks: str) -> Finding:
    if end.oom_kills:
        return Finding(
            "rank-died-oom-killer",
            f"{ranks} was killed (SIGKILL) because memory ran out on {end.host}",
            where=_where(end),
            evidence=(_oom_line(end),),
            fix="fewer or leaner DataLoader workers, a smaller batch, or more memory for the job",
        )
    return Finding(
        "rank-died-signal",
        f"{ranks} was killed by SIGKILL; who sent it is not visible",
        where=_where(end),
        evidence=("the kernel and the cgroup count no kill for lack of memory during this run",),
        fix=(
            "look for the sender: a user, a job scheduler's memory limit (sacct -o MaxRSS,State),"
            " dmesg"
        ),
    )


def _explain_bus_error(end: RankExit, ranks: str) -> Finding:
    usage = f"/dev/shm is {end.shm}" if end.shm else "/dev/shm is not full now"
    return Finding(
        "dataloader-shm-too-small" if end.shm else "rank-died-signal",
        f"{ranks} was ended by SIGBUS: memory that it had mapped is not available",
        where=_where(end),
        evidence=(usage, *_last_lines(end)[:3]),
        fix=(
            "a larger /dev/shm (docker: --shm-size=8g), fewer workers, or "
            "torch.multiprocessing.set_sharing_strategy('file_system')"
        ),
    )


def _explain_segfault(end: RankExit, ranks: str) -> Finding:
    return Finding(
        "rank-segfault",
        f"{ranks} crashed in native code (SIGSEGV)",
        where=_where(end),
        evidence=_last_lines(end),
        fix=_less(end, "the Python stack at the crash and the last lines: "),
    )


def _explain_abort(end: RankExit, ranks: str) -> Finding:
    """Return why a rank aborted: gloo and NCCL end a process whose collective has failed."""
    timeouts = weight.texts_about(end, "collective-timeout")
    if timeouts:
        return Finding(
            "collective-timeout",
            f"{ranks} waited for the others in a collective until its time-out, and aborted",
            where=_where(end),
            evidence=(timeouts[0], *end.stack[:3]),
            fix="look for the rank that did not come: stuck, busy, or in another collective",
        )
    if weight.weigh(end) == weight.SUSPECT:
        mismatches = weight.texts_about(end, "collective-mismatch")
        return Finding(
            "collective-mismatch",
            f"{ranks} aborted in a collective whose sizes differ between ranks",
            where=_where(end),
            evidence=(*mismatches[:1], *end.stack[:3]),
            fix=SAME_SIZE,
        )
    return _explain_other_signal(end, ranks)


def _explain_other_signal(end: RankExit, ranks: str) -> Finding:
    assert end.code is not None
    number = -end.code
    sender = ", which this launcher did not send; who did is not visible"
    why, cure = _REASONS.get(number, ("", ""))
    if number == signal.SIGABRT:
        sender = ""  # a process sends it to itself
        why, cure = _CLOSED if any(map(_CLOSED_TEXT.search, end.log_tail)) else ("", "")
    elif why:
        sender = ""
    known = None if why else _known_in_log(end, ranks)
    return known or Finding(
        "rank-died-signal",
        f"{ranks} was ended by {signal_name(number)}{sender}",
        where=_where(end),
        evidence=_last_lines(end),
        why=why,
        fix=cure or _less(end, "its last lines: "),
    )


# Why the system or a user ends a process with a signal, and what to do.
_NO_HANDLER = (
    "nothing in the script handles it, and then it ends a process; Slurm's --signal, scancel"
    " --signal and kill send it"
)
_HANDLE = "signal.signal(signal.{}, handler) at the start of the script, or do not send it"
_REASONS: Mapping[int, tuple[str, str]] = {
    signal.SIGXCPU: (
        "it has used all the CPU time that a limit allows (ulimit -t, or a scheduler's)",
        "ulimit -t unlimited, before the start; on a login node: as a job",
    ),
    signal.SIGXFSZ: (
        "it wrote to a file that is as large as its limit allows (ulimit -f)",
        "ulimit -f unlimited, before the start; or write smaller files",
    ),
    signal.SIGALRM: ("a timer of the script ran out: signal.alarm, signal.setitimer", ""),
    signal.SIGUSR1: (_NO_HANDLER, _HANDLE.format("SIGUSR1")),
    signal.SIGUSR2: (_NO_HANDLER, _HANDLE.format("SIGUSR2")),
}
# What gloo's thread says when its sockets have been closed or shut down in its own process.
_CLOSED_TEXT = re.compile(r"nfds != -1|accept: Invalid argument|Bad file descriptor")
_CLOSED = (
    "likely this process itself closed what torch had opened: its sockets are invalid",
    "look for os.closerange, os.close and socket.shutdown in the script and its libraries",
)

_BY_SIGNAL: Mapping[int, Callable[[RankExit, str], Finding]] = {
    signal.SIGKILL: _explain_kill,
    signal.SIGBUS: _explain_bus_error,
    signal.SIGSEGV: _explain_segfault,
    signal.SIGABRT: _explain_abort,
}


def _last_lines(end: RankExit) -> tuple[str, ...]:
    """Return the innermost frames of a crash; without a stack, the last lines of the log.

    Before it aborts, a library says why.
    """
    if end.code == -signal.SIGABRT and end.stack:
        return (*end.log_tail[-2:], *end.stack[:3])
    return end.stack[:4] or end.log_tail[-3:]


def _oom_line(end: RankExit) -> str:
    return f"the kernel counted {end.oom_kills} kill(s) for lack of memory during this run"


def _less(end: RankExit, label: str) -> str:
    """Return the command that shows the output of a rank; empty if there is none."""
    return f"{label}less {shlex.quote(end.log)}" if end.log else ""


def _where(end: RankExit) -> str:
    progress = ", before the first step"
    if end.steps:
        progress = f", after {end.steps} step{'s' if end.steps != 1 else ''}"
    return f"rank {end.rank} on {end.host or 'this host'} (pid {end.pid}){progress}"
