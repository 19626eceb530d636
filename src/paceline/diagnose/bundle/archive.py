"""Make a bundle: the texts of a run, what is found in them, this machine and its versions, as one
redacted archive.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.diagnose import catalogue, doctor
from paceline.diagnose.bundle import contents
from paceline.diagnose.bundle.contents import LeftOut, Part
from paceline.diagnose.bundle.known import known
from paceline.diagnose.bundle.redaction import Redactor, labelled
from paceline.diagnose.explain import explain
from paceline.errors import PacelineError, SetupError, UsageError, option_invalid
from paceline.machine import software
from paceline.rundir.files import display_path

ROOT = "paceline-bundle"
SUFFIX = ".tar.gz"
EXAMPLE = "paceline explain --bundle paceline-runs/NAME"
_MODE = 0o600  # its reader decides who else may read it
# Packages whose versions matter in a report.
_PACKAGES = (
    *("numpy", "click", "rich", "psutil", "nvidia-ml-py", "cloudpickle", "lightning"),
    *("pytorch-lightning", "accelerate", "transformers", "datasets", "deepspeed", "ray"),
)


@dataclass(frozen=True)
class Bundle:
    """An archive that was written."""

    path: Path  # the archive
    num_bytes: int  # its size
    names: tuple[str, ...]  # the files in it
    left_out: tuple[LeftOut, ...]  # what is not in it
    replaced: tuple[str, ...]  # what was replaced in the texts, such as ``3 secrets``

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        values = asdict(self)
        return {**values, "path": str(self.path)}

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


def _gather(subject: str) -> tuple[list[Part], list[LeftOut]]:
    """Return all texts of a bundle as they are, and what is left out."""
    folder = Path(subject)
    texts, left_out = contents.of_folder(folder) if folder.is_dir() else ([], [])
    if not texts:
        texts = [contents.of_log(subject)]
    report = doctor.examine()
    answers = [
        _explanation(subject),
        Part("doctor.txt", report.render()),
        Part("doctor.json", json.dumps(report.to_json(), indent=1)),
        Part("versions.txt", "\n".join(_versions())),
    ]
    return answers + texts, left_out


def _explanation(subject: str) -> Part:
    """Return what ``paceline explain`` says, also of a run that has not ended."""
    try:
        text = explain(subject).render()
    except PacelineError as error:
        text = error.finding.render()
    return Part("explain.txt", text)


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


def _contents(parts: Sequence[Part], left_out: Sequence[LeftOut], replaced: Sequence[str]) -> Part:
    lines = (
        "What this archive holds. explain.txt is the likely cause. doctor.* and versions.txt are",
        "of the machine on which the archive was made.",
        "",
        *contents.listing(parts, left_out),
        "",
        "Replaced by labels, the same label for the same value:",
        f"  {', '.join(replaced) or 'nothing'}",
    )
    return Part("CONTENTS.txt", "\n".join(lines))


def _write(path: Path, parts: Sequence[Part]) -> int:
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
