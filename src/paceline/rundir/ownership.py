"""Decide whether a file that was found may be run, unpickled or put into a job script.

A file that the user names is trusted. One that was found, in a folder above or by the number of a
job, may have been put there by anybody: it counts only if this user or root owns it and nobody else
may write it, as for git's ``safe.directory``. Whoever only reads asks nothing here.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from paceline.errors import Finding, UsageError
from paceline.text.quoting import printable


def require(path: Path, *, fix: str, trusts_group: bool = False) -> None:
    """Refuse a file or folder that was found and that others own or may write.

    A file is judged with its folder. ``fix`` names it explicitly. With ``trusts_group`` its group
    may write it, as in the folder of a project.
    """
    finding = judge(path, fix=fix, trusts_group=trusts_group)
    if finding is not None:
        raise UsageError(finding)


def judge(path: Path, *, fix: str = "", trusts_group: bool = False) -> Finding | None:
    """Return why ``require`` refuses a file or folder, None if it does not."""
    for place in (path,) if path.is_dir() else (path, path.parent):
        try:
            status = place.stat()
        except OSError:
            continue  # whoever reads it says why
        if doubt := _doubt(status, trusts_group):
            mode, owner = stat.filemode(status.st_mode), _user(status.st_uid)
            return Finding(
                "dubious-ownership",
                printable(f"{path} was found, and is not trusted: {doubt}"),
                where=printable(str(place)),
                evidence=(f"owner {owner} ({status.st_uid}), mode {mode}",),
                why="what it says is run as you; a path that you name yourself is trusted",
                fix=printable(fix),
            )
    return None


def _doubt(status: os.stat_result, trusts_group: bool) -> str:
    """Return why others can have written a file or changed a folder, empty if they cannot."""
    if status.st_uid not in (0, os.geteuid()):
        return "another user owns it"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""  # what is in it can be replaced by its owner only
    if status.st_mode & stat.S_IWOTH:
        return "every user may write there"
    if status.st_mode & stat.S_IWGRP and not trusts_group and not _is_private(status.st_gid):
        return "its group may write there"
    return ""


def _is_private(gid: int) -> bool:
    """Return whether a group is this user's alone, as where the umask is 0002, or root's."""
    user = _user(os.geteuid())
    try:
        group = grp.getgrgid(gid)
    except KeyError:  # a container without names
        return gid == os.geteuid()
    return gid == 0 or (group.gr_name == user and not {*group.gr_mem} - {user})


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "unknown"
