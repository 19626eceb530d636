"""Collect the settings that NCCL and torch would read in this process: the environment and NCCL's
files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from paceline import env
from paceline.diagnose.variables.families import is_relevant
from paceline.diagnose.variables.setting import SECRET

SYSTEM_FILE = "/etc/nccl.conf"
USER_FILE = ".nccl.conf"
MOST_BYTES = 1 << 20  # NCCL_CONF_FILE may name anything, a device as well


def gather_settings(
    *, system_file: str = SYSTEM_FILE, home: Path | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the relevant variables and the places that set them, such as ``/etc/nccl.conf:3``.

    NCCL sets a variable from a file only if it is not set yet: the environment wins over the user's
    file, which wins over the system's. The user's file is that of NCCL_CONF_FILE, or else
    ``~/.nccl.conf``. The value of a variable that sounds like a secret is ``...``.
    """
    settings = {name: value for name, value in env.snapshot().items() if is_relevant(name)}
    where: dict[str, str] = {}
    named = settings.get("NCCL_CONF_FILE")
    user_file = Path(named) if named else (home or _home()) / USER_FILE
    for path in (user_file, Path(system_file)):
        for line, name, value in parse_file(_read(path)):
            if name not in settings:
                settings[name] = value
                where[name] = f"{path}:{line}"
    return {
        name: "..." if SECRET.search(name) else value for name, value in settings.items()
    }, where


def parse_file(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and value of a file of NCCL, as NCCL reads it.

    A line that begins with ``#`` is a comment, a line without ``=`` is ignored, and nothing is
    trimmed: blanks, quotes and a comment behind the value belong to the name or the value.
    """
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield number, name, value


def _home() -> Path:
    """Return the home from the password file, which NCCL uses instead of $HOME."""
    try:
        import pwd  # not on Windows

        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):  # no such user, in a container
        return Path("/nonexistent")


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES)
    except (OSError, ValueError):
        return ""
