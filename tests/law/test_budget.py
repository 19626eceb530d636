"""A file that passes five hundred lines holds more than one idea, a tree that grows pays for it; answers are quick."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from representative import representative_tests

LIMIT = 500
LINES = {"src": 112_000, "tests": 79_998}  # what grows is paid for by what goes
ANSWER_S = 0.3
JOB = str(Path(__file__).parents[1] / "codes" / "download-on-every-rank" / "yes.sbatch")
PROFILE = str(Path(__file__).parents[2] / "examples" / "profiles" / "two-sockets.toml")


def test_no_file_is_too_long(sources):
    assert {
        source.path: lines for source in sources if (lines := len(source.text.splitlines())) > LIMIT
    } == {}


@pytest.mark.parametrize("folder", LINES)
def test_the_tree_does_not_grow(folder):
    files = (Path(__file__).parents[2] / folder).rglob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert lines <= LINES[folder]


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
