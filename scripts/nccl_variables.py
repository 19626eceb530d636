"""Writes which NCCL reads which variable into src/paceline/diagnose/variables/nccl.json.

    python scripts/nccl_variables.py [VERSION ...]
    python scripts/nccl_variables.py --strings FOLDER

The versions of the table are looked at again, and VERSION too. With --strings the files
FOLDER/strings-VERSION.txt are read, and nothing is downloaded.

Each version's wheel is downloaded with pip (150 to 400 MB, one at a time, removed afterwards), and
the names are read from libnccl.so.2: the library holds every name that it asks the environment for
as a string. ``since`` and ``until`` of a variable are the first and the last version that has it.
Everything else in the table (``kind``, ``default``, ``meaning``, ``values``, ``low``, ``high``, and
a ``since`` older than the oldest version looked at) is written by hand from NCCL's env.rst and its
source, and this script keeps it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src" / "paceline" / "diagnose" / "variables" / "nccl.json"
# A name ends its string: it may be glued to what lies before it in memory.
NAME = re.compile(rb"NCCL_[A-Z0-9_]+(?=\x00)")
# Names of enumerations, subsystems and messages that the library holds as strings too.
NOT_VARIABLES = re.compile(
    r"NCCL_(ALL|ALLOC|ALLOC_HOST|BOOTSTRAP|CALL|COLL|DESTROY|ENV|GRAPH|INIT|NVLS|P2P|PROFILE|PROXY|RAS|REG|SHM|TUNING|"
    r"SIGNAL(_NONE)?|LOG_\w+|PARAM_(FLAG|TYPE)_\w+|NET_DEVICE_\w+|NET_MERGE_POLICY_(ALL|RAIL)|GIN_TYPE_\w+|"
    r"GIN_CONNECTION_(NONE|FULL|RAIL)|GIN_MAX_TYPES|CFT|CFT_(NONE|MULTIMEM|TEAM_\w+)|CRYPT_\w+|ENCRYPTION_MODE_\w+|"
    r"IB_RAIL_POLICY_\w+|IPC_(COLLECTIVE|SENDRECV)|(COLLNET_|IPC_|NVLS_)REG_BUFFER|REGULAR_BUFFER|REG_BUFFER_NUM|"
    r"PROFILER_THREAD_\w+|DEV_WORK_BATCH_\w+|SYMK_\w+|\w+_DEFAULT|NCCL_\w+|CTA_POLICY_\w+|\w+_INITIALIZER|IB_MLX_\w+)"
)


def names_of(version: str) -> set[str]:
    """Return the names of variables in the libnccl of a version, from the wheel for the newest
    CUDA that has it.
    """
    with tempfile.TemporaryDirectory() as folder:
        for cuda in ("cu13", "cu12", "cu11"):
            if _download(f"nvidia-nccl-{cuda}=={version}", folder):
                (wheel,) = Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    return _names(archive.read("nvidia/nccl/lib/libnccl.so.2"))
    raise SystemExit(f"no wheel of NCCL {version} was found")


def names_in(folder: Path) -> dict[str, set[str]]:
    """Return the names of variables of each version from files that ``strings`` made."""
    found = {}
    for path in folder.glob("strings-*.txt"):
        text = path.read_bytes().replace(b"\n", b"\x00") + b"\x00"
        found[path.stem.removeprefix("strings-")] = _names(text)
    return found


def update(table: dict[str, Any], found: dict[str, set[str]]) -> dict[str, Any]:
    """Return the table with ``since`` and ``until`` from what was found in the versions."""
    versions = sorted(found, key=_key)
    entries = dict(table.get("variables", {}))
    for name in sorted(set().union(*found.values())):
        having = [version for version in versions if name in found[version]]
        entry = {key: value for key, value in entries.get(name, {}).items() if key != "until"}
        if having[0] == versions[0]:
            entry = {"since": "", **entry}  # older than what we looked at; a hand-written one stays
        else:
            entry = {**entry, "since": _older(entry.get("since"), having[0])}
        if having[-1] != versions[-1]:
            entry["until"] = having[-1]
        entries[name] = {key: value for key, value in entry.items() if value != ""}
    return {"versions": versions, "variables": dict(sorted(entries.items()))}


def render(table: dict[str, Any]) -> str:
    """Return the table as JSON with one variable in each line."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in table["variables"].items()
    ]
    body = ",\n".join(lines)
    return f'{{"versions": {json.dumps(table["versions"])},\n "variables": {{\n{body}\n }}}}\n'


def _download(requirement: str, folder: str) -> bool:
    command = [
        "-q",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary=:all:",
        "-d",
        folder,
        requirement,
    ]
    pip = [sys.executable, "-m", "pip", "download", *command]
    return subprocess.run(pip, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _names(library: bytes) -> set[str]:
    names = {match.decode() for match in NAME.findall(library)}
    return {name for name in names if not NOT_VARIABLES.fullmatch(name) and not name.endswith("_")}


def _older(documented: str | None, seen: str) -> str:
    return min(documented, seen, key=_key) if documented else seen


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def main(words: Iterable[str]) -> int:
    """Update the table."""
    words = list(words)
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    if words[:1] == ["--strings"]:
        found = names_in(Path(words[1]))
    else:
        found = {version: names_of(version) for version in {*table.get("versions", []), *words}}
    TABLE.write_text(render(update(table, found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
