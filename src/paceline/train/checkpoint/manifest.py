"""What a checkpoint says of itself, and what follows from it: names, the best, what to delete, what fits.

Pure, and without torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VERSION = 1
MODES = ("max", "min")  # whether the greatest metric is the best, or the least
MODEL = "model/"  # begins the names of what is in a model; of a second one "model.1/" does
STALE_S = 600.0  # an unfinished folder that nobody has written to for so long is nobody's

_OF_MODEL = re.compile(r"model(\.\d+)?/")
_COMMITTED = re.compile(r"(\d{5,})-step-(\d+)")
_TEMPORARY = re.compile(r"\.\d{5,}-step-\d+\.[0-9a-f]+-(\d+)-(.+)")


@dataclass(frozen=True)
class FileInfo:
    """What a file of a checkpoint must be like.

    Attributes:
        num_bytes: Its size.
        crc32: The checksum of what was written to it.
    """

    num_bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """What stands in ``manifest.json``, which is written last and vouches for the other files.

    Attributes:
        step: Number of optimizer steps.
        epoch: Epoch in which it was saved.
        metric: What it is judged by; None if it has none, or one that is not finite.
        mode: ``"max"`` or ``"min"``: which metrics are better.
        world_size: Number of ranks that wrote it.
        time_ns: When it was saved.
        torch: Version of torch that wrote it.
        files: Every other file of the folder.
        run: Which training it belongs to: one that began anew in this folder has another, one that went on the same.
        seconds: How long it took from the call of ``save`` to the commit; 0 where that was not measured.
    """

    step: int
    epoch: int
    metric: float | None
    mode: str
    world_size: int
    time_ns: int
    torch: str
    files: Mapping[str, FileInfo]
    run: str = ""
    seconds: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.num_bytes for file in self.files.values())


@dataclass(frozen=True)
class Committed:
    """A checkpoint that was committed.

    Attributes:
        path: Its folder.
        serial: Its number; the greatest is the latest, also where a resumed run has counted fewer steps.
        manifest: What it says of itself.
    """

    path: Path
    serial: int
    manifest: Manifest


@dataclass(frozen=True)
class TensorInfo:
    """A tensor, whole: the shape does not tell how it was sharded.

    Attributes:
        shape: Its shape.
        dtype: Its type as torch calls it, ``"float32"``.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint that can be loaded.

    Attributes:
        path: Its folder.
        step: Number of optimizer steps.
        epoch: Epoch in which it was saved.
        metric: What it is judged by, if anything.
        mode: ``"max"`` or ``"min"``: which metrics are better.
        world_size: Number of ranks that wrote it.
        time_ns: When it was saved.
        tensors: Its tensors by name.
        objects: Names of everything else in it.
        files: Its files.
        run: Which training it belongs to.
    """

    path: Path
    step: int
    epoch: int
    metric: float | None
    mode: str
    world_size: int
    time_ns: int
    tensors: Mapping[str, TensorInfo]
    objects: frozenset[str]
    files: Mapping[str, FileInfo]
    run: str = ""


# Names


def committed_name(serial: int, step: int) -> str:
    """Return the name of a committed checkpoint's folder: ``00003-step-1200``."""
    return f"{serial:05d}-step-{step}"


def temporary_name(serial: int, step: int, *, token: str, pid: int, host: str) -> str:
    """Return the name of the folder before it is committed, which also tells who writes to it."""
    return f".{committed_name(serial, step)}.{token}-{pid}-{host}"


def is_of_model(name: str) -> bool:
    """Return whether an entry of a checkpoint belongs to a model."""
    return _OF_MODEL.match(name) is not None


def trash_name(name: str, *, token: str) -> str:
    """Return the name that a folder gets before its files are deleted."""
    return f".trash-{name}.{token}"


def parse_committed(name: str) -> tuple[int, int] | None:
    """Return serial and step if ``name`` is that of a committed checkpoint."""
    match = _COMMITTED.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def is_temporary(name: str) -> bool:
    """Return whether ``name`` is that of a checkpoint that was not committed."""
    return _TEMPORARY.fullmatch(name) is not None


def is_stale(name: str, *, host: str, is_alive: Callable[[int], bool], age_s: float) -> bool:
    """Return whether a folder is left over from a run that is dead, and may be deleted.

    Args:
        name: Name of the folder.
        host: This machine; of another one's processes only the age tells.
        is_alive: Whether a process of this machine is there.
        age_s: Seconds since something was last written in it.
    """
    if name.startswith(".trash-"):
        return True
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    return age_s > STALE_S or (match[2] == host and not is_alive(int(match[1])))


# The file


