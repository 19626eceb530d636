"""What is proven of a script's loss, kept beside the run folders for later runs of the script.

``paceline run --prove`` writes it, under a checksum of the script's text and its arguments: another
script, or other arguments, may have another loss. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.rundir.files import RUNS, read_json, write_whole

PROVEN, MIXES, NOT_JUDGED = "proven", "mixes-rows", "not-judged"
# The rank has begun a pass, and what it has written last is this: its script has ended in it.
UNDER_WAY = "under-way"
COMMAND = "paceline run --prove"


@dataclass(frozen=True)
class Proof:
    """What the proof of a script's loss has shown."""

    state: str  # one of the constants above
    reason: str = ""  # why it was not judged, or what differs
    error: float = 0.0  # largest relative difference between the whole and the mean of its parts
    is_double: bool = False  # whether it was computed in float64
    finding: dict[str, Any] | None = None  # the Finding, if rows are mixed

    @property
    def line(self) -> str:
        """The result as a part of the last line of a run."""
        if self.state == PROVEN:
            return f"loss: mean over rows, proven on the first batch ({self.error:.0e})"
        if self.state == MIXES:
            return f"loss: mixes rows, {self.reason}"
        return f"loss not judged: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return the proof as a dictionary for JSON."""
        return asdict(self)


def read_proof(
    script: str,  # as it was started, or the name of a module
    arguments: Sequence[str],
    *,
    folder: Path = RUNS,  # of the run folders
    text: str | None = None,  # of a script that is no file, as of a module
) -> Proof | None:
    """Return what was proven of a script as it is now; None if it was not asked."""
    return read_at(path_of(script, arguments, folder=folder, text=text))


def part_of_last_line(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return what is known of the loss of a script, as two arguments of ``agreement.last_line``."""
    proof = read_proof(script, arguments)
    if proof is None:
        return {"loss": f"loss not proven ({COMMAND})", "is_proven": None}
    return {"loss": proof.line, "is_proven": {PROVEN: True, MIXES: False}.get(proof.state)}


def read_at(path: Path) -> Proof | None:
    """Return the proof in a file; None without one that can be read."""
    try:
        return Proof(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None


def write(path: Path, proof: Proof) -> None:
    """Write a proof to a file, whose folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(proof.to_json()))


def path_of(
    script: str, arguments: Sequence[str], *, folder: Path = RUNS, text: str | None = None
) -> Path:
    """Return the file of a script's proof."""
    content = [str(Path(script)), _text_of(script) if text is None else text, *arguments]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    return folder / ".proofs" / f"{digest}.json"


def _text_of(script: str) -> str:
    try:
        return Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # a module, or a folder
