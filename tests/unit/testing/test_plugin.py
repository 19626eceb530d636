"""Test sessions of users: what passes, and what a failure on a rank says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch  # noqa: F401  # else each session would import it again, which crashes

from paceline.testing import plugin

pytest_plugins = ("pytester",)

HEAD = """
import os
import time
import warnings

import pytest
import torch
import torch.distributed as dist


def total(value):
    tensor = torch.tensor([float(value)])
    dist.all_reduce(tensor)
    return tensor.item()


def train(num_steps=4):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(num_steps):
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
"""


class CommonRanks:
    """Lets the sessions of all tests here use the same ranks, which saves the imports of torch."""

    def __init__(self, pool):
        self._pool = pool

    def pytest_configure(self, config):
        config.stash[plugin._POOL] = self._pool

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self, config):
        del config.stash[plugin._POOL]


@pytest.fixture
def session(pytester, ranks):
    """Write a user's test file and run it; return pytest's result."""

    def run(text, *options):
        pytester.makepyfile(test_users=HEAD + text)
        switches = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:rerunfailures")
        common = CommonRanks(ranks)
        return pytester.runpytest_inprocess(*switches, *options, "-Wdefault", plugins=[common])

    return run


@pytest.mark.timeout(180)  # starts the ranks
def test_each_size_is_a_case_and_runs_on_so_many_ranks(session):
    result = session(
        """
@pytest.mark.ranks(1, 2, 3)
def test_sum(rank, world_size):
    assert dist.get_world_size() == world_size == int(os.environ["WORLD_SIZE"])
    assert dist.get_rank() == rank == int(os.environ["RANK"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert total(rank) == sum(range(world_size))
""",
        "-v",
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*test_sum?1-rank?*", "*test_sum?2-ranks?*", "*test_sum?3-ranks?*"]
    )


def test_the_rank_that_failed_is_shown_with_its_assertion_and_the_output_of_all(session):
    result = session(
        """
@pytest.mark.ranks(2)
def test_lists(rank):
    print("hello from", rank)
    values = [1, 2, rank]
    assert values == [1, 2, 0]
    dist.barrier()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2 failed:",
            ">*assert values == [[]1, 2, 0]",
            "E*assert [[]1, 2, 1] == [[]1, 2, 0]",
            "E*At index 2 diff: 1 != 0",
            "rank 0: lost its connection to a rank that had ended, in barrier #1 (*py:*)",
            "*Captured stdout of rank 0 call*",
            "hello from 0",
            "*Captured stdout of rank 1 call*",
            "hello from 1",
            "FAILED test_users.py::test_lists?2-ranks? - rank 1: assert*",
        ]
    )


