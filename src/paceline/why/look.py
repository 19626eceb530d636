"""Observe the ranks of this host several times from outside, without attaching to, stopping or
signalling them.

Stacks come from py-spy, which reads the memory of a process without stopping it
(``--nonblocking``); states, times and sockets from the kernel. This module collects; ``account``
and ``judge`` decide.
"""

from __future__ import annotations

import linecache
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor import child_processes, child_stacks, fork_deadlock, stacks
from paceline.launch.monitor.child_processes import ChildProcess
from paceline.launch.monitor.fork_deadlock import WorkerLook
from paceline.launch.monitor.position import DATA, STOPPED, UNKILLABLE, Frame, Position, classify
from paceline.launch.monitor.proof import Stand
from paceline.launch.monitor.stacks import Look
from paceline.launch.probe import stack_responder
from paceline.machine.processes import open_files
from paceline.machine.user_code import is_users
from paceline.why import processes, rank_state, recorder, signalled
from paceline.why.loops import Nest, nest
from paceline.why.processes import RankProcess
from paceline.why.rank_state import Account

_MAX_PARALLEL = 8  # processes of py-spy at the same time
_MAX_LOOKS = 6  # py-spy starts once for each rank and look, which costs more than it shows
# Further looks, as shares of the time between two looks, while a rank works in what seems one
# place: a loop of short steps is easily caught in the same line by the few looks alone.
_BETWEEN = (0.31, 0.67)
# Library folders of a Python other than this one.
_LIBRARY = re.compile(
    r"/lib(64)?/python3[^/]*/|/(dist|site)-packages/|/torch/(distributed|nn|autograd|utils|cuda)/"
)


@dataclass(frozen=True)
class Sample:
    """One look at one rank."""

    at_s: float  # time of the look, by the monotonic clock
    look: Look  # the stack and the kernel's counters
    process: ChildProcess | None  # the process, None if it has ended
    children: tuple[ChildProcess, ...] = ()  # children of the process
    error: str = ""  # why there is no stack; empty if there is one


def watch_ranks(
    ranks: Sequence[RankProcess],  # ranks on this host
    *,
    seconds: float,  # time between the first look and the last
    # signal to send at the end to ranks whose stack is not visible, so that they print it;
    # 0 for none
    signum: int = 0,
    # called with the fraction of the time that has passed
    progress: Callable[[float], None] = lambda share: None,
) -> list[Account]:
    """Observe ranks for some seconds; return an account of each, and of ranks of this host that
    have ended.
    """
    rounds = max(2, min(_MAX_LOOKS, round(seconds) + 1))
    samples: list[list[Sample]] = []
    start_s = time.monotonic()
    with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        for number in range(rounds):
            at_s = start_s + seconds * number / (rounds - 1)
            _look_between(ranks, samples, until_s=at_s, pool=pool)
            time.sleep(max(0.0, at_s - time.monotonic()))
            # A proof compares the first records with the last; others would only burden the ranks.
            samples.append(_sample(ranks, pool, with_recorder=number in (0, rounds - 1)))
            progress(number / (rounds - 1))
        if signum:
            samples[-1] = list(
                pool.map(
                    lambda rank, sample: _with_own_stack(rank, sample, signum), ranks, samples[-1]
                )
            )
        samples_by_rank = [list(rank_samples) for rank_samples in zip(*samples, strict=True)]
        accounts = _with_nccl(ranks, list(pool.map(_account, ranks, samples_by_rank)))
    return [*accounts, *_ended(ranks, processes.find())]


def _look_between(
    ranks: Sequence[RankProcess],
    samples: list[list[Sample]],
    *,
    until_s: float,
    pool: ThreadPoolExecutor,
) -> None:
    """Look more often until the next look is due, if a rank works and was seen in one place."""
    if len(samples) < 2:
        return  # one look does not show that a rank stays where it is
    start_s = time.monotonic()
    for share in _BETWEEN:
        if not any(map(_works_in_one_place, zip(*samples, strict=True))):
            return
        time.sleep(max(0.0, start_s + share * (until_s - start_s) - time.monotonic()))
        samples.append(_sample(ranks, pool, with_recorder=False))


