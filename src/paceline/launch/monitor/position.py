"""The position of a rank at one moment: its stack, its last collective, and its progress. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.text.wording import named, shorten

# Kinds of places, and those in which a rank waits for other ranks.
COLLECTIVE, BACKWARD, START, DATA, CODE = "collective", "backward", "start", "data", "code"
WAITING = (COLLECTIVE, BACKWARD, START)

# States of a process that are reported: stopped by a signal; waiting for a device, where no signal
# reaches it.
STOPPED, UNKILLABLE = "T", "D"
_IN_STATE_D = "in state D, where nothing can end it"

# Functions of torch.distributed in which ranks find each other, before there is a group to reduce
# over.
_MEETING = ("init_process_group", "rendezvous", "_store_based_barrier", "_create_c10d_store")
_MEETING_AGAIN = ("new_group", "_new_group_with_tag", "_new_process_group_helper", "split_group")
# file of torch (its end), functions (empty: any), kind, words; the first frame from the inside that
# fits decides
_PLACES: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("torch/utils/data/dataloader.py", ("__next__",), DATA, "next(loader)"),
    ("torch/distributed/distributed_c10d.py", _MEETING, START, "init_process_group"),
    ("torch/distributed/distributed_c10d.py", _MEETING_AGAIN, START, "new_group"),
    ("torch/distributed/rendezvous.py", (), START, "init_process_group"),
    ("torch/distributed/distributed_c10d.py", (), COLLECTIVE, ""),
    ("torch/distributed/_functional_collectives.py", (), COLLECTIVE, ""),
    ("torch/nn/parallel/distributed.py", ("__init__",), START, "DistributedDataParallel(...)"),
    ("torch/nn/parallel/distributed.py", (), COLLECTIVE, "the forward of DistributedDataParallel"),
    ("torch/autograd/graph.py", ("_engine_run_backward",), BACKWARD, "backward"),
    ("paceline/train/session/once.py", ("perform", "await_end", "await_all"), START, "once"),
)
# Calls in which two ranks meet, and the word before the other one.
POINT_TO_POINT = {"recv": "from", "send": "to"}
# What usual names of the dimensions of a device mesh stand for.
_PARALLEL = {
    "cp": "context-parallel",
    "dp": "data-parallel",
    "ep": "expert-parallel",
    "tp": "tensor-parallel",
}
# Characters of a line of the user's code that are shown.
_SHOWN = 60


@dataclass(frozen=True)
class Frame:
    """One frame of a stack or a traceback."""

    file: str
    line: int
    function: str
    code: str = ""
    user: bool = False


@dataclass(frozen=True)
class Position:
    """The position of one rank at one moment."""

    rank: int  # global rank
    host: str = ""  # its host
    idle_s: float = 0.0  # seconds since its last sign of progress
    late: bool = False  # ``idle_s`` exceeds the limit for a rank that others wait for
    late_alone: bool = False  # ``idle_s`` exceeds the limit where no rank waits for another
    still: bool = False  # it uses no CPU and its stack has not changed between two looks
    active: bool = False  # it or its children have used the CPU between two looks
    ended: bool = False  # its script has ended
    # its main thread's stack, outermost first; empty if it is not visible
    frames: tuple[Frame, ...] = ()
    content: str = ""  # hash of the file of the user's innermost frame; empty if it is not readable
    worker: str = ""  # place of the user's code in the DataLoader worker that it waits for, as text
    # the ``if`` around its place that chooses ranks, as text; empty if there is none
    guard: str = ""
    call: str = ""  # the last collective that it has begun, from torch's Flight Recorder
    seq: int = -1  # sequence number of that collective in its process group; -1 if unknown
    group: str = ""  # the process group of that collective
    called: str = ""  # the same with what it sends: ``all_reduce #1 of 3 elements (Float)``
    group_name: str = ""  # what the script calls that group
    backend: str = ""  # ``gloo`` or ``nccl``, which that collective uses; empty if unknown
    members: tuple[int, ...] = ()  # global ranks of that group; empty if unknown
    peer: int = -1  # the rank that it sends to or receives from; -1 for none
    timeout_s: float = 0.0  # timeout of that collective, as set by the script; 0 if unknown
    flying: bool = False  # whether that collective has not returned
    steps: int = 0  # number of optimizer steps
    batches: int = 0  # number of batches taken
    pid: int = 0  # its process, 0 if unknown
    # state of the process in the kernel: T if it is stopped, D if it waits for a device
    state: str = ""
    moving: bool = False  # bytes have moved on its sockets between two looks
    kept: str = ""  # what keeps it alive although its script is done, as text; empty if it runs
    threads: tuple[str, ...] = ()  # exceptions that have ended threads of the rank, in words
    # the last exception that its log shows since its last progress, as text: perhaps handled
    printed: str = ""

    @property
    def kind(self) -> str:
        """Kind of place that the stack shows."""
        return classify(self.frames)[0]

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, as far as is visible."""
        if self.ended or self.state == STOPPED:
            return False
        return self.kind in WAITING or (self.flying and self.kind != DATA)

    @property
    def is_between_two(self) -> bool:
        """Whether it sends or receives, and is in no collective of a group."""
        return classify(self.frames)[1] in POINT_TO_POINT

    @property
    def kinship(self) -> str:
        """What ranks of its mesh group are to each other: ``tensor-parallel peer``; else empty.

        torch names the group of a dimension of a device mesh after it, ``mesh_tp``.
        """
        dim = self.group_name.removeprefix("mesh_")
        if dim == self.group_name or dim.isdigit():
            return ""
        return f"{_PARALLEL.get(dim, dim)} peer"

    @property
    def exceptions(self) -> tuple[str, ...]:
        """The exceptions that may be why it makes no progress: those of threads are certain."""
        return self.threads or tuple(filter(None, [self.printed]))

    @property
    def place(self) -> str:
        """``train.py:91`` of the user's own code; empty if none is visible."""
        frame = next((frame for frame in reversed(self.frames) if frame.user), None)
        return f"{shown_path(frame.file)}:{frame.line}" if frame else ""

    @property
    def spot(self) -> str:
        """The call of the user's innermost line, and the line: ``request.urlopen (data.py:40)``."""
        is_in_own_code = self.kind == CODE and self.place and not self.worker
        if self.state in (STOPPED, UNKILLABLE) or self.kept or not is_in_own_code:
            return self.doing
        inner = max(number for number, frame in enumerate(self.frames) if frame.user)
        frame, called = self.frames[inner], self.frames[inner + 1 : inner + 2]
        doing = _qualified(called[0]) if called else shorten(frame.code, _SHOWN)
        within = f"{frame.function}, " if frame.function != "<module>" else ""
        return f"{doing or 'code'} ({within}{self.place})"

    @property
    def doing(self) -> str:
        """The rank's action and its place: ``all_reduce #812, backward, train.py:91``."""
        if self.ended:
            progress = f", after {self.steps} steps" if self.steps else ""
            return f"its script has ended{progress}"
        if self.state == STOPPED:
            return f"stopped (state T), and continues with: kill -CONT {self.pid}"
        if self.state == UNKILLABLE:
            return _listed(_IN_STATE_D, self.place)
        if self.kept:
            return f"done with the script, and {self.kept}"
        return _listed(*self._words(), self.worker or self.place) or "not visible"

    @property
    def stuck(self) -> str:
        """How long it has been idle, and where: ``been stuck for 9 s in sleep(9) at a.py:8``."""
        since = f"for {self.idle_s:.0f} s"
        if self.state == STOPPED:
            return f"been stopped (state T) {since} (it continues with: kill -CONT {self.pid})"
        if self.state == UNKILLABLE:
            return f"been {_listed(_IN_STATE_D, self.place)} {since}"
        if self.kept:
            return f"been {self.doing}, {since}"
        words, place = _listed(*self._words()), self.worker or self.place
        within = f" in {words}" if words else ""
        at = f" at {place}" if place else ""
        return f"been stuck {since}{within}{at}"

    def alike(self, *, numbered: bool) -> str:
        """Return ``doing`` with files named by their content, which copies of a script share."""
        frames = tuple(
            replace(frame, file=self.content or frame.file) if frame.user else frame
            for frame in self.frames
        )
        return replace(self, frames=frames, seq=self.seq if numbered else -1).doing

    def _words(self) -> list[str]:
        kind, words = classify(self.frames)
        if self.is_between_two:
            other = f" {POINT_TO_POINT[words]} rank {self.peer}" if self.peer >= 0 else ""
            return [f"{words}{other}"]
        if self.flying and kind != DATA:
            call = f"{self.call} #{self.seq}" if self.seq >= 0 else self.call
            return [call] if words in ("", self.call) or kind == CODE else [call, words]
        if kind == CODE:
            frame = next((frame for frame in reversed(self.frames) if frame.user), None)
            code = (frame.code or frame.function) if frame else ""
            return [shorten(code, _SHOWN)]
        return [words]


