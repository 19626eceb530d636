"""Keep a copy of what a trial overwrites, so that its launcher can put it back.

``paceline tune``, ``bench``, ``verify`` and ``run --prove`` start a script to measure it. Before
the script overwrites, renames or deletes a file that is there, such as the checkpoint of a real
training, the file is copied; ``measure.files_as_before`` puts it back.

Python tells of each file that it opens, renames or removes (PEP 578). ``torch.save`` and
safetensors open files themselves, and are wrapped. What other libraries and programs write is not
seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline import env
from paceline.launch.in_rank.import_hook import when_imported
from paceline.text.wording import size

RECORDS = "records.jsonl"
_WRITES = os.O_WRONLY | os.O_RDWR
# The functions that write without Python's ``open``, and which argument is the path.
_WRITERS = (("torch", "save", "f"), ("safetensors.torch", "save_file", "filename"))
_NOT_THE_USERS = ("/dev/", "/proc/", "/sys/")


def install(
    folder: Path,  # for the copies; all ranks of all trials share it
) -> None:
    """Keep what this process and the processes that it forks overwrite."""
    ours = [env.read(name) for name in (env.KEPT_FILES, env.RUN_DIR, env.TUNE, env.PROOF)]
    ignored = [os.path.realpath(path) for path in ours if path]
    keeper = FileKeeper(folder, (*ignored, *_NOT_THE_USERS))
    sys.addaudithook(keeper.hear)
    for module, function, parameter in _WRITERS:
        when_imported(module, _wrapping(keeper, module, function, parameter))


class NoCopyError(OSError):
    """A file would be changed of which no copy can be kept."""


class FileKeeper:
    """Copies each file once, before this or another rank writes to it first."""

    def __init__(self, folder: Path, ignored: tuple[str, ...]) -> None:
        self._folder = folder
        self._ignored = ignored  # how paths begin that are not the user's
        self._seen: set[str] = set()

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Keep what an event of Python's is about to change.

        Raises NoCopyError if it cannot; of all other errors the script is spared.
        """
        with contextlib.suppress(TypeError, ValueError, FileNotFoundError, PermissionError):
            self._hear(event, args)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITES:
                self.keep(path)
        elif event == "os.truncate":
            self.keep(args[0])
        elif event == "os.remove":
            self._keep_entry(*args)
        elif event == "os.rename":
            source, target, source_folder, target_folder = args
            self._keep_entry(source, source_folder)
            self._keep_entry(target, target_folder)

    def keep(self, path: Any) -> None:
        """Keep the file that a path leads to."""
        if not isinstance(path, int):  # else an open file: what opened it was seen
            self._keep(os.path.realpath(os.fsdecode(path)))

    def _keep_entry(
        self,
        path: Any,  # where it is
        folder: int,  # descriptor of the folder that a relative path begins at; -1: this process's
    ) -> None:
        """Keep an entry of a folder: a file, a link, or all files of a folder in it."""
        name = os.fsdecode(path)
        if folder >= 0 and not os.path.isabs(name):
            name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
        place, entry = os.path.split(os.path.abspath(name))
        name = os.path.join(os.path.realpath(place), entry)
        self._keep(name)
        if os.path.isdir(name) and not os.path.islink(name):
            for inner, _, files in os.walk(name):
                for file in files:
                    self._keep(os.path.join(inner, file))

    def _keep(self, name: str) -> None:
        """Copy a file and note it, or note that it is new."""
        if name in self._seen or name.startswith(self._ignored) or name.endswith(".pyc"):
            return
        with self._only_one():
            known = records(self._folder)
            if name not in {record["path"] for record in known}:
                self._note(name, f"file-{len(known)}")
        self._seen.add(name)  # not before: another thread would write to it meanwhile

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        """Hold the lock of all ranks: none may write to a file while another copies it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _note(self, name: str, name_of_copy: str) -> None:
        copy = ""
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(name)
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
                return
            copy = name_of_copy
            try:
                shutil.copy2(name, self._folder / copy, follow_symlinks=False)
            except OSError as error:
                raise NoCopyError(
                    error.errno,
                    f"this trial would change {name} ({size(status.st_size)}), and no copy of it"
                    f" can be kept in {self._folder}: {error.strerror}; run it in a copy of this"
                    " folder",
                ) from None
        with (self._folder / RECORDS).open("a") as file:
            file.write(json.dumps({"path": name, "copy": copy}) + "\n")


def records(folder: Path) -> list[dict[str, str]]:
    """Return what was written: of each file its path and the name of its copy, empty if new."""
    try:
        lines = (folder / RECORDS).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [json.loads(line) for line in lines]


def _wrapping(keeper: FileKeeper, module: str, function: str, parameter: str) -> Callable[[], None]:
    def wrap() -> None:
        original = getattr(sys.modules[module], function)

        @functools.wraps(original)
        def writes(*args: Any, **kwargs: Any) -> Any:
            target = args[1] if len(args) > 1 else kwargs.get(parameter)
            if isinstance(target, str | os.PathLike):
                keeper.hear("open", (target, "wb", os.O_WRONLY))
            return original(*args, **kwargs)

        for place in (module, getattr(original, "__module__", module)):
            if getattr(sys.modules.get(place), function, None) is original:
                setattr(sys.modules[place], function, writes)

    return wrap
