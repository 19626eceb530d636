"""Parse and write a checkpoint's manifest; choose the best, what to delete, and what fits a model.

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
MODES = ("max", "min")  # the best metric is the greatest, or the least
MODEL = "model/"  # prefix of the first model's entries; the second model's is "model.1/"
STALE_S = 600.0  # age at which an unfinished folder is considered abandoned

_OF_MODEL = re.compile(r"model(\.\d+)?/")
_COMMITTED = re.compile(r"(\d{5,})-step-(\d+)")
_TEMPORARY = re.compile(r"\.\d{5,}-step-\d+\.[0-9a-f]+-(\d+)-(.+)")
_TRASH = re.compile(r"\.trash-\d{5,}-step-\d+(\..+)?\.[0-9a-f]+")
# Whether a path in a folder of checkpoints, or in one of them, is DCP's or of a commit.
is_ours = re.compile(
    r"(\.?(trash-)?\d{5,}-step-\d+[^/]*/)?"
    r"((__\d+_\d+|\.metadata|\.?manifest\.json)[\w.]*|)"
).fullmatch


@dataclass(frozen=True)
class FileInfo:
    """Size and checksum that a file of a checkpoint must have."""

    num_bytes: int  # size in bytes
    crc32: int  # checksum of the content


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``, which is written last and vouches for the other files."""

    step: int  # number of optimizer steps
    epoch: int  # epoch in which it was saved
    metric: float | None  # quality of the model; None if it has none or is not finite
    mode: str  # ``"max"`` if greater metrics are better, ``"min"`` if smaller ones are
    world_size: int  # number of ranks that wrote it
    time_ns: int  # time of the save, in nanoseconds since the epoch
    torch: str  # version of torch that wrote it
    files: Mapping[str, FileInfo]  # all other files of the folder, by name
    # id of the training run. A resumed run keeps it; a new one in the same folder has another.
    run: str = ""
    seconds: float = 0.0  # seconds from the call of ``save`` to the commit; 0 if not measured

    @property
    def num_bytes(self) -> int:
        """Size of all files together, in bytes."""
        return sum(file.num_bytes for file in self.files.values())


@dataclass(frozen=True)
class Committed:
    """A checkpoint that was committed."""

    path: Path  # folder of the checkpoint
    # number of the commit. The greatest is the latest, even if a resumed run has counted fewer
    # steps.
    serial: int
    manifest: Manifest  # content of its manifest


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of a whole tensor, regardless of how it was sharded."""

    shape: tuple[int, ...]  # global shape
    dtype: str  # type in torch's notation, ``"float32"``


@dataclass(frozen=True)
class Saved:
    """A checkpoint that can be loaded."""

    path: Path  # folder of the checkpoint
    step: int  # number of optimizer steps
    epoch: int  # epoch in which it was saved
    metric: float | None  # quality of the model; None without a metric
    mode: str  # ``"max"`` if greater metrics are better, ``"min"`` if smaller ones are
    world_size: int  # number of ranks that wrote it
    time_ns: int  # time of the save, in nanoseconds since the epoch
    tensors: Mapping[str, TensorInfo]  # tensors by name
    objects: frozenset[str]  # names of all other entries
    files: Mapping[str, FileInfo]  # size and checksum of each file
    run: str = ""  # id of the training run


# Names


def committed_name(serial: int, step: int) -> str:
    """Return the name of a committed checkpoint's folder: ``00003-step-1200``."""
    return f"{serial:05d}-step-{step}"


def temporary_name(serial: int, step: int, *, token: str, pid: int, host: str) -> str:
    """Return the name of the folder before the commit, which includes the writing process."""
    return f".{committed_name(serial, step)}.{token}-{pid}-{host}"


def is_of_model(name: str) -> bool:
    """Return whether a checkpoint's entry belongs to a model."""
    return _OF_MODEL.match(name) is not None


def trash_name(name: str, *, token: str) -> str:
    """Return the name of a folder while its files are being deleted."""
    return f".trash-{name}.{token}"


def parse_committed(name: str) -> tuple[int, int] | None:
    """Return serial and step if ``name`` is a committed checkpoint's; else None."""
    match = _COMMITTED.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def is_temporary(name: str) -> bool:
    """Return whether ``name`` is an uncommitted checkpoint's."""
    return _TEMPORARY.fullmatch(name) is not None


def is_stale(name: str, *, host: str, is_alive: Callable[[int], bool], age_s: float) -> bool:
    """Return whether a folder was left by a dead run and may be deleted.

    For folders of other machines than ``host`` only the seconds since the last write decide.
    """
    if _TRASH.fullmatch(name):
        return True
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    return age_s > STALE_S or (match[2] == host and not is_alive(int(match[1])))


