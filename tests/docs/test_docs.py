"""The pages: links resolve, generated pages are up to date, Python compiles, and what is marked runs.

A block runs if the line directly above its fence is ``<!-- run -->``, or ``<!-- run, exit 1 -->`` where that exit
status is right. The blocks of a page run in order, in one temporary folder. A Python block whose first line is
``# file: NAME`` is written to NAME there, marked or not; of a console block the lines after ``$`` are run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- run(?:, exit (\d+))? -->")
SKIPPED = {"runs", "dist"}  # hidden folders too
BLOCK_S = 60


def find_pages():
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name not in SKIPPED]
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


PAGES = {page.relative_to(ROOT).as_posix(): page for page in find_pages()}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: What stands behind the fence.
        text: What it says.
        line: Line of its fence.
        status: Exit status that it is to have; None if it is not to run.
    """

    language: str
    text: str
    line: int
    status: int | None

    @property
    def file(self):
        """The file that it is, None if it has no name."""
        match = re.match(r"# file: (\S+)", self.text)
        return match[1] if match and self.language == "python" else None


def blocks(text):
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        fence = re.match(r"(```+)(\w*)", lines[place])
        if fence:
            end = next(i for i in range(place + 1, len(lines)) if lines[i].strip() == fence[1])
            mark = MARK.fullmatch(lines[place - 1].strip()) if place else None
            status = int(mark[1] or 0) if mark else None
            yield Block(fence[2], "\n".join(lines[place + 1 : end]) + "\n", place + 1, status)
            place = end
        place += 1


def prose(text):
    """The text without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(text):
    """The anchors of a page's headings, made as GitHub makes them."""
    titles = re.findall(r"^#+ +(.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_are_pages():
    assert {"README.md", "docs/start.md", "docs/reference/options.md"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_resolves(name):
    page = PAGES[name]
    broken = []
    for target in re.findall(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        if not found.exists() or (anchor and anchor not in anchors(found.read_text())):
            broken.append(target)
    assert broken == []


def test_generated_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert reference.stale() == [], "run scripts/reference.py"


@pytest.mark.parametrize("name", PAGES)
def test_python_compiles(name):
    for block in blocks(PAGES[name].read_text()):
        if block.language == "python":
            compile(block.text, f"{name}:{block.line}", "exec", dont_inherit=True)


@pytest.mark.timeout(180)  # a page may have several blocks
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if MARK.search(page.read_text())])
def test_marked_blocks_run(name, tmp_path):
    for block in blocks(PAGES[name].read_text()):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if block.status is not None:
            status, output = run(block, tmp_path)
            assert status == block.status, f"{name}:{block.line} ended with {status}:\n{output}"


def run(block, folder):
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
        env=surroundings(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=BLOCK_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # a launcher ends its ranks then
        output, _ = process.communicate()
        output += f"\nnot done after {BLOCK_S} s"
    return process.returncode, output


def surroundings():
    """The environment of a reader: this Python's commands first, no launcher's variables."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "OMP_", "SLURM_", "PACELINE_"))}
    return {**environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
