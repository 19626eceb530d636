"""Collect Python tracebacks per process from the mixed lines of several processes. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.signatures.lines import Line

# only printed: the process continues
_IGNORED = re.compile(r"Exception ignored in|--- Logging error ---")
_DUMP = re.compile(
    r"^(?P<current>Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\)", re.IGNORECASE
)
_HEADER = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(
    r"File \"(?P<file>[^\"]+)\", line (?P<line>\d+)(?:, in (?P<function>[\w<>.]+))?"
)
_RICH_FRAME = re.compile(r"^\s*(?P<file>[\w./\\:~ -]+\.py):(?P<line>\d+) in (?P<function>[\w<>]+)")
_LOWER = r"(?:[a-z_]\w*\.)+(?:error|timeout|gaierror)"  # cv2.error, zlib.error, socket.timeout
_NAME = rf"(?:(?:[A-Za-z_]\w*\.)*_*[A-Z]\w*|{_LOWER})"
_ENDING = r"(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Empty|Full|StopIteration|Refused|Conflict|Killed|Died\w*)"
# An exception at the start of a line: any name within an open traceback, else a typical name.
_RAISED = re.compile(
    rf"^\s*(?:\|\s*)?(?P<type>{_NAME})(?:\((?P<inner>\w+)\))?(?::\s*(?P<message>.*))?$"
)
_NAMED = re.compile(
    rf"^\s*(?:\|\s*)?(?P<type>(?:[A-Za-z_]\w*\.)*(?:_*[A-Z]\w*?{_ENDING}|Exception)|(?:[a-z_]\w*\.)+Error)(?:\((?P<inner>\w+)\))?(?::\s*(?P<message>.*))?$"
)
# An exception from a module of exceptions or a well-known library: its name may be unusual.
_OF_EXCEPTIONS = re.compile(
    r"^(?P<type>(?:[a-z_]\w*\.)+(?:exc|errors?|exceptions?)\.[A-Z]\w+"
    r"|(?:pyarrow|triton|botocore|lmdb|h5py|jaxlib|sqlite3)\.(?:\w+\.)*[A-Z]\w+(?=: )"
    rf"|{_LOWER}(?=: ))(?P<inner>)?(?::\s*(?P<message>.*))?$"
)
_INSIDE = re.compile(
    r"(?<![\w/.'\"-])(?P<type>(?:[a-z_]\w*\.)*[A-Z]\w*?(?:Error|Exception))(?P<inner>)?:"
    r" (?P<message>\S.*)$"
)
_CODE = re.compile(r"\b(?:except|raise|import|class|pytest)\b|self\.|warn")
_LIBRARY = re.compile(
    r"(?:site|dist)-packages|[\\/]lib(?:64)?[\\/]python\d|[\\/]lib[\\/](?:runpy|threading|multiprocessing"
    r"|concurrent|asyncio)|"
    r"^<(?!stdin|ipython)|^[^\\/]*$(?<!\.py)|[\\/]bin[\\/][^\\/]*$|\.egg[\\/]|[\\/]Scripts[\\/][^\\/]*$"
    r"|\\lib\\|python\d[\d.]*\.zip"
    r"|(?:^|[\\/])torch[\\/](?:nn|distributed|utils|autograd|multiprocessing|optim|cuda|_\w+|serialization\.py"
    r"|storage\.py|functional\.py"
    r"|hub\.py|jit|fx|amp|library\.py|tensor\.py|_tensor\.py)|(?:^|[\\/])runpy\.py$|(?:^|[\\/])multiprocessing[\\/]"
    r"|[\\/]python\d(?:\.\d+)?[\\/](?!.*[\\/](?:src|scripts)[\\/])\w+\.py$|^[^\\/].*\.(?:pyx|pxi|pxd)$",
    re.IGNORECASE,
)
_INSTALLED = re.compile(r"(?:site|dist)-packages[\\/](?P<package>[\w.]+)")
# Libraries whose frames are never the user's code. Other installed packages may be the user's.
_KNOWN = frozenset(
    "torch torchvision torchaudio torchdata torchmetrics torchtext torchao lightning pytorch_lightning lightning_fabric lightning_utilities accelerate transformers datasets tokenizers huggingface_hub diffusers peft trl evaluate timm safetensors deepspeed megatron apex flash_attn xformers triton bitsandbytes fairscale numpy pandas scipy sklearn pyarrow polars PIL cv2 skimage albumentations webdataset h5py zarr fsspec s3fs gcsfs boto3 botocore aiohttp requests urllib3 httpx ray hydra omegaconf click typer fire absl jsonargparse pydantic tqdm rich wandb mlflow tensorboard IPython ipykernel traitlets joblib dill cloudpickle submitit composer fairseq nemo horovod ignite tensordict einops yaml setuptools pkg_resources importlib_metadata matplotlib paceline".lower().split()
)
_LAUNCHER = re.compile(
    r"[\\/]bin[\\/]|torch[\\/]distributed[\\/](?:run|launch|launcher|elastic)|accelerate[\\/]commands"
    r"|deepspeed[\\/]launcher|runpy\.py"
    r"|subprocess\.py|lightning\w*[\\/].*launchers?|torch[\\/]multiprocessing[\\/]spawn"
)
# Text that a program or its launcher prints after an exception and that is not part of its message.
_OTHER = re.compile(
    r"^\s*(?:[EWIFC]\d{4} |\[|\d{4}-\d\d|srun: |slurmstepd: |During handling of|The above"
    r" exception|Exception ignored"
    r"|terminate called|warnings?\b|={4,}|-{4,})",
    re.IGNORECASE,
)
_MAX_MORE = 200
_MAX_FRAMES = 400
_MAX_OPEN = 512
_MAX_STACKS = 256
# lines of one process without a frame, after which its traceback counts as truncated
_PATIENCE = 60
# lines of all processes without a frame, after which lines are no longer examined one by one
_QUIET = 2000

WRAPPERS = (
    "ChildFailedError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "CalledProcessError",
    "SignalException",
)
_CONTROL_FLOW = (
    "StopIteration",
    "StopAsyncIteration",
    "Empty",
    "SystemExit",
    "GeneratorExit",
    "CancelledError",
)
# It only refers to an error printed earlier.
_REFERS = re.compile(
    r"\bsee (?:the )?(?:root cause|(?:actual |original"
    r" )?(?:error|exception|log|message|trace|traceback|stack trace)s?)"
    r"(?: messages?)? above|\b(?:root cause|(?:original|actual) error|stack trace) (?:(?:is|was)"
    r" )?(?:shown |printed )?"
    r"above",
    re.IGNORECASE,
)
_CAUGHT = re.compile(
    r"Caught \w+ in (?:DataLoader worker|replica|pin memory|MultiProcessing|worker)"
)


@dataclass(frozen=True)
class Frame:
    """A frame of a traceback, with its file, line and function as printed."""

    file: str
    line: str
    function: str

    @property
    def user(self) -> bool:
        """Whether it is the user's own code, not a library's."""
        return _LIBRARY.search(self.file) is None

    @property
    def own_package(self) -> bool:
        """Whether it is in an installed package that is not a well-known library."""
        found = _INSTALLED.search(self.file)
        return found is not None and found["package"].lower().removesuffix(".py") not in _KNOWN

    @property
    def launcher(self) -> bool:
        """Whether it is a launcher's frame, not the training script's."""
        return _LAUNCHER.search(self.file) is not None

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Raised:
    """An exception that a text shows.

    Attributes:
        type: Its class, without the module.
        message: Its first line, joined with the next one if it ends with a colon.
        frames: The frames of its traceback, outermost first.
        line: The line with its name.
        start: Line number where its traceback begins.
        shown: Whether it has a traceback.
        anchored: Whether its name is at the start of the line.
        chained: ``"cause"`` if it was raised from another exception, ``"context"`` if it was raised
            while another one was handled; else empty.
        more: The part of the message on the next line.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    line: Line
    start: int
    shown: bool = True
    anchored: bool = True
    chained: str = ""
    more: str = ""

    @property
    def user_frame(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return innermost(self.frames)

    @property
    def wrapper(self) -> bool:
        """Whether it only repeats an exception that was raised elsewhere."""
        return (
            self.type in WRAPPERS
            or self.type == "RayTaskError"
            or _CAUGHT.search(self.message) is not None
            or self.refers
        )

    @property
    def refers(self) -> bool:
        """Whether it refers to an error printed above it."""
        return _REFERS.search(self.message) is not None

    @property
    def control_flow(self) -> bool:
        """Whether it controls the program and is not a failure in itself."""
        return self.type in _CONTROL_FLOW


@dataclass(frozen=True)
class Stack:
    """The stack that faulthandler printed for the signalled thread, innermost frame first."""

    line: Line
    frames: list[Frame]

    @property
    def user_frame(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return innermost(self.frames[::-1])


def innermost(frames: Sequence[Frame]) -> Frame | None:
    """Return the user's innermost frame, else one of a little-known package, else None."""
    own = (frame for frame in reversed(frames) if frame.user)
    installed = (frame for frame in reversed(frames) if frame.own_package)
    return next(own, None) or next(installed, None)


@dataclass
class _Open:
    start: int
    frames: deque[Frame] = field(default_factory=lambda: deque(maxlen=_MAX_FRAMES))
    idle: int = 0
    headed: bool = False
    chained: str = ""
    ignored: bool = False


def _short(name: str) -> str:
    """Return an exception's name without its module.

    Exceptions of C modules with lower-case names keep it.
    """
    module, _, own = name.rpartition(".")
    return own if not own[:1].islower() else f"{module.rpartition('.')[2]}.{own}"


class Tracebacks:
    """Collects exceptions from lines, with one open traceback per source."""

    def __init__(self) -> None:
        self.raised: list[Raised] = []
        self.stacks: list[Stack] = []
        self._dumped: dict[str, Stack | None] = {}
        self._open: dict[str, _Open] = {}
        self._chained: dict[str, str] = {}
        self._ignored: set[str] = set()
        self._unfinished: dict[str, Raised] = {}
        self._quiet = 0

    @property
    def attentive(self) -> bool:
        """Whether a traceback is open, so that every line may belong to it."""
        return bool(self._open or self._unfinished or self._dumped) and self._quiet < _QUIET

    @property
    def cut(self) -> list[Frame]:
        """The innermost frames of truncated tracebacks, the user's own if possible."""
        return [
            innermost(each.frames) or each.frames[-1] for each in self._open.values() if each.frames
        ]

    def feed(self, line: Line) -> None:
        """Process a line."""
        body = line.body
        if not body.strip():
            return
        self._finish(line)
        self._quiet += 1
        if "direct cause of" in body or "During handling of the above" in body:
            self._chained[line.source] = "cause" if "direct cause" in body else "context"
        if _IGNORED.search(body):
            self._ignored.add(line.source)
        header = _HEADER.search(body) is not None
        if header:
            self._begin(line, headed=True)
        if self._dump(line):
            return
        frames = [
            Frame(found["file"], found["line"], found["function"] or "")
            for found in _FRAME.finditer(body)
        ]
        if not frames and line.text[:1] in "│|" and (rich := _RICH_FRAME.match(body)):
            frames = [Frame(rich["file"].strip(), rich["line"], rich["function"])]
        if frames:
            current = self._open.get(line.source) or self._begin(line, headed=False)
            current.frames.extend(frames)
            current.idle = self._quiet = 0
        elif not header:
            self._end(line)

    def _dump(self, line: Line) -> bool:
        """Process a line that faulthandler prints; keep only the current thread."""
        if header := _DUMP.match(line.body):
            stack = Stack(line, []) if header["current"].lower() == "current t" else None
            if stack is not None and len(self.stacks) < _MAX_STACKS:
                self.stacks.append(stack)
            self._dumped[line.source] = stack
            return True
        if line.source not in self._dumped:
            return False
        found = _FRAME.match(line.body.strip())
        if found is None:
            del self._dumped[line.source]
            return False
        stack = self._dumped[line.source]
        if stack is not None and len(stack.frames) < _MAX_FRAMES:
            function = found["function"] or line.body.rpartition(" in ")[2]
            stack.frames.append(Frame(found["file"], found["line"], function))
        return True

    def _begin(self, line: Line, *, headed: bool) -> _Open:
        self._quiet = 0
        if len(self._open) >= _MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        before = self._open.get(line.source)
        current = _Open(line.number, headed=headed, chained=self._chained.pop(line.source, ""))
        if before is not None and not line.source:  # two processes that no label distinguishes
            current.frames.extend(before.frames)
        current.ignored = line.source in self._ignored
        self._ignored.discard(line.source)
        self._open[line.source] = current
        return current

    def _end(self, line: Line) -> None:
        current = self._open.get(line.source)
        anchored, found = True, None
        if current is not None:
            found = (
                _RAISED.match(line.body)
                if not line.body[:1].isspace() or line.text[:1] in "│"
                else None
            )
        found = found or _NAMED.match(line.body) or _OF_EXCEPTIONS.match(line.body)
        if (
            found is None
            and "Error" in line.body + "Exception"
            and (inside := _INSIDE.search(line.body))
        ):
            anchored = False
            found = None if _CODE.search(line.body[: inside.start()]) else inside
        if found is None or found["type"].endswith("Warning"):
            self._tire(line.source, current)
            return
        self._add(line, found, current, anchored=anchored)

    def _add(
        self, line: Line, found: re.Match[str], current: _Open | None, *, anchored: bool
    ) -> None:
        self._open.pop(line.source, None)
        if current is not None and current.ignored:
            return
        raised = Raised(
            _short(found["type"]),
            (found["message"] or "").strip(),
            tuple(current.frames) if current else (),
            line,
            current.start if current else line.number,
            shown=current is not None,
            anchored=anchored,
            chained=current.chained if current else "",
        )
        if len(self.raised) < 4096:
            self.raised.append(raised)
            if raised.message.endswith(":") or (
                not raised.message and found["message"] is not None
            ):
                self._unfinished[line.source] = raised

    def _finish(self, line: Line) -> None:
        """Take an exception's message, or its rest after a colon, from the next line."""
        raised = self._unfinished.pop(line.source, None)
        if raised is None or _HEADER.search(line.body) or _FRAME.search(line.body):
            return
        if raised.message and _OTHER.search(line.body):
            return
        place = next(
            (at for at in range(len(self.raised) - 1, -1, -1) if self.raised[at] is raised), None
        )
        if place is not None:
            more = line.body.strip()[:_MAX_MORE] if raised.message else line.body.strip()
            self.raised[place] = replace(
                raised, message=f"{raised.message} {more}".strip(), more=more
            )

    def _tire(self, source: str, current: _Open | None) -> None:
        if current is None:
            return
        current.idle += 1
        if current.idle > _PATIENCE:
            del self._open[source]