def dump(manifest: Manifest) -> str:
    """Return the manifest as the text of its file."""
    files = {name: {"bytes": file.num_bytes, "crc32": file.crc32} for name, file in sorted(manifest.files.items())}
    return json.dumps({"version": VERSION, **asdict(manifest), "files": files}, indent=1) + "\n"


def parse(text: str | bytes) -> Manifest:
    """Return the manifest that a file's text describes.

    Raises:
        ValueError: It is not a manifest, or of a version that is not known here.
    """
    try:
        told = json.loads(text)
        version = told["version"]
        if version != VERSION:
            raise ValueError(f"version {version} of the manifest is not known to this paceline")
        return Manifest(
            step=int(told["step"]),
            epoch=int(told["epoch"]),
            metric=None if told["metric"] is None else float(told["metric"]),
            mode=str(told["mode"]),
            world_size=int(told["world_size"]),
            time_ns=int(told["time_ns"]),
            torch=str(told["torch"]),
            files={name: FileInfo(int(file["bytes"]), int(file["crc32"])) for name, file in told["files"].items()},
            run=str(told["run"]),
            seconds=float(told.get("seconds", 0.0)),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from None


def clean_metric(metric: Any) -> float | None:
    """Return a metric as it is kept: a float, or None if it is not finite (JSON has no word for that)."""
    if metric is None:
        return None
    value = float(metric)
    return value if math.isfinite(value) else None


# Judges


def choose_best(checkpoints: Iterable[Committed], mode: str, *, count: int = 1) -> list[Committed]:
    """Return the best ``count`` checkpoints by their metric, the best first.

    Those without a metric are never among them. Of equals the later comes first: it was trained for longer.
    """
    sign = 1 if mode == "max" else -1
    judged = [each for each in checkpoints if each.manifest.metric is not None]
    return sorted(judged, key=lambda each: (sign * (each.manifest.metric or 0.0), each.serial), reverse=True)[:count]


def choose_doomed(checkpoints: Iterable[Committed], *, run: str, keep_last: int, keep_best: int) -> list[Committed]:
    """Return the checkpoints of a run to delete: all but the latest and the best, the oldest first.

    The best are those of each direction by itself: a loss, of which less is better, is not compared with an accuracy.
    """
    by_age = sorted((each for each in checkpoints if each.manifest.run == run), key=lambda each: each.serial)
    kept = {each.serial for each in by_age[-keep_last:]}
    for mode in MODES:
        alike = [each for each in by_age if each.manifest.mode == mode]
        kept |= {each.serial for each in choose_best(alike, mode, count=keep_best)}
    return [each for each in by_age if each.serial not in kept]


def find_best(checkpoints: Iterable[Committed]) -> Committed | None:
    """Return the best checkpoint of the run that saved last, of those judged in the direction of its last metric."""
    by_age = sorted(checkpoints, key=lambda each: each.serial)
    judged = [
        each for each in by_age if each.manifest.metric is not None and each.manifest.run == by_age[-1].manifest.run
    ]
    alike = [each for each in judged if each.manifest.mode == judged[-1].manifest.mode]
    return choose_best(alike, judged[-1].manifest.mode)[0] if judged else None


def compare(saved: Saved, here: Mapping[str, TensorInfo], beside: Collection[str] | None = None) -> list[str]:
    """Return in which ways a checkpoint does not fit what it is to be loaded into.

    The type may differ: values are converted.

    Args:
        saved: The checkpoint.
        here: Tensors by name, of models and of anything else.
        beside: Names of what else the models have, in any shape; None if that is not known.
    """
    lines = []
    for name, tensor in here.items():
        there = saved.tensors.get(name)
        if there is None:
            lines.append(f"{name} {_shape(tensor)} is not in the checkpoint")
        elif there.shape != tensor.shape:
            lines.append(f"{name} is {_shape(tensor)} here and {_shape(there)} in the checkpoint")
    entries = {name: f"{name} {_shape(tensor)}" for name, tensor in saved.tensors.items()}
    if beside is not None:
        entries |= {name: name for name in saved.objects}
        lines += [f"{name} is not in the checkpoint" for name in sorted(beside) if name not in entries]
    extra = sorted(name for name in entries if is_of_model(name) and name not in here and name not in (beside or ()))
    return lines + [f"{entries[name]} is in the checkpoint only" for name in extra]


def _shape(tensor: TensorInfo) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def check_sizes(files: Mapping[str, FileInfo], found: Mapping[str, int | None]) -> list[str]:
    """Return what is wrong with the files that a folder has.

    Args:
        files: What the manifest says.
        found: Size of each file; None if it is missing.
    """
    lines = []
    for name, file in sorted(files.items()):
        size = found.get(name)
        if size is None:
            lines.append(f"{name} is missing")
        elif size != file.num_bytes:
            lines.append(f"{name} has {size} bytes instead of {file.num_bytes}")
    return lines