# The file


def dump(manifest: Manifest) -> str:
    """Return the manifest as the text of its file."""
    files = {
        name: {"bytes": file.num_bytes, "crc32": file.crc32}
        for name, file in sorted(manifest.files.items())
    }
    return json.dumps({"version": VERSION, **asdict(manifest), "files": files}, indent=1) + "\n"


def parse(text: str | bytes) -> Manifest:
    """Return the manifest in a file's text.

    Raises ValueError if the text is not a manifest, or its version is unknown.
    """
    try:
        content = json.loads(text)
        version = content["version"]
        if version != VERSION:
            raise ValueError(f"this paceline cannot read version {version} of the manifest")
        return Manifest(
            step=int(content["step"]),
            epoch=int(content["epoch"]),
            metric=None if content["metric"] is None else float(content["metric"]),
            mode=str(content["mode"]),
            world_size=int(content["world_size"]),
            time_ns=int(content["time_ns"]),
            torch=str(content["torch"]),
            files={
                name: FileInfo(int(file["bytes"]), int(file["crc32"]))
                for name, file in content["files"].items()
            },
            run=str(content["run"]),
            seconds=float(content.get("seconds", 0.0)),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from None


def clean_metric(metric: Any) -> float | None:
    """Return a metric as it is stored: a float, or None if it is not finite, as in JSON."""
    if metric is None:
        return None
    value = float(metric)
    return value if math.isfinite(value) else None


# Decisions


def choose_best(checkpoints: Iterable[Committed], mode: str, *, count: int = 1) -> list[Committed]:
    """Return the best ``count`` checkpoints by their metric, the best first.

    Checkpoints without a metric are never included. Of equals the later one comes first, because it
    was trained for longer.
    """
    sign = 1 if mode == "max" else -1

    def quality(checkpoint: Committed) -> tuple[float, int]:
        return sign * (checkpoint.manifest.metric or 0.0), checkpoint.serial

    measured = [one for one in checkpoints if one.manifest.metric is not None]
    return sorted(measured, key=quality, reverse=True)[:count]


def choose_doomed(
    checkpoints: Iterable[Committed], *, run: str, keep_last: int, keep_best: int
) -> list[Committed]:
    """Choose the checkpoints of a run to delete: all but the latest and the best, the oldest first.

    The best of each mode are kept: a loss, where less is better, is not compared with an accuracy.
    """
    of_run = [one for one in _by_age(checkpoints) if one.manifest.run == run]
    keep = {one.serial for one in of_run[-keep_last:]}
    for mode in MODES:
        of_mode = [one for one in of_run if one.manifest.mode == mode]
        keep |= {one.serial for one in choose_best(of_mode, mode, count=keep_best)}
    return [one for one in of_run if one.serial not in keep]


def find_best(checkpoints: Iterable[Committed]) -> Committed | None:
    """Return the latest run's best checkpoint, among those with the mode of its last metric."""
    by_age = _by_age(checkpoints)
    of_run = [one for one in by_age if one.manifest.run == by_age[-1].manifest.run]
    measured = [one for one in of_run if one.manifest.metric is not None]
    if not measured:
        return None
    mode = measured[-1].manifest.mode
    return choose_best([one for one in measured if one.manifest.mode == mode], mode)[0]


def _by_age(checkpoints: Iterable[Committed]) -> list[Committed]:
    """Return checkpoints in the order of their commits."""
    return sorted(checkpoints, key=lambda one: one.serial)


def compare(
    saved: Saved, here: Mapping[str, TensorInfo], beside: Collection[str] | None = None
) -> list[str]:
    """Return the differences between a checkpoint and the tensors that it is loaded into, by name.

    Types may differ: values are converted. ``beside`` names the models' other entries, of any
    shape; None if unknown.
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
        lines += [
            f"{name} is not in the checkpoint" for name in sorted(beside) if name not in entries
        ]
    present = {*here, *(beside or ())}
    extra = sorted(name for name in entries if is_of_model(name) and name not in present)
    return lines + [f"{entries[name]} is in the checkpoint only" for name in extra]


def _shape(tensor: TensorInfo) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def check_sizes(files: Mapping[str, FileInfo], sizes: Mapping[str, int | None]) -> list[str]:
    """Return what is wrong with the files in a folder."""
    lines = []
    for name, file in sorted(files.items()):
        size = sizes.get(name)
        if size is None:
            lines.append(f"{name} is missing")
        elif size != file.num_bytes:
            lines.append(f"{name} has {size} bytes instead of {file.num_bytes}")
    return lines