def test_ranks_that_are_not_done_in_time_are_shown_with_their_stacks(session):
    result = session(
        """
@pytest.mark.ranks(2, timeout_s=6)
def test_never_ends(rank):
    if rank == 0:
        total(1)
    else:
        time.sleep(100)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "ranks 0-1 of 2 are not done after 6 s:",
            "*rank 0: not done: all_reduce, *py:*",
            "*rank 1: not done: time.sleep(100), *py:*",
            "stack of rank 0, innermost call last:",
            "*total(1)",
            "stack of rank 1, innermost call last:",
        ]
    )


def test_a_rank_that_ends_and_the_waits_of_others_do_not_take_the_timeout(session):
    began_s = time.monotonic()
    result = session(
        """
@pytest.mark.ranks(2, timeout_s=300, collective_timeout_s=300)
def test_exit(rank):
    if rank == 1:
        os._exit(3)
    total(1)

@pytest.mark.ranks(2, timeout_s=300)
def test_sleeper(rank):
    if rank == 1:
        raise ValueError("broken")
    time.sleep(300)
"""
    )
    assert time.monotonic() - began_s < 60
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2: its process has ended, exit status 3",
            "rank 0: lost its connection to a rank that had ended, in all_reduce #1 of 1 element (Float) (*py:*)",
            "rank 1 of 2 failed:",
            "E*ValueError: broken",
            "rank 0: not done: time.sleep(300), *py:*",
        ]
    )


def test_sizes_that_differ_between_ranks_are_named_first(session):
    result = session(
        """
@pytest.mark.ranks(2, collective_timeout_s=1)
def test_total(rank):
    dist.all_reduce(torch.ones(3 + rank))
    dist.barrier()
"""
    )
    said = "all_reduce #1 differs in size: 3 elements on rank 0, 4 elements on rank 1"
    result.stdout.fnmatch_lines([said, "*test_total*", "FAILED*all_reduce #1 differs*"])


def test_fixtures_run_in_the_test_process_and_their_values_are_sent(session):
    result = session(
        """
class Point:
    def __init__(self, x):
        self.x = x

@pytest.fixture
def point(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEN_BY_RANKS", "yes")
    monkeypatch.chdir(tmp_path)
    return Point(os.getpid())

class TestClass:
    def setup_method(self):
        self.ready = 3

    @pytest.mark.parametrize("function", [lambda x: x + 1])
    @pytest.mark.ranks(2)
    def test_all(self, function, point, tmp_path, monkeypatch, rank):
        assert (self.ready, function(1), os.environ["SEEN_BY_RANKS"]) == (3, 2, "yes")
        assert point.x != os.getpid()
        assert os.getcwd() == str(tmp_path)
        monkeypatch.setenv("OF_RANK", str(rank))
        (tmp_path / f"{rank}").write_text("")
        points = [None, None]
        dist.all_gather_object(points, Point(rank))
        assert [type(other) for other in points] == [Point, Point]
        assert sorted(os.listdir(tmp_path)) == ["0", "1"]

@pytest.mark.ranks(2)
def test_patches_are_undone():
    assert "OF_RANK" not in os.environ and "SEEN_BY_RANKS" not in os.environ
"""
    )
    result.assert_outcomes(passed=2)


def test_skip_and_xfail_mean_what_they_mean_elsewhere(session):
    result = session(
        """
@pytest.mark.ranks(2)
@pytest.mark.xfail(raises=ValueError, strict=True)
def test_expected():
    raise ValueError("broken")

@pytest.mark.ranks(2)
@pytest.mark.xfail(raises=ValueError)
def test_other():
    raise KeyError("broken")

@pytest.mark.ranks(2)
def test_skips():
    pytest.skip("not here")

@pytest.mark.skip
@pytest.mark.ranks(2)
def test_skipped():
    raise ValueError

@pytest.mark.ranks(2)
def test_imperative():
    pytest.xfail("known")
"""
    )
    result.assert_outcomes(xfailed=2, skipped=2, failed=1)


def test_fresh_ranks_know_nothing_of_other_tests(session):
    result = session(
        """
SEEN = []

@pytest.mark.ranks(2)
def test_leaves():
    SEEN.append(1)

@pytest.mark.ranks(2)
def test_finds():
    assert SEEN

@pytest.mark.ranks(2, fresh=True)
def test_fresh():
    assert not SEEN
"""
    )
    result.assert_outcomes(passed=3)


def test_without_a_group_the_code_under_test_makes_its_own(session):
    result = session(
        """
@pytest.mark.ranks(1, 2, group=False)
def test_env(world_size):
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    assert total(1) == world_size
"""
    )
    result.assert_outcomes(passed=2)


def test_warnings_of_ranks_are_errors_where_they_are_and_else_listed(session):
    result = session(
        """
@pytest.mark.ranks(2)
def test_listed():
    warnings.warn("of all ranks")

@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("error")
def test_error():
    warnings.warn("as an error")
"""
    )
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines(["ranks 0-1 of 2 failed:", "E*UserWarning: as an error"])


def test_injected_faults_are_met_by_the_other_ranks(session):
    result = session(
        """
@pytest.mark.ranks(2)
def test_dies(faults):
    faults.die(rank=1, step=2)
    with pytest.raises(RuntimeError):
        train()

@pytest.mark.ranks(2, collective_timeout_s=2)
def test_hangs(faults):
    faults.hang(rank=1)
    with pytest.raises(RuntimeError):
        train()

@pytest.mark.ranks(2)
def test_nan(faults, rank):
    faults.nan(rank=1, step=2)
    losses = torch.tensor(train())
    assert losses.isnan().tolist() == [False, rank == 1, True, True]

@pytest.mark.ranks(2)
def test_next_test_is_healthy():
    assert torch.tensor(train()).isfinite().all()

@pytest.mark.ranks(2)
def test_never_comes(faults):
    faults.die(rank=1, step=30)
    train()

@pytest.mark.ranks(2)
def test_unnoticed(faults, rank):
    faults.die(rank=1)
    assert rank == 1

def test_in_the_test_process(faults):
    faults.die(rank=0)
"""
    )
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines(
        [
            "E*faults.die(step=30) has not happened: after it this rank began 4 optimizer steps",
            "rank 0 of 2 failed:",
            "E*option-invalid: faults.die was called in the test process*",
        ]
    )


def test_the_same_numbers_pass_and_others_are_named(session):
    result = session(
        """
def losses(factor):
    return {"losses": [1.0, factor * dist.get_world_size()], "losses_of": "a"}

def nothing():
    pass

def test_same(same_at_any_size):
    assert len(same_at_any_size(train, num_steps=3)) == 3
    same_at_any_size(losses, 0.0)

def test_different(same_at_any_size):
    same_at_any_size(losses, 2.0)

def test_nothing(same_at_any_size):
    same_at_any_size(nothing)
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E*rank 0 of 2 differs from rank 0 of 1 in result[[]'losses'][[]1]: Scalars are not close!",
            "E*Absolute difference: 2.0*",
            "E*nothing returns None, so that nothing can be compared",
        ]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@pytest.mark.ranks()\ndef test_a(): pass", "*has no number of ranks*"),
        ("@pytest.mark.ranks(0)\ndef test_a(): pass", "*0 is not a number of ranks*"),
        ("@pytest.mark.ranks(2, timeout=3)\ndef test_a(): pass", "*no option timeout*"),
        ("@pytest.mark.ranks(2)\nasync def test_a(): pass", "*the test is asynchronous*"),
        ("@pytest.mark.ranks(2)\ndef test_a(capsys): pass", "*argument capsys*cannot be sent*"),
        ("def test_a(rank): pass", "*fixture rank belongs to tests with the mark*"),
        (
            "import unittest\n\n@pytest.mark.ranks(2)\nclass TestA(unittest.TestCase):\n"
            "    def test_a(self): pass",
            "*not to unittest*",
        ),
    ],
)
def test_misuse_is_a_finding_without_a_traceback(session, text, expected):
    result = session(text)
    assert result.ret != 0
    result.stdout.fnmatch_lines([expected])
    assert "plugin.py" not in result.stdout.str()
    assert "another exception" not in result.stdout.str()


