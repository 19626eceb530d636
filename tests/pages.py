"""What stands in a page: its fenced blocks, which of them are to run, and how."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = re.compile(r"<!-- run(?:, exit (\d+))? -->")
WITH_EXAMPLES = re.compile(r"<!-- run with the examples(?:, exit (\d+))? -->")
IN_SLURM = re.compile(r"<!-- run in slurm(?:, exit (\d+))? -->")
SLOW = re.compile(r"<!-- run, slow(?:, exit (\d+))? -->")
CHECK = re.compile(r"<!-- check(?:, exit (\d+))? -->")  # of an exercise
MARK_OR_SLOW = re.compile(r"<!-- run(?:, slow)?(?:, exit (\d+))? -->")
BLOCK_S = 60


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str  # what stands behind the fence
    text: str
    line: int  # of its fence
    status: int | None  # that it is to have; None if it is not to run

    @property
    def file(self):
        """The file that it is, None if it has no name."""
        match = re.match(r"# file: (\S+)", self.text)
        return match[1] if match and self.language in ("python", "toml", "bash") else None

    @property
    def sides(self) -> tuple[str, str]:
        """What a diff has before and after it."""
        lines = self.text.splitlines()
        before, after = ([line[1:] for line in lines if line[0] in f"{sign} "] for sign in "-+")
        return "\n".join(before), "\n".join(after)

    @property
    def commands(self) -> list[str]:
        """Its lines without the prompt, and without the comment behind a command."""
        lines = self.text.splitlines()
        return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]


def replaced(text: str, words: Mapping[str, str]) -> str:
    """The text with other words where a reader types other ones."""
    for written, typed in words.items():
        text = text.replace(written, typed)
    return text


def blocks(text: str, mark: re.Pattern = MARK) -> Iterator[Block]:
    """The blocks of a page; a mark above one says that it is to run."""
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        fence = re.match(r"(```+)(\w*)", lines[place])
        if fence:
            end = next(i for i in range(place + 1, len(lines)) if lines[i].strip() == fence[1])
            found = mark.fullmatch(lines[place - 1].strip()) if place else None
            status = int(found[1] or 0) if found else None
            yield Block(fence[2], "\n".join(lines[place + 1 : end]) + "\n", place + 1, status)
            place = end
        place += 1


def run(
    block: Block,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    *,
    timeout_s: float = BLOCK_S,
) -> tuple[int, str]:
    """Run a block; return its exit status and what it printed."""
    if block.language == "python":
        (folder / "block.py").write_text(block.text)
        command = [sys.executable, block.file or "block.py"]
    elif block.language == "console":
        typed = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
        assert typed, "a console block has its commands after $"
        command = ["bash", "-ec", "\n".join(typed)]
    else:
        assert block.language == "bash", f"line {block.line}: {block.language} cannot be run"
        command = ["bash", "-ec", block.text]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ or surroundings(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # a launcher ends its ranks then
        output, _ = process.communicate()
        output += f"\nnot done after {timeout_s:g} s"
    return process.returncode, output


def surroundings() -> dict[str, str]:
    """The environment of a reader: this Python's commands first, no launcher's variables."""
    environ = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PET_", "OMP_", "SLURM_", "PACELINE_"))
    }
    return {**environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
