"""Make a bundle: the texts of a run, what is found in them, this machine and its versions, as one
redacted archive.
"""

from __future__ import annotations

import collections
import gzip
import io
import json
import os
import platform
import pwd
import socket
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import IO

from paceline import env
from paceline.diagnose import catalogue, doctor
from paceline.diagnose.bundle.redaction import Known, Redactor, labelled
from paceline.diagnose.explain import compressed, explain, reading
from paceline.diagnose.variables.setting import SECRET
from paceline.errors import PacelineError, SetupError, UsageError, option_invalid
from paceline.machine import software
from paceline.rundir.files import display_path, open_file
from paceline.text.secret_texts import is_secret

# What a bundle holds of a run: texts of its folder, of long ones the beginning and the end. Only
# files with the names of a run folder are read, no links, and nothing that is pickled.

# Of each file; a start-up and a traceback with its surroundings are shorter.
HEAD_BYTES, TAIL_BYTES = 32 << 10, 224 << 10
# Of all files together, before compression: trackers of issues take attachments of 10 MB and more.
TOTAL_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16

# The names that a run folder has, the most useful first.
NAMES = (
    "plan*.json",
    "training.json",
    "events*.jsonl",
    "job.json",
    "job.sh",
    "sweep.json",
    "speed.json",
    "ranks/rank-*.error.json",
    "ranks/rank-*.crash",
    "ranks/rank-*.stacks",
    "slurm.out",
    "local.out",
    "queue.out",
    "logs/launcher-*.out",
    "logs/nccl-ras.txt",
    "logs/rank-*.out",
    "speed.jsonl",
    "metrics.csv",
    "logs/rank-*.nccl",
    "lease.json",
    "local.json",
    "queue.json",
    "bench.json",
    "forecast.json",
    "ranks/rank-*.parameters.json",
    "logs/filtered_*.log",
)


@dataclass(frozen=True)
class BundlePart:
    """A text in a bundle."""

    name: str  # its name in the archive
    text: str  # its content, redacted when it is written
    num_bytes: int = 0  # size of the file that it comes from; 0 for a text that the bundle makes
    cut: bool = False  # whether the middle of the file is left out


@dataclass(frozen=True)
class LeftOut:
    """A file or folder that is not in a bundle."""

    name: str  # its name in the run folder
    reason: str  # why


def of_folder(folder: Path) -> tuple[list[BundlePart], list[LeftOut]]:
    """Return the texts of a run folder, and what is left out."""
    names = sorted(_names(folder), key=_place)
    parts, left_out = [], []
    space = TOTAL_BYTES
    for name in names:
        if not any(fnmatch(name, pattern) for pattern in NAMES):
            left_out.append(LeftOut(name, "not among the texts of a run folder"))
            continue
        part = _of_file(folder / name, name)
        if isinstance(part, LeftOut):
            left_out.append(part)
        elif len(part.text) > space:
            left_out.append(LeftOut(name, f"the bundle is full ({TOTAL_BYTES >> 20} MiB)"))
        else:
            space -= len(part.text)
            parts.append(part)
    return parts, left_out


def of_log(subject: str) -> BundlePart:
    """Return the text of a log file, decompressed if necessary."""
    with reading.open_subject(subject) as file, compressed.unpacked(file, subject) as stream:
        chunks = reading.chunks(stream, subject)
        return _part("log.txt", chunks, file if stream is file else None)


def _names(folder: Path) -> Iterator[str]:
    """Yield the files of a run folder and of its folders of texts; other folders as such."""
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.name in ("logs", "ranks"):
            yield from (f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path))
        else:
            yield f"{entry.name}/" if is_folder else entry.name


def _place(name: str) -> tuple[int, str]:
    places = [place for place, pattern in enumerate(NAMES) if fnmatch(name, pattern)]
    return (places[0] if places else len(NAMES)), name


def _of_file(path: Path, name: str) -> BundlePart | LeftOut:
    if path.is_symlink():  # it may lead anywhere
        return LeftOut(name, "a link")
    try:
        with open_file(path) as file:
            return _part(f"run/{name}", iter(lambda: file.read(_CHUNK_BYTES), b""), file)
    except OSError as error:
        return LeftOut(name, f"cannot be read: {(error.strerror or str(error)).lower()}")