def grouped(positions: Iterable[Position]) -> list[list[Position]]:
    """Group positions by what the ranks do and where, in the order of the ranks."""
    ordered = sorted(positions, key=lambda position: position.rank)
    # each process group has its own sequence numbers, which cannot be compared between groups
    one_group = len({position.group for position in ordered if position.flying}) < 2
    by_text: dict[str, str] = {}  # ranks whose places look alike are never said to differ
    groups: dict[str, list[Position]] = {}
    for position in ordered:
        action = by_text.setdefault(position.doing, position.alike(numbered=one_group))
        groups.setdefault(action, []).append(position)
    return list(groups.values())


def kinship(absent: Sequence[Position], waiting: Sequence[Position]) -> str:
    """Return whose peer an absent rank is on a mesh: `` (tensor-parallel peer of rank 2)``."""
    ranks = {position.rank for position in absent}
    of_kind: dict[str, list[int]] = {}
    for position in waiting:
        if position.kinship and not ranks.isdisjoint(position.members):
            of_kind.setdefault(position.kinship, []).append(position.rank)
    parts = [f"{kind} of {named(others)}" for kind, others in of_kind.items()]
    return f" ({', '.join(parts)})" if parts else ""


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _qualified(frame: Frame) -> str:
    """Return a library's function with the file that it is in, ``subprocess.run``."""
    stem = os.path.splitext(os.path.basename(frame.file))[0]
    return frame.function if stem.startswith(("<", "__")) else f"{stem}.{frame.function}"