def test_loading_the_plugin_imports_nothing_else():
    code = (
        "import sys, pytest; before = set(sys.modules); import paceline.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    own = [name for name in ended.stdout.split() if name.startswith("paceline")]
    package = ["paceline", "paceline.version"]  # the package itself, and its number
    assert own == sorted([*package, "paceline.testing", "paceline.testing.plugin"])
    assert "torch" not in ended.stdout.split()


def test_the_modules_of_an_installed_wheel_are_imported_without_rewriting(pytester, monkeypatch):
    """pytest marks all packages that the RECORD of a distribution with a plugin names."""
    wheel = pytester.mkdir("lib") / "paceline-0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline\nVersion: 0\n")
    (wheel / "RECORD").write_text("paceline/__init__.py,,\npaceline/testing/plugin.py,,\n")
    (wheel / "entry_points.txt").write_text("[pytest11]\npaceline = paceline.testing.plugin\n")
    package = Path(plugin.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{wheel.parent}{os.pathsep}{package}")
    pytester.makepyfile(
        """
        def test_loader():
            import paceline.errors

            assert type(paceline.errors.__loader__).__name__ == "SourceFileLoader"
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


@pytest.mark.timeout(180)  # imports torch twice: in pytest and in what forks the ranks
def test_ctrl_c_ends_the_ranks_and_says_where_they_were(pytester):
    """With processes of its own: what is left of them is looked for."""
    pytester.makepyfile(
        HEAD
        + """
@pytest.mark.ranks(2, timeout_s=300)
def test_sleeps(rank, request_file):
    (request_file / f"{rank}").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(300)

@pytest.fixture
def request_file():
    from pathlib import Path
    return Path(__file__).parent
"""
    )
    process = pytester.popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    files = [pytester.path / "0", pytester.path / "1"]
    deadline = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = {int(pid) for file in files for pid in file.read_text().split()}
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=50)[0].decode()
    assert process.returncode == 2
    assert "KeyboardInterrupt" in printed
    assert len(pids) == 3
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_ranks_know_the_marks_that_are_registered(session):
    # "slow" is registered in this project too, whose ranks these are
    result = session(
        "@pytest.mark.slow\n@pytest.mark.ranks(2)\ndef test_marked():\n    assert total(1) == 2\n",
        *("-o", "markers=slow: takes long", "-W", "error"),
    )
    result.assert_outcomes(passed=1)
