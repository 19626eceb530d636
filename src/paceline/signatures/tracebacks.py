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
_ENDING = (
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Empty|Full|StopIteration|Refused|Conflict"
    r"|Killed|Died\w*)"
)
_MESSAGE = r"(?:\((?P<inner>\w+)\))?(?::\s*(?P<message>.*))?$"
_LEVEL = r"(?!(?:DEBUG|INFO|NOTE|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)"  # of a log
# An exception at the start of a line: any name within an open traceback, else a typical name.
_RAISED = re.compile(rf"^\s*(?:\|\s*)?{_LEVEL}(?P<type>{_NAME}){_MESSAGE}")
_NAMED = re.compile(
    r"^\s*(?:\|\s*)?"
    rf"(?P<type>(?:[A-Za-z_]\w*\.)*(?:_*[A-Z]\w*?{_ENDING}|Exception)|(?:[a-z_]\w*\.)+Error)"
    rf"{_MESSAGE}"
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
    r"(?:site|dist)-packages"
    r"|[\\/]lib(?:64)?[\\/]python\d"
    r"|[\\/]lib[\\/](?:runpy|threading|multiprocessing|concurrent|asyncio)"
    r"|^<(?!stdin|ipython)"
    r"|^[^\\/]*$(?<!\.py)"
    r"|[\\/]bin[\\/][^\\/]*$(?<!\.py)"
    r"|\.egg[\\/]"
    r"|[\\/]Scripts[\\/][^\\/]*$"
    r"|\\lib\\"
    r"|python\d[\d.]*\.zip"
    r"|(?:^|[\\/])torch[\\/](?:nn|distributed|utils|autograd|multiprocessing|optim|cuda|_\w+"
    r"|serialization\.py|storage\.py|functional\.py|hub\.py|jit|fx|amp|library\.py|tensor\.py"
    r"|_tensor\.py)"
    r"|(?:^|[\\/])runpy\.py$"
    r"|(?:^|[\\/])multiprocessing[\\/]"
    r"|[\\/]python\d(?:\.\d+)?[\\/](?!.*[\\/](?:src|scripts)[\\/])\w+\.py$"
    r"|^[^\\/].*\.(?:pyx|pxi|pxd)$",
    re.IGNORECASE,
)
_INSTALLED = re.compile(r"(?:site|dist)-packages[\\/](?P<package>[\w.]+)")
# Libraries whose frames are never the user's code. Other installed packages may be the user's.
_KNOWN_NAMES = """
    absl accelerate aiohttp albumentations apex bitsandbytes boto3 botocore click cloudpickle
    composer cv2 datasets deepspeed diffusers dill einops evaluate fairscale fairseq fire
    flash_attn fsspec gcsfs h5py horovod httpx huggingface_hub hydra ignite importlib_metadata
    ipykernel ipython joblib jsonargparse lightning lightning_fabric lightning_utilities
    matplotlib megatron mlflow nemo numpy omegaconf paceline pandas peft pil pkg_resources
    polars pyarrow pydantic pytorch_lightning ray requests rich s3fs safetensors scipy
    setuptools skimage sklearn submitit tensorboard tensordict timm tokenizers torch torchao
    torchaudio torchdata torchmetrics torchtext torchvision tqdm traitlets transformers triton
    trl typer urllib3 wandb webdataset xformers yaml zarr
"""
_KNOWN = frozenset(_KNOWN_NAMES.split())
# Packages that set up training: the first also in a copy of their repository, but not their example
# scripts; the second, whose names are words, only where packages are installed.
_TRAINING = re.compile(
    r"[\\/](?P<name>accelerate|bitsandbytes|colossalai|deepspeed|detectron2|diffusers|fairscale"
    r"|fairseq|lightning_fabric|megatron|mmcv|mmdet|mmengine|peft|pytorch_lightning|sglang"
    r"|torch[\\/](?:distributed|nn[\\/]parallel|amp)|transformers|trl|verl|vllm)[\\/]"
    r"(?!(?P=name)[\\/]|examples?[\\/]|scripts[\\/]|tools[\\/]|tests?[\\/]"
    r"|(?:train|main|run|finetune|pretrain|eval|test|setup)\w*\.py$)"
    r"|(?:site|dist)-packages[\\/](?P<word>composer|lightning|nemo|ray|streaming)[\\/]"
)
_LAUNCHER = re.compile(
    r"[\\/]bin[\\/](?!.*\.py$)"
    r"|torch[\\/]distributed[\\/](?:run|launch|launcher|elastic)"
    r"|accelerate[\\/]commands"
    r"|deepspeed[\\/]launcher"
    r"|runpy\.py"
    r"|subprocess\.py"
    r"|lightning\w*[\\/].*launchers?"
    r"|torch[\\/]multiprocessing[\\/]spawn"
)
# Text that a program or its launcher prints after an exception and that is not part of its message.
_OTHER = re.compile(
    r"^\s*(?:[EWIFC]\d{4} |\[|\d{4}-\d\d|srun: |slurmstepd: |During handling of"
    r"|The above exception|Exception ignored|terminate called|warnings?\b|={4,}|-{4,})",
    re.IGNORECASE,
)
_MAX_MORE = 200
_MOST_REST = 5
_MAX_FRAMES = 400
_MAX_OPEN = 512
_MAX_STACKS = 256
_MAX_RAISED = 4096
# lines of one process without a frame, after which its traceback counts as truncated
_PATIENCE = 60
_SOON = 2  # lines within a traceback that are no frames
# lines of all processes without a frame, after which lines are not examined one by one
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
    r"\bsee (?:the )?"
    r"(?:root cause|(?:actual |original )?(?:error|exception|log|message|trace|traceback"
    r"|stack trace)s?)"
    r"(?: messages?)? above"
    r"|^Executor failed\.$|^CheckpointException ranks:"
    r"|\b(?:root cause|(?:original|actual) error|stack trace) (?:(?:is|was) )?(?:shown |printed )?"
    r"above",
    re.IGNORECASE,
)
_CAUGHT = re.compile(
    r"Caught \w+ in (?:DataLoader worker|replica|pin memory|MultiProcessing|worker)"
)