def _part(name: str, chunks: Iterable[bytes], file: IO[bytes] | None) -> BundlePart:
    """Return a text as far as it fits: its beginning and its end, in whole lines.

    A secret that is cut in two is not recognized, so a line is kept whole or not at all. The middle
    of a file whose bytes are the chunks is not read.
    """
    recent: collections.deque[bytes] = collections.deque()
    head, num_tail, size = b"", 0, 0
    for chunk in chunks:
        size += len(chunk)
        missing = max(0, HEAD_BYTES - len(head))
        head += chunk[:missing]
        recent.append(chunk[missing:])
        num_tail += len(recent[-1])
        if file is not None and num_tail and (num_skipped := _skip_middle(file)):
            size, num_tail, file = size + num_skipped, 0, None
            recent.clear()
            continue
        while num_tail - len(recent[0]) >= TAIL_BYTES:
            num_tail -= len(recent.popleft())
    tail = b"".join(recent)
    if size == len(head) + len(tail) and len(tail) <= TAIL_BYTES:
        return BundlePart(name, _text(head + tail), size)
    head = head[: head.rfind(b"\n") + 1]
    tail = _after_first_line(tail[-TAIL_BYTES:])
    num_left_out = size - len(head) - len(tail)
    marker = f"\n[... {num_left_out:,} bytes are left out here ...]\n\n"
    return BundlePart(name, _text(head) + marker + _text(tail), size, cut=True)


def _skip_middle(file: IO[bytes]) -> int:
    """Go to the last bytes of a file, and return how many were skipped."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    num_skipped = (left - TAIL_BYTES) & ~1  # even, since a character of UTF-16 has two bytes
    file.seek(max(0, num_skipped), os.SEEK_CUR)
    return max(0, num_skipped)


def _after_first_line(data: bytes) -> bytes:
    _, newline, rest = data.partition(b"\n")
    return rest if newline else b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def listing(parts: Sequence[BundlePart], left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Yield lines that say what a bundle holds, and what not."""
    width = max((len(part.name) for part in parts), default=0)
    for part in parts:
        cut = f", of {part.num_bytes:,}" if part.cut else ""
        yield f"  {part.name:<{width}}  {len(part.text.encode()):,} bytes{cut}"
    if left_out:
        yield ""
        yield "Left out:"
    for item in left_out:
        yield f"  {item.name}: {item.reason}"


# What is known about this user and this host, and must not be in a bundle

_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER", "SLURM_JOB_USER")
_LEAST_FULL_NAME = 5


def known() -> Known:
    """Return the names of this user and host, and the secret values of the environment."""
    variables = env.snapshot()
    secrets = [
        value for name, value in variables.items() if SECRET.search(name) and is_secret(name, value)
    ]
    users = [variables.get(name, "") for name in _USER_VARIABLES]
    homes = [variables.get("HOME", "")]
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:  # in a container, whose users the machine does not know
        account = None
    if account is not None:
        full_name = account.pw_gecos.partition(",")[0]
        users += [account.pw_name, full_name if len(full_name) >= _LEAST_FULL_NAME else ""]
        homes.append(account.pw_dir)
    homes += [os.path.realpath(home) for home in homes if home]
    host = socket.gethostname()
    hosts = (host, host.partition(".")[0])
    return Known(
        tuple(filter(None, secrets)),
        tuple(filter(None, users)),
        tuple(home for home in homes if len(Path(home).parts) > 1),
        tuple(filter(None, hosts)),
    )


ROOT = "paceline-bundle"
SUFFIX = ".tar.gz"
EXAMPLE = "paceline explain --bundle paceline-runs/NAME"
_MODE = 0o600  # its reader decides who else may read it
# Packages whose versions matter in a report.
_PACKAGES = (
    "numpy",
    "click",
    "rich",
    "psutil",
    "nvidia-ml-py",
    "cloudpickle",
    "lightning",
    "pytorch-lightning",
    "accelerate",
    "transformers",
    "datasets",
    "deepspeed",
    "ray",
)


@dataclass(frozen=True)
class Bundle:
    """An archive that was written."""

    path: Path  # the archive
    num_bytes: int  # its size
    names: tuple[str, ...]  # the files in it
    left_out: tuple[LeftOut, ...]  # what is not in it
    replaced: tuple[str, ...]  # what was replaced in the texts, such as ``3 secrets``

    def summary(self) -> str:
        """Return what the archive holds, and what to do with it."""
        replaced = ", ".join(self.replaced) or "nothing"
        num_left_out = len(self.left_out)
        left_out = f"; {num_left_out} left out, see CONTENTS.txt" if num_left_out else ""
        return (
            f"{len(self.names)} files, {self.num_bytes / 1024:,.0f} KiB{left_out}\n"
            f"replaced by labels: {replaced}\n"
            "Read it before you attach it: what no rule recognizes is still in it.\n"
            f"  tar -xzOf {display_path(self.path)} | less"
        )