def _works_in_one_place(samples: Sequence[Sample]) -> bool:
    seconds = samples[-1].at_s - samples[0].at_s
    looks = [sample.look for sample in samples]
    return bool(looks[-1].frames) and (
        rank_state.motion(looks, seconds=seconds) == rank_state.IN_PLACE
    )


def _sample(
    ranks: Sequence[RankProcess], pool: ThreadPoolExecutor, *, with_recorder: bool
) -> list[Sample]:
    ports = {
        int(port)
        for rank in ranks
        if (port := rank.identity.settings.get("MASTER_PORT", "")).isdigit()
    }
    # NCCL's watchdog asks the store once a second, also in a hang: these bytes are no progress.
    pids, addresses = {rank.pid: rank.pid for rank in ranks}, {r.pid: r.address for r in ranks}
    looks = stacks.look(pids, addresses, {}, quiet=True, leave_out=ports)
    return list(
        pool.map(
            lambda rank: _sample_rank(rank, looks[rank.pid], with_recorder=with_recorder), ranks
        )
    )


def _sample_rank(rank: RankProcess, look: Look, *, with_recorder: bool) -> Sample:
    error = ""
    if not look.frames:
        threads, error = child_stacks.threads(rank.pid)
        look = _with_stacks(rank.pid, look, threads)
    if with_recorder and not look.answer:
        look = _with_recorder(rank, look)
    process = child_processes.look(rank.pid)
    return Sample(time.monotonic(), look, process, child_processes.collect(rank.pid), error)


def _with_own_stack(rank: RankProcess, sample: Sample, signum: int) -> Sample:
    """Return a sample with the stack that the rank prints itself, if py-spy shows none."""
    if sample.look.frames or sample.look.state == STOPPED:
        return sample  # a stopped process runs its handler only when it continues
    stack, error = signalled.ask(rank.pid, signum)
    read_frame = _frame_reader(_folder(rank.pid))
    frames = stacks.below_launcher([read_frame(*frame) for frame in stack])
    return replace(
        sample, look=replace(sample.look, frames=frames), error=f"{sample.error}; {error}"
    )


def _with_stacks(pid: int, look: Look, threads: Sequence[dict[str, Any]]) -> Look:
    read_frame = _frame_reader(_folder(pid))
    frames = [read_frame(*frame) for frame in child_stacks.main_thread(pid, threads)]
    others = [thread for thread in threads if thread.get("os_thread_id") != pid]
    # Whether a thread of the user's may yet bring the rank on, which would rule out a proof.
    idle = bool(threads) and all(
        stacks.is_idle(child_stacks.frames_of(thread)) for thread in others
    )
    return replace(look, frames=stacks.below_launcher(frames), others_idle=idle)


def _with_recorder(rank: RankProcess, look: Look) -> Look:
    trace = recorder.dump(rank.identity)
    if not trace:
        return look
    members = recorder.members(trace, world_size=rank.identity.world_size)
    answer = stack_responder.describe(recorder.entries(trace), members=members, threads=[])
    return replace(look, answer=answer, recorded=answer["recorded"])