@dataclass(frozen=True)
class TracebackFrame:
    """A frame of a traceback, with its file, line and function as printed."""

    file: str
    line: str
    function: str
    code: str = ""  # its source line, if the text shows it

    @property
    def user(self) -> bool:
        """Whether it is the user's own code, not a library's."""
        return _LIBRARY.search(self.file) is None and not self.training_library

    @property
    def training_library(self) -> str:
        """The package of its file if that sets up training; else empty."""
        match = _TRAINING.search(self.file)
        return (match["name"] or match["word"]) if match else ""

    @property
    def package(self) -> str:
        """The installed package or the training library of its file; empty for other code."""
        installed = _INSTALLED.search(self.file)
        return installed["package"].removesuffix(".py") if installed else self.training_library

    @property
    def own_package(self) -> bool:
        """Whether it is in an installed package that is not a well-known library."""
        is_known = self.training_library or self.package.lower() in _KNOWN
        return _INSTALLED.search(self.file) is not None and not is_known

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
    """An exception that a text shows."""

    type: str  # its class, without the module
    message: str  # its first line, joined with the next one if it ends with a colon
    frames: tuple[TracebackFrame, ...]  # the frames of its traceback, outermost first
    line: Line  # the line with its name
    start: int  # line number where its traceback begins
    shown: bool = True  # whether it has a traceback
    anchored: bool = True  # whether its name is at the start of the line
    # ``"cause"`` if it was raised from another exception, ``"context"`` if it was raised while
    # another one was handled; else empty
    chained: str = ""
    more: str = ""  # the part of the message on the next line
    rest: tuple[str, ...] = ()  # the lines after it, which may belong to the message

    @property
    def user_frame(self) -> TracebackFrame | None:
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
    frames: list[TracebackFrame]

    @property
    def user_frame(self) -> TracebackFrame | None:
        """The innermost frame of the user's own code."""
        return innermost(self.frames[::-1])


