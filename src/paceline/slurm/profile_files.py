"""Find and read profiles: a path as typed, else one of the project, else one of the user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from paceline import env
from paceline.errors import Finding, UsageError, closest
from paceline.rundir import ownership
from paceline.rundir.files import EARLIER_RUNS, RUNS
from paceline.slurm import profile
from paceline.slurm.profile import Profile
from paceline.text.quoting import word
from paceline.text.wording import few


def load(name: str) -> Profile:
    """Return the profile of a name.

    Raises UsageError if the profile does not exist, or is invalid.
    """
    return read(find(name), name)


def read(path: Path, name: str) -> Profile:
    """Return the profile of a file.

    Raises UsageError if the file cannot be read, or the profile is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise UsageError.of(
            "profile-invalid", f"the profile cannot be read: {why}", where=str(path)
        ) from None
    return profile.read(text, name=name, path=str(path), environ=env.snapshot())


def run_folders() -> list[Path]:
    """Return the parents of run folders: in the current folder, then those that profiles name."""
    folders = [RUNS, EARLIER_RUNS]
    for path in (path for folder in _folders() for path in sorted(folder.glob("*.toml"))):
        # another cluster's profile may name variables that are not set here
        with contextlib.suppress(UsageError):
            runs = read(path, path.stem).runs
            folders += [Path(runs)] if runs else []
    return list(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def find(name: str) -> Path:
    """Return the file of a profile.

    Raises UsageError if there is no such file, or others own or may write the one that was found.
    """
    if name.endswith(".toml") or "/" in name:
        path = Path(os.path.expanduser(name))
        if path.is_file():
            return path
        near = closest(path.name, [file.name for file in path.parent.glob("*.toml")])
        fix = f"--profile {path.parent / near}" if near else f"ls {path.parent}"
        raise UsageError.of(
            "profile-invalid", f"there is no file {name}", where="command line", fix=fix
        )
    folders = list(_folders())
    for folder in folders:
        path = folder / f"{name}.toml"
        if path.is_file():
            is_of_user = folder == folders[-1]  # a home folder keeps the group out
            ownership.require(path, fix=f"--profile {word(str(path))}", trusts_group=is_of_user)
            return path
    raise UsageError(_unknown(name, folders))


def _folders() -> Iterator[Path]:
    """Return the folders that may hold profiles, the nearest first."""
    here = Path.cwd()
    yield from (parent / ".paceline" / "profiles" for parent in (here, *here.parents))
    home = env.read(env.CONFIG_HOME) or os.path.expanduser("~/.config")
    yield Path(home) / "paceline" / "profiles"


def _unknown(name: str, folders: list[Path]) -> Finding:
    existing = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    near = closest(name, existing)
    own, user = folders[0], folders[-1]
    return Finding(
        "profile-invalid",
        f"there is no profile {name}",
        where="command line",
        evidence=(
            f"looked for {name}.toml in {own} and the same of the folders above, and in {user}",
            f"profiles there: {few(existing, 8)}" if existing else "there are no profiles there",
        ),
        fix=(
            f"--profile {near}"
            if near
            else f"write {user / f'{name}.toml'}, or give a path that ends in .toml"
        ),
    )