def _folder(pid: int) -> str:
    """Return the working folder of a process, empty if it is not visible."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _frame_reader(folder: str) -> Callable[[str, int, str], Frame]:
    """Return a function that creates a frame; relative paths start at the working folder of the
    process.
    """

    def read_frame(file: str, line: int, function: str) -> Frame:
        path = file if file.startswith("<") else os.path.join(folder, file)
        user = is_users(path) and not _LIBRARY.search(path)
        return Frame(path, line, function, code=linecache.getline(path, line).strip(), user=user)

    return read_frame


def _nests(frames: Sequence[Frame], folder: str) -> tuple[Nest, ...]:
    nests = (
        nest(
            "".join(linecache.getlines(frame.file)),
            file=_short(frame.file, folder),
            line=frame.line,
        )
        for frame in frames
        if frame.user
    )
    return tuple(loops for loops in nests if loops is not None)


def _short(text: str, folder: str) -> str:
    """Return a text without the working folder of the rank in its paths."""
    return text.replace(f"{folder}/", "") if len(folder) > 1 else text


def _account(rank: RankProcess, samples: Sequence[Sample]) -> Account:
    """Combine several looks at a rank into its account."""
    identity, first, last = rank.identity, samples[0], samples[-1]
    looks = [sample.look for sample in samples]
    seconds = last.at_s - first.at_s
    base = Account(
        identity.run,
        identity.world_size,
        job=identity.job,
        started_by=rank.started_by,
        launcher=rank.launcher,
        script=rank.script,
        seconds=seconds,
    )
    # A rank that ends while it is looked at has moved. Unlike one that had ended before, it is no
    # proof: the launcher may be about to end the others.
    if last.process is None or last.process.has_ended:
        return replace(
            base,
            position=Position(identity.rank, socket.gethostname(), ended=True),
            stand=Stand(identity.rank),
            motion=rank_state.RUNNING,
        )
    motion = rank_state.motion(looks, seconds=seconds)
    return replace(
        base,
        position=_position(rank, samples, motion),
        stand=stacks.stand_of(identity.rank, first.look, last.look),
        motion=motion,
        places=_places(identity.rank, looks, _folder(rank.pid)),
        facts=_facts(first, last),
        error="" if last.look.frames else last.error,
        deadlock=_deadlock(rank, samples),
        loops=_nests(last.look.frames, _folder(rank.pid)),
    )


def _with_nccl(ranks: Sequence[RankProcess], accounts: Sequence[Account]) -> list[Account]:
    """Query NCCL about each run that has loaded it, and add the answer to the account of the run's
    first rank.
    """
    completed = list(accounts)
    runs: set[str] = set()
    for place, rank in enumerate(ranks):
        # One answer is about all ranks of the run. NCCL is asked only where the run seems to stand.
        if (
            rank.identity.run not in runs
            and accounts[place].motion != rank_state.RUNNING
            and processes.has_loaded(rank.pid, "libnccl")
        ):
            runs.add(rank.identity.run)
            completed[place] = replace(
                completed[place], nccl=tuple(recorder.ask_nccl(rank.identity))
            )
    return completed


def _position(rank: RankProcess, samples: Sequence[Sample], motion: str) -> Position:
    look, identity = samples[-1].look, rank.identity
    seconds = samples[-1].at_s - samples[0].at_s
    recorded = look.recorded
    folder = _folder(rank.pid)
    in_data = classify(look.frames)[0] == DATA
    # Without a record a collective of NCCL does not show: the rank waits where it next needs a
    # result, which from outside is any wait for the GPU.
    gpu = (
        not recorded
        and motion == rank_state.IN_PLACE
        and rank_state.waits_for_gpu(look.frames)
        and _has_gpu(rank.pid)
    )
    states = {sample.look.state for sample in samples}
    return Position(
        identity.rank,
        socket.gethostname(),
        idle_s=seconds if motion != rank_state.RUNNING else 0.0,
        late=True,
        late_alone=True,
        still=motion == rank_state.STILL,
        frames=_shortened(look.frames, folder),
        content=stacks.content_of(look.frames),
        worker=(
            _short(stacks.worker_place(rank.pid, _frame_reader(folder)), folder) if in_data else ""
        ),
        guard=_short(stacks.at(look.frames).guard, folder),
        call="waits for its GPU" if gpu else recorded.get("call", ""),
        seq=recorded.get("seq", -1),
        group=recorded.get("group", ""),
        timeout_s=recorded.get("timeout_s", 0.0),
        flying=gpu or recorded.get("flying", False),
        pid=rank.pid,
        # In every look: a healthy rank is in state D for a moment whenever it reads a file.
        state=look.state if states in ({STOPPED}, {UNKILLABLE}) else "",
        moving=stacks.bytes_moved([sample.look for sample in samples]),
    )


def _places(rank: int, looks: Sequence[Look], folder: str) -> tuple[str, ...]:
    shortened = (_shortened(look.frames, folder) for look in looks if look.frames)
    return tuple(dict.fromkeys(Position(rank, frames=frames).spot for frames in shortened))


def _shortened(frames: Sequence[Frame], folder: str) -> tuple[Frame, ...]:
    return tuple(replace(frame, file=_short(frame.file, folder)) for frame in frames)


def _facts(first: Sample, last: Sample) -> tuple[str, ...]:
    if last.process is None:
        return ()
    children = [it for it in last.children if not processes.is_helper(it.command)]
    return (last.process.doing(first.process), *child_processes.describe_all(children))


def _has_gpu(pid: int) -> bool:
    """Return whether a process has opened a GPU of NVIDIA or AMD."""
    targets = open_files(pid).values()
    return any(target.startswith(("/dev/nvidia", "/dev/kfd")) for target in targets)


def _deadlock(rank: RankProcess, samples: Sequence[Sample]) -> Finding | None:
    """Return the finding that a DataLoader worker is deadlocked in its fork, if that is proven."""
    # A worker that is stuck is the cause only if its rank waits for data all the time.
    in_data = all(classify(sample.look.frames)[0] == DATA for sample in samples)
    if not in_data:
        return None
    earlier = {worker.pid: worker for worker in samples[0].children}
    for worker in samples[-1].children:
        if worker.pid in earlier:
            before = _worker_look(rank, samples[0], earlier[worker.pid], waits_s=0.0)
            now = _worker_look(
                rank, samples[-1], worker, waits_s=samples[-1].at_s - samples[0].at_s
            )
            if before is not None and now is not None and fork_deadlock.is_proven(before, now):
                return _explanation(rank.pid, now)
    return None


def _worker_look(
    rank: RankProcess, sample: Sample, worker: ChildProcess, *, waits_s: float
) -> WorkerLook | None:
    if sample.process is None:
        return None
    return WorkerLook(
        rank.identity.rank, socket.gethostname(), waits_s, sample.process, worker, sample.at_s
    )


def _explanation(pid: int, now: WorkerLook) -> Finding:
    finding = fork_deadlock.explain(now)
    same_python = os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(sys.executable)
    if same_python:  # the explanation names the version of this Python
        return finding
    by_hand = f"which lock it is: py-spy dump --native --pid {now.worker.pid}"
    fix = (
        'DataLoader(..., persistent_workers=True) forks once; multiprocessing_context="forkserver"'
        " never"
    )
    return replace(finding, evidence=(finding.evidence[0], by_hand), fix=fix)


def _ended(ranks: Sequence[RankProcess], now: Sequence[RankProcess]) -> list[Account]:
    """Return accounts of ranks of this host that have ended while other ranks of their launcher are
    alive.
    """
    accounts = []
    for launcher in {rank.launcher for rank in ranks}:
        sibling = next(rank for rank in ranks if rank.launcher == launcher)
        observed = {rank.identity.local_rank for rank in ranks if rank.launcher == launcher}
        present = {rank.identity.local_rank for rank in now if rank.launcher == launcher}
        # If none is left, the run has ended, and no rank is missing from it.
        for number in sorted(missing(observed | present, sibling) if present else ()):
            identity = sibling.identity
            # Launchers number the ranks of a host one after another.
            rank = identity.rank - identity.local_rank + number
            accounts.append(
                Account(
                    identity.run,
                    identity.world_size,
                    job=identity.job,
                    started_by=sibling.started_by,
                    launcher=launcher,
                    script=sibling.script,
                    position=Position(rank, socket.gethostname(), ended=True),
                    stand=Stand(rank, ended=True),
                    motion=rank_state.STILL,
                )
            )
    return accounts


def missing(local_ranks: Collection[int], sibling: RankProcess) -> set[int]:
    """Return the local ranks of a launcher that are not alive; none if their number is unknown."""
    identity = sibling.identity
    if identity.local_rank < 0:
        return set()
    return set(range(identity.local_world_size)) - set(local_ranks)