def innermost(frames: Sequence[TracebackFrame]) -> TracebackFrame | None:
    """Return the user's innermost frame, else one of a little-known package, else None."""
    own = (frame for frame in reversed(frames) if frame.user)
    installed = (frame for frame in reversed(frames) if frame.own_package)
    return next(own, None) or next(installed, None)


@dataclass
class _Open:
    start: int
    frames: deque[TracebackFrame] = field(default_factory=lambda: deque(maxlen=_MAX_FRAMES))
    idle: int = 0
    chained: str = ""
    ignored: bool = False


def _short(name: str) -> str:
    """Return an exception's name without its module.

    Exceptions of C modules with lower-case names keep it.
    """
    module, _, own = name.rpartition(".")
    return own if not own[:1].islower() else f"{module.rpartition('.')[2]}.{own}"


def _frames(line: Line) -> list[TracebackFrame]:
    """Return the frames in a line of a traceback, of Python itself or in a box of rich."""
    matches = list(_FRAME.finditer(line.body))
    if not matches and line.text[:1] in "│|" and (rich := _RICH_FRAME.match(line.body)):
        matches = [rich]
    return [TracebackFrame(m["file"].strip(), m["line"], m["function"] or "") for m in matches]


def _at_start(line: Line, *, in_traceback: bool) -> re.Match[str] | None:
    """Return the exception at the start of a line; any name may be one within a traceback."""
    is_start = not line.body[:1].isspace() or line.text[:1] in "│"
    match = _RAISED.match(line.body) if in_traceback and is_start else None
    return match or _NAMED.match(line.body) or _OF_EXCEPTIONS.match(line.body)


def _in_the_middle(line: Line) -> re.Match[str] | None:
    """Return the exception within a line, unless the line is source code."""
    match = _INSIDE.search(line.body) if "Error" in line.body else None
    if match is None or _CODE.search(line.body[: match.start()]):
        return None
    return match