def classify(
    frames: Sequence[Frame],  # outermost first
) -> tuple[str, str]:
    """Return the kind of place that a stack shows, and words for it.

    Only frames that the user's innermost line has called count, because torch's forward and
    backward run the user's code too. A dataset is the exception: its loader calls it.
    """
    called = True  # from the inside out: no frame of the user's code has come yet
    for frame in reversed(frames):
        if frame.user:
            called = False
            continue
        path = frame.file.replace("\\", "/")
        for end, functions, kind, words in _PLACES:
            fits = path.endswith(end) and (not functions or frame.function in functions)
            if fits and (called or kind == DATA):
                return kind, words or frame.function
    return CODE, ""


def shown_path(path: str) -> str:
    """Return a path relative to the working folder if it is below it."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def parse(
    dump: str,  # one dump of all threads by faulthandler
) -> tuple[tuple[str, int, str], ...]:
    """Return ``(file, line, function)`` of the main thread, outermost first.

    After a signal to the process the main thread is the current thread. After a crash in a
    library's thread it is the thread that no other thread has started.
    """
    threads = re.split(r"^(?=Thread |Current thread )", dump, flags=re.M)
    stacks = [(text, re.findall(r'File "(.+?)", line (\d+) in (\S+)', text)) for text in threads]
    main = [frames for _, frames in stacks if frames and frames[-1][2] != "_bootstrap"]
    current = [frames for text, frames in stacks if frames and text.startswith("Current")]
    stack = (main or current or [[]])[-1]
    return tuple((file, int(line), function) for file, line, function in reversed(stack))
