"""What every test may rest on: nothing that it started outlives it."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from preloaded import TRAINING, PreloadedPython
from representative import names_of, representative_tests
from starting import inherited

CHECKOUT = Path(__file__).parents[1]
MODULE_MARKS = re.compile(r"^pytestmark = (\[.*?\]|[^\n]*)", re.M | re.S)
ENTRIES = pytest.StashKey[set[str]]()


def pytest_addoption(parser):
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="Write what is compared whole from what is found.",
    )


def pytest_ignore_collect(collection_path, config):
    """Leave out modules whose own marks ``-m`` excludes: each process would import transformers for nothing.

    Returns True for such a module, None for others, which pytest then decides on. Only ``not a and not b`` is read.
    """
    expression = config.option.markexpr
    if collection_path.suffix != ".py" or " or " in expression:
        return None
    marks = MODULE_MARKS.search(collection_path.read_text(encoding="utf-8"))
    excluded = re.findall(r"\bnot (\w+)", expression)
    named = re.findall(r"pytest\.mark\.(\w+)", marks[0]) if marks else []
    return True if set(named) & set(excluded) else None


def pytest_collection_modifyitems(items):
    chosen = representative_tests()
    for item in items:
        if not chosen.isdisjoint(names_of(item.nodeid)):
            item.add_marker("representative")
        if item.get_closest_marker("slurm"):
            # They share a cluster, so with --dist loadgroup they stay in one process.
            item.add_marker(pytest.mark.xdist_group("slurm"))
        # Most tests start processes and wait for them, on a machine that CI shares. Further tries are
        # listed in the summary.
        if os.environ.get("CI") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_configure(config):
    """Let Ctrl-C work as in a terminal, in tests and what they start: in the background of a script it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def entries() -> set[str]:
    """Return what the checkout holds; what begins with a dot is a cache of some program."""
    return {path.name for path in CHECKOUT.iterdir() if not path.name.startswith(".")}


def pytest_sessionstart(session):
    session.config.stash[ENTRIES] = entries()


def pytest_sessionfinish(session):
    """Fail a session whose tests have left something in the checkout, where the next one may find it."""
    if not hasattr(session.config, "workerinput") and left_in_checkout(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if left := left_in_checkout(config):
        terminalreporter.write_line(
            f"ERROR tests left in the checkout: {', '.join(left)}", red=True
        )


def left_in_checkout(config) -> list[str]:
    """Return what has come to the checkout since the session began."""
    return sorted(entries() - config.stash.get(ENTRIES, entries()) - {"__pycache__"})


@pytest.fixture(scope="session")
def preloaded():
    """A Python that has imported torch, from which commands are forked; it starts with the first of them."""
    python = PreloadedPython(inherited())
    yield python
    python.close()


@pytest.fixture(scope="session")
def preloaded_for_training():
    """The same with what an optimizer imports, for modules whose commands train."""
    python = PreloadedPython(inherited(), TRAINING)
    yield python
    python.close()


# Children that outlive a test on purpose: pools of ranks, what commands are forked from, the Slurm cluster of a
# session, of which a test may start a daemon again, and what multiprocessing starts once for a process.
SHARED_CHILDREN = (
    *(
        "paceline.testing.server",
        "tests/preloaded.py",
        "/slurmctld",
        "/slurmd",
        "/slurmstepd",
        "/munged",
    ),
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
)


def children() -> set[str]:
    """Return the process ids of this process's living children, without those that tests share; on Linux."""
    return {
        pid
        for file in Path("/proc/self/task").glob("*/children")
        for pid in read(file).split()
        if is_left(pid)
    }


def is_left(pid: str) -> bool:
    """Return whether a child lives and is none that tests share: of one that has ended there is no command line."""
    command = read(Path(f"/proc/{pid}/cmdline"))
    return bool(command) and not any(name in command for name in SHARED_CHILDREN)


def read(file: Path) -> str:
    """Return what the kernel says of a process or a thread, empty if it has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


@pytest.fixture(autouse=True)
def clean_surroundings():
    """Fail a test that leaves the environment, a thread or a child process behind."""
    if "paceline.train.session.run_folder" in sys.modules:
        sys.modules[
            "paceline.train.session.run_folder"
        ].reset()  # a test is what a process is to Sessions
    environ, threads, processes = dict(os.environ), set(threading.enumerate()), children()
    yield
    environ.pop("PYTEST_CURRENT_TEST", None)
    # torch sets the second one when it first needs it, in whichever test that is.
    ignored = {"PYTEST_CURRENT_TEST"} | ({"TORCHINDUCTOR_CACHE_DIR"} - set(environ))
    now = {name: value for name, value in os.environ.items() if name not in ignored}
    assert now == environ
    assert not [thread for thread in set(threading.enumerate()) - threads if not thread.daemon]
    assert children() <= processes