class Tracebacks:
    """Collects exceptions from lines, with one open traceback per source."""

    def __init__(self) -> None:
        self.raised: list[Raised] = []
        self.stacks: list[Stack] = []
        self._dumped: dict[str, Stack | None] = {}
        self._open: dict[str, _Open] = {}
        self._closed: dict[str, _Open] = {}  # by a line that may have been no exception
        self._chained: dict[str, str] = {}
        self._ignored: set[str] = set()
        self._unfinished: dict[str, Raised] = {}
        self._ended: dict[str, Raised] = {}  # the last exception, whose message may go on
        self._quiet = 0

    @property
    def attentive(self) -> bool:
        """Whether a traceback is open, so that every line may belong to it."""
        is_reading = self._open or self._unfinished or self._dumped or self._ended
        return bool(is_reading) and self._quiet < _QUIET

    @property
    def cut(self) -> list[TracebackFrame]:
        """The innermost frames of truncated tracebacks, the user's own if possible."""
        stacks = [traceback.frames for traceback in self._open.values() if traceback.frames]
        return [innermost(frames) or frames[-1] for frames in stacks]

    def feed(self, line: Line) -> None:
        """Process a line."""
        if not line.body.strip():
            return
        self._continue(line)
        self._finish(line)
        self._quiet += 1
        self._announce(line)
        header = _HEADER.search(line.body) is not None
        if header:
            self._closed.pop(line.source, None)
            self._begin(line)
        if self._dump(line):
            return
        frames = _frames(line)
        if frames:
            current = self._open.get(line.source) or self._reopen(line) or self._begin(line)
            current.frames.extend(frames)
            current.idle = self._quiet = 0
        elif not header:
            self._end(line)

    def _announce(self, line: Line) -> None:
        """Remember what a line says about the traceback that follows it."""
        if "direct cause of" in line.body:
            self._chained[line.source] = "cause"
        elif "During handling of the above" in line.body:
            self._chained[line.source] = "context"
        if _IGNORED.search(line.body):
            self._ignored.add(line.source)

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
        frame = _FRAME.match(line.body.strip())
        if frame is None:
            del self._dumped[line.source]
            return False
        stack = self._dumped[line.source]
        if stack is not None and len(stack.frames) < _MAX_FRAMES:
            function = frame["function"] or line.body.rpartition(" in ")[2]
            stack.frames.append(TracebackFrame(frame["file"], frame["line"], function))
        return True

    def _begin(self, line: Line) -> _Open:
        self._quiet = 0
        if len(self._open) >= _MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        before = self._open.get(line.source)
        current = _Open(line.number, chained=self._chained.pop(line.source, ""))
        if before is not None and not line.source:  # two processes that no label distinguishes
            current.frames.extend(before.frames)
        current.ignored = line.source in self._ignored
        self._ignored.discard(line.source)
        self._open[line.source] = current
        return current

    def _reopen(self, line: Line) -> _Open | None:
        """Continue a traceback that a line of another kind seemed to close: ``Epoch: 3``."""
        current = self._closed.pop(line.source, None)
        if current is None or self._quiet > _SOON:
            return None
        self._open[line.source] = current
        self.raised = [raised for raised in self.raised if raised.start != current.start]
        return current

    def _end(self, line: Line) -> None:
        """Close the traceback of a line's source if the line names its exception."""
        current = self._open.get(line.source)
        match = _at_start(line, in_traceback=current is not None)
        anchored = match is not None
        match = match or _in_the_middle(line)
        if match is None or match["type"].endswith("Warning"):
            self._tire(line, current)
            return
        self._open.pop(line.source, None)
        if current is None or not current.ignored:
            self._add(line, match, current, anchored=anchored)
            is_plain = "." not in match["type"] and not _at_start(line, in_traceback=False)
            if current is not None and is_plain:
                self._closed[line.source] = current

    def _add(
        self, line: Line, match: re.Match[str], current: _Open | None, *, anchored: bool
    ) -> None:
        if len(self.raised) >= _MAX_RAISED:
            return
        message = (match["message"] or "").strip()
        raised = Raised(
            _short(match["type"]),
            message,
            tuple(current.frames) if current else (),
            line,
            current.start if current else line.number,
            shown=current is not None,
            anchored=anchored,
            chained=current.chained if current else "",
        )
        self.raised.append(raised)
        is_empty = not message and match["message"] is not None
        if message.endswith(":") or is_empty:
            self._unfinished[line.source] = raised
        elif raised.shown:
            self._ended[line.source] = raised

    def _finish(self, line: Line) -> None:
        """Take an exception's message, or its rest after a colon, from the next line."""
        raised = self._unfinished.pop(line.source, None)
        if raised is None or _HEADER.search(line.body) or _FRAME.search(line.body):
            return
        if raised.message and _OTHER.search(line.body):
            return
        more = line.body.strip()
        if raised.message:
            more = more[:_MAX_MORE]
        message = f"{raised.message} {more}".strip()
        self._replace(line.source, raised, replace(raised, message=message, more=more))

    def _continue(self, line: Line) -> None:
        """Keep the lines after a message, up to one that is certainly something else."""
        raised = self._ended.pop(line.source, None)
        others = (_HEADER, _FRAME, _OTHER, _NAMED)
        if raised is None or any(other.search(line.body) for other in others):
            return
        if len(raised.rest) < _MOST_REST:
            longer = replace(raised, rest=(*raised.rest, line.body.strip()))
            self._replace(line.source, raised, longer)

    def _replace(self, source: str, before: Raised, after: Raised) -> None:
        """Put an exception in the place of another one, whose message may go on."""
        for place in reversed(range(len(self.raised))):
            if self.raised[place] is before:
                self.raised[place] = self._ended[source] = after
                return

    def _tire(self, line: Line, current: _Open | None) -> None:
        """Count a line without a frame; the first below a frame is its source code."""
        if current is None:
            return
        if not current.idle and current.frames and line.body.startswith("    "):
            current.frames[-1] = replace(current.frames[-1], code=line.body.strip())
        current.idle += 1
        if current.idle > _PATIENCE:
            del self._open[line.source]
