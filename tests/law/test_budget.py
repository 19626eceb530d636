"""A long file holds more than one idea, a tree that grows pays for it, and answers are quick."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from representative import representative_tests

LIMIT = 900
ROOT = Path(__file__).parents[2]
# The most lines of text below each folder: a table or a page weighs as much as code.
WEIGHT = ROOT / "docs" / "weight" / "limit.txt"
TEXT = {".py", ".toml", ".txt", ".json", ".md", ".sh", ".cpp", ".h", ".sbatch", ".yaml", ".yml"}
ANSWER_S = 0.3
JOB = str(Path(__file__).parents[1] / "codes" / "download-on-every-rank" / "yes.sbatch")
PROFILE = str(ROOT / "examples" / "profiles" / "two-sockets.toml")


def test_no_file_is_too_long(sources):
    assert {
        source.path: lines for source in sources if (lines := len(source.text.splitlines())) > LIMIT
    } == {}


def test_the_tree_does_not_grow():
    rows = [line.split() for line in WEIGHT.read_text().splitlines() if line[:1] != "#"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [ROOT / name for name in listed.stdout.splitlines()]
    texts = [file for file in files if file.suffix in TEXT and file.is_file()]
    for folder, limit in rows:
        inside = [file for file in texts if ROOT / folder in file.parents]
        assert sum(file.read_bytes().count(b"\n") for file in inside) <= int(limit), folder


def processor_s(*command):
    """The time that a command needs of a CPU: what else this machine does is not part of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert "Traceback" not in ended.stderr, ended.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.alone
@pytest.mark.parametrize(
    "words",
    [
        ["explain", "NET001"],
        ["explain", "nonsense"],
        ["lint", __file__],
        ["lint", JOB],
        ["lint", "no-such-file.py"],
        ["lint", "--all"],
        [
            "submit",
            "--dry-run",
            "--nodes",
            "2",
            "--profile",
            PROFILE,
            "--sbatch",
            "--constraint=a100",
            __file__,
        ],
        ["submit", "--nodes", "two", __file__],
        ["forecast", "no-such-run"],
    ],
    ids=lambda words: " ".join(words[:4]),
)
def test_what_needs_no_run_answers_at_once(words):
    command = [sys.executable, "-m", "paceline", *words]
    took = []
    for _ in range(
        8
    ):  # what runs on the same core beside it makes a command need more of the processor too
        took.append(processor_s(*command))
        if took[-1] <= ANSWER_S:
            return
        time.sleep(1.0)
    raise AssertionError(f"{took} s")


def test_every_line_of_representative_names_a_test():
    """A test that was renamed would silently leave CI."""
    for line in representative_tests():
        path, _, function = line.partition("[")[0].partition("::")
        assert f"def {function}" in Path(path).read_text(), line