def bundle(
    subject: str,
    output: Path | None = None,  # ``paceline-bundle-NAME.tar.gz`` in this folder if None
) -> Bundle:
    """Write an archive of a run folder or a log file, to attach to a ticket."""
    if subject == "-":
        raise _invalid("a bundle is made of a file or a run folder, not of standard input")
    if not os.path.lexists(subject) and catalogue.find(subject) is not None:
        raise _invalid(f"{subject} is a finding; a bundle is made of a run folder or a log file")
    if not os.path.lexists(subject):
        what = f"there is no run folder and no log file {subject}"
        raise UsageError.of("input-unreadable", what, where="command line", fix=EXAMPLE)
    path = output if output is not None else _default_path(subject)
    if os.path.lexists(path):
        raise _invalid(f"{path} exists", fix=f"--output OTHER{SUFFIX}, or rm {path}")
    parts, left_out = _gather(subject)
    redactor = Redactor(known())
    redactor.learn(part.text for part in parts)
    redacted = [replace(part, text=redactor.redact(part.text)) for part in parts]
    items = [replace(item, name=redactor.redact(item.name)) for item in left_out]
    replaced = tuple(labelled(redactor.counts))
    redacted.insert(0, _contents(redacted, items, replaced))
    num_bytes = _write(path, redacted)
    names = tuple(part.name for part in redacted)
    return Bundle(path, num_bytes, names, tuple(items), replaced)


def _default_path(subject: str) -> Path:
    name = Path(subject).resolve().name.partition(".")[0] or "run"
    return Path(f"{ROOT}-{name}{SUFFIX}")


def _gather(subject: str) -> tuple[list[BundlePart], list[LeftOut]]:
    """Return all texts of a bundle as they are, and what is left out."""
    folder = Path(subject)
    texts, left_out = of_folder(folder) if folder.is_dir() else ([], [])
    if not texts:
        texts = [of_log(subject)]
    report = doctor.examine()
    answers = [
        _explanation(subject),
        BundlePart("doctor.txt", report.render()),
        BundlePart("doctor.json", json.dumps(report.to_json(), indent=1)),
        BundlePart("versions.txt", "\n".join(_versions())),
    ]
    return answers + texts, left_out


def _explanation(subject: str) -> BundlePart:
    """Return what ``paceline explain`` says, also of a run that has not ended."""
    try:
        text = explain(subject).render()
    except PacelineError as error:
        text = error.finding.render()
    return BundlePart("explain.txt", text)


def _versions() -> Iterator[str]:
    """Yield the versions that are installed here, which may not be where the run was."""
    for name, version in asdict(software.installed()).items():
        yield f"{name} {version or 'none'}"
    yield f"platform {platform.system()} {platform.release()} {platform.machine()}"
    yield f"libc {' '.join(platform.libc_ver())}"
    for package in _PACKAGES:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue


def _contents(
    parts: Sequence[BundlePart], left_out: Sequence[LeftOut], replaced: Sequence[str]
) -> BundlePart:
    lines = (
        "What this archive holds. explain.txt is the likely cause. doctor.* and versions.txt are",
        "of the machine on which the archive was made.",
        "",
        *listing(parts, left_out),
        "",
        "Replaced by labels, the same label for the same value:",
        f"  {', '.join(replaced) or 'nothing'}",
    )
    return BundlePart("CONTENTS.txt", "\n".join(lines))


def _write(path: Path, parts: Sequence[BundlePart]) -> int:
    """Write the archive and return its size; it names no user and no time."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for part in parts:
            data = part.text.rstrip("\n").encode() + b"\n"
            entry = tarfile.TarInfo(f"{ROOT}/{part.name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _MODE)
        with os.fdopen(handle, "wb") as file:
            file.write(buffer.getvalue())
    except OSError as error:
        raise SetupError.of(
            "folder-not-writable",
            f"{path} cannot be written: {(error.strerror or str(error)).lower()}",
            fix=f"--output FOLDER/{path.name}",
        ) from None
    return len(buffer.getvalue())


def _invalid(what: str, *, fix: str = EXAMPLE) -> UsageError:
    return option_invalid(what, fix=fix)
